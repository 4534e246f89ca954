"""Classifies failures of workers by exit status, exception and error texts."""

from __future__ import annotations

import re
import signal

from autotune.model.measurement import Failure, FailureKind

_PORT = re.compile(r"Address already in use|EADDRINUSE|Failed to add port to server|Failed to start RPC server")

_TABLE: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    # another process took the coordinator's port between its choice and its use (jaxlib 0.10 and 0.12)
    (FailureKind.LAUNCH, _PORT),
    # parse_flags_from_env.cc, jaxlib 0.10 to 0.12: one line names all unknown flags; bad values print usage
    (FailureKind.UNKNOWN_FLAG, re.compile(r"Unknown flags? in XLA_FLAGS|Flag parsing failed|Unknown flag\(s\)")),
    (
        FailureKind.OUT_OF_MEMORY,
        re.compile(
            r"RESOURCE_EXHAUSTED|[Oo]ut of memory|\bOOM\b|std::bad_alloc|MemoryError|CUDA_ERROR_OUT_OF_MEMORY"
            r"|CU(BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|cudaErrorMemoryAllocation"
        ),
    ),
    (
        FailureKind.COMPILE_ERROR,
        re.compile(
            r"No supported config|ptxas (error|fatal)|No such compile option|during compilation|HLO verification"
        ),
    ),
)

_COLLISIONS = {
    "port": _PORT,
    "lock": re.compile(
        r"BlockingIOError|EWOULDBLOCK|(FileExistsError|File exists).*lock|\block(ed\b| ?file|Error)"
        r"|\block (is )?(held|taken)|acquire.*\block|\block\b.*acquire|already running",
        re.I,
    ),
}
"""What a program prints that finds taken what only one process can have."""

NO_GPU = "JAX finds no GPU"
_NO_GPU = re.compile(
    # child/devices.py; jax/_src/xla_bridge.py, 0.10 to 0.12, whose assertion has no message; CUDA's own words
    rf"{NO_GPU}|assert _default_backend is not None|Unable to initialize backend 'cuda'"
    r"|CUDA_ERROR_NO_DEVICE|no CUDA-capable device is detected|No visible GPU devices"
)

