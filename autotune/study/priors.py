"""Prior probability of each setting to act, by the screen.

The weights are judgements: they decide what is tried first, and trials soon outweigh them. `EXPECTED` of all searched
settings are expected to act (the share `MOST_LIKELY` of a few), spread over the settings by their weights.
"""

from __future__ import annotations

from autotune.compiler.screen import Effect, ScreenReport, SettingReport
from autotune.model.records import ScreenRecord
from autotune.rundir.store import Store
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.space import SearchSpace

MOST = 0.5
"""Upper limit of the prior probability of a setting to act."""

LIVE, TOGETHER, UNKNOWN, FAILS = 2.0, 1.0, 1.0, 0.5
"""Weights of settings that change the compiled program, that change it only with others, of which compiling says
nothing, and that do not change it or do not compile."""


def priors_of(space: SearchSpace, report: ScreenReport | None) -> dict[str, float]:
    """Returns the prior probability of each parameter to act."""
    screened = {s.name: s for s in report.settings} if report is not None else {}
    weights = {p.name: _weight(screened.get(p.name)) for p in space.parameters}
    expected = min(EXPECTED, MOST_LIKELY * len(weights))
    total = sum(weights.values())
    return {name: min(MOST, expected * weight / total) for name, weight in weights.items()}


def screened_by(store: Store) -> ScreenReport | None:
    """Returns the newest report of a study's screen."""
    record = store.last(ScreenRecord)
    return ScreenReport.model_validate(record.report) if record is not None and record.report else None


def _weight(report: SettingReport | None) -> float:
    if report is None or report.effect is Effect.MEASURE:
        return UNKNOWN
    if report.effect is not Effect.ACTIVE:
        return FAILS
    return TOGETHER if report.interacts_with else LIVE
