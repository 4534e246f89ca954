"""What notebooks use: a study as an object with frames and plots. `import autotune; s = autotune.load("runs/x")`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from autotune.model import PREDICTED, AutotuneError, ConclusionRecord, Outcome
from autotune.results import analysis, comparison
from autotune.results.winner import Winner, winner_of
from autotune.rundir import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        label = f"{PREDICTED}; " if self.is_predicted else ""
        return f"<Study {self.name}: {label}{len(self.trials)} trials; {self.verdict}>"

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
    def winner(self) -> Winner | None:
        """The proven winner with its evidence; None if nothing beats the default or the study has not ended.

        Of a study by several objectives: the fastest of its front, None if none is faster than the default.
        """
        conclusion = self.store.last(ConclusionRecord)
        return winner_of(self.store) if conclusion is not None and conclusion.outcome is Outcome.WINNER else None

    @property
    def is_predicted(self) -> bool:
        """Whether nothing was measured: see the columns ``predicted_ratio`` and ``predicted_step_s`` of `trials`."""
        return self.store.spec.is_predicted

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

    def importance(self) -> pd.DataFrame:
        """How much of the spread each setting explains; see `analysis.importance_frame`."""
        return analysis.importance_frame(self.store)

    def interactions(self) -> pd.DataFrame:
        """Pairs of settings that do not add up; see `analysis.interactions_frame`."""
        return analysis.interactions_frame(self.store)

    def pareto(self) -> pd.DataFrame:
        """Trials that no other beats in time, memory, compile time and energy; see `analysis.pareto_frame`."""
        return analysis.pareto_frame(self.store)

    @functools.cached_property
    def front(self) -> pd.DataFrame:
        """The sets that no other beats in all of the study's objectives; see `analysis.front_frame`."""
        return analysis.front_frame(self.store)

    @property
    def plot(self) -> Plots:
        """Plots of this study, with Matplotlib."""
        return Plots(self)

    def _repr_html_(self) -> str:
        ratio = "predicted_ratio" if self.is_predicted else "ratio"
        figures = [ratio, "predicted_step_s"] if self.is_predicted else [ratio, "low", "high", "verdict"]
        columns = ["trial", *figures, "failure", "settings"]
        table: str = self.trials.sort_values(ratio)[columns].head(10).to_html(index=False, escape=True)
        return f"<p><b>{_escape(self.name)}</b>: {_escape(self.verdict)}</p>{table}"


class Plots:
    """Plots of one study; each draws into `ax`, or into a new figure, and returns its axes."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def forest(self, ax: Axes | None = None, *, most: int = 40) -> Axes:
        """Ratio and interval of the best `most` trials; the band that does not count is shaded."""
        frame = self._study.trials.dropna(subset=["ratio"]).query("failure.isna()")
        frame = frame.sort_values("ratio").head(most).iloc[::-1]
        ax = _axes(ax, height=1.5 + 0.28 * len(frame))
        band = self._study.store.spec.measure.smallest_effect
        ax.axvspan(1 - band, 1 + band, color="0.92")
        ax.axvline(1, color="0.3", linewidth=0.8, linestyle="--")
        low, high = frame["low"].fillna(frame["ratio"]), frame["high"].fillna(frame["ratio"])
        ax.hlines(range(len(frame)), low, high, color="tab:blue", linewidth=1.5)
        ax.plot(frame["ratio"], range(len(frame)), "o", color="tab:blue", markersize=4)
        ax.set_yticks(
            range(len(frame)), [f"{t}  {s[:50]}" for t, s in zip(frame["trial"], frame["settings"], strict=True)]
        )
        ax.set_xlabel("step time over the default's")
        return ax

    def steps(self, trial: int | None = None, ax: Axes | None = None) -> Axes:
        """Raw step times of a trial, or of the noise floor, in the order of running."""
        steps = self._study.steps
        stage, number = ("floor", 0) if trial is None else ("trial", trial)
        mine = steps[(steps["stage"] == stage) & (steps["trial"] == number)]
        if mine.empty:
            raise AutotuneError(f"a trial with raw steps must be named but {trial} has none; see `.steps`")
        mine = mine.sort_values(["pair", "is_first", "step"], ascending=[True, False, True]).reset_index(drop=True)
        ax = _axes(ax, height=3.0)
        for arm, colour in (("reference", "0.55"), ("candidate", "tab:blue")):
            chosen = mine[mine["arm"] == arm]
            ax.plot(chosen.index, chosen["step_s"] * 1e3, ".", color=colour, label=arm)
        ax.set_xlabel("step, in the order of running")
        ax.set_ylabel("step time [ms]")
        ax.legend()
        return ax

    def history(self, ax: Axes | None = None) -> Axes:
        """Ratio of each trial in the order of the search, and the best so far."""
        frame = self._study.trials.dropna(subset=["ratio"])
        ax = _axes(ax, height=3.0)
        ax.plot(frame["trial"], frame["ratio"], "o", color="tab:blue", markersize=4)
        ax.step(frame["trial"], frame["ratio"].clip(upper=1.0).cummin(), where="post", color="tab:green")
        ax.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        ax.set_xlabel("trial")
        ax.set_ylabel("step time over the default's")
        return ax

    def front(self, against: str, ax: Axes | None = None) -> Axes:
        """The front with its intervals: step time over the objective `against`, proven sets filled."""
        frame = self._study.front
        if against not in frame or against == "step_time":
            wanted = ", ".join(o for o in self._study.store.spec.search.objectives if o != "step_time")
            raise AutotuneError(f"another objective of the study must be named ({wanted or 'it has none'}): {against}")
        ax = _axes(ax, height=4.0)
        for is_proven, part in frame.groupby("is_proven"):
            x, y = (_with_errors(part, name) for name in (against, "step_time"))
            face = "tab:blue" if is_proven else "none"
            ax.errorbar(x[0], y[0], xerr=x[1], yerr=y[1], fmt="o", color="tab:blue", markerfacecolor=face)
        for row in frame.to_dict("records"):
            ax.annotate(str(row["trial"]), (row[against], row["step_time"]), (5, 5), textcoords="offset points")
        ax.axhline(1, color="0.3", linewidth=0.8, linestyle="--")
        ax.axvline(1, color="0.3", linewidth=0.8, linestyle="--")
        ax.set_xlabel(f"{against.replace('_', ' ')} over the default's")
        ax.set_ylabel("step time over the default's")
        return ax

    def importance(self, ax: Axes | None = None) -> Axes:
        """How much of the spread of ratios each setting explains."""
        frame = self._study.importance().head(20).iloc[::-1]
        ax = _axes(ax, height=1.0 + 0.28 * len(frame))
        ax.barh(frame["setting"], frame["importance"], color="tab:blue")
        ax.set_xlabel("share explained")
        return ax


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


def _with_errors(frame: pd.DataFrame, name: str) -> tuple[pd.Series[float], list[pd.Series[float]]]:
    """Values of an objective, and how far their intervals reach down and up; 0 where there is none."""
    values = frame[name]
    low, high = (frame[f"{name}{end}"].fillna(values) for end in ("_low", "_high"))
    return values, [values - low, high - values]


def _axes(ax: Axes | None, *, height: float) -> Axes:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise AutotuneError("plots need Matplotlib; install it: pip install 'xla-autotune[notebook]'") from error
    return plt.subplots(figsize=(8, height), layout="constrained")[1]


def _escape(text: Any) -> str:
    from html import escape

    return escape(str(text))
