"""Studies of programs in unusual number formats come to their end; what cannot be compared is a failed trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import TrialResult, TrialStatus
from autotune.model.spec import StudySpec
from harness.simulated_machine import SimulatedWorker
from tests.runs import Noting, Run, replay_study

FIRST = (("fast", FlagSet({"xla_a": 1})), ("other", FlagSet({"xla_b": 1})))


def speaking(spec: StudySpec, every: dict[str, Any], some: dict[str, Any] | None = None) -> Noting:
    """Workers that name their formats: one for all, another for those with a setting."""

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        update = {**every, **(some if some and "xla_a" in settings else {})}
        worker.report = worker.report.model_copy(update=update)

    return Noting(spec, after=after)


@pytest.mark.parametrize(
    "dtype",
    [
        "float8_e4m3fn/float8_e5m2",
        "nanoo_fp8",
        *(pytest.param(d, marks=pytest.mark.gate) for d in ("float4_e2m1fn", "bf16", "int8/bfloat16")),
    ],
)
def test_a_study_in_a_narrow_format_comes_to_its_end(run_replay: Run, dtype: str) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9})
    launcher = speaking(spec, {"dtype": dtype, "loss_dtype": "bfloat16", "norm_dtype": "float8_e5m2"})
    conclusion, store, _ = run_replay(spec, trials=2, launcher=launcher, first=FIRST)
    assert {r.status for r in store.of(TrialResult)} == {TrialStatus.MEASURED}
    assert conclusion.settings == FlagSet({"xla_a": "1"})


def test_a_wrong_loss_in_a_narrow_format_is_still_wrong(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, failures={"xla_a=1": "wrong_loss"})  # half as much again
    launcher = speaking(spec, {"dtype": "float8_e5m2", "loss_dtype": "bfloat16"})
    _, store, _ = run_replay(spec, trials=2, launcher=launcher, first=FIRST)
    wrong = [r for r in store.of(TrialResult) if r.settings.get("xla_a") == "1"]
    assert wrong
    assert {r.failure.kind for r in wrong if r.failure} == {FailureKind.WRONG_LOSS}


def test_a_set_whose_format_has_no_rounding_is_a_failed_trial(run_replay: Run) -> None:
    spec = replay_study(effects={"xla_b=1": 0.9})
    _, store, _ = run_replay(spec, trials=2, first=FIRST, launcher=speaking(spec, {}, {"loss_dtype": "int32"}))
    failed = [r for r in store.of(TrialResult) if r.failure is not None]
    assert failed
    assert all("xla_a" in r.settings for r in failed)
    assert all(r.failure and "an integer has no rounding" in r.failure.message for r in failed)


def test_a_reference_whose_format_nobody_knows_ends_the_study_with_advice(run_replay: Run) -> None:
    spec = replay_study()
    with pytest.raises(LaunchError, match=r"arithmetic .*'quantized'.*name the one in which the loss is computed"):
        run_replay(spec, launcher=speaking(spec, {"dtype": "quantized"}))
