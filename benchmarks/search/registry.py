"""All searches by name."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, TPESampler

from benchmarks.search.problems import Codes, Problem
from benchmarks.search.rivals import OneFactor, Racing
from benchmarks.search.strategies import Asked, Ceiling, Product, Smac, Strategy, UniformRandom

Make = Callable[[Problem, int, bool], Strategy]


class Rival(NamedTuple):
    """One search.

    Attributes:
        make: From a problem, a seed, and whether recipes are tried first.
        words: What it is.
        package: What must be installed for it besides.
    """

    make: Make
    words: str
    package: str = ""


def _product(sampler: str = "additive", **changes: object) -> Make:
    def make(problem: Problem, seed: int, has_recipes: bool) -> Strategy:
        return Product(problem, seed, has_recipes=has_recipes, sampler=sampler, **changes)  # type: ignore[arg-type]

    return make


class _Changed:
    """The product with constants of `autotune.search` changed while it searches."""

    def __init__(self, inner: Strategy, constants: Mapping[str, Any]) -> None:
        self._inner, self._constants = inner, constants

    def _with(self, do: Callable[[], Any]) -> Any:
        with contextlib.ExitStack() as stack:
            for name, value in self._constants.items():
                stack.enter_context(mock.patch(f"autotune.search.{name}", value))
            return do()

    def ask(self) -> Codes | None:
        """See `Strategy`."""
        found: Codes | None = self._with(self._inner.ask)
        return found

    def tell(self, codes: Codes, value: float | None, sd: float) -> None:
        """See `Strategy`."""
        self._inner.tell(codes, value, sd)

    def chosen(self) -> Codes:
        """See `Strategy`."""
        return np.asarray(self._with(self._inner.chosen))


def _without(constants: Mapping[str, Any]) -> Make:
    def make(problem: Problem, seed: int, has_recipes: bool) -> Strategy:
        return _Changed(Product(problem, seed, has_recipes=has_recipes), constants)

    return make


def _asked(sampler: Callable[[int], BaseSampler]) -> Make:
    def make(problem: Problem, seed: int, has_recipes: bool) -> Strategy:
        return Asked(problem, seed, has_recipes=has_recipes, make=sampler)

    return make


RIVALS: dict[str, Rival] = {
    "additive": Rival(_product(), "this project's search as shipped"),
    "without pairs": Rival(
        _without({"sampler.MOST_PAIRS": 0}), "the same, no two settings act together"
    ),
    "without draws": Rival(
        _without({"acquisition.IMPROVING_SHARE": 1.0}),
        "the same, every proposal by expected improvement",
    ),
    "one width": Rival(
        _without(
            {
                "posterior.SIZES": (1.5,),
                "posterior.SHARES": (1.0,),
                "posterior._PRECISIONS": np.array([1.5**-2]),
            }
        ),
        "the same, effects of one width",
    ),
    "without spread": Rival(
        _without({"additive._ENOUGH": 10**9}), "the same, the spread beyond errors not estimated"
    ),
    "fixed share": Rival(
        _without({"failures.WEIGHT": 1e9}), "the same, the share of failing values not learned"
    ),
    "without memory": Rival(_product(knows_memory=False), "the same, peaks of memory not told"),
    "without widths": Rival(
        _product(has_widths=False), "the same, every trial told the same standard error"
    ),
    "ceiling": Rival(
        lambda p, seed, has_recipes: Ceiling(p, seed, has_recipes=has_recipes),
        "no rival: this project's search, told beforehand which settings act",
    ),
    "before": Rival(
        _product("tpe", finds_culprits=True),
        "what the project had before: 8 random sets near the default, then multivariate TPE; "
        "culprits found aside",
    ),
    "TPE": Rival(_asked(lambda seed: TPESampler(seed=seed)), "Optuna's TPE as it comes"),
    "GP": Rival(
        _asked(lambda seed: GPSampler(seed=seed)), "Optuna's Gaussian process as it comes", "torch"
    ),
    "CMA-ES": Rival(
        _asked(lambda seed: CmaEsSampler(seed=seed)), "Optuna's CMA-ES as it comes", "cmaes"
    ),
    "SMAC3": Rival(
        lambda p, seed, has_recipes: Smac(p, seed, has_recipes=has_recipes),
        "SMAC3's random forest as it comes",
        "smac",
    ),
    "one factor": Rival(
        lambda p, seed, has_recipes: OneFactor(p, seed, has_recipes=has_recipes),
        "one factor at a time, kept if faster",
    ),
    "racing": Rival(
        lambda p, seed, has_recipes: Racing(p, seed, has_recipes=has_recipes),
        "iterated racing like irace's",
    ),
    "near": Rival(
        _product("random", finds_culprits=True), "random sets that change two settings on average"
    ),
    "uniform": Rival(
        lambda p, seed, has_recipes: UniformRandom(p, seed, has_recipes=has_recipes),
        "uniform random sets, by which score 0 is told without recipes",
    ),
}
"""Searches in the order of the report."""


def is_there(name: str) -> bool:
    """Whether what a search needs is installed."""
    package = RIVALS[name].package
    return not package or importlib.util.find_spec(package) is not None
