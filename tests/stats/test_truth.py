"""`benchmarks/truth.py`, as a command: whole studies on simulated machines, with few repetitions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.noise import EVEN_MODELS, UNEVEN_MODELS

ROOT = Path(__file__).parents[2]
CLASSIC = list(EVEN_MODELS)[:9]


def truth(out: Path, *arguments: str, timeout_s: float = 170) -> dict[str, list[dict[str, Any]]]:
    """The rows of each part after a quick run."""
    command = [sys.executable, "-m", "benchmarks.truth", "--quick", "--out", str(out), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, list[dict[str, Any]]] = json.loads((out / "truth.json").read_text())["results"]
    return results


@pytest.mark.slow
def test_no_winner_is_named_among_equals_and_a_large_gain_always_is(tmp_path: Path) -> None:
    truth(tmp_path, "--machines", "processes")
    results = truth(tmp_path, "--parts", "null", "--machines", *CLASSIC)
    assert [row["machine"] for row in results["null"]] == CLASSIC
    assert sum(row["false_winners"] for row in results["null"]) == 0
    assert [row["found"]["0.12"] for row in results["power"]] == [1.0]
    assert "Goals missed" in (tmp_path / "truth.md").read_text()


@pytest.mark.slow
def test_no_winner_is_named_on_machines_that_are_hard_on_both_arms(tmp_path: Path) -> None:
    hard = [name for name in EVEN_MODELS if name not in CLASSIC]
    results = truth(tmp_path, "--parts", "null", "--machines", *hard)
    assert {row["machine"]: row["false_winners"] for row in results["null"]} == dict.fromkeys(hard, 0)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*(m for m in UNEVEN_MODELS if "stalls" not in m), "stalls, soaked"])
def test_no_winner_is_named_where_turns_or_typical_steps_are_wrong(tmp_path: Path, machine: str) -> None:
    row = truth(tmp_path, "--parts", "null", "--machines", machine)["null"][0]
    assert row["false_winners"] == 0


@pytest.mark.gate
def test_no_winner_is_named_where_the_idle_arm_slows_the_other(tmp_path: Path) -> None:
    row = truth(tmp_path, "--parts", "null", "--machines", "coupled", "--studies", "2")["null"][0]
    assert row["false_winners"] == 0


@pytest.mark.slow
def test_what_is_measured_later_takes_the_place_of_what_was(tmp_path: Path) -> None:
    part = ("--parts", "coverage", "--studies", "50")
    first = truth(tmp_path, *part, "--machines", "white", "quiet")["coverage"]
    assert [row["machine"] for row in first] == ["quiet", "white"]
    later = truth(tmp_path, *part, "--machines", "white", "--seed", "7")["coverage"]
    assert later[0] == first[0]
    assert later[1] != first[1]
    assert [row["made"]["seed"] for row in later] == [20261121, 7]
    again = truth(tmp_path / "again", *part, "--machines", "white")["coverage"]
    assert again == [first[1]]  # whatever else runs with it
    text = (tmp_path / "truth.md").read_text()
    assert "seed 20261121, repetitions 50" in text
    assert "seed 7, repetitions 50" in text
