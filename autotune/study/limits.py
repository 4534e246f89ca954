"""Memory as a bound: what needs more of a device than the study allows is no candidate, however fast."""

from __future__ import annotations

from autotune.compiler import Screener
from autotune.model import Failure, FailureKind, FlagSet, StudySpec, WorkerReport, format_bytes
from autotune.workers import WorkerFailed

PHASE = "limit"
"""Phase of such a failure: it is the study that refuses the set, not the device."""


def over_limit(spec: StudySpec, peak_bytes: int | None, how: str) -> Failure | None:
    """The failure of a set that needs more than `limits.memory`; None without a limit, or a figure.

    Args:
        spec: The study.
        peak_bytes: What it needs of the fullest device.
        how: Where that figure is from, in words.
    """
    limit = spec.limits.memory
    if limit is None or peak_bytes is None or peak_bytes <= limit:
        return None
    message = (
        f"must need at most {format_bytes(limit)} of each device (limits.memory) but needs {format_bytes(peak_bytes)} "
        f"({how}); raise the limit if the device has more to give"
    )
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, phase=PHASE)


def refuse_over_limit(spec: StudySpec, report: WorkerReport) -> None:
    """Refuses a process that has taken more than the limit, or that cannot tell.

    Raises:
        WorkerFailed: If it has.
    """
    known = [report.peak_bytes or 0, *(m.peak_bytes for m in report.device_memory)]
    if (failure := over_limit(spec, max(known), "measured")) is not None:
        raise WorkerFailed(failure)
    if spec.limits.memory is not None and not max(known):
        message = (
            "must tell its memory for limits.memory to be kept but does not; a program is asked by the hook, a screen "
            "([screen] enabled = true) by compiling: use one of them, or take the limit out"
        )
        raise WorkerFailed(Failure(kind=FailureKind.WORKLOAD_ERROR, message=message, phase=PHASE))


def compiled_over_limit(spec: StudySpec, screen: Screener, settings: FlagSet) -> Failure | None:
    """The failure of a set whose compiled program needs more memory than the study allows."""
    program = screen.result(settings).program
    peak = program.memory.peak_bytes if program and program.memory else None
    return over_limit(spec, peak, "by its compiled program, never launched")


def does_not_fit(screen: Screener, settings: FlagSet) -> Failure:
    """The failure of a set that must not be launched."""
    program = screen.result(settings).program
    peak = program.memory.peak_bytes if program and program.memory else None
    limit = screen.limit_bytes(screen.baseline.merge(settings))
    return Failure(
        kind=FailureKind.OUT_OF_MEMORY,
        message=f"needs {format_bytes(peak)} on each GPU and has {format_bytes(limit)}: compiled for "
        f"{screen.target_name} {screen.job.topology}, never launched",
        phase="screen",
    )
