"""Formats records as sentences, in the order in which a study makes them; for screens see `screen_words`."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    ScreenRecord,
    SessionRecord,
    SoakArm,
    SoakRecord,
    TrialResult,
    TrialStatus,
)  # fmt: skip
from autotune.model.texts import text_lines
from autotune.model.units import (
    LARGEST_TOLD,
    format_about,
    format_bytes,
    format_change,
    format_interval,
    format_joules,
    format_provable,
    format_ratio,
    format_seconds,
    format_share,
)
from autotune.rundir.lock import is_held
from autotune.rundir.store import Store
from autotune.stats.estimates import Estimate, Verdict, geometric_mean
from autotune.stats.long_run import LEAST_SAMPLES

RUNNING = "running"

LEAST_LONG_RUN = 200
"""Steps in one process below which no run is called one without a fault."""

STAGE_WORDS = {
    "confirm": "fresh processes",
    "isolated": "isolated runs",
    "recheck": "recheck",
    "ab": "two variants",
}
"""Stages of `FinalistResult` as shown to users."""


def time_words(store: Store) -> str:
    """Names the quantity of a run's ratios: ``step time`` or ``time per token``."""
    works = (r.comparison.work for r in store.of(TrialResult) if r.comparison is not None)
    return time_of(next((w for w in works if w is not None), None))


def time_of(work: WorkPerStep | None) -> str:
    """Names the quantity of one comparison; `work` is given where the work of a step differs between arms."""
    return "step time" if work is None else "time per token"


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
    """Formats a ratio, with its interval unless that is NaN: ``0.950 [0.940, 0.960]`` or ``0.950``."""
    return format_ratio(ratio) + ("" if math.isnan(low) else f" {format_interval(low, high)}")


# ---------------------------------------------------------------------- before the first trial


def format_begin(store: Store) -> list[str]:
    """Formats the A/A run and the screen."""
    from autotune.results.screen_words import describe_screen_record  # the compiler: only where it is needed

    lines = aa_lines(store)
    if not lines:
        lines.append("the A/A run has not ended yet")
    for record in store.of(ScreenRecord):
        lines += describe_screen_record(record)
    return list(dict.fromkeys(lines))


def aa_lines(store: Store) -> list[str]:
    """Formats the latest A/A run of a run, and the smallest provable gain by the first one (lanes have theirs)."""
    aa_runs = store.of(AaRecord)
    return format_aa_run(aa_runs[-1], aa_runs[0].power) if aa_runs else []


def format_aa_run(aa_run: AaRecord, power: PowerAnalysis | None) -> list[str]:
    """Formats the result of an A/A run, and what gain is proven with a power of 90 %."""
    filters = {
        "about": format_about,
        "bytes": format_bytes,
        "estimate": format_estimate,
        "joules": format_joules,
        "percent": lambda share: f"{float(f'{share:.2g}') * 100:g} %",
        "provable": format_provable,
        "seconds": format_seconds,
        "share": format_share,
    }
    values = {"aa_run": aa_run, "power": power, "interleaved": INTERLEAVED, "largest": LARGEST_TOLD}
    return text_lines("aa_run.txt.j2", filters, **values)


def provable_gain(store: Store) -> float | None:
    """Returns the smallest gain that is proven 9 times in 10, a share; None where that is not known (yet)."""
    aa_runs = store.of(AaRecord)
    return aa_runs[0].provable if aa_runs else None


# ---------------------------------------------------------------------- trials and proofs


def format_trial(result: TrialResult, finding: str | None) -> str:
    """Formats a trial's result; `finding` is that of `TrialResult.finding_at`."""
    if result.failure is not None:
        return format_failure(result.failure, f"in phase {result.failure.phase}")
    if result.is_the_default:
        return "no-op: the same program as the default"
    suffix = ""
    if result.same_as is not None:
        suffix = f" (duplicate of trial {result.same_as})"
    if result.comparison is None:
        return f"{spaced(result.status)}: no number{suffix}"
    comparison = result.comparison
    if result.loss is not None and result.loss.is_ok is None:
        suffix += f"; {LOSS_NOT_CHECKED}"
    if comparison.work is not None:  # the unit is the study's, and a trial does not know it
        suffix += (
            f" (by work done: a step does {comparison.work.candidate} and the default's {comparison.work.reference})"
        )
    return f"{format_estimate(comparison.estimate)} {finding}, {comparison.stopped}{suffix}"


