"""How results read: the one place where records become sentences, in the order in which a study makes them.

For the live view, tables, reports, notebooks and exported files. What compiling alone found is in `screen_words`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.model import (
    INTERLEAVED,
    KERNELS,
    LOSS_NOT_CHECKED,
    PROFILE,
    AblationResult,
    BlameRecord,
    ConclusionRecord,
    ConfirmRun,
    Failure,
    FinalistResult,
    FlagSet,
    FloorResult,
    IncidentRecord,
    Outcome,
    ScreenRecord,
    SessionRecord,
    TrialResult,
    TrialStatus,
    WorkPerStep,
    artefacts_of,
    file_name,
    format_bytes,
    format_change,
    format_detectable,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    plain,
)  # fmt: skip
from autotune.results.kernel_words import (
    describe_kernels,
    kernel_lines,
)
from autotune.results.promise_words import format_power
from autotune.rundir import Store
from autotune.stats import (
    Estimate,
    NoiseFloor,
)

if TYPE_CHECKING:
    from autotune.results.winner import Winner


def time_words(store: Store, settings: FlagSet | None = None) -> str:
    """What ratios of time are of: ``step time``, or ``time per token`` where the work of a step differs.

    Args:
        store: The run.
        settings: A set that was proven; None asks for any set of the run.
    """
    if settings is not None:
        proofs = [f for f in store.of(FinalistResult) if f.settings == settings]
        return time_of(proofs[-1].work if proofs else None)
    known = (r.comparison.work for r in store.of(TrialResult) if r.comparison is not None)
    return time_of(next((w for w in known if w is not None), None))


def time_of(work: WorkPerStep | None) -> str:
    """The same of one comparison: `work` where a step of its arms differs."""
    return "step time" if work is None else "time per token"


def shorten(settings: FlagSet, *, limit: int = 100) -> str:
    """Settings on one line, common prefixes left out, cut to what fits."""
    text = " ".join(word.removeprefix("xla_") for word in settings.words) or "(default)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def spaced(name: str) -> str:
    """A name of a record in words: ``out of memory``."""
    return name.replace("_", " ")


def format_estimate(estimate: Estimate) -> str:
    """A ratio with its interval: ``0.950 [0.940, 0.960]``."""
    return format_figures(estimate.ratio, estimate.low, estimate.high)


def format_figures(ratio: float, low: float, high: float) -> str:
    """A ratio, with its interval unless that is NaN: ``0.950 [0.940, 0.960]`` or ``0.950``."""
    return format_ratio(ratio) + ("" if math.isnan(low) else f" {format_interval(low, high)}")


# ---------------------------------------------------------------------- before the first trial


def describe_begin(store: Store) -> list[str]:
    """What was found before the first trial: the noise floor and the screen."""
    from autotune.results.screen_words import describe_screen_record  # the compiler: only where it is needed

    lines = floor_lines(store)
    if not lines:
        lines.append("the noise floor is not measured yet")
    for record in store.of(ScreenRecord):
        lines += describe_screen_record(record)
    return list(dict.fromkeys(lines))


def floor_lines(store: Store) -> list[str]:
    """The latest noise floor of a run in words, and what its first one promised: each lane has one of its own."""
    floors = store.of(FloorResult)
    promised = [format_power(f.power) for f in floors if f.power is not None]
    told = [*describe_floor(floors[-1]), *_turn_lines(store, floors[-1])] if floors else []
    return list(dict.fromkeys([*told, *promised[:1]]))


def _turn_lines(store: Store, floor: FloorResult) -> list[str]:
    """Which steps count, where not all of them do."""
    sizes, in_turns = store.spec.turns, floor.comparison.mode == INTERLEAVED
    if not (settle_s := sizes.settle_s if in_turns else sizes.steady_s):
        return []
    what = "blocks" if in_turns else "runs"
    return [f"{what} count what comes after their first {format_seconds(settle_s)}, in which the device settles"]


def describe_floor(result: FloorResult) -> list[str]:
    """The noise floor in words."""
    floor = result.floor
    lines = [
        f"reference: {format_seconds(result.comparison.reference_step_s)} a step, compiled in "
        f"{format_seconds(result.reference.compile_s)}, peak memory {format_bytes(result.reference.peak_bytes)}",
        f"noise floor: two equal processes differ by ratio {format_estimate(floor.estimate)}; "
        f"a trial finds speed-ups from {format_detectable(floor.detectable)}",
    ]
    lines[1] += f" ({_spreads(floor)})"
    if result.comparison.mode != INTERLEAVED:
        lines.append(
            "one process at a time, in ABA runs of fresh processes (reference, candidate, reference): "
            f"{result.comparison.estimate.pair_count} here, and each counts once in an interval"
        )
    if (energy := result.comparison.energy) is not None:
        lines.append(f"energy: {format_joules(energy.reference_step_j)} a step, of whole GPUs")
    if result.power is not None:
        lines.append(format_power(result.power))
    if result.kernels is not None:
        lines.append(describe_kernels(result.kernels))
    return lines


def _spreads(floor: NoiseFloor) -> str:
    """What a process and a pair of blocks spread by, as standard deviations."""
    of_process, of_pair = (f"{sd * 100:.2g} %" for sd in (floor.process_sd, floor.within_sd))
    if not floor.within_sd:
        return f"standard deviation of a fresh run {of_process}"
    return f"standard deviation of a process {of_process}, of a pair of blocks {of_pair}"


# ---------------------------------------------------------------------- trials


def describe_trial(result: TrialResult, outlook: str | None) -> str:
    """A trial's result in words.

    Args:
        result: Its record.
        outlook: What its figures promise, see `TrialResult.outlook_at`.
    """
    if result.failure is not None:
        return describe_failure(result.failure, f"in phase {result.failure.phase}")
    if result.is_the_default:
        return "the same program as the default: changes nothing here"
    suffix = ""
    if result.same_as is not None:
        what = "set" if result.status is TrialStatus.SAME_SET else "program"
        suffix = f" (the same {what} as trial {result.same_as}, not measured again)"
    if result.comparison is None:
        return f"{spaced(result.status)}: no number{suffix}"
    found = result.comparison
    if result.loss is not None and result.loss.is_ok is None:
        suffix += f"; {LOSS_NOT_CHECKED}"
    if found.work is not None:  # the unit is the study's, and a trial does not know it
        suffix += f" (by work done: a step does {found.work.candidate} and the default's {found.work.reference})"
    return f"{format_estimate(found.estimate)} {outlook}, {found.stopped}{suffix}"


def describe_failure(failure: Failure, where: str) -> str:
    """A failure in words, with where it happened."""
    return f"{spaced(failure.kind)} {where}: {failure.message}"[:300]


def describe_energy(result: TrialResult) -> str:
    """A trial's energy in words; empty where it is not known."""
    energy = result.comparison.energy if result.comparison is not None else None
    if energy is None:
        return ""
    reference = format_joules(energy.reference_step_j)
    return f"energy: {format_joules(energy.candidate_step_j)} a step of whole GPUs, the default's {reference}"


