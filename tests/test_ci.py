"""The gate, `.ci/run`, and `make test-all`, over a repository of a few sets in this one's place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tables import toml_beside

CI = Path(__file__).parents[1] / ".ci"
MAKEFILE = toml_beside(__file__, "programs.toml")["makefile"]


class House:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(CI, folder / ".ci")
        (folder / "autotune/compiler").mkdir(parents=True)
        (folder / "benchmarks/results").mkdir(parents=True)
        for name in ("cluster", "disk"):
            (folder / ".ci" / f"{name}_packages.sh").write_text("true\n")
        (folder / "Makefile").write_text(MAKEFILE)
        (folder / ".gitignore").write_text("asked\nbroken\nbuild\n__pycache__\n")
        self.git("init", "-q", "-b", "main")
        self.commit()

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "a change", "--allow-empty")

    def run(self, *command: str, broken: str = "") -> subprocess.CompletedProcess[str]:
        (self.folder / "broken").write_text(broken + "\n")
        env = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST", "MAKE", "COV"))}
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        lines = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_the_gate_runs_each_set_once_and_ends_with_the_tests_summary(house: House) -> None:
    done = house.run("bash", ".ci/run")
    assert done.returncode == 0, done.stdout + done.stderr
    asked = house.asked()
    assert len(asked) == len(set(asked))
    assert {"lint", "site", "test", "test-gate", "test-cluster", "test-screen"} <= set(asked)
    assert not {"test-slow", "test-versions"} & set(asked)
    assert done.stdout.splitlines()[-1].endswith("== 7 passed in 1.0s ==")
    assert "did not run" in done.stdout


@pytest.mark.parametrize("broken", ["lint", "test", "test-cluster"])
def test_what_failed_once_fails_the_gate(house: House, broken: str) -> None:
    done = house.run("bash", ".ci/run", broken=broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"failed: {broken.removeprefix('test-')} ")
    assert house.asked().count(broken) == 1


def test_all_tests_go_on_with_the_set_that_was_not_reached_and_the_gate_knows_their_commit(house: House) -> None:
    def all_tests(*sets: str) -> subprocess.CompletedProcess[str]:
        return house.run("python3", ".ci/test_all.py", *sets)

    kept = house.folder / "benchmarks/results/test_all.json"
    assert all_tests("bogus").returncode == 2
    assert all_tests("test", "slow").returncode == 0
    assert house.asked() == ["test", "test-slow"]
    assert not kept.exists()
    assert all_tests().returncode == 0
    assert not {"test", "test-slow"} & set(house.asked())
    assert set(json.loads(kept.read_text())["sets"]) >= {"test", "slow", "cluster", "screen"}

    house.commit()
    (house.folder / "autotune/elsewhere.py").write_text("1")
    house.commit()
    done = house.run("bash", ".ci/run")
    assert "`make test-all` ran 2 commits ago" in done.stdout
    assert "test-screen" not in house.asked()
    (house.folder / "autotune/compiler/one.py").write_text("1")
    house.commit()
    assert house.run("bash", ".ci/run").returncode == 0
    assert "test-screen" in house.asked()


def test_a_failure_is_kept_by_name_and_asks_for_the_wheels(house: House) -> None:
    done = house.run("python3", ".ci/test_all.py", broken="test-slow")
    assert done.returncode == 1
    told = json.loads((house.folder / "benchmarks/results/test_all.json").read_text())
    assert told["sets"]["slow"]["failed"] == ["make test-slow ended with status 2"]
    assert house.run("python3", ".ci/test_all.py", "--changed", "autotune/compiler").returncode == 0
