from __future__ import annotations

from typing import Any

import pytest

from autotune.measure.memory import MemoryShare
from autotune.model.measurement import Failure, FailureKind
from autotune.workers.failures import classify_failure, collision_of
from tests.runs import BUILDS_BASE
from tests.tables import toml_beside

ENDINGS = toml_beside(__file__, "failures.toml")
UNKNOWN = "F external/xla/xla/parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_gpu_nope=1"


def end_of(
    exit_status: int | None, *lines: str, phase: str = "compile", error: tuple[str, str] | None = None
) -> Failure:
    """What a process ended of, with the last lines of its log and the exception that it reported."""
    error_type, message = error or (None, None)
    return classify_failure(
        exit_status=exit_status, phase=phase, error_type=error_type, message=message, last_lines=lines, log=None
    )


@pytest.mark.parametrize("end", ENDINGS["ended"], ids=str)
def test_the_end_of_a_worker_is_named(end: dict[str, Any]) -> None:
    told = {name: end[name] for name in ("phase", "error") if name in end}
    failure = end_of(end.get("status"), *end.get("lines", ()), **told)
    assert failure.kind == end["kind"]
    assert failure.message


def test_a_signal_is_named_and_not_given_as_a_status() -> None:
    failure = end_of(-11, phase="step")
    assert (failure.signal, failure.exit_status) == ("SIGSEGV", None)


def test_the_message_is_the_line_that_says_it() -> None:
    failure = end_of(1, "noise", UNKNOWN)
    assert "xla_gpu_nope" in failure.message
    assert "noise" not in failure.message


@pytest.mark.parametrize("line", ENDINGS["harmless"])
@pytest.mark.parametrize(("exit_status", "rest", "kind"), ENDINGS["harmless_beside"])
def test_memory_that_xla_does_without_is_no_failure(line: str, exit_status: int, rest: list[str], kind: str) -> None:
    assert end_of(exit_status, "step 1", line, *rest).kind == kind
    assert end_of(exit_status, *rest, line).kind == kind


@pytest.mark.parametrize("line", ENDINGS["missing"])
@pytest.mark.parametrize("exit_status", [1, -6])
def test_memory_that_is_missing_is_one_whatever_was_said_before(line: str, exit_status: int) -> None:
    kind = FailureKind.OUT_OF_HOST_MEMORY if line == "MemoryError" else FailureKind.OUT_OF_MEMORY
    assert end_of(exit_status, *ENDINGS["harmless"], line, *ENDINGS["harmless"]).kind is kind


def test_the_message_of_a_crash_is_not_that_of_a_harmless_line() -> None:
    failure = end_of(1, *ENDINGS["harmless"], ENDINGS["missing"][1], phase="step")
    assert failure.message.startswith("pjrt_stream_executor_client.cc:3085]")


def test_secrets_in_last_words_are_redacted() -> None:
    failure = classify_failure(
        exit_status=2,
        phase="build",
        error_type="ValueError",
        message="bad --token hunter2",
        log=None,
        last_lines=("train.py: error: unrecognized arguments: --wandb-key=hunter2", "['--token', 'hunter2']"),
    )
    assert "hunter2" not in failure.model_dump_json()
    assert failure.last_lines[0].endswith("--wandb-key=***")


@pytest.mark.parametrize(("said", "what"), list(ENDINGS["collisions"].items()))
def test_what_two_processes_cannot_both_have_is_named(said: str, what: str) -> None:
    failure = Failure(kind=FailureKind.WORKLOAD_ERROR, message="ended", phase="build", last_lines=(said,))
    assert collision_of(failure) == what


@pytest.mark.parametrize(("line", "advice"), list(ENDINGS["advice"].items()))
def test_what_to_do_about_a_program_of_a_study_that_ends(line: str, advice: str) -> None:
    failure = end_of(1, '  File "train.py", line 3, in <module>', line, phase="build")
    assert advice in MemoryShare(BUILDS_BASE).advice(failure)
