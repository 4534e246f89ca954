"""Real processes behind real guards: nothing outlives its parent, output stays bounded, endings are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.workers.base import GuardedProcess
from harness.sandbox import wait_for
from tests.tables import toml_beside

PROGRAMS = toml_beside(__file__, "guard.toml")
ROOT = Path(__file__).parents[2]


def guarded(tmp_path: Path, program: str, *, log_bytes: int = 10_000) -> GuardedProcess:
    env = {"PATH": os.environ["PATH"], "MARK": str(tmp_path)}
    return GuardedProcess([sys.executable, "-c", program], env, tmp_path / "worker.log", log_bytes)


def messages(process: GuardedProcess) -> list[dict[str, Any]]:
    """All messages of a process up to its end, which is the last."""
    seen = list(process.messages(20.0))
    process.close(5.0)
    assert seen[-1]["type"] == "exit"
    return seen


def pid_in(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"), f"{file} is written", limit_s=20)
    return int(file.read_text())


def wait_until_gone(*pids: int) -> None:
    wait_for(lambda: not any(map(_runs, pids)), f"none of {pids} runs", limit_s=20)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_closing_ends_a_grandchild_that_left_its_session(tmp_path: Path) -> None:
    process = guarded(tmp_path, PROGRAMS["family"])
    child, grandchild = pid_in(tmp_path / "child"), pid_in(tmp_path / "grandchild")
    assert _runs(child)
    assert _runs(grandchild)
    process.close(10.0)
    wait_until_gone(child, grandchild)


def test_closing_lets_a_program_clean_up(tmp_path: Path) -> None:
    process = guarded(tmp_path, PROGRAMS["cleans_up"])
    pid_in(tmp_path / "lock")
    process.close(10.0)
    assert not (tmp_path / "lock").exists()
    assert "cleaned up" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(
    ("program", "victim", "number"),
    [("driver", "driver", signal.SIGKILL), ("driver", "guard", signal.SIGKILL), ("pool", "driver", signal.SIGTERM)],
)
def test_a_signal_to_driver_guard_or_benchmark_ends_the_worker(
    tmp_path: Path, program: str, victim: str, number: signal.Signals
) -> None:
    driver = subprocess.Popen([sys.executable, "-c", PROGRAMS[program], str(tmp_path)], cwd=ROOT)
    try:
        child, guard = pid_in(tmp_path / "child"), pid_in(tmp_path / "guard")
        os.kill(driver.pid if victim == "driver" else guard, number)
        wait_until_gone(child, guard)
    finally:
        driver.kill()
        driver.wait()


def test_a_child_that_outlives_its_parent_is_ended(tmp_path: Path) -> None:
    end = messages(guarded(tmp_path, PROGRAMS["leaves_a_child"]))[-1]
    assert end["exit_status"] == 0
    wait_until_gone(pid_in(tmp_path / "orphan"))


@pytest.mark.parametrize("program", PROGRAMS["ends"])
def test_the_end_of_the_command_is_told(tmp_path: Path, program: str) -> None:
    assert messages(guarded(tmp_path, program))[-1]["exit_status"] == PROGRAMS["ends"][program]


def test_a_command_that_cannot_start_is_told(tmp_path: Path) -> None:
    end = messages(GuardedProcess(["/no/such/program"], {}, tmp_path / "worker.log", 10_000))[-1]
    assert end["exit_status"] == 127
    assert "No such" in str(end["last_lines"])


def test_output_of_a_hundred_megabytes_leaves_a_small_log_with_both_ends(tmp_path: Path) -> None:
    end = messages(guarded(tmp_path, PROGRAMS["writes_much"], log_bytes=8192))[-1]
    log = (tmp_path / "worker.log").read_bytes()
    assert len(log) < 10_000
    assert log.startswith(b"the beginning\n")
    assert log.endswith(b"the end\n")
    assert b"bytes of output left out" in log
    assert end["last_lines"][-1] == "the end"


def test_messages_pass_both_ways_and_output_does_not_mix_in(tmp_path: Path) -> None:
    process = guarded(tmp_path, PROGRAMS["answers"])
    process.send({"type": "ask", "n": 17})
    echo, _ = messages(process)
    assert (echo["type"], echo["got"]) == ("echo", 17)
    assert "forged" in (tmp_path / "worker.log").read_text()


def test_a_half_written_message_and_rubbish_are_dropped(tmp_path: Path) -> None:
    (end,) = messages(guarded(tmp_path, PROGRAMS["sends_rubbish"]))
    assert end["exit_status"] == 0


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in two pieces"])
def test_values_of_secret_variables_are_struck_from_logs_and_last_lines(tmp_path: Path, is_cut: bool) -> None:
    secret, more = "plainSECRET77", "other secret / with blanks"
    env = {**os.environ, "MY_SERVICE_TOKEN": secret, "DB_PASSWORD": more, "PWD": "/tmp", "SOME_KEY": "short"}
    text = PROGRAMS["prints_secrets"].replace("PAUSE", "0.1" if is_cut else "0")
    process = GuardedProcess([sys.executable, "-c", text], env, tmp_path / "worker.log")
    end = messages(process)[-1]
    process.close(5.0)
    log = (tmp_path / "worker.log").read_text()
    for said in (log, "\n".join(end["last_lines"])):
        assert secret not in said
        assert more not in said
        assert "token=*** password=*** folder=/tmp key=short plainSEC" in said
