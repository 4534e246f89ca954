"""What the trials taught, for people: rows, sentences, the table and the forest plot of effects."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

from rich.table import Table
from rich.text import Text

from autotune.model import INERT, EffectsRecord, TrialResult, format_interval, format_ratio
from autotune.results import charts
from autotune.results.charts import Chart, Mark
from autotune.results.pages import Styled
from autotune.results.words import format_figures, shorten, time_words
from autotune.rundir import Store

WORTH_A_ROW = 0.05
"""Chance to act from which a setting stands in the table and the chart; the rest is counted, and in the frame."""

MOST_ROWS = 60
"""Of the chart and the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeliefRow:
    """What one value of a setting does, as the model believes it.

    Attributes:
        setting: Its name.
        value: Its value.
        chance: That the setting acts.
        ratio: Expected ratio of step times.
        low: Lower end of its 95 % interval.
        high: Upper end.
        trials: How many had it and ran.
    """

    setting: str
    value: str
    chance: float
    ratio: float
    low: float
    high: float
    trials: int

    @property
    def label(self) -> str:
        """What it is of: ``xla_a=1``."""
        return f"{self.setting}={self.value}"

    @property
    def style(self) -> str:
        """Class of the style sheet."""
        if self.chance < INERT:
            return "same"
        return "promising" if self.high < 1 else "unpromising" if self.low > 1 else "open"

    @property
    def belief(self) -> str:
        """The chance in words."""
        return "inert" if self.chance < INERT else f"believed to act: {format_chance(self.chance)}"


BELIEF_COLUMNS = tuple(f.name for f in fields(BeliefRow))


def format_chance(chance: float) -> str:
    """A probability in whole percents that never says certain: ``72 %``, ``> 99 %``."""
    percent = round(100 * chance)
    return "< 1 %" if percent < 1 else "> 99 %" if percent > 99 else f"{percent} %"


def newest(store: Store) -> EffectsRecord | None:
    """What the trials taught last; None for a run that has not come so far, or whose kind has no such model."""
    return store.last(EffectsRecord)


def belief_rows(store: Store) -> list[BeliefRow]:
    """Every value that was tried, likeliest first, then fastest first."""
    if (found := newest(store)) is None:
        return []
    rows = [
        BeliefRow(
            setting=s.name, value=v.value, chance=s.chance, trials=v.trials, ratio=v.ratio, low=v.low, high=v.high
        )
        for s in found.settings
        for v in s.values
    ]
    return sorted(rows, key=lambda r: (-r.chance, r.setting, r.ratio))


def _shown(store: Store) -> list[BeliefRow]:
    return [r for r in belief_rows(store) if r.chance >= WORTH_A_ROW][:MOST_ROWS]


# ---------------------------------------------------------------------- sentences


def taught_lines(store: Store) -> list[str]:
    """What the trials taught, in a few sentences; none where there is no record of it."""
    found = newest(store)
    if found is None:
        return []
    acting = [f"{s.name} ({format_chance(s.chance)})" for s in found.settings if s.chance >= INERT]
    inert = len(found.settings) - len(acting)
    of = f"after {found.measured} trials with a figure"
    lines = [
        f"{of}, believed to act: {', '.join(acting) or 'nothing'}"
        + (f"; {inert} other searched settings are believed to be inert" if inert else "")
    ]
    lines += [
        f"believed to act together, beyond what each does: {' and '.join(p.names)} ({format_chance(p.chance)})"
        for p in found.pairs
        if p.chance >= INERT
    ]
    best, of = found.best, time_words(store)
    if best.settings:
        lines.append(
            f"the set that promises most: {shorten(best.settings, limit=400)}, {of} ratio "
            f"{format_figures(best.ratio, best.low, best.high)} as the model expects it: no proof"
        )
    else:
        lines.append("the model expects no set to beat the default")
    if (newer := len(store.of(TrialResult)) - found.trials) > 0:
        lines.append(f"{newer} trials have come since, which are not in this yet")
    return lines


# ---------------------------------------------------------------------- table and chart


def belief_table(store: Store) -> list[dict[str, str]]:
    """The rows of the report's table."""
    return [
        {
            "setting": r.label,
            "ratio": Styled(format_ratio(r.ratio), r.style),
            "95 % interval": format_interval(r.low, r.high),
            "acts": r.belief,
            "trials": str(r.trials),
        }
        for r in _shown(store)
    ]


def terminal_table(store: Store) -> Table | None:
    """The same for a terminal; None where there is nothing to show."""
    if not (rows := _shown(store)):
        return None
    title = (
        f"what the trials taught: {time_words(store)} over the default's beside other defaults (a model's, no proof)"
    )
    table = Table(title=title, title_justify="left")
    for name in ("setting", "ratio", "95 % interval", "", "trials"):
        table.add_column(name, justify="right" if name in ("ratio", "trials") else "left", overflow="fold")
    for r in rows:
        belief = Text(r.belief, style={"promising": "cyan", "unpromising": "red", "open": "yellow"}.get(r.style, "dim"))
        cells = (r.label, format_ratio(r.ratio), format_interval(r.low, r.high))
        table.add_row(*map(Text, cells), belief, str(r.trials))
    return table


def beliefs_chart(store: Store) -> Chart:
    """The forest plot of effects: what each value does, with its interval and the chance that it acts."""
    marks = []
    for r in _shown(store):
        label = f"{r.label.replace('xla_gpu_', '').replace('xla_', '')}  ({format_chance(r.chance)})"
        detail = f"{r.label}: {format_figures(r.ratio, r.low, r.high)}, {r.belief}, {r.trials} trials"
        marks.append(Mark(x=r.ratio, x_ends=(r.low, r.high), label=label, detail=detail, style=r.style))
    band = store.spec.measure.min_effect
    draw = functools.partial(charts.forest, marks, band=band, of=time_words(store), description="effects of settings")
    note = (
        "Each value beside the defaults of all others. Intervals of 95 % are a model's, from all trials at once; that "
        "of a setting that may be inert holds 1. The shaded band is too small to matter."
    )
    return Chart(title="Effects of settings", svg=draw(), note=note, narrow=draw(is_narrow=True))
