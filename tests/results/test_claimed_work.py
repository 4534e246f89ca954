"""Who edits what a step is said to do edits the ratio: it must follow from the reports of both arms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.proofs import report_of, standing
from autotune.model.records import CONFIRM, ISOLATED, RECORD, ConclusionRecord, ConfirmRun, FinalistResult, ProofRecord
from autotune.results.audit import disagreements
from autotune.results.format import format_estimate
from autotune.rundir.store import RECORDS, Store
from tests.runs import Run, there
from tests.study.test_per_token import BIG, SPACE, sets, study

Record = dict[str, Any]


def forged(store: Store, change: Callable[[Record], None]) -> Store:
    """The run with some records changed by hand and figures that follow from them made anew."""
    file: Path = store.path / RECORDS
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        change(record)
    whole = [RECORD.validate_python(r) for r in records]
    runs = [r for r in whole if isinstance(r, ConfirmRun)]
    plans = {r.stage: r for r in whole if isinstance(r, ProofRecord)}
    after: dict[str, FinalistResult] = {}
    for record in (r for r in records if r["kind"] == "finalist"):
        found = FinalistResult.model_validate(record)
        plan, most = plans[found.stage], found.most or 0
        made = standing(plan, runs, most=most, min_effect=0.005).result
        after[found.stage] = made
        record |= made.model_dump(mode="json", exclude={"at_s", "by"})
    last = there(report_of(after[CONFIRM], after.get(ISOLATED), runs).estimate)
    for record in (r for r in records if r["kind"] == "conclusion"):
        record |= {"estimate": asdict(last), "sentence": f"ratio {format_estimate(last)}"}
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    return Store.open(store.path)


def told(store: Store) -> list[str]:
    conclusion = there(store.last(ConclusionRecord))
    return disagreements(store, conclusion)


def claim(record: Record, **work: float) -> None:
    """Changes what a run of a proof says of the work, so that half the time would be taken for as much."""
    if record["kind"] == "confirm_run":
        record["work"] = {**record.get("work", {}), **work}
        record["log_ratio"] -= math.log(2)
        record["total"]["log_ratio"] -= math.log(2)


def claim_twice_the_work(record: Record) -> None:
    claim(record, candidate=2 * record.get("work", {}).get("candidate", 0))


def claim_half_the_work_of_the_reference(record: Record) -> None:
    claim(record, reference=record.get("work", {}).get("reference", 0) // 2)


def claim_more_in_the_trial_too(record: Record) -> None:
    claim_twice_the_work(record)
    if record["kind"] == "trial":
        record["comparison"]["work"]["candidate"] *= 2


def claim_more_in_reports_too(record: Record) -> None:
    claim_more_in_the_trial_too(record)
    if record["kind"] == "trial":
        record["worker"]["tokens_per_step"] *= 2


@pytest.fixture
def run(run_replay: Run) -> Store:
    _, store, _ = run_replay(
        study({"option.batch=16": 1.6}, workload={"tokens_per_step": "batch * 512"}, confirm={"soak": 0}),
        trials=1,
        first=sets(BIG),
        space=SPACE,
    )
    return Store.open(store.path)


def test_an_honest_run_agrees_with_itself(run: Store) -> None:
    assert told(run) == []
    assert told(forged(run, lambda record: None)) == []  # the forger is thorough: nothing else gives it away


@pytest.mark.parametrize(
    "attack",
    [
        claim_twice_the_work,
        claim_half_the_work_of_the_reference,
        claim_more_in_the_trial_too,
        claim_more_in_reports_too,  # then the study's own expression says otherwise
    ],
)
def test_a_false_claim_is_caught(run: Store, attack: Callable[[Record], None]) -> None:
    found = told(forged(run, attack))
    assert found
    assert [x for x in found if "the work" not in x] == []


def test_work_that_is_taken_out_is_missed_in_the_raw_pairs(run: Store) -> None:
    def hide(record: Record) -> None:
        if record["kind"] == "confirm_run":
            record.pop("work")

    assert any("log ratio 0.4" in line for line in told(forged(run, hide)))


def test_an_option_that_the_study_does_not_list_is_caught(run: Store) -> None:
    file = run.path / RECORDS
    file.write_text(file.read_text().replace('"option.batch":"16"', json.dumps({"option.batch": '"8; touch X"'})[1:-1]))
    assert any("study lists" in line for line in told(Store.open(run.path)))


def test_a_run_of_flags_alone_cannot_claim_any_work(run_replay: Run) -> None:
    flag = FlagSet({"xla_a": "1"})
    _, store, _ = run_replay(study({"xla_a=1": 0.9}), trials=1, first=sets(flag), space=SPACE)
    found = told(forged(store, lambda record: claim(record, reference=4096, candidate=8192)))
    assert found
    assert any("8192 over 4096" in line for line in found)
