"""Trials and proofs of a study as typed rows (unknown: NaN, None), and as tables of text."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from autotune.model.flags import FlagSet
from autotune.model.measurement import INTERLEAVED
from autotune.model.records import FinalistResult, ProfileRecord, TrialResult
from autotune.model.units import (
    format_bytes,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
)
from autotune.results.format import STAGE_WORDS, finding_in, format_finalist, spaced
from autotune.results.pages import Cell
from autotune.rundir.store import Store
from autotune.stats.estimates import TrialFinding, Verdict

Row = dict[str, str]

# CSS classes of proofs and of single trials.
STYLES: Mapping[str, str] = {
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.NO_DIFFERENCE: "same",
    Verdict.UNRESOLVED: "open",
    TrialFinding.PROMISING: "promising",
    TrialFinding.OPEN: "open",
    TrialFinding.NOT_PROMISING: "unpromising",
}


def _at(path: str, missing: float | None = math.nan) -> Any:
    """Declares a column whose path in a trial's record is not its name; `missing` replaces None."""
    return field(metadata={"path": path, "missing": missing})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial; a duplicate has the figures of the earlier trial named in `same_as`."""

    result: TrialResult  # the record; not a column
    trial: int = _at("number")
    origin: str
    status: str
    finding: str | None  # see `trial_row`
    ratio: float = _at("comparison.estimate.ratio")  # 1 of the default's program
    low: float = _at("comparison.estimate.low")
    high: float = _at("comparison.estimate.high")
    pair_count: int = _at("comparison.estimate.pair_count", 0)
    reference_step_s: float = _at("comparison.reference_step_s")
    candidate_step_s: float = _at("comparison.candidate_step_s")
    work_ratio: float = _at("comparison.work_ratio")
    tokens_per_s: float = _at("worker.tokens_per_step")  # over a step, see `trial_row`
    compile_s: float = _at("worker.compile_s")
    start_s: float = _at("worker.start_s")
    peak_bytes: float = _at("worker.peak_bytes")
    mode: str | None = _at("comparison.mode", None)
    step_j: float = _at("comparison.energy.candidate_step_j")  # of the candidate
    failure: str | None = _at("failure.kind", None)
    message: str | None = _at("failure.message", None)
    same_as: int | None
    duration_s: float
    at_s: float
    by: str | None  # the lane, if there are several
    settings: str

    @property
    def is_measured(self) -> bool:
        """Whether the ratio has an interval."""
        return not math.isnan(self.low)

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, see `ranked_rows`."""
        if self.failure is not None:
            return (2, self.trial)
        return (0, self.ratio) if self.is_measured else (1, self.trial)

    @property
    def style(self) -> str:
        """CSS class."""
        if self.failure is not None:
            return "failed"
        return STYLES[self.finding] if self.finding else "same"

    @property
    def over(self) -> str:
        """Number of pairs of blocks or ABA runs."""
        if not self.is_measured:
            return ""
        kind = "pairs" if self.mode == INTERLEAVED else "ABA runs"
        return f"{self.pair_count} {kind}"


_FIELDS = tuple(f for f in fields(TrialRow) if f.name != "result")
TRIAL_COLUMNS = tuple(f.name for f in _FIELDS)


def trial_row(result: TrialResult, finding: TrialFinding | None) -> TrialRow:
    """Converts a trial's record to a row; `finding` is that of `TrialResult.finding_at`."""
    columns = {f.name: _look_up(result, f.name, **f.metadata) for f in _FIELDS}
    columns["finding"] = finding and str(finding)
    columns["tokens_per_s"] /= columns["candidate_step_s"]
    if result.is_the_default and not result.comparison:
        columns["ratio"] = 1.0
    return TrialRow(result=result, **columns)


def _look_up(record: object, column: str, path: str = "", missing: object = None) -> Any:
    for name in (path or column).split("."):
        record = getattr(record, name, None)
    if record is None:
        return missing
    return str(record) if isinstance(record, StrEnum | FlagSet) else record


def trial_rows(store: Store) -> list[TrialRow]:
    """Returns all trials in the order of their ends."""
    return [trial_row(trial, finding_in(store, trial)) for trial in store.of(TrialResult)]


def ranked_rows(store: Store) -> list[TrialRow]:
    """Returns all trials: fastest first, then no-ops, then failures."""
    return sorted(trial_rows(store), key=operator.attrgetter("rank"))


def trial_table(trials: Sequence[TrialRow]) -> list[Row]:
    """Formats trials; the column of energy exists only if any is known."""
    has_energy = any(not math.isnan(r.step_j) for r in trials)
    rows = []
    for r in trials:
        result = spaced(r.failure or r.finding or r.status)
        if r.result.is_the_default and not r.failure:
            result = "no-op"
        row = {
            "trial": str(r.trial),
            "settings": r.settings,
            "by": r.origin,
            "ratio": "-",
            "interval": "",
            "result": Cell(result, r.style),
            "over": r.over,
            "step": format_seconds(r.candidate_step_s),
            "compile": format_seconds(r.compile_s),
            "memory": format_bytes(r.peak_bytes),
        }
        if r.is_measured:
            row["ratio"] = format_ratio(r.ratio)
            row["interval"] = format_interval(r.low, r.high)
        if has_energy:
            row["energy"] = format_joules(r.step_j)
        rows.append(row)
    return rows


def finalist_table(proofs: Sequence[FinalistResult]) -> list[Row]:
    """Formats finalists of all stages; the corrected interval decides."""
    rows = []
    for proof in proofs:
        verdict = Cell(proof.verdict, STYLES[proof.verdict])
        if proof.failure:
            verdict = Cell(format_finalist(proof), "failed")
        elif proof.veto is not None:
            verdict = Cell("no winner", "bad")
        row = {
            "trial": str(proof.trial or ""),  # a recheck is of no trial
            "verdict": verdict,
            "ratio": "-",
            "corrected interval": "",
            "settings": str(proof.settings),
            "stage": STAGE_WORDS.get(proof.stage, proof.stage),
            "95 % interval": "",
            "process pairs": str(proof.process_count),
        }
        estimate = proof.estimate
        if estimate:
            row["ratio"] = format_ratio(estimate.ratio)
            row["95 % interval"] = format_interval(estimate.low, estimate.high)
        corrected = proof.corrected
        if corrected:
            row["corrected interval"] = format_interval(corrected.low, corrected.high)
        rows.append(row)
    return rows


def profile_table(store: Store) -> list[Row]:
    """Returns the rows of the newest comparison of two traces, or why there is none."""
    record = store.last(ProfileRecord)
    if not record:
        return []
    if record.problem:
        return [{"work": record.problem}]
    rows = []
    a, b = record.names
    for row in record.rows:
        a_s, b_s = row.seconds
        change = format_seconds(b_s - a_s)
        counts = [f"{count:.3g}" for count in row.counts if any(row.counts)]
        rows.append(
            {
                "work": row.name,
                f"{a}, a step": format_seconds(a_s),
                f"{b}, a step": format_seconds(b_s),
                "change": change if b_s < a_s else f"+{change}",
                "times a step": " -> ".join(counts),
            }
        )
    return rows
