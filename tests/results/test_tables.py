"""Frames of a nearly noiseless simulated run, against the formula that made it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import Comparison
from autotune.model.records import FinalistResult, TrialResult, TrialStatus
from autotune.results.api import Study
from autotune.results.tables import TRIAL_COLUMNS, TrialRow, trial_row
from autotune.rundir.store import Store
from autotune.stats.estimates import Estimate
from tests.runs import EFFECTS, replay_study


def truth(settings: FlagSet) -> float:
    return math.prod(EFFECTS.get(f"{n}={v}", 1.0) for n, v in settings.items())


def comparison(ratio: float) -> Comparison:
    estimate = Estimate(ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, level=0.95, pair_count=7)
    return Comparison(
        estimate=estimate, reference_step_s=1.0, candidate_step_s=ratio, pair_count=7, mode="interleaved", stopped=""
    )


def trial(number: int, settings: dict[str, str], ratio: float | None, **more: object) -> TrialResult:
    """A measured trial, or one whose program is the reference's if it has no ratio."""
    same = {} if ratio is not None else {"status": TrialStatus.SAME_PROGRAM, "same_as": 0}
    fields = {"status": TrialStatus.MEASURED, "comparison": comparison(ratio) if ratio else None, **same, **more}
    return TrialResult.model_validate({"number": number, "settings": settings, "origin": "x", **fields})


def store_of(path: Path, results: list[TrialResult]) -> Store:
    store = Store.create_or_resume(path, replay_study(), study_dir=path)
    for result in results:
        store.append(result)
    store.close()
    return store


def test_frames_hold_what_the_formula_says(finished: Store) -> None:
    frame = Study(finished.path).trials
    assert list(frame["trial"]) == list(range(1, 41))
    results = {r.number: r for r in finished.of(TrialResult)}
    for row in frame.to_dict("records"):
        result = results[row["trial"]]
        if result.failure is None:
            assert row["ratio"] == pytest.approx(truth(result.settings), abs=1e-4)
        else:
            assert math.isnan(row["ratio"])
            assert row["failure"] == "out_of_memory"
    steps = Study(finished.path).steps
    assert set(steps["stage"]) == {"aa_run", "trial", "confirm", "minimise", "isolated"}
    files = list(finished.path.rglob("pairs.jsonl"))
    assert steps["measurement"].nunique() == len(files)
    aa_run = steps[steps["stage"] == "aa_run"]
    assert len(aa_run) == sum(len(p.reference_s) + len(p.candidate_s) for p in finished.pairs("aa_run"))
    assert aa_run["step_s"].median() == pytest.approx(0.03, rel=1e-3)
    assert (aa_run.groupby("pair")["is_first"].mean() == 0.5).all()
    effects = Study(finished.path).effects()
    for setting, value in (("xla_a", "1"), ("xla_d", "2")):
        found = effects[(effects["setting"] == setting) & (effects["value"] == value)].iloc[0]
        assert found["how"] == "left out"
        assert found["ratio"] == pytest.approx(EFFECTS[f"{setting}={value}"], abs=1e-4)
        assert found["low"] < found["ratio"] < found["high"]
        assert (found["reason"], found["finding"]) == ("kept: it seems to pay", "promising")


def test_effects_by_rank_of_evidence(tmp_path: Path) -> None:
    results = [
        trial(1, {"xla_a": "1"}, 0.9),
        trial(2, {"xla_b": "1"}, None),
        trial(3, {"xla_c": "1", "xla_d": "1"}, 0.81),
        trial(4, {"xla_c": "1", "xla_e": "1"}, 1.0),
        trial(
            5,
            {"xla_f": "1"},
            None,
            status="failed",
            same_as=None,
            failure={"kind": "hang", "message": "", "phase": "step"},
        ),
    ]
    rows = Study(store_of(tmp_path, results).path).effects().set_index("setting")
    assert tuple(rows.loc["xla_a", ["how", "ratio", "finding"]]) == ("one trial", 0.9, "promising")
    assert tuple(rows.loc["xla_b", ["how", "ratio", "is_no_op"]]) == ("same program", 1.0, True)
    assert tuple(rows.loc["xla_c", ["how", "trials"]]) == ("", 2)
    assert tuple(rows.loc["xla_f", ["failed", "reason"]]) == (1, "failed: hang")


def test_a_finalist_of_one_setting_is_judged_by_its_fresh_processes(tmp_path: Path) -> None:
    store = store_of(tmp_path, [trial(1, {"xla_a": "1"}, 0.75)])
    proof = {"ratio": 1.14, "low": 0.66, "high": 1.98, "level": 0.95, "pair_count": 4}
    fields = {"stage": "confirm", "trial": 1, "settings": {"xla_a": "1"}, "verdict": "unresolved", "process_count": 4}
    store.append(FinalistResult.model_validate({**fields, "estimate": proof, "corrected": proof}))
    row = Study(store.path).effects().iloc[0]
    assert tuple(row[["how", "ratio", "low", "high"]]) == ("fresh processes", 1.14, 0.66, 1.98)
    assert row["finding"] == "unresolved"  # the proof's own word, not what its interval would promise


ESTIMATE = {"ratio": 0.9, "low": 0.8, "high": 0.95, "level": 0.95, "pair_count": 7}
ENERGY = {"reference_step_j": 6.0, "candidate_step_j": 3.0}
COMPARISON = {
    "estimate": ESTIMATE, "reference_step_s": 2.0, "candidate_step_s": 1.8, "pair_count": 8,
    "mode": "interleaved", "stopped": "settled", "energy": ENERGY,
}  # fmt: skip
WORKER = {
    "fingerprint": "f", "platform": "cpu", "device_kind": "cpu", "device_count": 1, "compile_s": 4.0, "start_s": 5.0,
    "losses": (), "grad_norms": (), "warmup_step_times_s": (), "peak_bytes": 1024, "tokens_per_step": 90,
}  # fmt: skip


def row(**outcome: Any) -> TrialRow:
    fields = {"number": 3, "settings": {"xla_a": "1"}, "origin": "tpe", "at_s": 9.0, "duration_s": 8.0, "by": "w"}
    return trial_row(TrialResult.model_validate({**fields, **outcome}), min_effect=0.005, provable=None)


def is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def test_a_measured_trial_fills_every_column_that_is_its() -> None:
    found = row(status="measured", comparison=COMPARISON, worker=WORKER)
    unknown = {c for c in TRIAL_COLUMNS if not is_known(getattr(found, c))}
    assert unknown == {"failure", "message", "same_as"}
    assert (found.trial, found.settings, found.status, found.finding) == (3, "xla_a=1", "measured", "promising")
    assert (found.ratio, found.low, found.high, found.pair_count) == (0.9, 0.8, 0.95, 7)
    assert found.tokens_per_s == pytest.approx(50.0)
    assert (found.step_j, found.peak_bytes) == (3.0, 1024.0)
    assert (found.style, found.over, found.rank) == ("promising", "7 pairs", (0, 0.9))
