"""Prior probability of each setting to act, by the screen.

The weights are judgements: they decide what is tried first, and trials soon outweigh them. `EXPECTED` of all searched
settings are expected to act (the share `MOST_LIKELY` of a few), spread over the settings by their weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.compiler.screen import Effect, ScreenReport, SettingReport
from autotune.model.records import ScreenRecord
from autotune.rundir.store import Store
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.space import SearchSpace

MOST = 0.5
"""Upper limit of the prior probability of a setting to act."""

LIVE, TOGETHER, FAILS = 2.0, 1.0, 0.5
"""Weights of settings that change the compiled program, that change it only with others, that do not compile."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior knowledge of one setting.

    Attributes:
        p_active: Probability that it acts.
        why: The reason; empty without one.
    """

    p_active: float
    why: str


def priors_of(space: SearchSpace, report: ScreenReport | None) -> dict[str, Prior]:
    """Returns the prior of each parameter."""
    screened = {s.name: s for s in report.settings} if report is not None else {}
    weights = {p.name: _weight(screened.get(p.name)) for p in space.parameters}
    expected = min(EXPECTED, MOST_LIKELY * len(weights))
    total = sum(weight for weight, _ in weights.values())
    return {name: Prior(min(MOST, expected * weight / total), why) for name, (weight, why) in weights.items()}


def screened_by(store: Store) -> ScreenReport | None:
    """Returns the newest report of a study's screen."""
    record = store.last(ScreenRecord)
    return ScreenReport.model_validate(record.report) if record is not None and record.report else None


def _weight(report: SettingReport | None) -> tuple[float, str]:
    if report is None or report.effect is Effect.MEASURE:
        return 1.0, ""
    if report.effect is Effect.FAILS:
        return FAILS, "some of its values do not compile"
    if report.effect is Effect.NO_OP:
        return FAILS, "compiling says that it changes nothing"
    if report.interacts_with:
        return TOGETHER, "it changes the program together with others only"
    count = max((len(v.changes) for v in report.values), default=0)
    return LIVE, f"it changes the program ({count} differences)" if count > 1 else "it changes the program"
