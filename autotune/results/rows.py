"""What was found as typed rows: one a trial, one a setting and value.

Tables, reports, frames, comparisons, charts and exchanged files take their columns from here. Times are in seconds,
sizes in bytes, ratios are candidate over reference (below 1 is faster); a number that is not known is NaN, a text None.
"""

from __future__ import annotations

import math
from collections.abc import (
    Mapping,
    Sequence,
)
from dataclasses import (
    dataclass,
    field,
    fields,
    replace,
)
from enum import StrEnum
from statistics import median
from typing import Any

from autotune.model import (
    INTERLEAVED,
    REESTIMATES,
    AblationResult,
    FinalistResult,
    FlagSet,
    TrialResult,
    TrialStatus,
)
from autotune.results.proof_words import word_of
from autotune.rundir import Store
from autotune.stats import (
    Estimate,
    Outlook,
    Verdict,
    outlook_of,
)

STYLES: Mapping[str, str] = {
    Verdict.FASTER: "good",
    Verdict.SLOWER: "bad",
    Verdict.NO_DIFFERENCE: "same",
    Verdict.UNRESOLVED: "open",
    Outlook.PROMISING: "promising",
    Outlook.NOT_PROMISING: "unpromising",
}
"""Classes of the style sheet: of proofs, and of what two processes alone say."""


def finalist_style(result: FinalistResult) -> str:
    """The class of a proof, or of what came after it."""
    if result.is_vetoed:
        return "failed" if result.failure is not None else "bad"
    return STYLES.get(word_of(result), "same")


_RESOURCES = ("ratio", "peak_bytes", "compile_s", "step_j")


def _at(path: str, missing: float | None = math.nan) -> Any:
    """A column that is found at `path` in a trial's record; `missing` stands where a part on the way is not there."""
    return field(metadata={"path": path, "missing": missing})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial; a duplicate of an earlier program has that program's figures and names it in `same_as`.

    Attributes:
        result: The record that it is made of; not a column.
        outlook: Whether it is promising; a trial alone never says more. None without an interval.
        ratio: Step time over the reference's; 1 without an interval where the program is the reference's own.
        step_j: Energy of a step of the candidate, joules.
        work_ratio: Work of a step over that of one of the reference's; `ratio` is of time per unit of it.
        by: The worker, where several share the study.
    """

    result: TrialResult
    trial: int = _at("number", None)
    origin: str = _at("origin")
    status: str = _at("status")
    outlook: str | None = _at("outlook", None)  # by the study's smallest effect, see `trial_row`
    ratio: float = _at("comparison.estimate.ratio")
    low: float = _at("comparison.estimate.low")
    high: float = _at("comparison.estimate.high")
    pair_count: int = _at("comparison.estimate.pair_count", 0)
    reference_step_s: float = _at("comparison.reference_step_s")
    candidate_step_s: float = _at("comparison.candidate_step_s")
    work_ratio: float = _at("comparison.work_ratio")
    tokens_per_s: float = _at("worker.tokens_per_step")  # over the step's time, see `trial_row`
    compile_s: float = _at("worker.compile_s")
    start_s: float = _at("worker.start_s")
    peak_bytes: float = _at("worker.peak_bytes")
    mode: str | None = _at("comparison.mode", None)
    step_j: float = _at("comparison.energy.candidate_step_j")
    failure: str | None = _at("failure.kind", None)
    message: str | None = _at("failure.message", None)
    same_as: int | None = _at("same_as", None)
    duration_s: float = _at("duration_s")
    at_s: float = _at("at_s")
    by: str | None = _at("by", None)
    settings: str = _at("settings")

    @property
    def is_measured(self) -> bool:
        """Whether it has a ratio with an interval."""
        return not math.isnan(self.low)

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts the best first; then what changes nothing, then failures."""
        if self.failure is not None:
            return (2, self.trial)
        return (0, self.ratio) if self.is_measured else (1, self.trial)

    @property
    def style(self) -> str:
        """Class of the style sheet."""
        if self.failure is not None:
            return "failed"
        return STYLES[self.outlook] if self.outlook else "same"

    @property
    def over(self) -> str:
        """How often it was compared, in its own unit: one ABA run is worth several pairs of blocks, and lasts so."""
        return f"{self.pair_count} {'pairs' if self.mode == INTERLEAVED else 'ABA runs'}" if self.is_measured else ""


_FIELDS = tuple(f for f in fields(TrialRow) if f.name != "result")
TRIAL_COLUMNS = tuple(f.name for f in _FIELDS)


def trial_row(result: TrialResult, *, min_effect: float) -> TrialRow:
    """The one place where a trial's record becomes columns; `min_effect` is the study's smallest effect of interest."""
    columns = {f.name: _look_up(result, **f.metadata) for f in _FIELDS}
    outlook = result.outlook_at(min_effect=min_effect)
    columns["outlook"] = str(outlook) if outlook is not None else None
    columns["tokens_per_s"] /= columns["candidate_step_s"]
    if result.comparison is None and result.is_the_default:
        columns["ratio"] = 1.0
    return TrialRow(result=result, **columns)


def _look_up(record: object, path: str, missing: object) -> Any:
    for name in path.split("."):
        record = getattr(record, name, None)
    if record is None:
        return missing
    if isinstance(record, StrEnum | FlagSet):
        return str(record)
    return float(record) if isinstance(record, int) and isinstance(missing, float) else record


def trial_rows(store: Store) -> list[TrialRow]:
    """Every trial, in the order of their ends."""
    return [trial_row(r, min_effect=store.spec.measure.min_effect) for r in store.of(TrialResult)]


