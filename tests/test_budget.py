"""What tests cost, their children included, and what fails a set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.yardstick import Cost, Limits, Stored, failures, machine_factor, read, to_store, total_s, write
from tests.tables import toml_beside

ROOT = Path(__file__).parents[1]
BURNS = toml_beside(__file__, "programs.toml")["burns"]

BEFORE = {f"test_{i}": 0.1 + 0.02 * i for i in range(40)}
STORED = Stored(BEFORE, small_s=0.4, shared_s=1.0, count_limits={"processes": 105})
LIMIT_S = 1.15 * STORED.total_s


def now(factor: float, **own_s: float) -> dict[str, Cost]:
    """The stored set on a machine that is so much slower; tests with other costs of that machine's stored seconds."""
    costs = {name: Cost(s * factor) for name, s in ({**BEFORE, **own_s}).items()}
    return {**costs, "test_small": Cost(0.4 * factor, 1.0 * factor, {"processes": 100})}


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.8, 3.0])
@pytest.mark.parametrize(
    ("costs", "limits", "named"),
    [
        (lambda f: now(f), Limits(LIMIT_S, 2), []),
        (lambda f: now(f, test_0=4.5), Limits(LIMIT_S), ["test_0"]),
        (lambda f: now(f, test_new=4.5), Limits(LIMIT_S), ["test_new"]),
        (lambda f: now(f, test_0=0.2, test_new=0.5), Limits(LIMIT_S, 2), []),
        (lambda f: now(f, test_0=4.5), Limits(), []),
        (lambda f: now(f, test_new=2.9), Limits(test_s=2), []),
        (lambda f: now(f, test_new=3.1), Limits(test_s=2), ["test_new"]),
        (lambda f: now(f, test_3=9.0), Limits(test_s=2), []),
        (lambda f: {**now(f), "test_shared": Cost(0.1, 3.0 * f)}, Limits(test_s=2), []),
        (lambda f: {**now(f), "test_starts": Cost(0.01, 0, {"processes": 6})}, Limits(LIMIT_S), ["test_starts"]),
        (lambda f: {**now(f), "test_starts": Cost(0.01, 0, {"processes": 5})}, Limits(LIMIT_S), []),
    ],
    ids=[
        "same",
        "one grew",
        "a new one",
        "within",
        "no limit",
        "tolerated",
        "dear",
        "import",
        "shared",
        "starts",
        "few starts",
    ],
)
def test_what_fails_a_set_is_the_same_on_every_machine(
    factor: float, costs: Callable[[float], dict[str, Cost]], limits: Limits, named: list[str]
) -> None:
    failed = failures(STORED, costs(factor), limits)
    assert len(failed) == len(named)
    for failure, name in zip(failed, named, strict=True):
        assert failure.splitlines()[1:], failure
        assert name in failure


def test_a_test_that_was_dear_when_it_was_stored_fails_while_it_still_is() -> None:
    stored = Stored({**BEFORE, "test_dear": 4.0})
    (failure,) = failures(stored, now(2.0, test_dear=3.5), Limits(test_s=2))
    assert failure.split()[-2:] == ["3.50", "test_dear"]
    assert failures(stored, now(2.0, test_dear=2.5), Limits(test_s=2)) == []


def test_a_neighbour_that_slows_tests_unequally_changes_nothing() -> None:
    costs = {name: Cost(cost.own_s * (1.7 if i % 2 else 1.3)) for i, (name, cost) in enumerate(now(1.0).items())}
    assert failures(STORED, costs, Limits(LIMIT_S, 2)) == []


def test_names_of_what_grew_come_largest_first_and_what_shrank_is_not_among_them() -> None:
    (failure,) = failures(STORED, now(2.0, test_1=3.0, test_2=5.0, test_39=0.1), Limits(LIMIT_S))
    assert failure.index("test_2\n") < failure.index("test_1\n")
    assert "test_39" not in failure


def test_too_few_tests_in_common_make_no_yardstick() -> None:
    few = {f"other_{i}": Cost(1.0) for i in range(50)}
    assert machine_factor(STORED, few) is None
    assert len(failures(STORED, few, Limits(LIMIT_S))) == 1
    assert failures(STORED, few, Limits()) == []


def test_what_is_stored_is_read_back_and_holds_all_seconds(tmp_path: Path) -> None:
    costs = {**now(1.0), "test_more": Cost(0.03, 2.0, {"studies": 3})}
    file = tmp_path / "costs" / "set.json"
    write(to_store(costs), file)
    stored = read(file)
    assert stored == to_store(costs)
    assert stored.total_s == pytest.approx(total_s(costs), abs=0.01)
    assert set(stored.tests) == {*BEFORE, "test_small"}
    assert stored.count_limits == {"processes": 110, "compilations": 0, "studies": 4}
    assert read(tmp_path / "none.json") is None


@pytest.mark.gate
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_set_over_a_limit_fails_and_names_the_dearest(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(BURNS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    base = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "tests.budget", "-c", "pytest.ini"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        command = [*base, *options, "test_it.py"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    first = run(
        "--costs", "costs.json", "--store-costs", "stored.json", "--yardstick", "none", "--processor-limit", "0.1"
    )
    assert first.returncode == 0, first.stdout + first.stderr
    costs = {name.partition("::")[2]: s for name, s in json.loads((tmp_path / "costs.json").read_text()).items()}
    assert costs["test_is_cheap[0]"] < 0.3 < min(costs["test_burns"], costs["test_has_a_child_that_burns"])
    stored = read(tmp_path / "stored.json")
    assert stored is not None
    assert stored.count_limits["processes"] == 2
    assert 0.3 < stored.shared_s < 1.2

    # As if stored by a machine that takes five times as long: there, a cheap test takes 0.1 s and a dear one 2 s.
    slow = {f"test_it.py::test_is_cheap[{i}]": 0.1 for i in range(21)} | {"test_it.py::test_burns": 2.0}

    def judged(processes: int, *options: str) -> subprocess.CompletedProcess[str]:
        write(Stored(slow, count_limits={"processes": processes}), tmp_path / "stored.json")
        return run("--yardstick", "stored.json", *options)

    within = judged(1, "--processor-limit", "30", "--test-limit", "4")
    over = judged(0, "--processor-limit", "4", "--test-limit", "0.8")
    assert (over.returncode, within.returncode) == (1, 0), over.stdout + within.stdout + within.stderr
    assert over.stdout.count("FAILED") == 3
    assert "FAILED" not in within.stdout
