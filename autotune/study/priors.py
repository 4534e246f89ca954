"""Prior probability of each setting to act: from the screen, published recipes and the atlas.

The weights are judgements: they decide what is tried first, and trials soon outweigh them. `EXPECTED` of all searched
settings are expected to act (the share `MOST_LIKELY` of a few), spread over the settings by their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from autotune.compiler.screen import Effect, ScreenReport, SettingReport
from autotune.model.records import ScreenRecord
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.atlas import Atlas, AtlasRow, AtlasVerdict, load_atlas, load_kinds, newest_not_after
from autotune.settings.catalog import load_recipes
from autotune.settings.space import SearchSpace

MOST = 0.5
"""Upper limit of the prior probability of a setting to act."""

LIVE, TOGETHER, FAILS = 2.0, 1.0, 0.5
"""Weights of settings that change the compiled program, that change it only with others, that do not compile."""

PUBLISHED, MOST_PUBLISHED = 0.25, 4
"""Weight that each recipe adds to its settings, and the number of recipes that count."""

Factors = Mapping[str, tuple[float, str]]
"""For each setting the factor by which it is likelier to act, and why."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior knowledge of one setting.

    Attributes:
        p_active: Probability that it acts.
        why: The reasons, as clauses.
        no_ops: Values that, set alone, give the default's program.
    """

    p_active: float
    why: tuple[str, ...]
    no_ops: tuple[str, ...] = ()


def priors_of(
    space: SearchSpace,
    spec: StudySpec,
    *,
    report: ScreenReport | None,
    device_count: int | None,
    jaxlib: str,
) -> dict[str, Prior]:
    """Returns the prior of each parameter."""
    priors = by_screen(space, report, _recipe_counts())
    screened = {s.name for s in report.settings} if report is not None else set()
    table = load_atlas()
    cells = similar_cells(table, spec, device_count, jaxlib)
    return reweighted(priors, atlas_factors(table, cells, priors.keys() - screened))


def reweighted(priors: Mapping[str, Prior], factors: Factors) -> dict[str, Prior]:
    """Multiplies priors by factors, and keeps the expected number of settings that act."""
    found = {}
    for name, prior in priors.items():
        factor, why = factors.get(name, (1.0, ""))
        reasons = (*prior.why, why) if why else prior.why
        found[name] = replace(prior, p_active=prior.p_active * factor, why=reasons)
    scale = sum(p.p_active for p in priors.values()) / (sum(p.p_active for p in found.values()) or 1.0)
    return {name: replace(p, p_active=min(MOST, p.p_active * scale)) for name, p in found.items()}


# ---------------------------------------------------------------------- screen and recipes


def by_screen(space: SearchSpace, report: ScreenReport | None, published: Mapping[str, int]) -> dict[str, Prior]:
    """Returns priors by the screen, and by the number of published sets that hold each setting."""
    screened = {s.name: s for s in report.settings} if report is not None else {}
    found = {}
    for parameter in space.parameters:
        weight, why = _screen_weight(screened.get(parameter.name))
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
    """Returns the newest report of a study's screen."""
    record = store.last(ScreenRecord)
    return ScreenReport.model_validate(record.report) if record is not None and record.report else None


def _screen_weight(report: SettingReport | None) -> tuple[float, list[str]]:
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
    """Returns values that alone change nothing, of a setting with a value that does."""
    if report is None or report.effect is not Effect.ACTIVE or report.under or report.interacts_with:
        return ()
    return tuple(v.value for v in report.values if not v.is_active and not v.message)


def _recipe_counts() -> Mapping[str, int]:
    return Counter(name for settings in {r.settings for r in load_recipes().values()} for name in settings)


# ---------------------------------------------------------------------- atlas


def similar_cells(table: Atlas, spec: StudySpec, device_count: int | None, jaxlib: str) -> list[AtlasRow]:
    """Returns atlas cells of a study's release, for one GPU or several, and of its preset if the table has that."""
    if spec.device.platform != "cuda" or not jaxlib or not table.cells:
        return []
    release = newest_not_after(jaxlib, table.jaxlibs)
    cells = [c for c in table.cells if c.jaxlib == release]
    if device_count is not None:
        cells = [c for c in cells if (c.gpus > 1) == (device_count > 1)]
    same = {kind.name for kind in load_kinds().values() if kind.entry == spec.workload.entry}
    return [c for c in cells if c.workload in same] or cells


def atlas_factors(table: Atlas, cells: Collection[AtlasRow], names: Collection[str]) -> Factors:
    """Returns factors of settings: one that changes the program of a similar model is likelier to act.

    Args:
        cells: See `similar_cells`.
        names: Settings that the study's own screen does not cover.
    """
    found = {name: _atlas_factor(table, name, {c.cell for c in cells}) for name in names} if cells else {}
    return {name: factor for name, factor in found.items() if factor is not None}


def _atlas_factor(table: Atlas, name: str, wanted: Collection[object]) -> tuple[float, str] | None:
    rows = [r for r in table.of(name) if r.cell in wanted]
    live = {r.cell for r in rows if r.verdict is AtlasVerdict.CHANGES}
    models = f"{len(wanted)} models alike" if len(wanted) > 1 else "a model alike"
    if live:
        of = f"of {len(live)} of {models}" if len(wanted) > 1 else f"of {models}"
        return LIVE, f"in the atlas it changes the program {of}"
    nothing = (AtlasVerdict.SAME, AtlasVerdict.DEFAULT)
    if rows and {r.cell for r in rows} == wanted and all(r.verdict in nothing for r in rows):
        return FAILS, f"in the atlas it changes nothing in {models}"
    return None
