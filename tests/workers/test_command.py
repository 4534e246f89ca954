"""The user's own program, real processes: read from its output, or with the hook; every way to go wrong is named."""

from __future__ import annotations

import importlib.metadata
import math
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.model.block_sizes import CHECK_STEPS, WARMUP_STEPS
from autotune.model.flags import PROFILE
from autotune.model.measurement import FailureKind
from autotune.workers.base import WorkerFailed
from tests.runs import there
from tests.tables import toml_beside
from tests.workers.conftest import PRINTED, PROGRAMS, Start, command, study

CASES, TEXTS = toml_beside(__file__), toml_beside(__file__, "programs.toml")

HOOKED: dict[str, Any] = {"program": "hooked.py", "hook": True}
HANGS_SOON = {"block_limit_s": 2}


def plain(*arguments: str, **workload: Any) -> dict[str, Any]:
    return command(*arguments, program="plain.py", **workload)


def test_steps_and_losses_of_an_unknown_program_are_read(start: Start, tmp_path: Path) -> None:
    worker = start(study(command()))
    times = worker.run_block(17)
    assert len(times) == 17
    assert len(worker.report.warmup_step_times_s) == WARMUP_STEPS
    assert worker.report.losses[0] == 1.0
    assert len(worker.report.losses) == CHECK_STEPS
    assert all(0 < t < 10 for t in times)
    # The first step compiles: what is read is what the program says, in seconds.
    lines = (tmp_path / "worker.log").read_text().splitlines()
    said = next(line for line in lines if line.startswith("step 0:"))  # XLA logs something first
    assert worker.report.warmup_step_times_s[0] == pytest.approx(float(said.split()[2]) / 1e3)
    assert worker.report.fingerprint.startswith("c"), worker.report.program_problem


@pytest.mark.parametrize(("fault", "kind"), CASES["faults_of_a_program"])
def test_what_goes_wrong_in_a_program_is_named(start: Start, fault: str, kind: str) -> None:
    worker = start(study(plain(fault), measure=HANGS_SOON if fault == "hang" else {}))
    with pytest.raises(WorkerFailed) as error:
        worker.run_block(50)
    assert error.value.failure.kind == kind
    assert error.value.failure.phase == "step"
    assert any("step 13:" in line for line in error.value.failure.last_lines)
    assert error.value.failure.exit_status == {"swallowed": 0, "status of a shell": 139, "oom": 1, "raise": 1}.get(
        fault
    )
    assert ("for rank 3" in error.value.failure.message) == (fault == "hang")


def test_a_loss_that_is_not_a_number_is_read_as_such(start: Start) -> None:
    worker = start(study(plain("early-nan")))
    assert math.isnan(worker.report.losses[3])


def test_a_program_that_is_too_short_says_how_long_it_must_be(start: Start) -> None:
    worker = start(study(plain("", "11"), measure={"run_steps": 20}))
    with pytest.raises(WorkerFailed, match=r"11 steps .* 26 are"):
        worker.run_block(20)


def test_a_long_run_goes_on_until_the_program_s_own_end(start: Start) -> None:
    worker = start(study(plain("", "60"), measure={"run_steps": 20}))
    worker.may_end = True
    ended = [len(worker.run_block(30)) != 30, worker.has_ended]
    assert not any(ended)
    assert 0 < len(worker.run_block(1000)) <= 60 - 30 - WARMUP_STEPS
    assert worker.has_ended
    failing = start(study(plain("swallowed")))
    failing.may_end = True
    with pytest.raises(WorkerFailed, match="ranks differ"):
        failing.run_block(50)


def test_steps_read_before_the_program_ended_count(start: Start) -> None:
    assert len(start(study(plain("", "13"))).run_block(8)) == 8


def test_output_without_steps_is_told_with_its_last_lines(start: Start, tmp_path: Path) -> None:
    wrong = {"pattern": r"time=(?P<step_s>[\d.]+)"}
    with pytest.raises(WorkerFailed, match=r"no step .*loss = ") as error:
        start(study(plain("", "5", read=wrong)))
    told = re.search(r"\((\d+) lines\)", error.value.failure.message)
    lines = (tmp_path / "worker.log").read_text().splitlines()
    assert int(there(told)[1]) == len(lines)  # of another kind, too
    assert len([line for line in lines if line.startswith(("step", "  loss"))]) == 10
    assert error.value.failure.kind is FailureKind.NO_RESULT


