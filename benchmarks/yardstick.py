"""Whether the yardstick of tests decides alike on idle and busy machines, by many decisions.

    python -m benchmarks.yardstick [RUNS]

The costs of a hundred cheap tests are stored once. Then they run RUNS times (default 6) idle and
RUNS times beside two busy loops, each time as they are and with one that burns a quarter of the
whole more; the limit is 1.15 times the stored total. What each run decided goes into
`results/yardstick.json`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import yardstick
from harness.yardstick import Cost

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tests/costs/test.json"
RESULTS = Path(__file__).parent / "results/yardstick.json"
TESTS, FROM_S, TO_S = 100, 0.1, 0.6
LIMIT, PLANTED = 1.15, 0.25
NEIGHBOURS = 2
BURN = "AUTOTUNE_YARDSTICK_BURN"
"""In a run with a slower test: its name, and how often it goes round a loop."""


def burn(rounds: int) -> float:
    """Goes round a loop; processor seconds that this took."""
    began, total = time.process_time(), 0
    for i in range(rounds):
        total += i * i % 7
    return time.process_time() - began


def pytest_runtest_call(item: pytest.Item) -> None:
    """Slows the planted test; this module is a plugin of the runs that it starts."""
    name, _, rounds = os.environ.get(BURN, "").rpartition(" ")
    if item.nodeid == name:
        burn(int(rounds))


def chosen_tests() -> list[str]:
    """Tests spread evenly over `make test`, neither too short for the clock nor dear."""
    stored = yardstick.read(STORED)
    assert stored is not None
    # A name with a folder of the machine or a line's end in it cannot be given on a command line
    # everywhere.
    names = [name for name, s in stored.tests.items() if FROM_S <= s <= TO_S and name.isprintable()]
    present = tests_of_today()
    names = [name for name in names if name in present]
    return [names[i * len(names) // TESTS] for i in range(TESTS)]


def tests_of_today() -> frozenset[str]:
    """The tests that pytest collects: some have other names since the costs were stored."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "tests"]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but count, meanwhile; at most as long as this one lives."""
    program = (
        "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(1_000_000))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(tests: list[str], *options: str, planted: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the tests as `make test` does, with more options."""
    base = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "worksteal",
        "-p",
        "benchmarks.yardstick",
    ]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), BURN: planted}
    return subprocess.run(
        [*base, *options, *tests], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def seconds(file: Path) -> dict[str, Cost]:
    """What `--costs` wrote."""
    return {name: Cost(s) for name, s in json.loads(file.read_text(encoding="utf-8")).items()}


def main() -> None:
    """Stores the costs, makes all runs and writes what they decided."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    tests = chosen_tests()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        stored_file, costs_file = Path(folder, "stored.json"), Path(folder, "costs.json")
        first = run(tests, "--store-costs", str(stored_file))
        stored = yardstick.read(stored_file)
        if stored is None:
            raise SystemExit(
                f"The tests must pass before their costs can be stored; mend them.\n{first.stdout}"
            )
        slower = min(stored.tests, key=lambda name: stored.tests[name])
        rounds = round(PLANTED * stored.total_s / burn(2_000_000) * 2_000_000)
        limit_s = LIMIT * stored.total_s
        options = [
            "--yardstick",
            str(stored_file),
            "--costs",
            str(costs_file),
            "--processor-limit",
            f"{limit_s:.3f}",
        ]
        for number in range(runs):
            for neighbours in (0, NEIGHBOURS):
                for planted in ("", f"{slower} {rounds}"):
                    with busy(neighbours):
                        done = run(tests, *options, planted=planted)
                    costs = seconds(costs_file)
                    factor = yardstick.machine_factor(stored, costs) or float("nan")
                    row: dict[str, object] = {
                        "run": number,
                        "neighbours": neighbours,
                        "planted": planted != "",
                        "seconds": round(yardstick.total_s(costs), 2),
                        "factor": round(factor, 3),
                        "of_stored": round(yardstick.total_s(costs) / factor / stored.total_s, 3),
                        "failed": done.returncode != 0,
                        "named": f"{slower}\n" in done.stdout.partition("FAILED: ")[2],
                        "tests_failed": done.stdout.partition("short test summary")[2].count(
                            "FAILED "
                        ),
                    }
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    write_results(rows, {"tests": len(tests), "stored_s": round(stored.total_s, 2)})


def write_results(rows: list[dict[str, object]], about: dict[str, object]) -> None:
    """Writes the decisions, and how many are right: a failure only for a planted slower test."""
    right = sum(row["failed"] == row["planted"] == row["named"] for row in rows)
    result = {
        **about,
        "limit": LIMIT,
        "planted": PLANTED,
        "decisions": len(rows),
        "right": right,
        "runs": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
