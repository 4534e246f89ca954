"""Notebook interface: `autotune.load("runs/x")` gives a study with frames and plots."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from autotune.model.measurement import Arm
from autotune.model.records import (
    REFERENCE_NUMBER,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    Outcome,
    TrialResult,
)
from autotune.model.redaction import visible
from autotune.results import comparison, report
from autotune.results.effects import EstimateRow, effects_chart, estimate_rows
from autotune.results.pages import Chart
from autotune.results.tables import TRIAL_COLUMNS, trial_rows
from autotune.results.winner import Winner, winner_of
from autotune.rundir.store import Store

ABSENT = "(default)"  # Value shown for a setting that a trial does not set


class Study:
    """Read-only view of one run directory.

    Frames are made on first access and cached; `load` again to refresh.

    Raises:
        RunDirectoryError: If the path is not a run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.store = Store.open(Path(path))

    def __repr__(self) -> str:
        return visible(f"<Study {self.name}: {len(self.trials)} trials; {self.verdict}>")

    @property
    def name(self) -> str:
        """The study's name."""
        return self.store.spec.name

    @property
    def conclusion(self) -> ConclusionRecord | None:
        """The record of the conclusion; None before the end."""
        return self.store.last(ConclusionRecord)

    @property
    def verdict(self) -> str:
        """The conclusion in one sentence, or that the study has not ended."""
        return self.conclusion.sentence if self.conclusion else "not ended yet"

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the study; None before its end."""
        return self.conclusion.outcome if self.conclusion else None

    @property
    def winner(self) -> Winner | None:
        """The proven winner with its evidence; None if there is none (see `outcome`)."""
        return winner_of(self.store) if self.outcome is Outcome.WINNER else None

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial; columns are those of `tables.TrialRow`, NaN for unknown figures."""
        rows = map(operator.attrgetter(*TRIAL_COLUMNS), trial_rows(self.store))
        return pd.DataFrame(rows, columns=list(TRIAL_COLUMNS))

    @functools.cached_property
    def settings(self) -> pd.DataFrame:
        """Value of each setting in each trial, `ABSENT` where it is not set."""
        results = self.store.of(TrialResult)
        index = pd.Index([r.number for r in results], name="trial")
        frame = pd.DataFrame([dict(r.settings) for r in results], index=index)
        return frame.fillna(ABSENT).sort_index(axis=1)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Every measured step in long form, in the order in which blocks ran; nothing is dropped.

        Returns:
            Columns stage (such as aa_run, trial, confirm), trial, measurement (folder), pair, arm,
            is_first (its block ran before the other arm's), step (within the block), step_s, at_s
            (of the pair, since the study began), is_counted (False while the device settles).
        """
        rows = []
        for stage, trial, directory in self._measurements():
            for pair in self.store.pairs(directory):
                for arm in Arm:
                    settling_s, counted_s = pair.block(arm)
                    for step, step_s in enumerate((*settling_s, *counted_s)):
                        is_counted = step >= len(settling_s)
                        block = (pair.index, arm.value, pair.first == arm)
                        times = (step, step_s, pair.at_s, is_counted)
                        rows.append((stage, trial, directory, *block, *times))
        pair_columns = ["stage", "trial", "measurement", "pair", "arm", "is_first"]
        return pd.DataFrame(rows, columns=[*pair_columns, "step", "step_s", "at_s", "is_counted"])

    def _measurements(self) -> Iterator[tuple[str, int, str | None]]:
        """Yields stage, trial number (0 for the reference) and folder of each measurement."""
        for record in self.store.records():
            match record:
                case ConfirmRun():
                    yield record.stage, record.trial, record.directory
                case TrialResult():
                    yield record.kind, record.number, record.directory
                case AblationResult():
                    yield "minimise", REFERENCE_NUMBER, record.directory
                case AaRecord():
                    yield record.kind, REFERENCE_NUMBER, record.directory

    def estimated_effects(self) -> pd.DataFrame:
        """Returns `effects.EstimateRow`s of a model (unverified), likeliest first."""
        return pd.DataFrame(estimate_rows(self.store), columns=list(EstimateRow._fields))

    @property
    def plot(self) -> Plots:
        """Charts of this study."""
        return Plots(self.store)

    def _repr_html_(self) -> str:
        columns = ["trial", "ratio", "low", "high", "finding", "failure", "settings"]
        best = self.trials.sort_values("ratio")[columns].head(10)
        head = f"<p><b>{escape(self.name)}</b>: {escape(self.verdict)}</p>"
        return visible(head + best.to_html(index=False))


class Plots:
    """Charts of the report; a notebook displays them, `.save(path)` writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def forest(self, *, most: int = 40) -> Chart:
        """Draws ratio and interval of the best `most` trials; effects below `min_effect` shaded."""
        return report.forest_chart(self._store, most=most)

    def effects(self) -> Chart:
        """Draws the effect of each value with interval and P(active), by a model (unverified)."""
        return effects_chart(self._store)

    def steps(self, trial: int | None = None) -> Chart:
        """Draws the raw step times of a trial, or of the A/A run, in execution order."""
        return report.steps_chart(self._store, trial or REFERENCE_NUMBER)


def load(path: str | Path) -> Study:
    """Opens a run directory for reading; RunDirectoryError if it is not a run directory."""
    return Study(path)


def compare(
    studies: Sequence[Study | str | Path], *, by: Sequence[str] = ()
) -> comparison.ComparisonTable:
    """Compares studies; NotComparableError if they differ in a field that is not named in `by`."""
    stores = [(s if isinstance(s, Study) else Study(s)).store for s in studies]
    return comparison.compare_stores(stores, by=by)