_TWO_SHARES = re.compile(r"XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Error of jaxlib's `xla_client.py`; JAX only logs it, and then reports a missing platform."""

_HARMLESS = re.compile(
    # bfc_allocator.cc: XLA tries a large scratch buffer, then does with a smaller one
    r"[Tt]he caller indicates that this is not a failure|so that we can re-allocate a larger region to avoid OOM"
    # XLA's log lines of level INFO: cuda_executor.cc logs CUDA_ERROR_OUT_OF_MEMORY each time before it asks for a
    # smaller share of the device
    r"|^(?:\d{4}-\d\d-\d\d [\d:.]+: I|I\d{4} [\d:.]+\s+\d+) \S+:\d+\] "
)
"""Log lines that name an error but report none."""

_FROM_OUTSIDE = frozenset({-signal.SIGTERM, -signal.SIGHUP, -signal.SIGUSR1, -signal.SIGUSR2})
"""Exit statuses of signals from outside, such as of a cluster that takes its nodes back."""

_KILLS = frozenset({signal.SIGKILL, *(signal.Signals(-status) for status in _FROM_OUTSIDE)})


def classify_failure(
    *,
    exit_status: int | None,
    phase: str,
    error_type: str | None,
    message: str | None,
    last_lines: tuple[str, ...],
    log: str | None,
) -> Failure:
    """Classifies the end of a worker; `exit_status` is negative for a signal, None if the guard vanished."""
    kind, said = _judge(exit_status, phase, error_type, (message or "").strip(), last_lines)
    return Failure(
        kind=kind,
        message=said,
        phase=phase,
        exit_status=exit_status if exit_status is None or exit_status >= 0 else None,
        signal=signal.Signals(-exit_status).name if exit_status is not None and exit_status < 0 else None,
        log=log,
        last_lines=last_lines,
    )


def _judge(
    exit_status: int | None, phase: str, error_type: str | None, message: str, last_lines: tuple[str, ...]
) -> tuple[FailureKind, str]:
    if exit_status is None:
        return FailureKind.LAUNCH, "the guard of the worker vanished; was it killed from outside?"
    text = "\n".join([message, *(line for line in last_lines if not _HARMLESS.search(line))])
    if exit_status != 0 and (judged := _judge_device(text)) is not None:
        return judged
    # A reported exception goes first: the log may hold older, harmless lines.
    for kind, pattern in _TABLE:
        found = pattern.search(message if error_type and message else text)
        if found and (error_type is not None or exit_status != 0):
            return kind, _line_with(found, text)
    if exit_status in _FROM_OUTSIDE:
        return FailureKind.LAUNCH, f"ended from outside by {signal.Signals(-exit_status).name} in phase {phase}"
    if exit_status < 0:
        name = signal.Signals(-exit_status).name
        if exit_status == -signal.SIGKILL:
            return FailureKind.OUT_OF_MEMORY if is_kernel_kill(text) else FailureKind.CRASH, (
                f"killed by {name} in phase {phase}; if nobody killed it, the kernel did for want of memory"
            )
        return FailureKind.CRASH, f"died of {name} in phase {phase}"
    if error_type == "NoResult":  # said by the reader of a program's output
        return FailureKind.NO_RESULT, message or "no result"
    if error_type is not None:
        is_compilers = phase == "compile" and "Runtime" in error_type
        kind = FailureKind.COMPILE_ERROR if is_compilers else FailureKind.WORKLOAD_ERROR
        return kind, f"{error_type}: {message.splitlines()[0] if message else 'no message'}"
    if exit_status == 127:
        said = f": {last_lines[-1]}" if last_lines else ""
        return FailureKind.LAUNCH, f"the worker's command cannot be started{said}"
    if phase == "launch" and exit_status != 0:
        return FailureKind.LAUNCH, f"ended with status {exit_status} before it spoke"
    return FailureKind.NO_RESULT, f"ended with status {exit_status} in phase {phase} without a result"


def _judge_device(text: str) -> tuple[FailureKind, str] | None:
    """Classifies problems of the worker's GPU, if any."""
    if found := _TWO_SHARES.search(text):
        return FailureKind.NOT_APPLIED, f"its share of the GPU's memory is set twice: {_line_with(found, text)}"
    if found := _NO_GPU.search(text):
        line = _line_with(found, text)
        return FailureKind.LAUNCH, line if line.startswith(NO_GPU) else f"{NO_GPU}: {line}"
    return None


def is_not_installed(failure: Failure) -> bool:
    """Whether the command of a worker could not be started, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.exit_status == 127


def is_without_gpu(failure: Failure) -> bool:
    """Whether a worker failed because there is no GPU, so that a retry is useless."""
    return failure.kind is FailureKind.LAUNCH and failure.message.startswith(NO_GPU)


def collision_of(failure: Failure) -> str:
    """Returns what a process wanted that another one has, ``port`` or ``lock``; empty if it does not say so."""
    said = "\n".join([failure.message, *failure.last_lines])
    return next((what for what, pattern in _COLLISIONS.items() if pattern.search(said)), "")


def may_be_killed_from_outside(failure: Failure) -> bool:
    """Whether something outside may have killed a worker, so that a retry may go well."""
    return (
        failure.signal is not None
        and failure.kind in (FailureKind.LAUNCH, FailureKind.CRASH)
        and (signal.Signals[failure.signal] in _KILLS)
    )


def is_kernel_kill(text: str) -> bool:
    """Whether an output reports that the kernel's OOM killer ended a process."""
    return "oom-kill" in text or "oom_kill" in text


def _line_with(found: re.Match[str], text: str) -> str:
    """Returns the line of a match, at most 400 characters."""
    for line in text.splitlines():
        if found.group(0) in line:
            return line.strip()[:400]
    return found.group(0)
