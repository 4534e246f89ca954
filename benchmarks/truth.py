"""Truth tests of the statistics: whole studies on simulated machines whose true ratios are known.

`python -m benchmarks.truth` prints the tables and writes `benchmarks/results/truth.json` and `truth.md`;
`--quick` runs every part in seconds with few repetitions. The same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.stats.estimates import DEFAULT_SESOI
from autotune.stats.intervals import hodges_lehmann, student_quantile
from autotune.stats.simulate import NOISE_MODELS, Machine, NoiseModel, Process, log_ratios, run_pairs
from benchmarks.coverage import BLOCK_STEPS, FINALISTS, PLAN, coverage, covers, process_centres
from benchmarks.studies import CANDIDATES, StudyOutcome, run_studies

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Repetitions per machine: samples for coverage, studies without and (for each effect) with a true winner."""

    samples: int
    null_studies: int
    power_studies: int


FULL = Effort(samples=4000, null_studies=1500, power_studies=100)
QUICK = Effort(samples=120, null_studies=11, power_studies=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class NullStudies:
    """Studies of 12 candidates that all equal the reference."""

    machine: str
    studies: int
    false_winners: int
    false_winner_rate: float
    upper_bound: float
    second_chances: int
    search_pairs: float
    proof_pairs: float


def null_studies(
    name: str, model: NoiseModel, effort: Effort, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> NullStudies:
    """How often a study of equal candidates names a winner, with the exact 95 % upper bound."""
    outcomes = run_studies(model, np.zeros((effort.null_studies, CANDIDATES)), rng, pool)
    wrong, n = sum(o.winner is not None for o in outcomes), len(outcomes)
    return NullStudies(
        machine=name,
        studies=n,
        false_winners=wrong,
        false_winner_rate=wrong / n,
        upper_bound=binomial_upper_bound(wrong, n),
        second_chances=sum(o.had_second_chance for o in outcomes),
        search_pairs=float(np.mean([o.search_pairs for o in outcomes])),
        proof_pairs=float(np.mean([o.proof_pairs for o in outcomes])),
    )


def binomial_upper_bound(successes: int, trials: int) -> float:
    """One-sided 95 % upper bound of a proportion (Clopper and Pearson)."""
    from scipy.special import betaincinv

    return 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Studies with one faster candidate among eleven that equal the reference.

    `found`: share of studies that name that candidate. `found_9_in_10`: smallest effect found 9 times in 10,
    interpolated (None: not within the range tried). `bias`: mean of log(reported / true ratio) over
    all studies that reached a final; `search_bias`: the same of the search's own figure for that candidate.
    `final_coverage`: share of finals whose interval holds the truth; `winner_coverage`: of those named.
    `minimal`: share of named sets that have lost the setting that does nothing; `second_chances`: share of studies in
    which the whole set was proven because the minimal one did not hold.
    """

    machine: str
    found: Mapping[str, float]
    found_9_in_10: float | None
    named_wrong: float
    search_bias: float
    bias: float
    final_coverage: float
    winner_coverage: float
    minimal: float
    second_chances: float
    search_pairs: float
    proof_pairs: float


def power(name: str, model: NoiseModel, effort: Effort, rng: np.random.Generator, pool: ProcessPoolExecutor) -> Power:
    """Power curve, cost and bias on one machine."""
    found: dict[str, float] = {}
    everything: list[StudyOutcome] = []
    wrong = 0
    for effect in EFFECTS:
        effects = np.zeros((effort.power_studies, CANDIDATES))
        place = rng.integers(CANDIDATES, size=len(effects))
        effects[np.arange(len(effects)), place] = math.log1p(-effect)
        outcomes = run_studies(model, effects, rng, pool)
        found[f"{effect:g}"] = float(np.mean([o.winner == p for o, p in zip(outcomes, place, strict=True)]))
        wrong += sum(o.winner not in (None, p) for o, p in zip(outcomes, place, strict=True))
        everything += outcomes
    finals = [(o, o.final, o.truth, o.search_ratio) for o in everything]
    reached = [(o, f, t, s) for o, f, t, s in finals if f is not None and t is not None and s is not None]
    return Power(
        machine=name,
        found=found,
        found_9_in_10=crossing(EFFECTS, list(found.values())),
        named_wrong=wrong / len(everything),
        search_bias=_mean([math.log(s) - t for _, _, t, s in reached]),
        bias=_mean([math.log(f.ratio) - t for _, f, t, _ in reached]),
        final_coverage=_mean([covers(f, t) for _, f, t, _ in reached]),
        winner_coverage=_mean([covers(f, t) for o, f, t, _ in reached if o.winner is not None]),
        minimal=_mean([o.is_minimal for o in everything if o.winner is not None]),
        second_chances=_mean([o.had_second_chance for o in everything]),
        search_pairs=_mean([o.search_pairs for o in everything]),
        proof_pairs=_mean([o.proof_pairs for o in everything]),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def crossing(effects: Sequence[float], found: Sequence[float], *, level: float = 0.9) -> float | None:
    """Smallest effect found at `level`, by linear interpolation of the curve; None past its end."""
    for i, share in enumerate(found):
        if share >= level:
            if i == 0:
                return effects[0]
            return float(np.interp(level, [found[i - 1], share], [effects[i - 1], effects[i]]))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Smallest speed-up that passes confirmation and final 9 times in 10, for several efforts of proof."""

    machine: str
    smallest: Mapping[str, float | None]


def budget(name: str, model: NoiseModel, effort: Effort, rng: np.random.Generator, pool: ProcessPoolExecutor) -> Budget:
    """What more processes, or more pairs in each, buy."""
    smallest: dict[str, float | None] = {}
    effects = np.geomspace(0.002, 0.2, 60)
    samples = np.zeros((max(50, effort.samples // 4), 2))
    for processes, pairs in ((5, 20), (5, 40), (7, 20), (7, 40), (10, 20)):
        centres = process_centres(model, rng, samples, processes=processes, pairs=pairs)
        middle, spread = centres.mean(axis=-1), centres.std(axis=-1, ddof=1) / math.sqrt(processes)
        for gate, family in (("", FINALISTS), (" uncorrected", 1)):
            critical = [student_quantile(0.05 / k, processes - 1) for k in (family, 1)]
            # The largest log ratio that both stages would call faster: shares for any effect follow.
            needed = (math.log1p(-DEFAULT_SESOI) - middle - spread * critical).min(axis=-1)
            shares = [float(np.mean(math.log1p(-e) < needed)) for e in effects]
            smallest[f"{processes}x{pairs}{gate}"] = crossing(effects.tolist(), shares)
    return Budget(machine=name, smallest=smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimators:
    """Standard error of one process pair's log ratio after 40 pairs, for several ways to get it."""

    machine: str
    signed_rank: float
    signed_rank_of_step_medians: float
    mean: float
    median: float


def estimators(
    name: str, model: NoiseModel, effort: Effort, rng: np.random.Generator, pool: ProcessPoolExecutor
) -> Estimators:
    """Compares ways to condense blocks and pairs."""
    machine = Machine(dataclasses.replace(model, process_sd=0.0), rng, (effort.samples,))
    reference_s, candidate_s, _ = run_pairs(Process(machine), Process(machine), pairs=PLAN.cap, block_steps=BLOCK_STEPS)
    pairs = log_ratios(reference_s, candidate_s)
    of_medians = np.log(np.median(candidate_s, axis=-1) / np.median(reference_s, axis=-1))
    return Estimators(
        machine=name,
        signed_rank=float(hodges_lehmann(pairs, level=0.95)[0].std()),
        signed_rank_of_step_medians=float(hodges_lehmann(of_medians, level=0.95)[0].std()),
        mean=float(pairs.mean(axis=-1).std()),
        median=float(np.median(pairs, axis=-1).std()),
    )


# --- report -------------------------------------------------------------------------------------------------

Part = Callable[[str, NoiseModel, Effort, np.random.Generator, ProcessPoolExecutor], "DataclassInstance"]
PARTS: Mapping[str, tuple[Part, str]] = {
    "null": (
        null_studies,
        f"""Studies of {CANDIDATES} candidates that all equal the reference: how often a winner is named
(goal: at most 1 %), with the 95 % upper bound of that rate; in how many studies a whole set was proven because its
minimal one did not hold. Pairs are means per study.""",
    ),
    "coverage": (
        lambda name, model, effort, rng, pool: coverage(name, model, effort.samples, rng),
        """Share of 95 % intervals that hold the true ratio (goal: 93 to 97 %).
`one_process` and the sequential `every_look` and `at_stop` (goal: at least 95 %) are about the ratio of two
given processes; `confirmed` and `sandwiches` about the settings, over fresh processes.
`confirmed_family`: all three corrected intervals hold at once (at least 95 %). `sandwiches` are wide on
purpose (at least 95 %). What should be at least 95 % counts as missed below 94 %, for these are simulations.""",
    ),
    "power": (
        power,
        f"""One candidate is faster, {CANDIDATES - 1} equal the reference: share of studies that name it,
by true speed-up; the smallest speed-up found 9 times in 10; bias (mean log of reported over true ratio) of
the search's own figure and of the final's; coverage of all finals and of those that named a winner; share of
named sets without the setting that does nothing; share of studies with a second chance for the whole set.""",
    ),
    "budget": (
        budget,
        """Smallest true speed-up that passes confirmation and final 9 times in 10, by process pairs x block
pairs in each; confirmation corrected for three finalists, or not.""",
    ),
    "estimators": (
        estimators,
        f"Standard error of one process pair's log ratio after {PLAN.cap} pairs: why signed ranks.",
    ),
}


def measure(effort: Effort, *, seed: int, say: Callable[[str], None]) -> dict[str, list[dict[str, object]]]:
    """Runs every part on every machine; each has its own random stream, so that parts can be added."""
    out: dict[str, list[dict[str, object]]] = {}
    # Forked children would inherit the threads' locks of whoever imports this.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn")) as pool:
        for at, (title, (part, text)) in enumerate(PARTS.items()):
            rows = []
            for k, (name, model) in enumerate(NOISE_MODELS.items()):
                rows.append(asdict(part(name, model, effort, np.random.default_rng([seed, at, k]), pool)))
                print(f"{title}: {name}", file=sys.stderr, flush=True)
            out[title] = rows
            say(f"\n{title}: {text}\n\n{markdown_table(rows)}")
    return out


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows of equal keys as a Markdown table; nested mappings become columns of their own."""
    flat = [_flatten(row) for row in rows]
    lines = ["| " + " | ".join(flat[0]) + " |", "|" + " --- |" * len(flat[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in flat]
    return "\n".join(lines)


def _flatten(row: Mapping[str, object]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key} {inner}": text for inner, text in _flatten(value).items()}
        elif isinstance(value, float):
            flat[key] = "-" if math.isnan(value) else f"{value:.1f}" if value >= 2 else f"{value:.4f}"
        else:
            flat[key] = "-" if value is None else str(value)
    return flat


def missed_goals(results: Mapping[str, Sequence[Mapping[str, object]]]) -> list[str]:
    """Every goal that a figure misses, in words."""
    missed = [
        f"{row['machine']}: false-winner rate {row['false_winner_rate']:.4f}"
        for row in results["null"]
        if isinstance(row["false_winner_rate"], float) and row["false_winner_rate"] > 0.01
    ]
    exact = ("one_process_12", "one_process_40", "confirmed")
    for row in results["coverage"]:
        for key, value in row.items():
            if not isinstance(value, float) or key == "pair_sd":
                continue
            if value < (0.93 if key in exact else 0.94) or (key in exact and value > 0.97):
                missed.append(f"{row['machine']}: coverage {key} {value:.4f}")
    return missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status, 0 also when a goal is missed: the report says so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few repetitions: seconds, figures are rough")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for truth.json and truth.md")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    began = time.monotonic()
    sections: list[str] = []

    def say(text: str) -> None:
        sections.append(text)
        print(text, flush=True)

    results = measure(effort, seed=options.seed, say=say)
    missed = missed_goals(results)
    say("\nGoals missed: " + ("none." if not missed else "\n\n" + "\n".join(f"- {m}" for m in missed)))
    print(f"\n{time.monotonic() - began:.0f} s")
    setup = {"seed": options.seed, "effort": asdict(effort), "looks": PLAN.looks}
    machines = {name: asdict(model) for name, model in NOISE_MODELS.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "truth.json").write_text(
        json.dumps({"setup": setup, "machines": machines, "results": results, "missed": missed}, indent=1) + "\n"
    )
    head = f"# Truth tests\n\nWritten by `python -m benchmarks.truth`; seed {options.seed}, {effort}.\n"
    (options.out / "truth.md").write_text(head + "\n".join(sections) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
