"""Real processes behind real guards: nothing outlives its parent, output stays bounded, endings are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autotune.workers.base import GuardedProcess


def guarded(tmp_path: Path, code: str, *, log_bytes: int = 10_000) -> GuardedProcess:
    env = {"PATH": os.environ["PATH"], "MARK": str(tmp_path)}
    return GuardedProcess([sys.executable, "-c", textwrap.dedent(code)], env, tmp_path / "worker.log", log_bytes)


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def ended(process: GuardedProcess) -> dict[str, object]:
    wait_for(lambda: process.receive() is not None and process.end is not None)
    assert process.end is not None
    process.close(5.0)
    return process.end


def everything(process: GuardedProcess) -> list[dict[str, object]]:
    """All messages of a process up to its end."""
    seen: list[dict[str, object]] = []

    def over() -> bool:
        seen.extend(process.receive())
        return process.end is not None

    wait_for(over)
    process.close(5.0)
    return seen


def pid_in(file: Path) -> int:
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text())


LONG_LIVED_FAMILY = """
    import os, subprocess, sys, time
    # a grandchild that leaves its session and its parent: double fork, setsid
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.environ["MARK"] + "/grandchild", "w").write(f"{os.getpid()}\\n")
            time.sleep(600)
        os._exit(0)
    open(os.environ["MARK"] + "/child", "w").write(f"{os.getpid()}\\n")
    time.sleep(600)
"""


def test_closing_ends_a_grandchild_that_left_its_session(tmp_path: Path) -> None:
    process = guarded(tmp_path, LONG_LIVED_FAMILY)
    child, grandchild = pid_in(tmp_path / "child"), pid_in(tmp_path / "grandchild")
    assert psutil.pid_exists(child)
    assert psutil.pid_exists(grandchild)
    process.close(10.0)
    wait_for(lambda: not psutil.pid_exists(child) and not psutil.pid_exists(grandchild))


def test_closing_lets_a_program_clean_up(tmp_path: Path) -> None:
    code = """
        import os, time
        lock = os.environ["MARK"] + "/lock"
        try:
            open(lock, "x").write(f"{os.getpid()}\\n")
            time.sleep(600)
        finally:
            os.remove(lock)
            print("cleaned up")
    """
    process = guarded(tmp_path, code)
    pid_in(tmp_path / "lock")
    process.close(10.0)
    assert not (tmp_path / "lock").exists()
    assert "cleaned up" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize("victim", ["driver", "guard"])
def test_sigkill_of_driver_or_guard_ends_the_worker(tmp_path: Path, victim: str) -> None:
    code = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from pathlib import Path
        from autotune.workers.base import GuardedProcess
        child = "import os,time; open('{tmp_path}/child','w').write(str(os.getpid())+chr(10)); time.sleep(600)"
        p = GuardedProcess([sys.executable, "-c", child], dict(), Path("{tmp_path}/worker.log"), 10000)
        open("{tmp_path}/guard", "w").write(str(p._process.pid) + chr(10))
        time.sleep(600)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        child, guard = pid_in(tmp_path / "child"), pid_in(tmp_path / "guard")
        os.kill(driver.pid if victim == "driver" else guard, signal.SIGKILL)
        wait_for(lambda: not _runs(child) and not _runs(guard))
    finally:
        driver.kill()
        driver.wait()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_child_that_outlives_its_parent_is_ended_and_counted(tmp_path: Path) -> None:
    code = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            open(os.environ["MARK"] + "/orphan", "w").write(f"{os.getpid()}\\n")
            time.sleep(600)
        while not os.path.exists(os.environ["MARK"] + "/orphan"):
            time.sleep(0.01)
    """
    end = ended(guarded(tmp_path, code))
    assert end["exit_status"] == 0
    assert end["left_behind"] == 1
    orphan = pid_in(tmp_path / "orphan")
    wait_for(lambda: not _runs(orphan))


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11), ("import os; os.abort()", -6)],
)
def test_the_end_of_the_command_is_told(tmp_path: Path, code: str, status: int) -> None:
    assert ended(guarded(tmp_path, code))["exit_status"] == status


def test_a_command_that_cannot_start_is_told(tmp_path: Path) -> None:
    process = GuardedProcess(["/no/such/program"], {}, tmp_path / "worker.log", 10_000)
    end = ended(process)
    assert end["exit_status"] == 127
    assert "No such file" in str(end["last_lines"])


def test_output_of_a_hundred_megabytes_leaves_a_small_log_with_both_ends(tmp_path: Path) -> None:
    code = """
        import os
        os.write(1, b"the beginning\\n")
        for _ in range(100):
            os.write(1, b"x" * 1_000_000)
        os.write(2, b"\\nthe end\\n")
    """
    end = ended(guarded(tmp_path, code, log_bytes=8192))
    log = (tmp_path / "worker.log").read_bytes()
    assert end["output_bytes"] == 14 + 100_000_000 + 9
    assert len(log) < 10_000
    assert log.startswith(b"the beginning\n")
    assert log.endswith(b"the end\n")
    assert b"bytes of output left out" in log
    assert end["last_lines"][-1] == "the end"  # type: ignore[index]


def test_messages_pass_both_ways_and_output_does_not_mix_in(tmp_path: Path) -> None:
    code = """
        import os, socket, json
        s = socket.socket(fileno=int(os.environ["AUTOTUNE_CHANNEL"]))
        f = s.makefile("rb")
        print('{"type": "block", "forged": true}', flush=True)
        message = json.loads(f.readline())
        s.sendall(json.dumps({"type": "echo", "got": message["n"]}).encode() + b"\\n")
    """
    process = guarded(tmp_path, code)
    process.send({"type": "ask", "n": 17})
    seen = everything(process)
    assert [m["type"] for m in seen] == ["echo", "exit"]
    assert seen[0]["got"] == 17
    assert "forged" in (tmp_path / "worker.log").read_text()


def test_a_half_written_message_and_rubbish_are_dropped(tmp_path: Path) -> None:
    code = """
        import os, socket
        s = socket.socket(fileno=int(os.environ["AUTOTUNE_CHANNEL"]))
        s.sendall(b'\\xff\\xfe not json\\n[1, 2]\\n{"no": "type"}\\n{"type": "bl')
    """
    process = guarded(tmp_path, code)
    seen = everything(process)
    assert [m["type"] for m in seen] == ["exit"]