# ---------------------------------------------------------------------- proof


WHAT = {
    PROFILE: "the profile that it was compiled with",
    KERNELS: "the autotuner's results of its soak",
}
"""What an artefact is."""


def cause_lines(store: Store) -> list[str]:
    """The smallest parts of sets that crashed or hung, as far as they were found."""
    return [
        f"trial {b.trial}: the {'cause' if b.is_minimal else 'smallest failing part found'} of the "
        f"{spaced(b.failure_kind)} is {b.smallest} ({b.starts} starts to find it)"
        for b in store.of(BlameRecord)
    ]


# ---------------------------------------------------------------------- the whole study


def describe_standing(store: Store, state: str) -> str:
    """The one sentence of a study that has not ended: how far it is, and the best so far.

    Args:
        store: The run directory.
        state: running, stopped or empty.
    """
    results, session = store.of(TrialResult), store.last(SessionRecord)
    if not results:
        return f"nothing is known yet: {'no trial has ended yet' if session else 'it was never started'}"
    found = [r.comparison.estimate for r in results if r.status is TrialStatus.MEASURED and r.comparison]
    best = min(found, key=lambda e: e.ratio, default=None)
    so_far = "nothing is promising so far"
    if best is not None and best.ratio < 1:
        so_far = f"the best so far has ratio {format_estimate(best)}, not yet proven"
    asked = session.asked_trials if session else store.spec.search.trials
    return f"{state} after {len(results)} of {asked} trials: {so_far}"


def conclusion_style(conclusion: ConclusionRecord) -> str:
    """How the one sentence is coloured."""
    return "bold green" if conclusion.outcome is Outcome.WINNER else "bold"


