"""What notebooks use: a study as an object with frames and plots. `import autotune; s = autotune.load("runs/x")`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from autotune.model import (
    REFERENCE_NUMBER,
    ConclusionRecord,
    LedgerRecord,
    Outcome,
    visible,
)
from autotune.results import analysis, comparison, drawings, taught
from autotune.results.charts import Chart
from autotune.results.rows import trial_rows
from autotune.results.winner import Winner, winner_of
from autotune.rundir import Store


class Study:
    """One run directory, for reading. Frames are made when asked for and kept; `load` again to see news.

    Args:
        path: The run directory.

    Raises:
        RunDirectoryError: If it is not one.
    """

    def __init__(self, path: str | Path) -> None:
        self.store = Store.open(Path(path))

    def __repr__(self) -> str:
        return visible(f"<Study {self.name}: {len(self.trials)} trials; {self.verdict}>")

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.store.spec.name

    @property
    def verdict(self) -> str:
        """The study's one sentence, or that it has not ended."""
        conclusion = self.store.last(ConclusionRecord)
        return conclusion.sentence if conclusion else "not ended yet"

    @property
    def outcome(self) -> Outcome | None:
        """What the study found: a winner, that none beats the default, or that this is open; None before its end."""
        conclusion = self.store.last(ConclusionRecord)
        return conclusion.outcome if conclusion else None

    @property
    def winner(self) -> Winner | None:
        """The proven winner with its evidence; None if there is none, for `outcome` tells why, or it has not ended."""
        conclusion = self.store.last(ConclusionRecord)
        return winner_of(self.store) if conclusion is not None and conclusion.outcome is Outcome.WINNER else None

    @property
    def device_hours(self) -> float:
        """Hours of devices that stood ready for the study, summed over devices and sessions."""
        ledger = self.store.last(LedgerRecord)
        return ledger.device_s / 3600 if ledger else 0.0

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """One row a trial; see `analysis.trials_frame`."""
        return analysis.trials_frame(self.store)

    @functools.cached_property
    def settings(self) -> pd.DataFrame:
        """Trials by settings; see `analysis.settings_frame`."""
        return analysis.settings_frame(self.store)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Every raw step, long form; see `analysis.steps_frame`."""
        return analysis.steps_frame(self.store)

    def effects(self) -> pd.DataFrame:
        """What each value of each setting does; see `analysis.effects_frame`."""
        return analysis.effects_frame(self.store)

    def taught(self) -> pd.DataFrame:
        """What the trials taught of each value tried, and of pairs, with the chance that it acts.

        Returns:
            One row for each field of `taught.BeliefRow`, likeliest first; empty for a run that has no such record.
        """
        return analysis.beliefs_frame(self.store)

    @property
    def lessons(self) -> list[str]:
        """The same in sentences, with the set that promises most and what is left to gain at most."""
        return taught.taught_lines(self.store)

    def importance(self) -> pd.DataFrame:
        """How much of the spread each setting explains; see `analysis.importance_frame`."""
        return analysis.importance_frame(self.store)

    def interactions(self) -> pd.DataFrame:
        """Pairs of settings that do not add up; see `analysis.interactions_frame`."""
        return analysis.interactions_frame(self.store)

    def pareto(self) -> pd.DataFrame:
        """Trials that no other beats in time, memory, compile time and energy; see `analysis.pareto_frame`."""
        return analysis.pareto_frame(self.store)

    @property
    def plot(self) -> Plots:
        """Charts of this study."""
        return Plots(self)

    def _repr_html_(self) -> str:
        columns = ["trial", "ratio", "low", "high", "outlook", "failure", "settings"]
        table: str = self.trials.sort_values("ratio")[columns].head(10).to_html(index=False, escape=True)
        return visible(f"<p><b>{escape(self.name)}</b>: {escape(self.verdict)}</p>{table}")


class Plots:
    """Charts of one study, as its report draws them: each shows itself in a notebook, `.save(path)` writes it."""

    def __init__(self, study: Study) -> None:
        self._store = study.store

    def forest(self, *, most: int = 40) -> Chart:
        """Ratio and interval of the best `most` trials; the band that does not count is shaded."""
        return drawings.forest_chart(self._store, trial_rows(self._store), most=most)

    def effects(self) -> Chart:
        """What each value that was tried does, with its interval and the chance that it acts: a model's, no proof."""
        return taught.beliefs_chart(self._store)

    def steps(self, trial: int | None = None) -> Chart:
        """Raw step times of a trial, or of the noise floor, in the order of running.

        Raises:
            AutotuneError: If it has none.
        """
        return drawings.steps_chart(self._store, trial or REFERENCE_NUMBER)

    def history(self) -> Chart:
        """Ratio of each trial in the order of the search, and the best so far."""
        return drawings.history_chart(trial_rows(self._store))

    def importance(self) -> Chart:
        """How much of the spread of ratios each setting explains."""
        return drawings.importance_chart(analysis.importance_frame(self._store))


def load(path: str | Path) -> Study:
    """Opens a run directory for reading.

    Raises:
        RunDirectoryError: If it is not one.
    """
    return Study(path)


def compare(studies: Sequence[Study | str | Path], *, by: Sequence[str] = ()) -> comparison.ComparisonTable:
    """Sets studies side by side; see `comparison.compare`.

    Raises:
        NotComparableError: If they differ in a field that is not named in `by`.
    """
    stores = [(s if isinstance(s, Study) else Study(s)).store for s in studies]
    return comparison.compare_stores(stores, by=by)
