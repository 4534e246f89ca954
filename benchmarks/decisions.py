"""Decisions of 200 simulated studies, to hold one commit against another.

`python -m benchmarks.decisions OUT.json` runs them (seeds fixed) and keeps verdict, winner and ratio of each;
`python -m benchmarks.decisions A.json B.json` prints the studies whose decision differs (exit status 1: there are any).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.machines import ATTACKS, CASES
from benchmarks.studies import CANDIDATES, run_one
from harness.process_pool import process_pool

STUDIES = 200
SEED = 11_2026
GAINS = (0.0, 0.02, 0.04, 0.08)
"""Speed-up of the one candidate that differs, as a share of step time."""


def decide(number: int) -> dict[str, object]:
    """What one study decides; machine, gain and seed follow from its number."""
    names = sorted(CASES.keys() - ATTACKS.keys())
    rng = np.random.default_rng([SEED, number])
    gain = GAINS[number // len(names) % len(GAINS)]
    name = names[number % len(names)]
    effects = np.full(CANDIDATES, CASES[name].none_typical)
    effects[rng.integers(CANDIDATES)] += math.log1p(-gain)
    told = run_one(CASES[name], effects.tolist(), int(rng.integers(2**31)))
    return {
        "machine": name, "gain": gain, "winner": told.winner, "proven": told.proven, "minimal": told.is_minimal,
        "ratio": None if told.reported is None else told.reported.ratio, "pairs": told.search_pairs,
    }  # fmt: skip


def main(paths: list[Path]) -> int:
    """Runs the studies, or compares two runs of them."""
    if len(paths) == 1:
        with process_pool() as pool:
            studies = list(pool.map(decide, range(STUDIES), chunksize=4))
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        paths[0].write_text(json.dumps({"commit": commit, "studies": studies}, indent=1) + "\n", encoding="utf-8")
        return 0
    before, after = (json.loads(path.read_text(encoding="utf-8"))["studies"] for path in paths)
    differ = [(i, a, b) for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    for row in differ:
        print(*row, sep="\n    ")
    print(f"{len(before)} studies, {sum(a['winner'] is not None for a in before)} with a winner, {len(differ)} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
