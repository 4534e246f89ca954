from __future__ import annotations

import pytest

from autotune.model.measurement import Failure, FailureKind
from autotune.workers.failures import classify_failure, collision_of

UNKNOWN = "F external/xla/xla/parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_gpu_nope=1"


OOM = "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"
PORT = "UNKNOWN: Failed to add port to server: No address added out of total 1 resolved for '[::]:1234'"


def end_of(
    exit_status: int | None, *lines: str, phase: str = "compile", error: tuple[str, str] | None = None
) -> Failure:
    """What a process ended of, with the last lines of its log and the exception that it reported."""
    error_type, message = error or (None, None)
    return classify_failure(
        exit_status=exit_status, phase=phase, error_type=error_type, message=message, last_lines=lines, log=None
    )


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (end_of(1, UNKNOWN, phase="build"), FailureKind.UNKNOWN_FLAG),
        (end_of(1, "Flag parsing failed.", "usage", phase="build"), FailureKind.UNKNOWN_FLAG),
        (end_of(1, error=("XlaRuntimeError", OOM)), FailureKind.OUT_OF_MEMORY),
        (end_of(1, phase="step", error=("MemoryError", "MemoryError")), FailureKind.OUT_OF_MEMORY),
        (end_of(1, error=("JaxRuntimeError", "INTERNAL: No supported config found")), FailureKind.COMPILE_ERROR),
        (end_of(1, error=("JaxRuntimeError", "INTERNAL: whatever")), FailureKind.COMPILE_ERROR),
        (end_of(1, phase="step", error=("JaxRuntimeError", "INTERNAL: whatever")), FailureKind.CRASH),
        (end_of(1, phase="build", error=("ValueError", "heads must divide")), FailureKind.WORKLOAD_ERROR),
        (end_of(1, "Out of memory once", phase="step", error=("KeyError", "'loss'")), FailureKind.WORKLOAD_ERROR),
        (end_of(1, phase="import", error=("XlaRuntimeError", PORT)), FailureKind.LAUNCH),
        (end_of(-11, "Fatal Python error: Segmentation fault"), FailureKind.CRASH),
        (end_of(-6, "F0000 check failed"), FailureKind.CRASH),
        (end_of(-9, phase="step"), FailureKind.CRASH),
        (end_of(-9, "oom-kill:constraint", phase="step"), FailureKind.OUT_OF_MEMORY),
        (end_of(0, phase="build"), FailureKind.NO_RESULT),
        (end_of(3, phase="import"), FailureKind.NO_RESULT),
        (end_of(127, "cannot start x", phase="launch"), FailureKind.LAUNCH),
        (end_of(None, phase="step"), FailureKind.LAUNCH),
    ],
)
def test_the_end_of_a_worker_is_named(failure: Failure, kind: FailureKind) -> None:
    assert failure.kind is kind
    assert failure.message


def test_a_signal_is_named_and_not_given_as_a_status() -> None:
    failure = end_of(-11, phase="step")
    assert (failure.signal, failure.exit_status) == ("SIGSEGV", None)


def test_the_message_is_the_line_that_says_it() -> None:
    failure = end_of(1, "noise", UNKNOWN)
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
    assert end_of(exit_status, "step 1", line, *rest).kind is kind
    assert end_of(exit_status, *rest, line).kind is kind


@pytest.mark.parametrize("line", REAL)
@pytest.mark.parametrize("exit_status", [1, -6])
def test_memory_that_is_missing_is_one_whatever_was_said_before(line: str, exit_status: int) -> None:
    assert end_of(exit_status, *BENIGN, line, *BENIGN).kind is FailureKind.OUT_OF_MEMORY


def test_the_message_of_a_crash_is_not_that_of_a_harmless_line() -> None:
    failure = end_of(1, *BENIGN, REAL[1], phase="step")
    assert failure.message.startswith("pjrt_stream_executor_client.cc:3085]")


def test_secrets_in_last_words_are_redacted() -> None:
    failure = classify_failure(
        exit_status=2, phase="build", error_type="ValueError", message="bad --token hunter2", log=None,
        last_lines=("train.py: error: unrecognized arguments: --wandb-key=hunter2", "['--token', 'hunter2']"),
    )  # fmt: skip
    assert "hunter2" not in failure.model_dump_json()
    assert failure.last_lines[0].endswith("--wandb-key=***")


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("OSError: [Errno 98] Address already in use", "port"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "lock"),
        ("FileExistsError: [Errno 17] File exists: '/tmp/train.lock'", "lock"),
        ("filelock._error.Timeout: The file lock '/tmp/a.lock' could not be acquired.", "lock"),
        ("sqlite3.OperationalError: database is locked", "lock"),
        ("ValueError: block size 8 and deadlock detection", ""),
        ("FileExistsError: [Errno 17] File exists: 'out'", ""),
    ],
)
def test_what_two_processes_cannot_both_have_is_named(said: str, what: str) -> None:
    failure = Failure(kind=FailureKind.WORKLOAD_ERROR, message="ended", phase="build", last_lines=(said,))
    assert collision_of(failure) == what