def format_failure(failure: Failure, where: str) -> str:
    """Formats a failure and its place."""
    return f"{spaced(failure.kind)} {where}: {failure.message}"[:300]


def format_energy(result: TrialResult) -> str:
    """Formats a trial's energy; empty if unknown."""
    energy = result.comparison.energy if result.comparison is not None else None
    if energy is None:
        return ""
    reference = format_joules(energy.reference_step_j)
    return f"energy: {format_joules(energy.candidate_step_j)} a step of whole GPUs, the default's {reference}"


def format_finalist(result: FinalistResult) -> str:
    """Formats the figures and verdict of a finalist."""
    if result.failure is not None:
        return format_failure(result.failure, "in a fresh process")
    if result.estimate is None or result.corrected is None:
        return "fewer than 2 fresh pairs of processes are measured"
    low = result.corrected.low
    high = result.corrected.high
    corrected = f" (corrected {format_interval(low, high)})" if low > 0.0 else ""
    return (
        f"{format_estimate(result.estimate)} over {result.process_count} fresh pairs of processes"
        f"{corrected}: {verdict_of(result)}{_why(result)}"
    )


def further_lines(estimate: Estimate | None, further: Mapping[str, Estimate] | None) -> list[str]:
    """Formats the ratios of a winner on further workloads, and the geometric mean of all."""
    if estimate is None or not further:
        return []
    mean = geometric_mean([estimate, *further.values()])
    lines = [f"on the further workload {name}: ratio {format_estimate(e)}" for name, e in further.items()]
    return [*lines, f"geometric mean over the {len(lines) + 1} workloads: ratio {format_estimate(mean)}"]


def format_ablation(result: AblationResult) -> str:
    """Formats what a set without a setting showed, and whether that stayed."""
    figures = f" (ratio without it {format_estimate(result.comparison.estimate)})" if result.comparison else ""
    return f"without {result.what}: {'kept' if result.kept else 'dropped'}, {result.reason}{figures}"


def ablation_lines(store: Store) -> list[str]:
    """Lists what was left out of finalists, and whether it stayed."""
    return list(map(format_ablation, store.of(AblationResult)))


def verdict_of(result: FinalistResult) -> str:
    """Returns the verdict of a proof or re-estimate in one or two words."""
    if result.failure is not None:
        return "failed"
    return "no winner" if result.veto is not None else result.verdict


def _why(result: FinalistResult) -> str:
    """Formats the veto, or the reason for which measuring stopped."""
    if result.veto is not None:
        return f": {result.veto}"
    is_open = result.verdict is Verdict.UNRESOLVED and result.reason
    return f", {result.reason}" if is_open else ""


def cause_lines(store: Store) -> list[str]:
    """Lists the minimal failing sets that were found."""
    return [
        f"trial {b.trial}: {'minimal' if b.is_minimal else 'smallest known'} failing set ({spaced(b.failure_kind)}): "
        f"{b.smallest} ({b.starts} starts to find it)"
        for b in store.of(FailingSetRecord)
    ]


# ---------------------------------------------------------------------- soak


OTHER_SIZE = 0.1
"""Share by which the bytes that two runs leave may differ."""


def format_soak(record: SoakRecord) -> str:
    """Formats the result of a soak."""
    if record.failure is not None:
        after = f"after {record.step_count} steps" if record.step_count else "at its start"
        return f"failed {after}: {record.failure.kind.replace('_', ' ')}: {record.failure.message}"
    if record.unsettled is not None:
        return f"not settled by its long run of {record.step_count} steps: {record.unsettled}"
    seen = "".join(f"; {words}" for words in _seen(record))
    if record.seen_outside is not None:
        seen += f"; timed from outside it is {format_change(record.seen_outside)}"
    loss = f"; {record.loss.words}" if record.loss is not None else ""
    too_short = captures_collectives(record.settings) and _longest(record) <= HUNG_AT
    graphs = f"; no process came to step {HUNG_AT}, where a public run hung with COLLECTIVES" if too_short else ""
    return f"{_ran(record)}{seen}{loss}{graphs}"


def _longest(record: SoakRecord) -> int:
    """Returns the steps of the longest process of a soak."""
    return record.longest if record.longest is not None else record.step_count // max(1, record.starts)


def _ran(record: SoakRecord) -> str:
    """Formats how long a soak was; a short process shows no fault that comes late."""
    steps = f"{record.step_count} steps in {record.steps_s:.0f} s"
    if record.starts > 1:
        steps += f" of {record.starts} processes, the longest of {_longest(record)} steps"
    is_long = _longest(record) >= LEAST_LONG_RUN
    return f"{steps} without a fault" if is_long else f"{steps}, too few in one process to show a fault that comes late"


