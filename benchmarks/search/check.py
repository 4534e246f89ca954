"""Checks the benchmark itself: optima by brute force, scores, and the families' facts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.search.conditioned import CONDITIONED, draw_conditioned
from benchmarks.search.drawn import DRAWN, draw
from benchmarks.search.families import EASY, FAMILIES, TRIALS, make
from benchmarks.search.options import OPTIONS, draw_options
from benchmarks.search.problems import Problem
from benchmarks.search.registry import RIVALS
from benchmarks.search.runs import problem_of, run_one
from benchmarks.search.scoring import cutoff, interval, random_search, score, table_baseline
from benchmarks.search.strategies import Ceiling, UniformRandom

SPACES = 4
"""Spaces of each family whose facts are counted."""

SMALL_SPACES = 4
"""Small spaces of each family whose optimum is held against brute force."""

SMALL: dict[str, Callable[..., Problem]] = {
    DRAWN: draw,
    OPTIONS: draw_options,
    **{family: functools.partial(draw_conditioned, family) for family in CONDITIONED},
}
"""Makers of the families that have a module of their own."""

MOST_SETS = 60_000


def check() -> dict[str, Any]:
    """Figures that a test, or a reader, can hold against docs/search.md."""
    return {
        "optimum": {
            family: _brute_force(family) for family in (*FAMILIES, *CONDITIONED, DRAWN, OPTIONS)
        },
        "facts": {family: _facts(family) for family in FAMILIES},
        "scores": _scores(),
        "runs": _runs(),
        "ceiling": _ceiling(),
    }


def _brute_force(family: str) -> dict[str, float]:
    """Number of small spaces enumerated, and the largest difference to the reported optimum."""
    found: list[float] = []
    for seed in range(40):
        if len(found) == SMALL_SPACES:
            break
        draw_small = SMALL.get(family, functools.partial(make, family))
        problem = draw_small(seed, settings=6)
        if np.prod(problem.sizes) <= MOST_SETS:
            every = np.indices(problem.sizes).reshape(len(problem.sizes), -1).T
            told = float(problem.gains(problem.best[None])[0])
            found.append(
                max(abs(float(problem.gains(every).min()) - v) for v in (problem.optimum, told))
            )
    return {"spaces": len(found), "difference": max(found)}


def _facts(family: str) -> dict[str, Any]:
    problems = [problem_of(family, seed) for seed in range(SPACES)]
    acting = [sum(bool(t.any()) for t in p.mains) + len(p.joints) for p in problems]
    effects = [_best_alone(p, i) for p in problems for i in p.good]
    groups = [[q.group for q in p.space.parameters] for p in problems]
    sizes = [g.count(name) for g in groups for name in set(g)]
    return {
        "settings": [min(len(p.sizes) for p in problems), max(len(p.sizes) for p in problems)],
        "inert": float(
            np.mean([1 - a / len(p.sizes) for a, p in zip(acting, problems, strict=True)])
        ),
        "good": [min(len(p.good) for p in problems), max(len(p.good) for p in problems)],
        "effects": [min(effects), max(effects)],
        "harmful": min(a - len(p.good) for a, p in zip(acting, problems, strict=True)),
        "groups": [min(sizes), max(sizes)],
        "gates": min(len(p.joints) for p in problems),
        "hazards": [min(len(p.hazards) for p in problems), max(len(p.hazards) for p in problems)],
        "random": max(float(random_search(p, TRIALS)[-1]) / p.optimum for p in problems) / EASY,
        "recipes": [min(len(p.recipes) for p in problems), max(len(p.recipes) for p in problems)],
        "changed by a recipe": float(
            np.mean([(r != p.defaults).sum() for p in problems for r in p.recipes])
        ),
        "default is 0": max(abs(float(p.effects(p.defaults[None])[0])) for p in problems),
    }


def _best_alone(problem: Problem, i: int) -> float:
    """What a good setting is worth, as a positive log ratio, where what it needs is on."""
    tables = [j.table.min() for j in problem.joints if j.one == i]
    return -float(min([problem.mains[i].min(), *tables]))


def _scores() -> dict[str, float]:
    """Random search scores 0, an oracle 1, on spaces and a table whose cutoff is known."""
    problems = [problem_of(family, seed) for family in FAMILIES for seed in range(SPACES)]
    told = []
    for p in problems:
        baseline, rng = random_search(p, TRIALS), np.random.default_rng(1)
        curves = np.minimum.accumulate(
            p.gains(p.random(rng, 50 * TRIALS)).reshape(50, TRIALS), axis=1
        )
        told.append(float(np.mean([score(c, baseline, p.optimum) for c in curves])))
    oracle = score(
        np.full(TRIALS, problems[0].optimum),
        random_search(problems[0], TRIALS),
        problems[0].optimum,
    )
    table = np.random.default_rng(2).lognormal(size=500)
    baseline = table_baseline(tuple(table), 40)
    rng = np.random.default_rng(3)
    walks = [np.minimum.accumulate(rng.permutation(table)[:40]) for _ in range(500)]
    mean, low, high = interval([[0.0, 1.0] * 50, [1.0] * 10])
    return {
        "random": float(np.mean(told)),
        "oracle": oracle,
        "random on a table": float(
            np.mean([score(w, baseline, float(table.min())) for w in walks])
        ),
        "cutoff": float(cutoff(np.arange(1.0, 101.0))),
        "mean": mean,
        "width": high - low,
    }


def _runs() -> dict[str, Any]:
    """A short run of two searches, twice each: deterministic, and what fails counts as nothing."""
    problem = problem_of("hazards", 1)
    short = functools.partial(run_one, problem, trials=8, noise=0.01, seed=1)
    told: dict[str, Any] = {}
    for name in ("additive", "racing", "one factor"):
        rows = [short(RIVALS[name].make(problem, 1, True)) for _ in range(2)]
        curves = [{k: v for k, v in row.items() if k not in ("seconds", "longest")} for row in rows]
        told[name] = {"equal": curves[0] == curves[1], **curves[0]}
    uniform = short(UniformRandom(problem, 1, has_recipes=False))
    return {**told, "uniform": {"failed": uniform["failed"], "found": uniform["found"]}}


def _ceiling() -> dict[str, Any]:
    """The search that knows which settings act: the same optimum, nothing else changed."""
    problems = [
        p for f in FAMILIES for seed in range(SPACES) if not (p := problem_of(f, seed)).hazards
    ]
    optima = [abs(p.only(p.acting).optimum - p.optimum) for p in problems]
    problem = problem_of("gated", 1)
    strategy, others = Ceiling(problem, 1, has_recipes=True), 0
    idle = np.setdiff1d(np.arange(len(problem.sizes)), problem.acting)
    for trial in range(8):
        codes = strategy.ask()
        if codes is not None:
            others += int((codes != problem.defaults)[idle].sum())
            strategy.tell(codes, *problem.measure(codes, trial, noise=0.01, seed=1))
    return {
        "spaces": len(problems),
        "difference": max(optima),
        "others": others,
        "kept": len(problem.acting),
    }
