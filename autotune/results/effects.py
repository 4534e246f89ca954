"""Effects of settings as a model estimates them from all trials: rows, sentences, forest plot."""

from __future__ import annotations

from typing import NamedTuple

from autotune.model.flags import FlagSet
from autotune.model.records import INERT, EffectsRecord, SoakRecord, TrialResult
from autotune.model.texts import text_lines
from autotune.model.units import format_interval, format_ratio
from autotune.results import tables
from autotune.results.format import finalists, format_figures, time_words
from autotune.results.pages import Cell, Chart, Mark, forest
from autotune.rundir.store import Store
from autotune.settings.published import format_effects
from autotune.stats.estimates import Verdict

WORTH_A_ROW = 0.05  # P(active) below which a setting is in no table or chart
LIKELY = 0.5  # P(active) above which a setting is called active
MOST_ROWS = 60


class EstimateRow(NamedTuple):
    """The estimated effect of one value of a setting."""

    setting: str
    value: str
    chance: float  # P(active) of the setting
    ratio: float  # of step times, expected; `low` and `high` are its 95 % interval
    low: float
    high: float
    trials: int  # with this value that ran

    @property
    def label(self) -> str:
        """``xla_a=1``."""
        return f"{self.setting}={self.value}"

    @property
    def style(self) -> str:
        """CSS class."""
        if self.chance < INERT:
            return "same"
        if self.high < 1:
            return "promising"
        return "unpromising" if self.low > 1 else "open"

    @property
    def acts(self) -> str:
        """The chance in words."""
        return "probably inert" if self.chance < INERT else format_chance(self.chance)


def format_chance(chance: float) -> str:
    """Formats a probability in whole percents, never as certain: ``72 %``, ``> 99 %``."""
    if chance <= 0.005:
        return "< 1 %"
    if chance >= 0.995:
        return "> 99 %"
    return f"{100 * chance:.0f} %"


def estimate_rows(store: Store) -> list[EstimateRow]:
    """Returns a row for every value that was tried, likeliest first, then fastest first."""
    record = store.last(EffectsRecord)
    if not record:
        return []
    rows = [
        EstimateRow(effect.name, chance=effect.chance, **dict(value))
        for effect in record.settings
        for value in effect.values
    ]
    return sorted(rows, key=lambda r: (-r.chance, r.setting, r.ratio))


def _shown(store: Store) -> list[EstimateRow]:
    return [r for r in estimate_rows(store) if r.chance >= WORTH_A_ROW][:MOST_ROWS]


def effect_lines(store: Store) -> list[str]:
    """Formats the estimated effects as sentences; empty before the search has ended."""
    record = store.last(EffectsRecord)
    if not record:
        return []
    best = record.best.settings.items()
    return text_lines(
        "effects.txt.j2",
        chance=format_chance,
        record=record,
        figures=format_figures(record.best.ratio, record.best.low, record.best.high),
        likely=LIKELY,
        below=INERT,
        keeps_default=best <= store.spec.baseline.items(),
        time=time_words(store),
        refused=refused_sets(store).get(record.best.settings),
        published=[(name, text) for name, value in best for text in format_effects(name, value)],
        newer=len(store.of(TrialResult)) - record.trials,
    )


def refused_sets(store: Store) -> dict[FlagSet, str]:
    """Returns in words what a proof, a veto or a long run has decided against sets."""
    refused: dict[FlagSet, str] = {}
    for proof in finalists(store):
        if proof.is_vetoed:
            refused.setdefault(proof.settings, "not accepted")
        elif proof.verdict in (Verdict.NO_DIFFERENCE, Verdict.SLOWER):
            refused[proof.settings] = "ruled out by its proof"
    for soak in store.of(SoakRecord):
        if soak.failure:
            refused[soak.settings] = "ruled out"
    return refused


def estimate_table(store: Store) -> list[tables.Row]:
    """Returns the rows of the report's table."""
    refused = {str(flags): reason for flags, reason in refused_sets(store).items()}
    return [
        {
            "setting": r.label,
            "ratio": Cell(format_ratio(r.ratio), r.style),
            "95 % interval": format_interval(r.low, r.high),
            "active": refused.get(r.label, r.acts),
            "trials": str(r.trials),
        }
        for r in _shown(store)
    ]


def study_tables(store: Store) -> dict[str, list[tables.Row]]:
    """Returns the tables of a study for a terminal by title, trials (best first) above all."""
    trial_columns = ("trial", "settings", "ratio", "interval", "result", "over")
    proof_columns = (*trial_columns[:3], "corrected interval", "verdict", "stage")
    trials = tables.trial_table(tables.ranked_rows(store))
    proofs = tables.finalist_table(finalists(store))
    ratios = f"{time_words(store)} over the default's (below 1 is less)"
    tables_by_title = {
        ratios: [{name: row[name] for name in trial_columns} for row in trials],
        "Proofs": [{name: row[name] for name in proof_columns} for row in proofs],
        "Estimated effect of each flag (model, unverified)": estimate_table(store),
        "What differs, by a trace of each": tables.profile_table(store),
    }
    return {title: rows for title, rows in tables_by_title.items() if rows}


def effects_chart(store: Store) -> Chart:
    """Draws the forest plot of estimated effects with intervals and P(active)."""
    marks = []
    for r in _shown(store):
        short = r.label.replace("xla_gpu_", "").replace("xla_", "")
        figures = format_figures(r.ratio, r.low, r.high)
        detail = f"{r.label}: {figures}, active: {r.acts}, {r.trials} trials"
        label = f"{short}  ({format_chance(r.chance)})"
        marks.append(Mark(r.ratio, detail, r.style, (r.low, r.high), label))
    svg = forest(
        marks,
        band=store.spec.measure.min_effect,
        of=time_words(store),
        description="effects of settings",
    )
    note = (
        "Each value beside the defaults of all others; of pairs, the effect beyond the sum of "
        "both. Intervals of 95 % are a model's, from all trials at once. The shaded band is too "
        "small to matter."
    )
    return Chart("Estimated effect of each setting (model, unverified)", svg, note)
