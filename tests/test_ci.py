"""The gate, `.ci/run`, and `make test-all`, over a repository of a few sets in this one's place."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tables import toml_beside

CI = Path(__file__).parents[1] / ".ci"
MAKEFILE = toml_beside(__file__, "programs.toml")["makefile"]


SETS = ("test", "gate", "slow", "cluster", "versions", "screen", "screen of the other version")


def passed_at(commit: str, **others: str) -> dict[str, Any]:
    """A record by which all sets passed at a commit, some of them at another one."""
    return {"sets": {name: {"commit": "", "passed": others.get(name, commit), "failed": []} for name in SETS}}


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
        self.kept = folder / "benchmarks/results/test_all.json"
        self.keep(passed_at(self.git("rev-parse", "HEAD")))

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *who, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def git_import(self, commits: str) -> None:
        command = ["git", "fast-import", "--quiet", "--force"]
        subprocess.run(command, cwd=self.folder, check=True, input=commits, text=True)

    def keep(self, record: dict[str, Any]) -> None:
        self.kept.write_text(json.dumps(record))
        self.commit()

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
    house.keep({})
    done = house.run("bash", ".ci/run")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("failed: age ")
    asked = house.asked()
    assert len(asked) == len(set(asked))
    assert {"lint", "site", "test", "test-gate", "test-cluster", "test-screen"} <= set(asked)
    assert not {"test-slow", "test-versions"} & set(asked)
    assert done.stdout.splitlines()[-1].endswith("== 7 passed in 1.0s ==")


@pytest.mark.parametrize("broken", ["lint", "test", "test-cluster"])
def test_what_failed_once_fails_the_gate(house: House, broken: str) -> None:
    done = house.run("bash", ".ci/run", broken=broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"failed: {broken.removeprefix('test-')} ")
    assert house.asked().count(broken) == 1


def test_all_tests_go_on_with_the_set_that_was_not_reached_and_the_gate_knows_their_commit(house: House) -> None:
    def all_tests(*sets: str) -> subprocess.CompletedProcess[str]:
        return house.run("python3", ".ci/test_all.py", *sets)

    house.keep({})
    assert all_tests("bogus").returncode == 2
    assert all_tests("test", "slow").returncode == 0
    assert house.asked() == ["test", "test-slow"]
    assert house.run("python3", ".ci/test_all.py", "--age").returncode == 1
    assert all_tests().returncode == 0
    assert not {"test", "test-slow"} & set(house.asked())
    record = json.loads(house.kept.read_text())
    assert {name: one["passed"] for name, one in record["sets"].items()} == dict.fromkeys(
        SETS, house.git("rev-parse", "HEAD")
    )

    house.commit()
    (house.folder / "autotune/elsewhere.py").write_text("1")
    house.commit()
    done = house.run("bash", ".ci/run")
    assert done.returncode == 0
    assert "passed 2 commits" in done.stdout
    assert "test-screen" not in house.asked()
    (house.folder / "autotune/compiler/one.py").write_text("1")
    house.commit()
    assert house.run("bash", ".ci/run").returncode == 0
    assert "test-screen" in house.asked()


def test_a_failure_is_kept_by_name_and_does_not_hide_the_commit_at_which_all_passed(house: House) -> None:
    green = json.loads(house.kept.read_text())["sets"]["slow"]["passed"]
    done = house.run("python3", ".ci/test_all.py", broken="test-slow")
    assert done.returncode == 1
    record = json.loads(house.kept.read_text())
    assert record["sets"]["slow"]["failed"] == ["make test-slow ended with status 2"]
    assert record["sets"]["slow"]["passed"] == green != record["sets"]["slow"]["commit"]
    assert record["sets"]["test"]["passed"] == record["sets"]["test"]["commit"]
    assert "passed 1 commits" in house.run("python3", ".ci/test_all.py", "--age").stdout


def test_a_run_with_changes_that_are_not_committed_is_not_of_a_commit(house: House) -> None:
    before = json.loads(house.kept.read_text())["sets"]
    (house.folder / "autotune/new.py").write_text("1")
    assert house.run("python3", ".ci/test_all.py").returncode == 0
    after = json.loads(house.kept.read_text())["sets"]
    assert [after[name]["passed"] for name in SETS] == [before[name]["passed"] for name in SETS]


def test_a_pass_that_is_too_old_or_on_another_branch_fails_the_gate(house: House) -> None:
    def age() -> int:
        return house.run("python3", ".ci/test_all.py", "--age").returncode

    passed, tree = house.git("rev-parse", "HEAD"), house.git("write-tree")
    house.keep(passed_at(passed))
    tip, head = house.git("rev-parse", "HEAD"), house.git("rev-parse", "--abbrev-ref", "HEAD")
    later = "".join(
        f"commit refs/heads/{head}\ncommitter a <a@b> {i} +0000\ndata 1\na\n" + f"from {tip}\n" * (i == 0)
        for i in range(199)
    )
    house.git_import(later)
    assert age() == 0
    house.commit()
    assert age() == 1
    now = house.git("rev-parse", "HEAD")
    house.keep(passed_at(now, slow=passed))
    assert age() == 1, "one set is too old"
    house.keep(passed_at(now, slow=house.git("commit-tree", "-m", "elsewhere", tree)))
    assert age() == 1
    house.kept.unlink()
    assert age() == 1
