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


BENIGN = (  # of XLA's allocator and executor, with heads as absl writes them, and TensorFlow before it
    "W1122 02:31:07.118264   71234 bfc_allocator.cc:310] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
    "18.01GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there "
    "could be performance gains if more memory were available.",
    "2025-03-04 11:20:33.512345: W external/xla/xla/tsl/framework/bfc_allocator.cc:306] Allocator (GPU_0_bfc) ran out "
    "of memory trying to allocate 2.25GiB with freed_by_count=0. The caller indicates that this is not a failure, but "
    "may mean that there could be performance gains if more memory were available.",
    "2025-03-17 17:48:09.854399: W external/xla/xla/tsl/framework/bfc_allocator.cc:343] Garbage collection: deallocate "
    "free memory regions (i.e., allocations) so that we can re-allocate a larger region to avoid OOM due to memory "
    "fragmentation. If you see this message frequently, you are running near the threshold of the available memory",
    "2024-05-01 12:00:00.000001: I external/xla/xla/stream_executor/cuda/cuda_driver.cc:1101] failed to allocate "
    "71.50GiB (76772540416 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "I0000 00:00:1763776267.123456   71234 cuda_executor.cc:1015] failed to allocate 64.35GiB (69095286272 bytes) from "
    "device: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory",
)
REAL = (
    "W1122 02:31:07.118264   71234 bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
    "32.00GiB (rounded to 34359738368)requested by op ",
    "E1122 02:31:08.001000   71234 pjrt_stream_executor_client.cc:3085] Execution of replica 0 failed: "
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.",
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.",
    "F1122 02:31:08.001000   71234 gpu_executable.cc:12] Check failed: RESOURCE_EXHAUSTED: out of memory",
    "MemoryError",
)


def end_of(exit_status: int, *lines: str, **more: str) -> FailureKind:
    said = {"error_type": None, "message": None, "phase": "compile", **more}
    return classify_failure(exit_status=exit_status, last_lines=lines, log=None, **said).kind  # type: ignore[arg-type]


@pytest.mark.parametrize("line", BENIGN)
@pytest.mark.parametrize(
    ("exit_status", "rest", "kind"),
    [
        (-11, ("Fatal Python error: Segmentation fault",), FailureKind.CRASH),
        (-6, (), FailureKind.CRASH),
        (1, ("F1122 02:31:08.1 7 x.cc:1] ptxas fatal : Unresolved extern function",), FailureKind.COMPILE_ERROR),
        (1, ("Traceback (most recent call last):", "ValueError: heads"), FailureKind.NO_RESULT),
    ],
)
def test_memory_that_xla_does_without_is_no_failure(
    line: str, exit_status: int, rest: tuple[str, ...], kind: FailureKind
) -> None:
    assert end_of(exit_status, "step 1", line, *rest) is kind
    assert end_of(exit_status, *rest, line) is kind


@pytest.mark.parametrize("line", REAL)
@pytest.mark.parametrize("exit_status", [1, -6])
def test_memory_that_is_missing_is_one_whatever_was_said_before(line: str, exit_status: int) -> None:
    assert end_of(exit_status, *BENIGN, line, *BENIGN) is FailureKind.OUT_OF_MEMORY


def test_the_message_of_a_crash_is_not_that_of_a_harmless_line() -> None:
    failure = classify_failure(
        exit_status=1, phase="step", error_type=None, message=None, last_lines=(*BENIGN, REAL[1]), log=None
    )
    assert failure.message.startswith("E1122")


def test_secrets_in_last_words_are_redacted() -> None:
    failure = classify_failure(
        exit_status=2, phase="build", error_type="ValueError", message="bad --token hunter2", log=None,
        last_lines=("train.py: error: unrecognized arguments: --wandb-key=hunter2", "['--token', 'hunter2']"),
    )  # fmt: skip
    assert "hunter2" not in failure.model_dump_json()
    assert failure.last_lines[0].endswith("--wandb-key=***")
