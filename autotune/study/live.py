"""Progress of a study on the console: plain lines, and on a terminal a live status below them."""

from __future__ import annotations

import math
import statistics

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.model.clock import Stopwatch
from autotune.model.records import AaRecord, AblationResult, ConfirmRun, FinalistResult, TrialConfig, TrialResult
from autotune.model.redaction import visible_line
from autotune.model.units import format_ratio, format_seconds
from autotune.results.format import format_aa_run, format_estimate, format_finalist, format_trial, shorten

MOST_LANES = 8
"""Limit of lanes in the live status."""

_PHASE_WORDS = {
    "import": "importing jax",
    "build": "building the workload",
    "compile": "compiling",
    "warm-up": "checking the loss, warming up",
}


class LineView:
    """`Callbacks` that print a plain line for each event; for logs, pipes and CI."""

    def __init__(self, console: Console, watch: Stopwatch, *, min_effect: float) -> None:
        self._console = console
        self._watch = watch
        self._min_effect = min_effect
        self._provable: float | None = None

    def line(self, text: str) -> None:
        """Prints one line after the study's time."""
        minutes, seconds = divmod(int(self._watch.total_s), 60)
        line = f"[{minutes:3d}:{seconds:02d}] {visible_line(text)}"
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stage(self, name: str, detail: str) -> None:
        """See `Callbacks`."""
        self.line(f"== {name}: {detail}")

    def phase(self, what: str, lane: str = "") -> None:
        """See `Callbacks`; too fine for lines."""

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """See `Callbacks`; too fine for lines."""

    def proof(self, run: ConfirmRun, asked: int) -> None:
        """See `Callbacks`."""
        found = "failed" if run.log_ratio is None else f"ratio {format_ratio(math.exp(run.log_ratio))}"
        trial = f"trial {run.trial}, " if run.trial else ""
        self.line(f"  {trial}fresh pair {run.repeat + 1} of {asked}: {found}")

    def aa_run(self, result: AaRecord) -> None:
        """See `Callbacks`."""
        self._provable = result.provable if result.provable is not None else self._provable
        for text in format_aa_run(result):
            self.line(f"lane {result.by}: {text}" if result.by else text)

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `Callbacks`."""
        self.line(f"trial {config.number} of {asked} ({config.origin}): {shorten(config.settings)}")

    def trial_ends(self, result: TrialResult) -> None:
        """See `Callbacks`."""
        whose = f"trial {result.number} on lane {result.by}: " if result.by else ""
        found = format_trial(result, result.finding_at(min_effect=self._min_effect, provable=self._provable))
        self.line(f"  -> {whose}{found} ({format_seconds(result.duration_s)})")
        for warning in result.comparison.warnings if result.comparison else ():
            self.note(warning)

    def finalist(self, result: FinalistResult) -> None:
        """See `Callbacks`."""
        trial = f" trial {result.trial}" if result.trial else ""  # a recheck is of no trial
        self.line(f"  {result.stage}{trial}: {format_finalist(result)}")

    def ablation(self, result: AblationResult) -> None:
        """See `Callbacks`."""
        self.line(f"  without {result.what}: {'kept' if result.kept else 'dropped'}, {result.reason}")

    def note(self, text: str) -> None:
        """See `Callbacks`."""
        self.line(f"note: {text}")


class LiveView(LineView):
    """Shows a live status on the terminal below the lines of finished events."""

    def __init__(
        self, console: Console, watch: Stopwatch, *, min_effect: float, name: str, budget_s: float | None
    ) -> None:
        super().__init__(console, watch, min_effect=min_effect)
        self._name = name
        self._budget_s = budget_s
        self._stage = "starting"
        self._trial = self._best = ""
        self._doing: dict[str, str] = {}  # by lane
        self._best_ratio = 1.0
        self._durations: list[float] = []
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, name: str, detail: str) -> None:
        """See `Callbacks`."""
        super().stage(name, detail)
        self._stage, self._trial, self._doing = f"{name}: {detail}", "", {}

    def phase(self, what: str, lane: str = "") -> None:
        """See `Callbacks`."""
        self._doing[lane] = _PHASE_WORDS.get(what, what)

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """See `Callbacks`."""
        about = format_ratio(math.exp(statistics.median(ratios)))
        self._doing[lane] = f"{len(ratios)} pairs of blocks measured, ratio about {about}"

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `Callbacks`."""
        super().trial_starts(config, asked)
        self._trial = f"trial {config.number} of {asked} ({config.origin}): {shorten(config.settings)}"
        if self._durations:
            left_s = statistics.mean(self._durations) * (asked - config.number + 1)
            self._trial += f"; about {format_seconds(left_s)} of search left"

    def trial_ends(self, result: TrialResult) -> None:
        """See `Callbacks`."""
        super().trial_ends(result)
        self._durations.append(result.duration_s)
        found = result.comparison.estimate if result.failure is None and result.comparison is not None else None
        if found is not None and found.ratio < self._best_ratio:
            self._best_ratio = found.ratio
            self._best = f"best so far: trial {result.number}, {format_estimate(found)}, not yet proven"

    def _panel(self) -> Text:
        time = f"{format_seconds(self._watch.total_s)} so far"
        if self._budget_s is not None:
            time += f", budget {format_seconds(max(0.0, self._budget_s - self._watch.total_s))} left"
        lanes = [f"  {lane} {doing}" for lane, doing in sorted(self._doing.items())[:MOST_LANES]]
        rows = [f"{self._name}, {time}", self._stage, self._trial, *lanes, self._best]
        return Text("\n".join(["", *(visible_line(row) for row in rows if row)]))
