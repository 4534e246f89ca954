"""Formats records as sentences, in the order in which a study makes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autotune.model.flags import HUNG_AT, FlagSet, captures_collectives
from autotune.model.measurement import INTERLEAVED, LOSS_NOT_CHECKED, Failure, WorkPerStep
from autotune.model.proofs import describe_stalls
from autotune.model.records import (
    AaRecord,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FailingSetRecord,
    FinalistResult,
    IncidentRecord,
    PowerAnalysis,
    SessionRecord,
    SoakRecord,
    TrialResult,
    TrialStatus,
)
from autotune.model.texts import text_lines
from autotune.model.units import LARGEST_TOLD, format_interval, format_ratio
from autotune.rundir.lock import is_held
from autotune.rundir.store import Store
from autotune.stats.estimates import REFERENCE, Estimate, TrialFinding, Verdict, geometric_mean
from autotune.stats.long_run import LEAST_SAMPLES

RUNNING = "running"
LEAST_LONG_RUN = 200  # steps in one process, of a run without a fault
STAGE_WORDS = {
    "confirm": "fresh processes",
    "isolated": "isolated runs",
    "recheck": "recheck",
    "ab": "two variants",
}


def time_words(store: Store) -> str:
    """Names the quantity of a run's ratios: ``step time`` or ``time per token``."""
    comparisons = [r.comparison for r in store.of(TrialResult) if r.comparison]
    return time_of(next((c.work for c in comparisons if c.work), None))


def time_of(work: WorkPerStep | None) -> str:
    """Names the quantity of one comparison, whose arms may differ in work per step."""
    return "time per token" if work else "step time"


def shorten(settings: FlagSet) -> str:
    """Formats settings on one line of at most 100 characters, without ``xla_`` prefixes."""
    text = " ".join(word.removeprefix("xla_") for word in settings.words) or "(default)"
    return text if len(text) <= 100 else text[:99] + "…"


def spaced(name: str) -> str:
    """Replaces underscores by spaces: ``out of memory``."""
    return name.replace("_", " ")


def format_estimate(estimate: Estimate) -> str:
    """Formats a ratio with its interval: ``0.950 [0.940, 0.960]``."""
    return format_figures(estimate.ratio, estimate.low, estimate.high)


def format_figures(ratio: float, low: float, high: float) -> str:
    """Formats a ratio and its interval, if it has one: ``0.950 [0.940, 0.960]`` or ``0.950``."""
    if math.isnan(low):
        return format_ratio(ratio)
    return f"{format_ratio(ratio)} {format_interval(low, high)}"


def aa_lines(store: Store) -> list[str]:
    """Formats the latest A/A run, and the smallest provable gain by the first one of all lanes."""
    aa_runs = store.of(AaRecord)
    return format_aa_run(aa_runs[-1], aa_runs[0].power) if aa_runs else []


def format_aa_run(aa_run: AaRecord, power: PowerAnalysis | None) -> list[str]:
    """Formats the result of an A/A run, and what gain is proven with a power of 90 %."""
    return text_lines(
        "aa_run.txt.j2",
        aa_run=aa_run,
        power=power,
        interleaved=INTERLEAVED,
        largest=LARGEST_TOLD,
        estimate=format_estimate,
        percent=lambda share: f"{float(f'{share:.2g}') * 100:g} %",
    )


def provable_gain(store: Store) -> float | None:
    """Returns the smallest gain that is proven 9 times in 10, a share; None if not known (yet)."""
    aa_runs = store.of(AaRecord)
    return aa_runs[0].provable if aa_runs else None


def finding_in(store: Store, result: TrialResult) -> TrialFinding | None:
    """Returns what a trial says of a proof, by what its study can prove."""
    min_effect = store.spec.measure.min_effect
    return result.finding_at(min_effect=min_effect, provable=provable_gain(store))


def format_trial(result: TrialResult, finding: str | None) -> str:
    """Formats a trial's result; `finding` is that of `TrialResult.finding_at`."""
    if result.failure:
        return format_failure(result.failure, f"in phase {result.failure.phase}")
    if result.is_the_default:
        return "no-op: the same program as the default"
    suffix = ""
    if result.same_as:
        suffix = f" (duplicate of trial {result.same_as})"
    comparison = result.comparison
    if not comparison:
        return f"{spaced(result.status)}: no number{suffix}"
    if result.loss and result.loss.is_ok is None:
        suffix += f"; {LOSS_NOT_CHECKED}"
    work = comparison.work
    if work:  # the unit is the study's, and a trial does not know it
        suffix += f" (by work done: a step does {work.candidate} and "
        suffix += f"the default's {work.reference})"
    return f"{format_estimate(comparison.estimate)} {finding}, {comparison.stopped}{suffix}"


