"""Every kind of trial as a row: each column finds its figure, and nothing stands where nothing is known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.model.records import TrialResult
from autotune.results.rows import (
    TRIAL_COLUMNS,
    TrialRow,
    trial_row,
)

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
    return trial_row(TrialResult.model_validate({**fields, **outcome}), min_effect=0.005)


def is_known(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def test_a_measured_trial_fills_every_column_that_is_its() -> None:
    found = row(status="measured", comparison=COMPARISON, worker=WORKER)
    unknown = {c for c in TRIAL_COLUMNS if not is_known(getattr(found, c))}
    assert unknown == {"failure", "message", "same_as"}
    assert (found.trial, found.settings, found.status, found.outlook) == (3, "xla_a=1", "measured", "promising")
    assert (found.ratio, found.low, found.high, found.pair_count) == (0.9, 0.8, 0.95, 7)
    assert found.tokens_per_s == pytest.approx(50.0)
    assert (found.step_j, found.peak_bytes) == (3.0, 1024.0)
    assert (found.style, found.over, found.rank) == ("promising", "7 pairs", (0, 0.9))


def test_a_duplicate_has_the_figures_of_its_original_and_the_default_has_ratio_one() -> None:
    duplicate = row(status="same_program", same_as=2, comparison=COMPARISON)
    assert (duplicate.ratio, duplicate.same_as, duplicate.is_measured) == (0.9, 2, True)
    default = row(status="same_program", same_as=0)
    assert (default.ratio, default.is_measured, default.style, default.rank) == (1.0, False, "same", (1, 3))


def test_a_failure_has_nothing_measured() -> None:
    failed = row(status="failed", failure={"kind": "hang", "message": "m", "phase": "step"})
    assert (failed.failure, failed.message, failed.style, failed.rank) == ("hang", "m", "failed", (2, 3))
    assert math.isnan(failed.ratio)
    assert not failed.is_measured
    assert failed.over == ""
