"""Sets that are faster by their typical step and slower in total: vetoed by their proof, whoever edits the records."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import Arm, Pair, WorkPerStep
from autotune.model.proofs import figures_of
from autotune.model.records import ConclusionRecord, FinalistResult, Outcome
from autotune.results.audit import disagreements
from autotune.results.format import format_finalist
from autotune.results.report import render_markdown
from autotune.rundir.store import Store
from autotune.settings.space import Parameter, SearchSpace
from autotune.stats.estimates import Verdict
from harness.simulated_machine import SimulatedWorker
from tests.runs import Noting, Run, on_blocks, replay_study, rewrite, there

FAST = FlagSet({"xla_a": "1"})
SPACE = SearchSpace((Parameter(name="xla_a", choices=("0", "1"), default="0"),))


def stall(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
    """Workers under xla_a=1 stand still for ten steps, once in every twenty-five."""
    if settings.get("xla_a") == "1":
        on_blocks(worker, lambda times, at: tuple(t * (11 if (at + i) % 25 == 24 else 1) for i, t in enumerate(times)))


@pytest.fixture
def stalled(run_replay: Run) -> tuple[ConclusionRecord, Store]:
    spec = replay_study(effects={"xla_a=1": 0.8}, noise="quiet")
    conclusion, store, _ = run_replay(spec, trials=1, launcher=Noting(spec, after=stall), space=SPACE)
    return conclusion, store


def test_a_proof_faster_by_its_typical_step_alone_proves_nothing(stalled: tuple[ConclusionRecord, Store]) -> None:
    conclusion, store = stalled
    (proof,) = store.of(FinalistResult)
    assert there(proof.corrected).high < 0.85
    assert proof.verdict is Verdict.UNRESOLVED
    assert proof.veto is not None
    assert proof.is_slower_in_total
    # 60 steps of each process hold two of them
    words = (
        r"one stall of \d+ ms in 30 steps, \d+ in all \(reference: no stall\): 6\.\d % slower in total "
        r"though a typical step is (19|20)\.\d % faster"
    )
    assert re.fullmatch(words, proof.veto)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    for text in (conclusion.sentence, format_finalist(proof), render_markdown(store)):
        assert proof.veto in text


def test_who_edits_the_veto_away_is_found_out(stalled: tuple[ConclusionRecord, Store]) -> None:
    conclusion, store = stalled
    (estimate,) = (f.estimate for f in store.of(FinalistResult))

    def edit(records: list[dict[str, Any]]) -> None:
        proof = next(r for r in records if r["kind"] == "finalist")
        del proof["veto"]
        proof["verdict"] = "faster"

    forged = {"outcome": Outcome.WINNER, "settings": FAST, "trial": 1, "estimate": estimate}
    said = disagreements(rewrite(store.path, edit), conclusion.model_copy(update=forged))
    assert any("verdict unresolved" in line for line in said), said


FORGED: list[Callable[[dict[str, Any]], object]] = [
    lambda total: total.update(log_ratio=-1.0),
    lambda total: total["candidate"].update(count=0, lost_s=0.0),
    lambda total: total["reference"].update(typical_s=9.0),
]


@pytest.mark.parametrize("forge", FORGED)
def test_totals_that_do_not_follow_from_the_raw_pairs_are_refused(
    stalled: tuple[ConclusionRecord, Store], forge: Callable[[dict[str, Any]], object]
) -> None:
    conclusion, store = stalled

    def edit(records: list[dict[str, Any]]) -> None:
        forge(next(r for r in records if r["kind"] == "confirm_run")["total"])

    said = disagreements(rewrite(store.path, edit), conclusion)
    assert any("give total" in line for line in said), said


def test_totals_are_of_every_step_of_every_block_and_per_unit_of_work() -> None:
    pairs = [
        Pair(index=i, first=Arm.REFERENCE, reference_s=(1.0, 1.0), candidate_s=(1.0, 2.0 + i), at_s=0.0)
        for i in range(3)
    ]
    total = figures_of(pairs, WorkPerStep(reference=1, candidate=2))["total"]
    assert total.log_ratio == pytest.approx(0.0)  # 12 s over 6, for twice the work
    assert (total.candidate.steps, total.candidate.typical_s, total.candidate.count) == (6, 1.5, 0)
