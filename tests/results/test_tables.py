"""Frames of a nearly noiseless simulated run, against the formula that made it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult
from autotune.results.api import Study
from autotune.results.tables import TRIAL_COLUMNS, TrialRow, trial_row
from autotune.rundir.store import Store
from tests.runs import EFFECTS
from tests.tables import toml_beside


def truth(settings: FlagSet) -> float:
    return math.prod(EFFECTS.get(f"{n}={v}", 1.0) for n, v in settings.items())


def test_frames_hold_what_the_formula_says(finished: Store) -> None:
    frame = Study(finished.path).trials
    assert list(frame["trial"]) == [r.number for r in finished.of(TrialResult)]
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


def row(**outcome: Any) -> TrialRow:
    fields = {"number": 3, "settings": {"xla_a": "1"}, "origin": "tpe", "at_s": 9.0, "duration_s": 8.0, "by": "w"}
    result = TrialResult.model_validate({**fields, **outcome})
    return trial_row(result, result.finding_at(min_effect=0.005, provable=None))


def is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def test_a_measured_trial_fills_every_column_that_is_its() -> None:
    found = row(**toml_beside(__file__)["measured_trial"])
    unknown = {c for c in TRIAL_COLUMNS if not is_known(getattr(found, c))}
    assert unknown == {"failure", "message", "same_as"}
    assert (found.trial, found.settings, found.status, found.finding) == (3, "xla_a=1", "measured", "promising")
    assert (found.ratio, found.low, found.high, found.pair_count) == (0.9, 0.8, 0.95, 7)
    assert found.tokens_per_s == pytest.approx(50.0)
    assert (found.step_j, found.peak_bytes) == (3.0, 1024.0)
    assert (found.style, found.over, found.rank) == ("promising", "7 pairs", (0, 0.9))
