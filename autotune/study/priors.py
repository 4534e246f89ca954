"""How likely each setting acts before anything is measured: from the screen and from published recipes.

The figures are judgements, not measurements: they decide what is tried first, and every trial washes them out. Of all
settings that are searched `EXPECTED` are thought to act (of a few, `MOST_LIKELY` of them), and what is known of each
tells how these are spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.compiler import Effect, ScreenReport, SettingReport
from autotune.model import ScreenRecord
from autotune.rundir import Store
from autotune.search import EXPECTED, MOST_LIKELY
from autotune.settings import SearchSpace, load_recipes

MOST = 0.5
"""Most chance of a setting to act before it is measured."""

LIVE, TOGETHER, FAILS = 2.0, 1.0, 0.5
"""Weights of settings whose values change the compiled program, that do so in company only, that do not compile."""

PUBLISHED, MOST_PUBLISHED = 0.25, 4
"""Weight that each recipe adds to a setting that it holds, and how many count."""

SAME_PROGRAM_SD = 0.002
"""Standard error of the log ratio of a value that gives the default's program, by a compiler without the GPU."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is thought of one setting before it is measured.

    Attributes:
        act: Chance that it acts.
        why: What that rests on, as clauses.
        nothing: Values that give the default's own program when they are set alone.
    """

    act: float
    why: tuple[str, ...]
    nothing: tuple[str, ...] = ()


def priors_of(
    space: SearchSpace, report: ScreenReport | None, published: Mapping[str, int] | None = None
) -> dict[str, Prior]:
    """Parameter to what is thought of it.

    Args:
        space: What is searched.
        report: What compiling said of it; None where nothing was compiled.
        published: Setting to how many distinct published sets hold it; None for the recipes that autotune knows.
    """
    screened = {s.name: s for s in report.settings} if report is not None else {}
    published = _recipe_counts() if published is None else published
    found = {}
    for parameter in space.parameters:
        weight, why = _by_screen(screened.get(parameter.name))
        if count := published.get(parameter.name, 0):
            weight *= 1 + PUBLISHED * min(count, MOST_PUBLISHED)
            why.append(f"{count} published recipes hold it" if count > 1 else "a published recipe holds it")
        found[parameter.name] = (weight, tuple(why))
    expected = min(EXPECTED, MOST_LIKELY * len(found))
    total = sum(weight for weight, _ in found.values()) or 1.0
    return {
        name: Prior(min(MOST, expected * weight / total), why, _idle_values(screened.get(name)))
        for name, (weight, why) in found.items()
    }


def screened_by(store: Store) -> ScreenReport | None:
    """What the screen of a study said; None if it has none."""
    record = store.last(ScreenRecord)
    return ScreenReport.model_validate(record.report) if record is not None and record.report else None


def _by_screen(report: SettingReport | None) -> tuple[float, list[str]]:
    """A setting's weight by what compiling it showed, and the words for that."""
    if report is None or report.effect is Effect.MEASURE:
        return 1.0, []
    if report.effect is Effect.FAILS:
        return FAILS, ["some of its values do not compile"]
    if report.effect is Effect.NO_OP:
        return FAILS, ["compiling says that it changes nothing"]
    if report.interacts_with:
        return TOGETHER, ["it changes the program together with others only"]
    count = max((len(v.changes) for v in report.values), default=0)
    return LIVE, [f"it changes the program ({count} differences)" if count > 1 else "it changes the program"]


def _idle_values(report: SettingReport | None) -> tuple[str, ...]:
    """Values that change nothing by themselves though another value does."""
    if report is None or report.effect is not Effect.ACTIVE or report.under or report.interacts_with:
        return ()
    return tuple(v.value for v in report.values if not v.is_active and not v.message)


def _recipe_counts() -> Mapping[str, int]:
    """Setting to how many distinct published sets hold it."""
    counts: dict[str, int] = {}
    for settings in {r.settings for r in load_recipes().values()}:
        for name in settings:
            counts[name] = counts.get(name, 0) + 1
    return counts
