"""`autotune read`: what would be read of real programs and saved logs, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.console import autotune
from tests.tables import toml_beside

CASES = toml_beside(__file__)

PRINTS = CASES["programs"]["prints"]


def read(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return autotune("read", *arguments, cwd=cwd)


def test_a_command_is_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTS)
    done = read(
        "--step-pattern", r"took (?P<value>[\d.]+) (?P<unit>\w+)", "--", sys.executable, "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert sum("1.23 ms" in line for line in done.stdout.splitlines()) >= 12
    assert "12 steps" in done.stdout


def test_a_loop_that_does_not_wait_is_told_and_read_by_the_clock(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINTS)
    done = read("--json", "--", sys.executable, "train.py", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["step_s"] > 0.015, "what is printed is a fifteenth of what passes between the lines"
    assert (told["losses"], told["steps"]) == (12, 11)


@pytest.mark.parametrize(("arguments", "status", "words"), CASES["saved_logs"])
def test_a_saved_log(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    (tmp_path / "log.txt").write_text("hello\n" + "".join(f"step {i} dt=0.0{i}\n" for i in range(1, 7)))
    done = read(*arguments, "log.txt", cwd=tmp_path)
    assert (done.returncode, words in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "status", "words"), CASES["reads_nothing"])
def test_calls_that_read_nothing_say_what_to_do(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    (tmp_path / "train.log").write_text("step 1: 5 ms\n")
    done = read(*arguments, cwd=tmp_path)
    assert done.returncode == status
    assert words in done.stderr