def finalists(store: Store) -> list[FinalistResult]:
    """The newest verdict of each stage and set: a study that went on judges its finalists anew."""
    return list({(f.stage, f.settings): f for f in store.of(FinalistResult)}.values())


def pareto_rows(trials: Sequence[TrialRow]) -> list[TrialRow]:
    """The measured trials that no other beats in step time, memory, compile time and energy at once, fastest first.

    What no trial recorded is left out; a trial that alone lacks a figure counts as the worst in it.
    """
    measured = [r for r in trials if r.status == TrialStatus.MEASURED]
    known = [c for c in _RESOURCES if any(not math.isnan(getattr(r, c)) for r in measured)]
    points = [[math.inf if math.isnan(x := getattr(r, c)) else x for c in known] for r in measured]

    def is_beaten(mine: Sequence[float]) -> bool:
        return any(p != mine and all(a <= b for a, b in zip(p, mine, strict=True)) for p in points)

    return sorted((r for r, p in zip(measured, points, strict=True) if not is_beaten(p)), key=lambda r: r.ratio)


# ---------------------------------------------------------------------- effect of each setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """What one value of one setting does, from the best evidence there is.

    Attributes:
        how: The evidence. Best first: ``left out`` (the paired measurement without it, inverted: the ratio that the
            setting brings inside the winner), ``fresh processes`` (confirmed or refuted as a finalist of its own),
            ``alone`` (a trial of that setting only), ``same program`` (a trial that had it was the reference's own
            program: it changes nothing), ``among others`` (median ratio of the trials with it over the median of
            those without: other settings are mixed in, no interval).
        finding: What that says: the verdict of a proof for ``fresh processes``, else whether its interval promises a
            gain, which it does not prove; empty without an interval.
        trials: How many had it.
        failed: How many of those have no number.
        is_dead: Whether a trial that had it was the reference's own program.
    """

    setting: str
    value: str
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    how: str = ""
    finding: str = ""
    trials: int
    failed: int
    is_dead: bool
    reason: str = ""


EFFECT_COLUMNS = tuple(f.name for f in fields(EffectRow))


def effect_rows(store: Store) -> list[EffectRow]:
    """Every value of every setting that was tried, by name."""
    results = store.of(TrialResult)
    pairs = sorted({(n, v) for r in results for n, v in r.settings.items()})
    ablations = {a.left_out: a for a in store.of(AblationResult) if isinstance(a.left_out, str)}
    proven = {f.settings: f for f in finalists(store) if f.corrected and f.stage not in REESTIMATES}
    rows = (_effect(n, v, results, ablations.get(n), proven.get(FlagSet({n: v}))) for n, v in pairs)
    rows = (_with_group(row, store.of(AblationResult)) for row in rows)
    return [_with_outlook(row, min_effect=store.spec.measure.min_effect) for row in rows]


def _with_group(row: EffectRow, ablations: Sequence[AblationResult]) -> EffectRow:
    """What became of a setting that was left out of the winner together with others: that says nothing of it alone."""
    for a in ablations:
        together = () if isinstance(a.left_out, str) else a.left_out
        if row.setting in together and a.settings.get(row.setting) == row.value and not (row.reason or a.kept):
            return replace(row, reason=f"dropped with {len(together) - 1} others: {a.reason}")
    return row


def _with_outlook(row: EffectRow, *, min_effect: float) -> EffectRow:
    """What an interval promises, where no proof says more."""
    if row.finding or math.isnan(row.low):
        return row
    estimate = Estimate(ratio=row.ratio, low=row.low, high=row.high, level=0.95, pair_count=0)
    return replace(row, finding=str(outlook_of(estimate, min_effect=min_effect)))


def _effect(
    name: str, value: str, results: Sequence[TrialResult], ablation: AblationResult | None, proof: FinalistResult | None
) -> EffectRow:
    having = [r for r in results if r.settings.get(name) == value]
    failed, is_dead = sum(r.failure is not None for r in having), any(r.is_the_default for r in having)
    row = EffectRow(setting=name, value=value, trials=len(having), failed=failed, is_dead=is_dead)
    if ablation is not None and ablation.settings.get(name) == value:
        row = replace(row, reason=f"{'kept' if ablation.kept else 'dropped'}: {ablation.reason}")
        if ablation.comparison is not None:
            e = ablation.comparison.estimate
            high = 1 / e.low if e.low > 0 else math.inf
            return replace(row, ratio=1 / e.ratio, low=1 / e.high, high=high, how="left out")
        if not ablation.kept:
            return replace(row, ratio=1.0, how="same program")
    alone = next((r for r in having if len(r.settings) == 1), None)
    if proof is not None and (p := proof.corrected) is not None:
        found = str(proof.verdict)
        return replace(row, ratio=p.ratio, low=p.low, high=p.high, how="fresh processes", finding=found)
    if alone is not None and alone.comparison is not None:
        e = alone.comparison.estimate
        return replace(row, ratio=e.ratio, low=e.low, high=e.high, how="alone")
    if alone is not None and alone.failure is not None:
        return replace(row, how="alone", reason=f"failed: {alone.failure.kind}")
    if row.is_dead:
        return replace(row, ratio=1.0, how="same program")
    mine = [x for r in having if (x := log_ratio_of(r)) is not None]
    others = [x for r in results if r.settings.get(name) != value and (x := log_ratio_of(r)) is not None]
    if mine and others:
        return replace(row, ratio=math.exp(median(mine) - median(others)), how="among others")
    return row


def log_ratio_of(result: TrialResult) -> float | None:
    """Log of a trial's step-time ratio; 0 for the reference's own program, None without a figure."""
    if result.is_the_default:
        return 0.0
    return math.log(result.comparison.estimate.ratio) if result.comparison is not None else None
