"""The budget of a set: what each test costs, its children included, and a limit that fails the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tables import toml_beside

ROOT = Path(__file__).parents[1]
BURNS = toml_beside(__file__, "programs.toml")["burns"]


@pytest.mark.gate
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_set_over_its_limit_fails_and_names_the_dearest(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(BURNS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    base = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "tests.budget", "-c", "pytest.ini"]

    def run(limit: str) -> subprocess.CompletedProcess[str]:
        command = [*base, "--costs", "costs.json", "--processor-limit", limit, "test_it.py"]
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    over, within = run("0.1"), run("100")
    assert (over.returncode, within.returncode) == (1, 0), over.stdout + within.stdout + within.stderr
    assert "FAILED" in over.stdout
    assert "FAILED" not in within.stdout
    costs = {name.partition("::")[2]: s for name, s in json.loads((tmp_path / "costs.json").read_text()).items()}
    assert costs["test_is_cheap"] < 0.3 < min(costs["test_burns"], costs["test_has_a_child_that_burns"])
