"""Classifies failures of workers by signal, exception and lines of errors, in this order."""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from autotune.child.output import Output
from autotune.child.read_output import FOLLOW_UP, last_exception, last_raised
from autotune.child.steps import plain
from autotune.model.files import packaged_table
from autotune.model.measurement import Failure, FailureKind

LAST_LINES = 20  # lines at the end of a log that are kept and judged
REASONS = 2  # errors, and fatal lines, that are kept before them
NO_GPU = "JAX finds no GPU"

Judgement = tuple[FailureKind, str]  # kind and message
Lines = tuple[str, ...]
_KNOWN = packaged_table("failures.toml")
_KNOWN["lines"]["logged"] += _KNOWN["texts"]["cluster"] + _KNOWN["texts"]["node_lost"]
_TEXTS = {
    name: re.compile("|".join(patterns), re.M)
    for name, patterns in {**_KNOWN["texts"], **_KNOWN["lines"]}.items()
}
_ERRORS = [_TEXTS[name] for name in ("fatal", "logged", "error")]
_KINDS = [(FailureKind(kind), name) for kind, name in _KNOWN["kinds"]]
_CPU_KINDS = [
    # the memory of a CPU is the host's
    (FailureKind.OUT_OF_MEMORY if kind is FailureKind.OUT_OF_HOST_MEMORY else kind, name)
    for kind, name in _KINDS
    if name not in ("no_gpu", "driver")
]

# Such as of a cluster that takes its nodes back.
_FROM_OUTSIDE = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# What a program prints of a signal that ended another one.
_DEADLY = {
    word: s
    for s in (*_FAULTS, signal.SIGABRT, signal.SIGTRAP, signal.SIGKILL)
    for word in (s.name, signal.strsignal(s), str(int(s)), str(128 + s))
}


def read_log(log: str | Path | None) -> str:
    """Returns the text of a log; empty if it cannot be read."""
    try:
        return Path(log or "").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_lines(log: Path) -> Lines:
    """Returns the last lines of a log, and errors and fatal lines before them, cut at 500.

    A reason after which the program made no progress counts, however much was written after it.
    """
    text = read_log(log).partition("\nFlags:\n\t")[0]  # without a list of all flags
    lines = _without_frames(
        [x[:500] for x in text.splitlines() if x.strip() and not _TEXTS["noise"].search(x)]
    )
    before = lines[:-LAST_LINES]
    fatal = _lines_with("fatal", before)
    errors = _lines_with("logged", before)
    since = before[_last_step(lines) + 1 :]
    raised = last_raised(since)
    if raised is not None:  # with one frame of its traceback
        reasons = [since[raised.frame], *since[raised.line : raised.line + 3]]
    else:
        reasons = _lines_with("logged", since)[-REASONS:]
    earlier = dict.fromkeys((*errors[-REASONS:], *fatal[:REASONS]))
    return (
        *(line for line in earlier if line not in reasons),
        *reasons,
        *lines[-LAST_LINES:][len(reasons) :],
    )


def _last_step(lines: Output) -> int:
    steps = (i for i, line in enumerate(lines) if _TEXTS["progress"].search(line))
    return max(steps, default=-1)


def _lines_with(name: str, lines: Output) -> list[str]:
    return [line for line in lines if _TEXTS[name].search(line)]


def _without_frames(lines: Output) -> list[str]:
    frame = _TEXTS["frame"].search
    pairs = itertools.pairwise(["", *lines])
    return [line for before, line in pairs if not (frame(before) and frame(line))]


def classify_failure(
    *,
    exit_status: int | None,
    phase: str,
    error_type: str | None,
    message: str | None,
    last_lines: Lines,
    log: str | None,
    platform: str = "cuda",
) -> Failure:
    """Classifies the end of a worker by its status, reported exception and `last_lines` of its log.

    A status is negative for a signal, 128 + n for one that a shell reports, None if the guard
    vanished. Without `error_type` an exception is looked for in the lines.
    """
    lines = _without_frames([plain(line) for line in last_lines])
    lines = [*_lines_with("fatal", lines[:-LAST_LINES]), *lines[-LAST_LINES:]]
    if exit_status is None:
        vanished = "the guard of the worker vanished; was it killed from outside?"
        return Failure(
            kind=FailureKind.LAUNCH, message=vanished, phase=phase, log=log, last_lines=last_lines
        )
    has_status = exit_status >= 0
    exception = (error_type, (message or "").strip()) if error_type else None
    if has_status and exception is None:
        exception = last_exception(lines)
    number = _signal_of(exit_status, lines)
    # A launcher ends the peers of a process that raised.
    if has_status and exception and number:
        if number in _FAULTS or FOLLOW_UP.search(": ".join(exception)):
            exception = None
        else:
            number = None
    kind, reason = _judge(exit_status, phase, exception, number, lines, platform)
    name = number.name if number else None
    return Failure(
        kind=kind,
        message=reason,
        phase=phase,
        log=log,
        last_lines=last_lines,
        exit_status=exit_status if has_status else None,
        signal=name,
    )