def warning_lines(store: Store) -> list[str]:
    """What a reader should know before believing a figure: each once."""
    floor = store.last(FloorResult)
    found = [r.what for r in store.of(IncidentRecord)]
    if floor is not None:
        found += [*floor.reference.warnings, *floor.comparison.warnings]
        if (problem := floor.reference.program_problem) is not None:
            found.append(f"its compiled program is not known, so sets that make the same one are measured: {problem}")
        if floor.comparison.mode != INTERLEAVED:
            found.append("one process at a time: intervals are over ABA runs, fewer than pairs of blocks")
        load, cpus = floor.provenance.get("load_1min"), floor.provenance.get("cpus_usable")
        if load and cpus and load > cpus:
            found.append(f"the machine was busy when the study began: load {load} on {cpus} CPUs")
    found += kernel_lines(store.of(FloorResult), store.of(ConfirmRun))
    for r in store.of(TrialResult):
        said = [*(r.worker.warnings if r.worker else ()), *(r.comparison.warnings if r.comparison else ())]
        found += [f"trial {r.number}: {w}" for w in said]
    for a in store.of(AblationResult):
        found += [f"without {a.what}: {w}" for w in (a.comparison.warnings if a.comparison else ())]
    for c in store.of(ConfirmRun):
        found += [f"proof of trial {c.trial}, processes {c.repeat + 1}: {w}" for w in c.warnings or ()]
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------------- a winner that is handed on


def _devices_of(winner: Winner) -> list[str]:
    """The devices of a proof, one fact a line."""
    c, lines = winner.conditions, list[str]()
    if c.driver is not None or c.driver_major is not None:
        lines.append(f"NVIDIA driver: {c.driver or f'{c.driver_major}.x'}")
    firmware = [f"{name} {value}" for name, value in (("VBIOS", c.vbios), ("GSP", c.gsp)) if value is not None]
    if limits := [*firmware, *(w for w in (c.clocks, c.power_limit, c.modes) if w is not None)]:
        lines.append("GPU: " + ", ".join(limits))
    if c.device_kind is not None:
        nodes = f" on each of {winner.node_count} nodes" if winner.node_count > 1 else ""
        lines.append(
            f"device: {c.device_count} x {c.device_kind} ({c.platform}){nodes}, {winner.process_count} process(es)"
        )
    return lines


def evidence(winner: Winner) -> list[str]:
    """What was proven, where, with what and when, one fact a line."""
    c, estimate = winner.conditions, winner.estimate
    lines = [f"autotune study {winner.study}, {winner.ended}"]
    if estimate is not None:
        lines.append(
            f"{time_of(winner.work)} over the default's: {format_estimate(estimate)} "
            f"({format_change(estimate.ratio)}, "
            f"{estimate.level:.0%} interval over {estimate.pair_count} fresh process pairs)"
        )
    if winner.work is not None:
        lines.append(f"work: {winner.work.candidate} tokens a step, the default's {winner.work.reference}")
    if winner.step_s is not None:
        lines.append(f"step: {format_seconds(winner.step_s)}, the median in that proof")
    soaked = f"{winner.soaked_s:.0f} s" if winner.soaked_s is not None else "not run"
    lines.append(f"soak: {winner.soak or soaked}")
    if winner.loss is not None:
        lines.append(f"loss: {'' if winner.loss.is_ok or winner.loss.is_silent else 'NOT PROVEN: '}{winner.loss.words}")
    for name, digest in artefacts_of(winner.in_force).items():
        lines.append(f"needs beside it: {file_name(name, digest)}, {WHAT[name]}")
    if winner.kernels is not None and not winner.loads_kernels:
        lines.append(f"kernels: those of its soak are {file_name(KERNELS, winner.kernels)} (--same-kernels loads them)")
    lines.append("versions: " + ", ".join(f"{n} {v}" for n, v in sorted(winner.versions.items())))
    lines += _devices_of(winner)
    lines.append(f"machine: {winner.machine}")
    options = " ".join(f"{k}={v}" for k, v in winner.workload_options.items())
    lines.append(f"workload: {winner.workload_entry} {options} (hash {c.workload})")
    if winner.options:
        changed = ", ".join(f"{name}={plain(value)}" for name, value in winner.options.items())
        lines.append(f"options, part of this winner, that no variable carries: {changed}")
        lines.append("give them to the program: exec with {NAME} in its arguments, --format arguments, overrides, toml")
    lines.append(
        "expires with any change of GPU, count, jax, jaxlib, plugin, driver, firmware, clocks or workload"
        + (f"; measure again by {winner.recheck_by} in any case" if winner.recheck_by else "")
        + " (autotune recheck)"
    )
    return [one_line(line) for line in lines]


def one_line(text: str) -> str:
    """Text that cannot end a comment line."""
    return "".join(c if c.isprintable() else " " for c in text)
