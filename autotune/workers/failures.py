"""Classifies failures of workers by signal, exception and lines of errors, in this order."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from autotune.child.output import Output
from autotune.child.read_output import FOLLOW_UP, PEER_ENDED, last_exception, last_raised
from autotune.child.steps import plain
from autotune.model.files import packaged_table
from autotune.model.measurement import Failure, FailureKind

LAST_LINES, REASONS = 20, 2
"""Lines at the end of a log that are kept and judged; errors, and fatal lines, that are kept before
them.
"""

NO_GPU = "JAX finds no GPU"


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.M)


_KNOWN = packaged_table("failures.toml")
_TEXTS = {name: _any(*patterns) for name, patterns in _KNOWN["texts"].items()} | {
    "peer": PEER_ENDED
}
_LINES = {name: _any(*patterns) for name, patterns in _KNOWN["lines"].items()}
_KINDS = [(FailureKind(kind), name) for kind, name in _KNOWN["kinds"]]
_CPU_KINDS = [
    # the memory of a CPU is the host's
    (FailureKind.OUT_OF_MEMORY if kind is FailureKind.OUT_OF_HOST_MEMORY else kind, name)
    for kind, name in _KINDS
    if name not in ("no_gpu", "driver")
]
_ERROR = _any(*(_LINES[name].pattern for name in ("fatal", "logged", "error")))

_FROM_OUTSIDE = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals from outside, such as of a cluster that takes its nodes back."""

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals that no exception of Python explains."""

_DEATHS = (*_FAULTS, signal.SIGABRT, signal.SIGTRAP, signal.SIGKILL)
_DEADLY = {
    word: s for s in _DEATHS for word in (s.name, signal.strsignal(s), str(int(s)), str(128 + s))
}
"""What a program prints of a signal that ended another one."""


def read_log(log: str | Path | None) -> str:
    """Returns the text of a log; empty if it cannot be read."""
    try:
        return Path(log or "").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_lines(log: Path) -> tuple[str, ...]:
    """Returns the last lines of a log, and errors and fatal lines before them, each cut to 500
    characters.

    Of a run of stack frames only the first counts as a line. A reason after which the program made
    no progress is among the last lines, however much was written after it.
    """
    text = read_log(log).partition("\nFlags:\n\t")[0]  # all flags of XLA, after a bad value
    lines = _without_frames(
        [x[:500] for x in text.splitlines() if x.strip() and not _LINES["noise"].search(x)]
    )
    before = lines[:-LAST_LINES]
    last = lines[-LAST_LINES:]
    fatal = _of_kind("fatal", before)
    errors = [line for line in _of_kind("logged", before) if line not in fatal]
    since = before
    for i, line in enumerate(lines):
        if _LINES["progress"].search(line):
            since = before[i + 1 :]
    reasons = _exception_in(since) or [line for line in since if line in errors][-REASONS:]
    before = [line for line in (*errors[-REASONS:], *fatal[:REASONS]) if line not in reasons]
    return (*before, *reasons, *last[len(reasons) :])


def _exception_in(lines: Output) -> list[str]:
    """Returns the lines of the exception that `last_raised` finds, and one frame of its traceback;
    empty without.
    """
    raised = last_raised(lines)
    return (
        [lines[raised.frame], *lines[raised.line : raised.line + 3]] if raised is not None else []
    )


def _of_kind(kind: str, lines: Output) -> list[str]:
    return [line for line in lines if _LINES[kind].search(line)]


def _without_frames(lines: Output) -> list[str]:
    frames = [False, *(_LINES["frame"].search(line) is not None for line in lines)]
    return [line for i, line in enumerate(lines) if not all(frames[i : i + 2])]


def classify_failure(
    *,
    exit_status: int | None,
    phase: str,
    error_type: str | None,
    message: str | None,
    last_lines: tuple[str, ...],
    log: str | None,
    platform: str = "cuda",
) -> Failure:
    """Classifies the end of a worker.

    Args:
        exit_status: Negative for a signal, 128 + n for one that a shell reports; None if the guard
            vanished.
        error_type: Of the exception that the worker reported; else it is looked for in
            `last_lines`.
        last_lines: Of its log, as `last_lines` returns them: those before the last 20 decide
            nothing unless fatal.
    """
    lines = _without_frames([plain(line) for line in last_lines])
    lines = [*_of_kind("fatal", lines[:-LAST_LINES]), *lines[-LAST_LINES:]]
    if exit_status is None:
        vanished = "the guard of the worker vanished; was it killed from outside?"
        return Failure(
            kind=FailureKind.LAUNCH, message=vanished, phase=phase, log=log, last_lines=last_lines
        )
    exception = (error_type, (message or "").strip()) if error_type else None
    if exit_status >= 0:
        exception = exception or last_exception(lines)
    number = _signal_of(exit_status, lines)
    if (
        exit_status >= 0 and exception and number
    ):  # a launcher ends the peers of a process that raised an exception
        if number in _FAULTS or FOLLOW_UP.search(": ".join(exception)):
            exception = None
        else:
            number = None
    kind, reason = _judge(exit_status, phase, exception, number, lines, platform)
    return Failure(
        kind=kind,
        message=reason,
        phase=phase,
        log=log,
        last_lines=last_lines,
        exit_status=exit_status if exit_status >= 0 else None,
        signal=number.name if number is not None else None,
    )


def _signal_of(exit_status: int, lines: Output) -> signal.Signals | None:
    """Returns the signal that ended a program or, as its launcher reports it, one of its
    processes.
    """
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_status if exit_status < 0 else exit_status - 128)
    signs = filter(None, map(_TEXTS["signal"].search, lines))
    signals = [_DEADLY[word] for sign in signs if (word := sign[sign.lastindex or 0]) in _DEADLY]
    return next(
        (number for number in signals if number is not signal.SIGKILL), next(iter(signals), None)
    )


def _judge(
    exit_status: int,
    phase: str,
    exception: tuple[str, str] | None,
    number: signal.Signals | None,
    lines: list[str],
    platform: str,
) -> tuple[FailureKind, str]:
    errors = [line for line in lines if not _LINES["harmless"].search(line)]
    reason = reason_in(errors)
    without_result = (
        FailureKind.NO_RESULT,
        f"ended with status {exit_status} in phase {phase} without a result{reason}",
    )
    if exit_status == 0 and exception is None and number is None:
        return without_result
    if shares := next(filter(_TEXTS["two_shares"].search, lines), None):
        return (
            FailureKind.NOT_APPLIED,
            f"its share of the GPU's memory is set twice: {_clean(shares)}",
        )
    if ended := _ended_by_cluster(lines):
        return ended
    kinds = _KINDS if platform == "cuda" else _CPU_KINDS
    has_reason = exception is not None
    if exception and exception[1]:
        raised = ": ".join(exception)
        has_reason = not _TEXTS["refers_back"].search(raised)
        # An exception that says its reason goes first: the log may hold older lines.
        errors = raised.splitlines() if has_reason else [*errors, *raised.splitlines()]
    if judged := _judge_lines(kinds, errors, has_reason, number is not None):
        return judged
    if number in _FROM_OUTSIDE:
        return FailureKind.LAUNCH, f"ended from outside by {number.name} in phase {phase}{reason}"
    if number is not None:
        hint = (
            "; if nobody killed it, the kernel did for want of memory"
            if number is signal.SIGKILL
            else ""
        )
        return FailureKind.CRASH, f"died of {number.name} in phase {phase}{reason}{hint}"
    if exception is not None:
        return _judge_exception(phase, *exception)
    if exit_status == 127:
        return (
            FailureKind.LAUNCH,
            f"the worker's command cannot be started{''.join(f': {x}' for x in lines[-1:])}",
        )
    if device := next(filter(_TEXTS["device"].search, errors), None):
        return FailureKind.CRASH, _clean(device)
    if phase == "launch":
        return FailureKind.LAUNCH, f"ended with status {exit_status} before it spoke{reason}"
    return without_result


def _ended_by_cluster(lines: Output) -> tuple[FailureKind, str] | None:
    """Returns what a scheduler says of a job that it ended; None without, or after an exception of
    the program.
    """
    for at, line in enumerate(lines):
        for kind, name in ((FailureKind.NODE_LOST, "node_lost"), (FailureKind.LAUNCH, "cluster")):
            if _TEXTS[name].search(line):
                raised = last_exception(lines[:at])
                is_cause = raised is None or FOLLOW_UP.search(": ".join(raised)) is not None
                return (kind, _clean(line)) if is_cause else None
    return None


def outside_in(lines: Output) -> FailureKind | None:
    """Returns the kind of a hang whose last logged reason is the end of another process or job;
    None if it has none.
    """
    if (ended := _ended_by_cluster(lines)) is not None:
        return ended[0]
    return FailureKind.LAUNCH if PEER_ENDED.search(reason_in(lines[-LAST_LINES:])) else None


def _judge_lines(
    kinds: Sequence[tuple[FailureKind, str]], lines: Output, is_exception: bool, is_signal: bool
) -> tuple[FailureKind, str] | None:
    """Classifies by the first known kind: only an error's line decides and, after a signal, of a
    launch a fatal one.
    """
    for kind, name in kinds:
        needed = _LINES["fatal"] if is_signal and kind is FailureKind.LAUNCH else _ERROR
        found = (
            line
            for line in lines
            if _TEXTS[name].search(line) and (is_exception or needed.search(line))
        )
        if line := next(found, None):
            is_new = name == "no_gpu" and not line.startswith(NO_GPU)
            return kind, f"{NO_GPU}: {line}"[:400] if is_new else _clean(line)
    return None


def _judge_exception(phase: str, error_type: str, message: str) -> tuple[FailureKind, str]:
    if error_type == "NoResult":  # said by the reader of a program's output
        return FailureKind.NO_RESULT, message or "no result"
    kind = FailureKind.WORKLOAD_ERROR
    if phase == "compile" and "Runtime" in error_type:
        kind = FailureKind.COMPILE_ERROR
    elif phase not in ("launch", "import", "build") and _TEXTS["device"].search(message):
        kind = FailureKind.CRASH
    return kind, f"{error_type}: {message.splitlines()[0] if message else 'no message'}"


def reason_in(lines: Output) -> str:
    """Returns a colon and the first fatal line, else the last error that was logged; empty without
    one.
    """
    reasons = [*_of_kind("fatal", lines), *reversed(_of_kind("logged", lines))]
    return f": {_clean(reasons[0])}" if reasons else ""


def _clean(line: str) -> str:
    """Removes the time from a line; at most 400 characters are left."""
    return _LINES["time"].sub("", line).strip()[:400]


def is_not_installed(failure: Failure) -> bool:
    """Returns whether the command of a worker could not be started, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.exit_status == 127


def is_without_gpu(failure: Failure) -> bool:
    """Returns whether a worker failed because there is no GPU, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.message.startswith(NO_GPU)


def advice_on(failure: Failure) -> str:
    """Returns what to do about a program that runs by hand, but not as a study runs it; empty for
    another failure.
    """
    return next((text for sign, text in _KNOWN["advice"].items() if sign in failure.message), "")


def collision_of(failure: Failure) -> str:
    """Returns what a process wanted that another one has, ``port`` or ``lock``; empty if it does
    not say so.
    """
    said = "\n".join([failure.message, *failure.last_lines])
    return next((what for what in ("port", "lock") if _TEXTS[what].search(said)), "")


def may_be_killed_from_outside(failure: Failure) -> bool:
    """Returns whether something outside may have killed a worker, so that a retry may go well."""
    from_outside = {number.name for number in (signal.SIGKILL, *_FROM_OUTSIDE)}
    return (
        failure.kind in (FailureKind.LAUNCH, FailureKind.CRASH) and failure.signal in from_outside
    )


def is_kernel_kill(text: str) -> bool:
    """Returns whether an output reports that the kernel's OOM killer ended a process."""
    return "oom-kill" in text or "oom_kill" in text