def _signal_of(exit_status: int, lines: Output) -> signal.Signals | None:
    """Returns the signal that ended a program or, as its launcher reports it, a part of it."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-exit_status if exit_status < 0 else exit_status - 128)
    signs = filter(None, map(_TEXTS["signal"].search, lines))
    names = [sign[sign.lastindex or 0] for sign in signs]
    signals = [_DEADLY[name] for name in names if name in _DEADLY]
    return min(signals, key=signal.SIGKILL.__eq__, default=None)  # another one says more


def _judge(
    exit_status: int,
    phase: str,
    exception: tuple[str, str] | None,
    number: signal.Signals | None,
    lines: list[str],
    platform: str,
) -> Judgement:
    errors = [line for line in lines if not _TEXTS["harmless"].search(line)]
    reason = reason_in(errors)
    without_result = (
        FailureKind.NO_RESULT,
        f"ended with status {exit_status} in phase {phase} without a result{reason}",
    )
    if exit_status == 0 and exception is None and number is None:
        return without_result
    shares = _lines_with("two_shares", lines)
    if shares:
        message = f"its share of the GPU's memory is set twice: {_clean(shares[0])}"
        return FailureKind.NOT_APPLIED, message
    kinds = _KINDS if platform == "cuda" else _CPU_KINDS
    has_reason = exception is not None
    if exception and exception[1]:
        raised = ": ".join(exception)
        has_reason = not _lines_with("refers_back", [raised])
        # An exception that says its reason goes first: the log may hold older lines.
        errors = raised.splitlines() if has_reason else [*errors, *raised.splitlines()]
    judgement = _ended_by_cluster(lines, number) or _judge_lines(
        kinds, errors, has_reason, number is not None
    )
    if judgement is not None:
        return judgement
    if number in _FROM_OUTSIDE:
        return FailureKind.LAUNCH, f"ended from outside by {number.name} in phase {phase}{reason}"
    if number is not None:
        message = f"died of {number.name} in phase {phase}{reason}"
        if number is signal.SIGKILL:
            message += "; if nobody killed it, the kernel did for want of memory"
        return FailureKind.CRASH, message
    if exception is not None:
        return _judge_exception(phase, *exception)
    if exit_status == 127:
        message = "the worker's command cannot be started"
        return FailureKind.LAUNCH, ": ".join([message, *lines[-1:]])
    device = _lines_with("device", errors)
    if device:
        return FailureKind.CRASH, _clean(device[0])
    if phase == "launch":
        return FailureKind.LAUNCH, f"ended with status {exit_status} before it spoke{reason}"
    return without_result


def _ended_by_cluster(lines: Output, number: signal.Signals | None) -> Judgement | None:
    """Returns what a scheduler says of a job that it ended, unless the program failed before.

    What a program says before its last step may be of an earlier run.
    """
    if number in (*_FAULTS, signal.SIGABRT):
        return None
    last_step = _last_step(lines)
    for at, line in enumerate(lines):
        for kind, name in ((FailureKind.NODE_LOST, "node_lost"), (FailureKind.LAUNCH, "cluster")):
            is_now = at > last_step or _TEXTS["this_job"].search(line)
            if is_now and _TEXTS[name].search(line):
                raised = last_exception(lines[:at])
                if raised is not None and not FOLLOW_UP.search(": ".join(raised)):
                    return None
                return kind, _clean(line)
    return None


def outside_in(lines: Output) -> FailureKind | None:
    """Returns the kind of a hang that another process's or job's end explains; None for others."""
    ended = _ended_by_cluster(lines, None)
    if ended is not None:
        return ended[0]
    if _TEXTS["peer"].search(reason_in(lines[-LAST_LINES:])):
        return FailureKind.LAUNCH
    return None


def _judge_lines(
    kinds: Sequence[tuple[FailureKind, str]], lines: Output, is_exception: bool, is_signal: bool
) -> Judgement | None:
    """Classifies by the first known kind; only lines of errors (after a signal: fatal) decide."""
    for kind, name in kinds:
        needed = _ERRORS[:1] if is_signal and kind is FailureKind.LAUNCH else _ERRORS
        for line in _lines_with(name, lines):
            if is_exception or any(pattern.search(line) for pattern in needed):
                if name == "no_gpu" and not line.startswith(NO_GPU):
                    return kind, f"{NO_GPU}: {line}"[:400]
                return kind, _clean(line)
    return None


def _judge_exception(phase: str, error_type: str, message: str) -> Judgement:
    if error_type == "NoResult":  # said by the reader of a program's output
        return FailureKind.NO_RESULT, message or "no result"
    kind = FailureKind.WORKLOAD_ERROR
    if phase == "compile" and "Runtime" in error_type:
        kind = FailureKind.COMPILE_ERROR
    elif phase not in ("launch", "import", "build") and _TEXTS["device"].search(message):
        kind = FailureKind.CRASH
    return kind, f"{error_type}: {message.splitlines()[0] if message else 'no message'}"


def reason_in(lines: Output) -> str:
    """Returns a colon and the first fatal line, else the last logged error; empty without one."""
    reasons = [*_lines_with("fatal", lines), *reversed(_lines_with("logged", lines))]
    return f": {_clean(reasons[0])}" if reasons else ""


def _clean(line: str) -> str:
    """Removes the time from a line; at most 400 characters are left."""
    return _TEXTS["time"].sub("", line).strip()[:400]


def is_not_installed(failure: Failure) -> bool:
    """Returns whether the command of a worker could not be started, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.exit_status == 127


def is_without_gpu(failure: Failure) -> bool:
    """Returns whether a worker failed because there is no GPU, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.message.startswith(NO_GPU)


def advice_on(failure: Failure) -> str:
    """Returns advice on a program that runs by hand but not in a study; empty for others."""
    return next((text for sign, text in _KNOWN["advice"].items() if sign in failure.message), "")


def collision_of(failure: Failure) -> str:
    """Returns what another process has that one wanted: ``port``, ``lock`` or an empty text."""
    text = "\n".join([failure.message, *failure.last_lines])
    return next((name for name in ("port", "lock") if _TEXTS[name].search(text)), "")


def may_be_killed_from_outside(failure: Failure) -> bool:
    """Returns whether something outside may have killed a worker, so that a retry may go well."""
    names = {number.name for number in (signal.SIGKILL, *_FROM_OUTSIDE)}
    is_death = failure.kind in (FailureKind.LAUNCH, FailureKind.CRASH)
    return is_death and failure.signal in names