def format_failure(failure: Failure, where: str) -> str:
    """Formats a failure and its place."""
    return f"{spaced(failure.kind)} {where}: {failure.message}"[:300]


def finalists(store: Store) -> list[FinalistResult]:
    """Returns the newest result of each stage and set; a resumed study judges them again."""
    return list({(f.stage, f.settings): f for f in store.of(FinalistResult)}.values())


def format_finalist(result: FinalistResult) -> str:
    """Formats the figures and verdict of a finalist."""
    if result.failure:
        return format_failure(result.failure, "in a fresh process")
    corrected = result.corrected
    if not result.estimate or not corrected:
        return "fewer than 2 fresh pairs of processes are measured"
    pairs = f"{result.process_count} fresh pairs of processes"
    figures = f"{format_estimate(result.estimate)} over {pairs}"
    if corrected.low > 0.0:
        figures += f" (corrected {format_interval(corrected.low, corrected.high)})"
    verdict = str(result.verdict)
    if result.veto is not None:
        verdict = f"no winner: {result.veto}"
    elif result.verdict is Verdict.UNRESOLVED and result.reason:
        verdict += f", {result.reason}"
    return f"{figures}: {verdict}"


def further_lines(estimate: Estimate, further: Mapping[str, Estimate] | None) -> list[str]:
    """Formats the ratios of a winner on further workloads, and the geometric mean of all."""
    if not further:
        return []
    lines = [
        f"on the further workload {name}: ratio {format_estimate(ratio)}"
        for name, ratio in further.items()
    ]
    estimates = [estimate, *further.values()]
    mean = format_estimate(geometric_mean(estimates))
    return [*lines, f"geometric mean over the {len(estimates)} workloads: ratio {mean}"]


def format_ablation(result: AblationResult) -> str:
    """Formats what a set without a setting showed, and whether that stayed."""
    text = f"without {result.what}: {'kept' if result.kept else 'dropped'}, {result.reason}"
    if result.comparison:
        text += f" (ratio without it {format_estimate(result.comparison.estimate)})"
    return text


def format_failing_set(record: FailingSetRecord) -> str:
    """Formats the smallest part of a failing set that fails in the same way."""
    kind = "minimal" if record.is_minimal else "smallest known"
    failing_set = f"{kind} failing set ({spaced(record.failure_kind)})"
    return f"trial {record.trial}: {failing_set}: {record.smallest}"


OTHER_SIZE = 0.1  # share by which the bytes that two runs leave may differ


def format_soak(record: SoakRecord) -> str:
    """Formats the result of a soak."""
    clauses = text_lines(
        "soak.txt.j2",
        spaced=spaced,
        stalls=describe_stalls,
        record=record,
        longest=record.longest or record.step_count,
        long_run=LEAST_LONG_RUN,
        other_size=OTHER_SIZE,
        enough=2 * LEAST_SAMPLES,
        is_captured=captures_collectives(record.settings),
        hung_at=HUNG_AT,
    )
    return "; ".join(clauses)


def run_state(store: Store) -> tuple[str, ConclusionRecord | None]:
    """Returns running, finished, stopped or empty, and the conclusion if no trial came after it."""
    conclusion = store.last(ConclusionRecord)
    if conclusion and any(r.at_s > conclusion.at_s for r in store.of(TrialResult)):
        conclusion = None
    if is_held(store.path):
        return RUNNING, conclusion
    if conclusion:
        return "finished", conclusion
    return ("stopped" if store.of(SessionRecord) else "empty"), None


def incumbent(results: Iterable[TrialResult]) -> Estimate:
    """Returns the best estimate so far, or the reference's own while nothing is better."""
    measured = [
        r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison
    ]
    return min([REFERENCE, *measured], key=lambda e: e.ratio)


def format_progress(store: Store, state: str) -> str:
    """Formats the progress and best trial of a study that is running, stopped or empty."""
    results = store.of(TrialResult)
    session = store.last(SessionRecord)
    if not results:
        reason = "no trial has ended yet" if session else "it was never started"
        return f"nothing is known yet: {reason}"
    best = incumbent(results)
    so_far = "no trial shows a gain so far"
    if best.ratio < 1:
        so_far = f"the best so far has ratio {format_estimate(best)}, not yet proven"
    limit = session.asked_trials if session else store.spec.search.trials
    return f"{state} after {len(results)} of {limit} trials: {so_far}"


def warning_lines(store: Store) -> list[str]:
    """Lists all warnings about the figures of a run, without duplicates."""
    lines = text_lines(
        "warnings.txt.j2",
        incidents=store.of(IncidentRecord),
        aa_run=store.last(AaRecord),
        interleaved=INTERLEAVED,
        trials=store.of(TrialResult),
        ablations=store.of(AblationResult),
        proof_runs=store.of(ConfirmRun),
    )
    return list(dict.fromkeys(lines))
