"""Options on real processes: what honest trainers of a real step do passes, and what a wrong one does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.environment import caller_environment
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import AaTask, AnyTask, Assignment, SoakTask, TrialTask
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, LossBasis, log_ratio
from autotune.model.options import option_sets
from autotune.model.records import AaRecord, SoakRecord, TrialConfig, TrialResult
from autotune.model.spec import parse_study
from autotune.rundir.store import Folders
from autotune.stats.estimates import estimate_pairs
from autotune.workers.local import LocalLauncher
from tests.runs import Told, there

OPTIONS = {
    "batch": [4, 8],
    "accumulate": [1, 2],
    "dtype": ["float32", "bfloat16"],
    "remat": ["none", "full"],
    "learning_rate": [3e-4, 3e-3],
}
SPEC = parse_study(
    {
        "name": "options",
        "workload": {
            "entry": "llama-tiny",
            "options": {"mesh": {"data": 1}, "layers": 1, "batch": 4, "dtype": "float32"},
        },
        "search": {"options": OPTIONS},
        "measure": {"pairs_cap": 6, "block_s": 0.01, "start_limit_s": 170, "run_steps": 10},
        "confirm": {"loss_tolerance": 0.2},
    }
)


class Lane:
    """A runner of real processes in a folder."""

    def __init__(self, folder: Path) -> None:
        launcher = LocalLauncher(SPEC, study_dir=str(folder), base=caller_environment())
        self.sink = Told()
        self.runner = TaskRunner(SPEC, Folders(folder), launcher, self.sink)
        self.told: dict[str, Any] = {}

    def do(self, task: AnyTask, name: str) -> Any:
        return self.runner.do(Assignment(task=task, folder=(name,), name=name, **self.told))

    def trial(self, **options: Any) -> TrialResult:
        config = TrialConfig(number=1, settings=FlagSet(option_sets(options)), origin="test")
        found = self.do(TrialTask(config=config), "-".join(options))
        assert isinstance(found, TrialResult)
        return found

    def soak(self, basis: LossBasis, **options: Any) -> SoakRecord:
        settings = FlagSet(option_sets(options))
        task = SoakTask(settings=settings, least_s=0.1, least_steps=120, basis=basis)
        found = self.do(task, f"soak-{'-'.join(options)}")
        assert isinstance(found, SoakRecord)
        return found


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    opened = Lane(tmp_path)
    yield opened
    opened.runner.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_real_options_do_to_work_and_first_losses(lane: Lane) -> None:
    aa_run = lane.do(AaTask(), "aa_run")
    assert isinstance(aa_run, AaRecord)
    assert aa_run.loss_spread.is_rounded
    assert aa_run.loss_spread.seen(9) < 1e-3
    lane.told = {"aa_run": aa_run}
    for found in (lane.trial(accumulate=2), lane.trial(remat="full")):
        assert found.failure is None, found.failure
        assert found.loss is not None
        assert (found.loss.basis, found.loss.is_ok) == (LossBasis.ROUNDING, True)
    wrong = lane.trial(learning_rate=3e-3)
    assert there(wrong.failure).kind is FailureKind.WRONG_LOSS
    half = lane.trial(dtype="bfloat16")
    assert half.failure is None, half.failure
    assert there(half.loss).basis is LossBasis.DTYPE
    lane.sink.pairs.clear()
    big = lane.trial(batch=8)
    assert big.failure is None, big.failure
    assert big.loss is not None
    assert (big.loss.basis, big.loss.is_ok) == (LossBasis.WORK, True)
    assert big.comparison is not None
    assert big.comparison.work_ratio == 2.0
    raw = estimate_pairs([log_ratio(p) for p in lane.sink.pairs]).ratio
    assert big.comparison.estimate.ratio == pytest.approx(raw / 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_a_soak_says_of_real_options(lane: Lane) -> None:
    for soak in (lane.soak(LossBasis.DTYPE, dtype="bfloat16"), lane.soak(LossBasis.WORK, batch=8)):
        assert soak.failure is None, soak.failure
        assert soak.loss is not None
        assert soak.loss.is_ok, soak.loss
    wrong = lane.soak(LossBasis.DTYPE, learning_rate=3e-3)
    assert there(wrong.failure).kind is FailureKind.WRONG_LOSS
