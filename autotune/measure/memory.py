"""The limits that a study sets on memory, and what two interleaved processes get of a GPU.

JAX takes three quarters of a GPU's memory when it starts, so each of two gets less than half, if
neither study nor program says otherwise; what does not fit so is measured alone.
"""

from __future__ import annotations

import re
import shlex

from autotune.compiler.screen import DEFAULT_MEMORY_FRACTION, Screener
from autotune.compiler.targets import memory_fraction
from autotune.model.files import TextTable
from autotune.model.flags import MEMORY_FRACTIONS, FlagSet
from autotune.model.measurement import INTERLEAVED, Failure, FailureKind, WorkerReport
from autotune.model.records import AaRecord
from autotune.model.spec import StudySpec
from autotune.model.units import format_bytes
from autotune.workers.base import WorkerFailed
from autotune.workers.failures import advice_on, is_not_installed, read_log

LIMIT_PHASE = "limit"  # Phase of a failure where the study refuses the set, not the device

MEMORY_FRACTION = MEMORY_FRACTIONS[0]
# What each of two interleaved processes takes of a GPU's memory, unless the study decides.
SHARED_FRACTION = "0.45"

_REFUSED = re.compile(
    # jaxlib's xla_client.py, 0.10 to 0.12: the program has set the older name of the same
    rf"{MEMORY_FRACTION} is specified together with {MEMORY_FRACTIONS[1]}"
    # workers/settings_check.py: the program has set this very variable
    rf"|{MEMORY_FRACTION}={SHARED_FRACTION}: the program"
)


def over_limit(spec: StudySpec, peak_bytes: int, source: str) -> Failure | None:
    """The failure of a set that needs more than `limits.memory` of the fullest device."""
    limit = spec.limits.memory
    if limit is None or peak_bytes <= limit:
        return None
    message = (
        f"must need at most {format_bytes(limit)} of each device (limits.memory) but needs "
        f"{format_bytes(peak_bytes)} ({source}); raise the limit if the device has more to give"
    )
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, phase=LIMIT_PHASE)


def limit_bytes(spec: StudySpec, aa_run: AaRecord, settings: FlagSet) -> int | None:
    """What a set may need of each device: `limits.memory`, or what one process alone gets."""
    before = _fraction(spec, FlagSet(), isolated=aa_run.comparison.mode != INTERLEAVED)
    share = _fraction(spec, settings, isolated=spec.measure.mode != INTERLEAVED) / before
    limits = [m.limit_bytes for m in aa_run.reference.device_memory]
    bounds = [round(share * limit) for limit in limits if limit is not None]
    if spec.limits.memory is not None:
        bounds.append(spec.limits.memory)
    return min(bounds, default=None)


def _fraction(spec: StudySpec, settings: FlagSet, *, isolated: bool) -> float:
    """The share of a GPU's memory that a process of a set gets."""
    share = MemoryShare(spec).given(settings, isolated=isolated)
    return memory_fraction({**spec.baseline.merge(settings), **share}) or DEFAULT_MEMORY_FRACTION


def refuse_over_limit(spec: StudySpec, report: WorkerReport) -> None:
    """Refuses, by a WorkerFailed, a process that has taken more than the limit or cannot tell."""
    peak_bytes = max([report.peak_bytes or 0, *(m.peak_bytes for m in report.device_memory)])
    failure = over_limit(spec, peak_bytes, "measured")
    if spec.limits.memory is not None and not peak_bytes:
        message = (
            "must report its memory for limits.memory to be kept but does not; a program does by "
            "the hook, a screen ([screen] enabled = true) by compiling: use one of them, or take "
            "the limit out"
        )
        failure = Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase=LIMIT_PHASE)
    if failure is not None:
        raise WorkerFailed(failure)


def compiled_failure(spec: StudySpec, screen: Screener, settings: FlagSet) -> Failure | None:
    """The failure of a set whose compiled program needs more memory than it may have."""
    program = screen.result(settings).program
    if program is None or program.memory is None:
        return None
    peak = program.memory.peak_bytes
    failure = over_limit(spec, peak, "by its compiled program, never launched")
    limit = screen.limit_bytes(settings)
    if failure is not None or limit is None or peak <= limit:
        return failure
    message = (
        f"needs {format_bytes(peak)} on each GPU and has {format_bytes(limit)}: compiled for "
        f"{screen.target_name} {screen.job.topology}, never launched"
    )
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, phase="screen")


class MemoryShare:
    """How the GPUs of one place are shared, and which sets do not fit beside another process."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._isolated_sets: set[FlagSet] = set()
        self.is_programs_own = False
        """Whether the program turned out to set its share itself, so that it is given none."""

    def given(self, settings: FlagSet, *, isolated: bool) -> TextTable:
        """What gives a process its share of the memory; empty if alone, or if others decide."""
        # By these a study or a set decides on memory itself.
        endings = ("_MEM_FRACTION", "_PREALLOCATE", "_ALLOCATOR")
        is_decided = any(name.endswith(endings) for name in self._spec.baseline.merge(settings))
        if isolated or self.is_programs_own or self._spec.device.platform != "cuda" or is_decided:
            return {}
        return {MEMORY_FRACTION: SHARED_FRACTION}

    @property
    def is_optional(self) -> bool:
        """Whether processes of this study share a GPU, but may also run alone."""
        return self._spec.device.platform == "cuda" and self._spec.measure.mode == "auto"

    def is_too_small(self, failure: Failure) -> bool:
        """Whether an interleaved process failed for want of memory that it might have alone."""
        return (
            self.is_optional
            and failure.kind is FailureKind.OUT_OF_MEMORY
            and failure.phase != LIMIT_PHASE  # it does not fit alone either
        )

    def remember(self, settings: FlagSet) -> None:
        """Notes that a set does not fit beside another process, for its next pairs."""
        self._isolated_sets.add(settings)

    def is_known_isolated(self, *sets: FlagSet) -> bool:
        """Returns whether one of some sets turned out not to fit beside another process."""
        return self.is_optional and not self._isolated_sets.isdisjoint(sets)

    def advice(self, failure: Failure) -> str:
        """Returns what to do about a reference that cannot run, to begin a sentence with."""
        if failure.kind is not FailureKind.OUT_OF_MEMORY or not self.given(
            FlagSet(), isolated=False
        ):
            if is_not_installed(failure):
                return "install what cannot be started, or write its path into `workload.command`"
            if advice := advice_on(failure):
                return advice
            command = self._spec.workload.shown.command
            if command is not None:
                return f"run it by hand in the study's folder until it works: {shlex.join(command)}"
            return "mend the workload or the baseline of the study"
        if self._spec.measure.mode == INTERLEAVED:
            return (
                f'measure.mode = "{INTERLEAVED}" leaves each of two processes {SHARED_FRACTION} '
                'of the GPU\'s memory: write "auto" or "aba", and one at a time has more'
            )
        return (
            "it was alone on the GPU, with JAX's own share of the memory: make the workload "
            f"smaller, or that share larger ([baseline] {MEMORY_FRACTION})"
        )

    def is_refused(self, failure: Failure) -> bool:
        """Whether a process failed because its program, too, says how much memory it takes."""
        if any(map(_REFUSED.search, (failure.message, *failure.last_lines))):
            return True
        # JAX only logs it, far above its last words: that it knows of no such platform.
        return (
            failure.kind is not FailureKind.OUT_OF_MEMORY
            and _REFUSED.search(read_log(failure.log)) is not None
        )