@pytest.mark.gate
def test_a_pattern_that_backtracks_for_ever_is_an_error_and_not_a_hang(start: Start) -> None:
    code = "import time; print('a' * 3000 + '!', flush=True); time.sleep(600)"
    spec = study({"command": [sys.executable, "-c", code], "read": {"pattern": r"^(a+)+$"}})
    with pytest.raises(WorkerFailed, match="over 2 s "):
        start(spec)


LOOP = (PROGRAMS / "stubborn.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", TEXTS["endings"])
def test_a_program_may_end_by_itself_and_a_stubborn_one_is_killed(kind: str, start: Start, tmp_path: Path) -> None:
    before, at_signal, wanted = TEXTS["endings"][kind]
    code = LOOP.format(before=before, at_signal=at_signal)
    read = {"pattern": r"(?P<step_ms>[\d.]+) ms"}
    start(study({"command": [sys.executable, "-c", code], "read": read})).close()
    text = (tmp_path / "worker.log").read_text()
    assert [word for word in wanted if word not in text] == []


def test_a_file_that_the_program_appends_to_is_read(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"perf": {"step": 99.0}}\n' * 9)  # of an earlier run
    read = {"json_key": "perf.step", "loss": "loss", "file": str(file)}
    worker = start(study({"command": [sys.executable, "-c", TEXTS["appends"], str(file)], "read": read}))
    assert worker.report.losses == pytest.approx([1 / n for n in range(1, 1 + CHECK_STEPS)])
    assert worker.run_block(5) == (0.25,) * 5


def test_the_folder_of_the_trial_can_be_an_argument(start: Start, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TEXTS["makes_a_file"], "{folder}"]
    start(study({"command": command, "read": {"pattern": "(?P<step_ms>5) ms"}}))
    assert (tmp_path / "files" / "made").exists()


def test_the_process_that_a_launcher_starts_is_the_one_that_is_reported(start: Start) -> None:
    launcher = ["bash", "-c", f"cd {PROGRAMS}; export A=1; {sys.executable} train.py & wait"]
    report = start(study({"command": launcher, "read": PRINTED})).report
    assert report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert report.versions["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert report.device_kind == "cpu"
    assert (Path(there(report.packages)).expanduser() / "jaxlib").is_dir()


# ---------------------------------------------------------------------- settings that do not arrive


def test_a_program_that_sets_xla_flags_itself_is_found_out(start: Start) -> None:
    with pytest.raises(WorkerFailed) as error:
        start(study(command("sets-flags")), {"xla_cpu_enable_fast_math": False})
    assert error.value.failure.kind is FailureKind.NOT_APPLIED
    assert "compiled nothing" in error.value.failure.message


@pytest.mark.gate
def test_a_program_that_adds_to_xla_flags_is_held_to_what_xla_says(start: Start) -> None:
    worker = start(study(command("adds-flags")), {"xla_cpu_enable_fast_math": False})
    assert worker.report.fingerprint.startswith("c")
    worker.close()
    with pytest.raises(WorkerFailed, match="xla_cpu_prefer_vector_width=512 became 128"):
        start(study(command("adds-flags")), {"xla_cpu_prefer_vector_width": 512})


def test_a_file_that_sets_xla_flags_is_a_warning_where_nothing_else_shows_that(start: Start) -> None:
    """On GPUs no dump is made; here the study's own dump takes its place."""
    dumps = {"xla_dump_hlo_as_text": True, "xla_cpu_enable_fast_math": False}
    worker = start(study(command("sets-flags")), dumps)
    assert [w for w in worker.report.warnings if "sets XLA_FLAGS" in w]


SETS_FLAGS = {"entry": "faulty:build", "options": {"fault": "sets-flags"}}
OPTION = "jax_default_matmul_precision"


@pytest.mark.parametrize(
    ("workload", "setting", "value", "became"),
    [
        pytest.param(SETS_FLAGS, "xla_cpu_enable_fast_min_max", "true", "took it", marks=pytest.mark.gate),
        (command("sets-option", **HOOKED), OPTION, "bfloat16", "made it highest"),
    ],
    ids=["a flag of an entry", "an option of jax"],
)
def test_a_setting_that_the_program_changes_is_found_out(
    start: Start, workload: dict[str, Any], setting: str, value: str, became: str
) -> None:
    with pytest.raises(WorkerFailed, match=f"{setting}={value}: the program {became}"):
        start(study(workload), {setting: value})


def test_that_nothing_could_be_seen_is_noted(start: Start) -> None:
    code = "import time; [(print('5 ms', flush=True), time.sleep(.01)) for _ in range(999)]"
    spec = study({"command": [sys.executable, "-c", code], "read": {"pattern": "(?P<step_ms>5) ms"}})
    worker = start(spec, {"xla_cpu_enable_fast_math": True})
    assert "loaded XLA" in worker.report.warnings[0]


# ---------------------------------------------------------------------- the hook


def test_a_hooked_loop_waits_for_its_turns_and_reports(start: Start, tmp_path: Path) -> None:
    worker = start(study(command(**HOOKED), device={"count": 2}))
    assert worker.report.losses[0] == 1.0
    assert worker.report.grad_norms == (1.5,) * CHECK_STEPS
    assert worker.report.device_count == 2
    assert worker.report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert worker.report.packages is not None
    assert [len(worker.run_block(n)) for n in (3, 1, 11)] == [3, 1, 11]
    worker.close()
    assert "the loop has ended" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(("fault", "kind"), CASES["faults_of_a_hooked_loop"])
def test_what_goes_wrong_in_a_hooked_loop_is_named(start: Start, fault: str, kind: str) -> None:
    worker = start(study(plain(fault, hook=True), measure=HANGS_SOON if fault == "hang" else {}))
    with pytest.raises(WorkerFailed) as error:
        worker.run_block(19)
    assert error.value.failure.kind == kind


def test_a_hook_in_a_process_that_the_study_did_not_start_says_so(start: Start) -> None:
    program = str(PROGRAMS / "plain.py")
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, {program!r}]).returncode)"
    with pytest.raises(WorkerFailed) as error:
        start(study({"command": [sys.executable, "-c", code], "hook": True}))
    assert any("study started" in line for line in error.value.failure.last_lines)