def _seen(record: SoakRecord) -> list[str]:
    """Formats stalls of both arms, and whether memory was watched."""
    arms = record.arms
    if arms is None:
        return []
    mine, base = arms.looks[-1].candidate, arms.looks[-1].reference
    found = [describe_stalls(mine.stalls) + (f" (reference: {describe_stalls(base.stalls)})" if base else "")]
    if base is not None and (files := _other_files(mine, base)):
        found.append(files)
    if len(arms.looks) > 1:
        found.append(f"run {len(arms.looks)} times, until all runs together showed that its gain stays")
    told = (("memory", mine.host), ("device memory", mine.device))
    watched = [what for what, samples in told if len(samples) >= 2 * LEAST_SAMPLES]
    return [*found, f"no leak of {' or '.join(watched)}" if watched else "memory not watched"]


def _other_files(mine: SoakArm, base: SoakArm) -> str:
    """Formats the files that two runs of as many steps left; empty if they are as many, and alike in size."""
    if mine.written is None or base.written is None:
        return ""
    (count, size), (base_count, base_size) = mine.written, base.written
    if count == base_count and abs(size - base_size) <= OTHER_SIZE * base_size:
        return ""
    beside = f"(reference: {base_count} of {base_size / 1e6:.1f} MB)"
    return f"it left {count} files of {size / 1e6:.1f} MB in its folder {beside}"


def soak_lines(store: Store) -> list[str]:
    """Formats all soaks of a run."""
    return [f"soak of {s.settings}: {format_soak(s)}" for s in store.of(SoakRecord)]


# ---------------------------------------------------------------------- the whole study


def run_state(store: Store) -> tuple[str, ConclusionRecord | None]:
    """Returns ``running``, ``finished``, ``stopped`` or ``empty``, and the conclusion if no trial came after it."""
    conclusion = store.last(ConclusionRecord)
    newest = max((r.at_s for r in store.of(TrialResult)), default=0.0)
    if conclusion is not None and conclusion.at_s < newest:
        conclusion = None
    if is_held(store.path):
        return RUNNING, conclusion
    return "finished" if conclusion else "stopped" if store.last(SessionRecord) else "empty", conclusion


def format_progress(store: Store, state: str) -> str:
    """Formats the progress and best trial of a study that has not ended; `state` is running, stopped or empty."""
    results = store.of(TrialResult)
    session = store.last(SessionRecord)
    if not results:
        return f"nothing is known yet: {'no trial has ended yet' if session else 'it was never started'}"
    estimates = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison]
    best = min(estimates, key=lambda e: e.ratio, default=None)
    so_far = "no trial shows a gain so far"
    if best is not None and best.ratio < 1:
        so_far = f"the best so far has ratio {format_estimate(best)}, not yet proven"
    limit = session.asked_trials if session else store.spec.search.trials
    return f"{state} after {len(results)} of {limit} trials: {so_far}"


def warning_lines(store: Store) -> list[str]:
    """Lists all warnings about the figures of a run, without duplicates."""
    aa_run = store.last(AaRecord)
    warnings = [r.what for r in store.of(IncidentRecord)]
    if aa_run is not None:
        warnings += [*aa_run.reference.warnings, *aa_run.comparison.warnings]
        if (problem := aa_run.reference.program_problem) is not None:
            warnings.append(
                f"its compiled program is not known, so sets that make the same one are measured: {problem}"
            )
        if aa_run.comparison.mode != INTERLEAVED:
            warnings.append("one process at a time: intervals are over ABA runs, fewer than pairs of blocks")
        load = aa_run.provenance.get("load_1min")
        cpus = aa_run.provenance.get("cpus_usable")
        if load and cpus and load > cpus:
            warnings.append(f"the machine was busy when the study began: load {load} on {cpus} CPUs")

    for r in store.of(TrialResult):
        of_trial = [*(r.worker.warnings if r.worker else ()), *(r.comparison.warnings if r.comparison else ())]
        warnings += [f"trial {r.number}: {w}" for w in of_trial]
    for a in store.of(AblationResult):
        warnings += [f"without {a.what}: {w}" for w in (a.comparison.warnings if a.comparison else ())]
    for c in store.of(ConfirmRun):
        warnings += [f"proof of trial {c.trial}, processes {c.repeat + 1}: {w}" for w in c.warnings]
    return list(dict.fromkeys(warnings))
