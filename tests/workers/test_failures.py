from __future__ import annotations

import pytest

from autotune.model.measurement import FailureKind
from autotune.workers.failures import classify_failure

UNKNOWN = "F external/xla/xla/parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_gpu_nope=1"


@pytest.mark.parametrize(
    ("exit_status", "phase", "error_type", "message", "lines", "kind"),
    [
        (1, "build", None, None, (UNKNOWN,), FailureKind.UNKNOWN_FLAG),
        (1, "build", None, None, ("Flag parsing failed.", "usage"), FailureKind.UNKNOWN_FLAG),
        (
            1,
            "compile",
            "XlaRuntimeError",
            "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes",
            (),
            FailureKind.OUT_OF_MEMORY,
        ),
        (1, "step", "MemoryError", "MemoryError", (), FailureKind.OUT_OF_MEMORY),
        (
            1,
            "compile",
            "JaxRuntimeError",
            "INTERNAL: No supported config found for HLO",
            (),
            FailureKind.COMPILE_ERROR,
        ),
        (1, "compile", "JaxRuntimeError", "INTERNAL: whatever", (), FailureKind.COMPILE_ERROR),
        (1, "step", "JaxRuntimeError", "INTERNAL: whatever", (), FailureKind.WORKLOAD_ERROR),
        (1, "build", "ValueError", "heads must divide", (), FailureKind.WORKLOAD_ERROR),
        (-11, "compile", None, None, ("Fatal Python error: Segmentation fault",), FailureKind.CRASH),
        (-6, "compile", None, None, ("F0000 check failed",), FailureKind.CRASH),
        (-9, "step", None, None, (), FailureKind.CRASH),
        (-9, "step", None, None, ("oom-kill:constraint",), FailureKind.OUT_OF_MEMORY),
        (0, "build", None, None, (), FailureKind.NO_RESULT),
        (3, "import", None, None, (), FailureKind.NO_RESULT),
        (127, "launch", None, None, ("cannot start x",), FailureKind.LAUNCH),
        (None, "step", None, None, (), FailureKind.LAUNCH),
    ],
)
def test_the_end_of_a_worker_is_named(
    exit_status: int | None,
    phase: str,
    error_type: str | None,
    message: str | None,
    lines: tuple[str, ...],
    kind: FailureKind,
) -> None:
    failure = classify_failure(
        exit_status=exit_status,
        phase=phase,
        error_type=error_type,
        message=message,
        last_lines=lines,
        log="l",
    )
    assert failure.kind is kind
    assert failure.phase == phase
    assert failure.message


def test_a_signal_is_named_and_not_given_as_a_status() -> None:
    failure = classify_failure(exit_status=-11, phase="step", error_type=None, message=None, last_lines=(), log=None)
    assert (failure.signal, failure.exit_status) == ("SIGSEGV", None)


def test_an_exception_outweighs_old_log_lines() -> None:
    failure = classify_failure(
        exit_status=1,
        phase="step",
        error_type="KeyError",
        message="'loss'",
        last_lines=("warning: Out of memory once",),
        log=None,
    )
    assert failure.kind is FailureKind.WORKLOAD_ERROR


def test_the_message_is_the_line_that_says_it() -> None:
    failure = classify_failure(
        exit_status=1, phase="build", error_type=None, message=None, last_lines=("noise", UNKNOWN), log=None
    )
    assert "xla_gpu_nope" in failure.message
    assert "noise" not in failure.message