# ---------------------------------------------------------------------- workloads


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param("crash", FailureKind.CRASH, marks=pytest.mark.gate),
        pytest.param("hang", FailureKind.HANG, marks=pytest.mark.gate),
        ("nan", FailureKind.WRONG_LOSS),
        ("oom", FailureKind.OUT_OF_MEMORY),
    ],
)
def test_what_goes_wrong_in_a_workload_is_named(start: Start, fault: str, kind: FailureKind) -> None:
    spec = study({"entry": "faulty:build", "options": {"fault": fault}}, measure={"block_limit_s": 3})
    with pytest.raises(WorkerFailed) as error:
        start(spec).run_block(19)
    assert error.value.failure.kind is kind


@pytest.mark.parametrize(
    "says", [pytest.param("", marks=pytest.mark.slow), pytest.param("report", marks=pytest.mark.gate)]
)
def test_a_step_that_returns_at_once_takes_what_it_takes(start: Start, tmp_path: Path, says: str) -> None:
    worker = start(study(command(says, program="undelayed.py", hook=True)))
    began = time.monotonic()
    times = worker.run_block(20)
    elapsed = time.monotonic() - began
    words = (tmp_path / "worker.log").read_text().split()
    truth, dispatch = float(words[words.index("truth") + 1]), float(words[words.index("dispatch") + 1])
    assert dispatch < truth / 2, "a program that waits by itself shows nothing here"
    assert statistics.fmean(times) > truth / 2  # the least that a step took: a busy machine makes it only longer
    assert sum(times) <= elapsed
    if says:  # every single one, so that those at the beginning can be left out
        assert statistics.median(times) > truth / 2


@pytest.mark.parametrize(
    "platform", [pytest.param("cpu", marks=pytest.mark.gate), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_program_that_calls_back_to_the_host_runs(start: Start, platform: str) -> None:
    worker = start(study({"entry": "calls_host:build"}, device={"platform": platform, "count": 1}))
    assert worker.report.losses[0] == pytest.approx(8.0)
    assert not [w for w in worker.report.warnings if "JAX_PLATFORMS" in w]
    assert len(worker.run_block(3)) == 3


@pytest.mark.slow
def test_a_rank_that_does_not_see_the_profile_does_not_compile_without(start: Start, tmp_path: Path) -> None:
    """XLA would go on without a word: with another schedule than its peers, whose collectives then wait for ever."""
    with pytest.raises(WorkerFailed, match="every machine"):
        start(study({"entry": "faulty:build"}), {PROFILE: str(tmp_path / "gone.pbtxt")})
