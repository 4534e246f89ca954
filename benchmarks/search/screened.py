"""What a study thinks of a made-up space before anything is measured: a screen that is never wrong, and its recipes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from autotune.compiler import Effect, ScreenReport
from autotune.compiler.reports import SetReport, SettingReport, ValueReport
from autotune.model import FlagSet
from autotune.study.priors import Prior, priors_of
from benchmarks.search.problems import Problem

LIVE_SHARE = 0.5
"""Share of the settings that do nothing which change the program all the same, as compiling sees it."""


def screened_priors(problem: Problem, seed: int, *, has_recipes: bool) -> dict[str, Prior]:
    """Priors by `autotune.study.priors`, as a study with a screen has them.

    What acts, alone or in a pair, changes the program; of what does not, a share does.

    Args:
        problem: The space.
        seed: Of what is seen to change the program though it does nothing.
        has_recipes: Whether the space's recipes are published.
    """
    rng = np.random.default_rng([seed, 3])
    acts = {i for i, table in enumerate(problem.mains) if table.any()}
    acts |= {i for joint in problem.joints for i in (joint.one, joint.other)}
    is_live = [i in acts or rng.random() < LIVE_SHARE for i in range(len(problem.sizes))]
    settings = tuple(
        SettingReport(
            name=p.name,
            effect=Effect.LIVE if live else Effect.DEAD,
            stage="program",
            values=tuple(ValueReport(value=v, is_live=live) for v in p.values() if v != p.default_choice),
        )
        for p, live in zip(problem.space.parameters, is_live, strict=True)
    )
    report = ScreenReport(
        target="made up", topology="1x1", versions={}, reference=SetReport(name="reference", settings=FlagSet()),
        settings=settings, sets=(), limit_bytes=None, compiled_count=1, cached_count=0, duration_s=1.0,
    )  # fmt: skip
    recipes = [problem.as_set(r) for r in problem.recipes] if has_recipes else []
    return priors_of(problem.space, report, Counter(name for r in recipes for name in r))
