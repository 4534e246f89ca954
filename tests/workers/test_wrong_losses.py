"""Whole studies on real processes, with wrong losses planted: none is exported, and each is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import AutotuneError, LaunchError
from autotune.model.measurement import LOSS_NOT_CHECKED, FailureKind
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.results.export import render_winner
from autotune.results.winner import require_loss, winner_of
from autotune.rundir.store import Store
from tests.runs import there
from tests.tables import toml_beside
from tests.workers.conftest import command, whole_study

FLAG = {"xla_cpu_enable_fast_min_max": True}
MEASURE = {"pairs_cap": 8, "block_s": 0.01, "start_limit_s": 170}
SEARCH = {
    "trials": 1,
    "settings": {"xla_cpu_enable_fast_min_max": [False, True]},
    "first": [{"name": "planted", "settings": FLAG}],
}


def run(tmp_path: Path, workload: dict[str, Any], **measure: Any) -> tuple[ConclusionRecord, Store]:
    """A study of one set, which is faster than the reference and planted."""
    return whole_study(tmp_path, workload, search=SEARCH, measure={**MEASURE, **measure})


def hooked(fault: str) -> dict[str, Any]:
    return command(fault, program="loss_liar.py", hook=True)


def refused(store: Store) -> str:
    """What the one trial failed of; nothing of the run can be exported."""
    (trial,) = store.of(TrialResult)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.WRONG_LOSS, trial.failure
    with pytest.raises(AutotuneError, match="proven winner"):
        winner_of(store, even_unjudged=True)
    return trial.failure.message


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "quantity"),
    [
        pytest.param("late", "loss", marks=pytest.mark.gate),
        pytest.param("norm", "gradient norm", marks=pytest.mark.slow),
    ],
)
def test_what_goes_wrong_after_first_steps_is_found_after_a_block(tmp_path: Path, fault: str, quantity: str) -> None:
    conclusion, store = run(tmp_path, hooked(fault))
    assert conclusion.outcome is Outcome.NOTHING_RAN
    message = refused(store)
    assert message.startswith(f"{quantity} at step ")
    step = int(message.split()[message.split().index("step") + 1])
    assert step >= 12
    (trial,) = store.of(TrialResult)
    told = [p.loss for p in store.pairs(there(trial.directory))]
    assert there(told[-1]).step == step
    assert all(p is not None and p.step < 12 for p in told[:-1])  # found at the first block that shows it


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "where"), [("nan-check", "nan at step 1"), ("nan-block", "loss became nan by step")])
def test_a_reference_that_tells_no_number_ends_the_study_and_says_where(tmp_path: Path, fault: str, where: str) -> None:
    with pytest.raises(LaunchError, match=f"be finite .*{where}"):
        run(tmp_path, hooked(fault))
    assert not Store.open(tmp_path / "run").of(TrialResult)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", toml_beside(__file__)["wrong_steps"], ids=str)
def test_a_real_step_with_a_wrong_loss_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    _, store = run(tmp_path, {"entry": "wrong_step:build", "options": options})
    message = refused(store)
    assert message.startswith("loss at step ")
    assert int(message.split()[3]) >= options["since"]
    (aa_run,) = store.of(AaRecord)
    assert aa_run.loss_spread.is_rounded
    assert max(aa_run.loss_spread.steps) > 12


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_step_that_skips_its_optimizer_is_refused(tmp_path: Path) -> None:
    _, store = run(tmp_path, {"entry": "wrong_step:build", "options": {"skips": True, "share": 0.0}})
    assert refused(store).endswith("distance is 0")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_step_with_a_right_loss_is_exported(tmp_path: Path) -> None:
    options = {"dtype": "bfloat16", "since": 0, "share": 0.0}
    conclusion, store = run(tmp_path, {"entry": "wrong_step:build", "options": options})
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence
    assert LOSS_NOT_CHECKED not in conclusion.sentence
    for record in store.of(ConfirmRun):
        assert record.loss is not None
        assert record.loss.is_ok
        assert "another rounding" in record.loss.words
    winner = winner_of(store)
    assert there(winner.loss).is_ok
    require_loss(winner := winner_of(store))
    assert json.loads(render_winner(winner, "json"))["loss_checked"] is True
