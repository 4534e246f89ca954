"""One sequential proof against two stages at the same error: what each finds, and how many pairs of processes it takes.

`python -m research.proof_rules` prints the table and writes `research/results/proof_rules.json`; it takes seconds.
Two stages is what autotune did before: finalists passed at an error of 0.2 together, then the minimal set was proven
at 0.025, three quarters of that for it and a quarter for the whole set, and 6 to 10 further pairs measured the gain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autotune.stats.estimates import DEFAULT_MIN_EFFECT, Floats
from autotune.stats.proof import ERROR, FIRST_SHARE, LEAST_PAIRS, ProofPlan, allot
from benchmarks.results_file import Row, markdown_table
from harness.proofs import looks_of

RESULTS = Path(__file__).parent / "results" / "proof_rules.json"
STUDIES, FINALISTS = 20_000, 3

Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Log ratios of pairs of processes of two equal sets."""


def _normal(sd: float) -> Draw:
    return lambda rng, shape: sd * rng.standard_normal(shape)


def _skew(share: float, slow: float, else_: float) -> Draw:
    return lambda rng, shape: 0.0045 * rng.standard_normal(shape) + np.where(rng.random(shape) < share, slow, else_)


MACHINES: dict[str, tuple[Draw, tuple[float, ...]]] = {
    "pairs differ by 0.7 %": (_normal(0.007), (0.0, 0.005, 0.01, 0.02, 0.05)),
    "pairs differ by 1.8 %": (_normal(0.018), (0.0, 0.005, 0.01, 0.02, 0.03, 0.05)),
    "heavy tails": (lambda rng, shape: 0.01 * rng.standard_t(3, shape), (0.005, 0.02, 0.03)),
    "1 in 10 is 5 % slower": (_skew(0.1, 0.045, -0.005), (0.005, 0.01, 0.02, 0.03)),
    "1 in 20 is 38 % slower": (_skew(0.05, 0.38, -0.02), (0.0,)),
    "1 in 10 is 9 % slower": (_skew(0.1, 0.09, -0.01), (0.0,)),
}
"""Machines by name, and gains to be planted; of the last two the mean of equal sets is equal and the median is not."""


def two_stages(draw: Draw, gain: float, rng: np.random.Generator) -> tuple[float, float]:
    """Share of studies that name the set with the gain among sets without one, and the mean of all pairs."""
    most, truth = 20, math.log1p(-gain)
    hurdle, claim = ProofPlan(base=most, error=FIRST_SHARE * 0.2 / FINALISTS), ProofPlan(base=most, error=0.016875)
    goes_on, pairs = _looks(truth + draw(rng, (STUDIES, most)), hurdle)
    holds, ended = _looks(truth + draw(rng, (STUDIES, most)), claim)
    for _ in range(1, FINALISTS):
        pairs = pairs + _looks(draw(rng, (STUDIES, most)), hurdle)[1]
    pairs = pairs + np.where(goes_on, ended + np.where(holds, np.clip(ended, 6, 10), 0), 0)
    return float(np.mean(goes_on & holds)), float(np.mean(pairs))


def one_proof(draw: Draw, gain: float, rng: np.random.Generator, *, least: int = LEAST_PAIRS) -> tuple[float, float]:
    """Likewise by the shipped rule."""
    most, truth = 40, math.log1p(-gain)
    plan = ProofPlan(base=most, error=allot(ERROR, 0.0, FINALISTS), least=least)
    holds, ended = _looks(truth + draw(rng, (STUDIES, most)), plan)
    pairs = ended
    for _ in range(1, FINALISTS):
        end = _looks(draw(rng, (STUDIES, most)), plan)[1]
        pairs = pairs + np.where(holds, np.minimum(end, ended), end)
    return float(np.mean(holds)), float(np.mean(pairs))


def _looks(log_ratios: Floats, plan: ProofPlan) -> tuple[np.ndarray, np.ndarray]:
    return looks_of(log_ratios, plan, min_effect=DEFAULT_MIN_EFFECT)


def compare() -> list[Row]:
    """A row for each machine and gain."""
    rows = []
    for name, (draw, gains) in MACHINES.items():
        for gain in gains:
            row: Row = {"machine": name, "gain": gain}
            for rule, run in (("two stages", two_stages), ("one proof", one_proof)):
                found, pairs = run(draw, gain, np.random.default_rng(11))
                row |= {f"found, {rule}": round(found, 4), f"pairs, {rule}": round(pairs, 1)}
            row["found, no least"] = round(one_proof(draw, gain, np.random.default_rng(11), least=4)[0], 4)
            rows.append(row)
    return rows


if __name__ == "__main__":
    found = compare()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown_table(found))
