"""The gate, `.ci/run`, over a repository of a few tests in this one's place: what it forgives, and what never."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parents[1] / ".ci" / "run"

MAKEFILE = """
export PYTHONDONTWRITEBYTECODE = 1
PYTEST = {python} -m pytest -q -c pytest.ini

installed .venv/.screen .venv-312/.screen .venv-312/.tested site test-slow test-cluster test-versions test-screen:
	@echo asked for $@ >>asked
test: ; $(PYTEST) test_fast.py && {after}
lint: ; {lint}
.PHONY: installed lint site test test-slow test-cluster test-versions test-screen .venv/.screen .venv-312/.screen
.PHONY: .venv-312/.tested
"""

TESTS = """
import pathlib, pytest

def test_sound():
    with open("sound", "a") as file:
        file.write("once ")

@pytest.mark.parametrize("which", range({flaky}))
def test_gives_up_beside_other_work(which):
    seen = pathlib.Path(f"seen {{which}}")
    was_there = seen.exists()
    seen.touch()
    assert was_there

@pytest.mark.parametrize("which", range({broken}))
def test_broken(which):
    assert not which + 1
"""


def gate(
    folder: Path, *, flaky: int = 0, broken: int = 0, lint: str = "true", after: str = "true"
) -> subprocess.CompletedProcess[str]:
    """Runs the gate over so many tests that fail once, and that always do; `after` is what follows them."""
    (folder / ".ci").mkdir()
    shutil.copy(GATE, folder / ".ci")
    for packages in ("cluster", "disk"):
        (folder / ".ci" / f"{packages}_packages.sh").write_text("true\n")
    (folder / "Makefile").write_text(MAKEFILE.format(python=sys.executable, lint=lint, after=after))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_fast.py").write_text(TESTS.format(flaky=flaky, broken=broken))
    env = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST", "MAKE", "COV"))}
    return subprocess.run(
        ["bash", ".ci/run"], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize("flaky", [0, 1, 5])
def test_a_few_that_gave_up_beside_other_work_pass_alone_and_are_named(tmp_path: Path, flaky: int) -> None:
    done = gate(tmp_path, flaky=flaky)
    assert done.returncode == 0, done.stdout + done.stderr
    told = f"failed beside other work, {flaky} of make test; once more, alone:"
    assert (told in done.stdout) == bool(flaky)
    assert f"{flaky} passed" in done.stdout.split("alone:")[-1] or not flaky
    # What passed does not run again.
    assert (tmp_path / "sound").read_text() == "once "
    assert {"asked for test-slow", "asked for test-screen", "asked for test-cluster"} <= set(
        (tmp_path / "asked").read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("flaws", "told"),
    [
        ({"flaky": 6}, "failed: make test"),
        ({"broken": 1}, "once more, alone:"),
        ({"flaky": 1, "broken": 1}, "once more, alone:"),
        ({"after": "false"}, "failed: make test"),
        ({"lint": "false"}, "the row beside"),
    ],
)
def test_what_is_no_accident_is_not_forgiven(tmp_path: Path, flaws: dict[str, int | str], told: str) -> None:
    done = gate(tmp_path, **flaws)  # type: ignore[arg-type]
    assert done.returncode != 0, done.stdout + done.stderr
    assert told in done.stdout + done.stderr
