"""What a person sees while a study runs: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import statistics

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.model import (
    AblationResult,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    Stopwatch,
    TrialConfig,
    TrialResult,
    format_detectable,
    format_ratio,
    format_seconds,
    visible_line,
)
from autotune.results import format_estimate, format_finalist, format_floor, format_trial, shorten
from autotune.stats import Verdict
from autotune.study import STAGES

MOST_LANES = 8
"""Lanes that the panel shows."""

_PHASE_WORDS = {
    "import": "importing jax",
    "build": "building the workload",
    "compile": "compiling",
    "warm-up": "checking the loss, warming up",
}


class LineView:
    """Plain lines, one for each thing that happened; for logs, pipes and CI.

    Args:
        console: Where to print.
        watch: The study's time.
        sesoi: Its smallest effect of interest, as a share: by that a trial is promising or not.
    """

    def __init__(self, console: Console, watch: Stopwatch, *, sesoi: float) -> None:
        self._console = console
        self._watch = watch
        self._sesoi = sesoi

    def line(self, text: str) -> None:
        """Prints one line with the study's time before it."""
        minutes, seconds = divmod(int(self._watch.total_s), 60)
        line = f"[{minutes:3d}:{seconds:02d}] {visible_line(text)}"
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stage(self, name: str, detail: str) -> None:
        """See `autotune.model.View`."""
        self.line(f"== {name}: {detail}")

    def phase(self, what: str, lane: str = "") -> None:
        """See `autotune.model.View`; too fine for lines."""

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """See `autotune.model.View`; too fine for lines."""

    def proof(self, run: ConfirmRun, asked: int) -> None:
        """See `autotune.model.View`."""
        found = "failed" if run.log_ratio is None else f"ratio {format_ratio(math.exp(run.log_ratio))}"
        trial = f"trial {run.trial}, " if run.trial else ""
        self.line(f"  {trial}fresh pair {run.repeat + 1} of {asked}: {found}")

    def floor(self, result: FloorResult) -> None:
        """See `autotune.model.View`."""
        for text in format_floor(result):
            self.line(f"lane {result.by}: {text}" if result.by else text)

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `autotune.model.View`."""
        self.line(f"trial {config.number} of {asked} ({config.origin}): {shorten(config.settings)}")

    def trial_ends(self, result: TrialResult) -> None:
        """See `autotune.model.View`."""
        whose = f"trial {result.number} on lane {result.by}: " if result.by else ""
        found = format_trial(result, result.outlook_at(sesoi=self._sesoi))
        self.line(f"  -> {whose}{found} ({format_seconds(result.duration_s)})")
        for warning in result.comparison.warnings if result.comparison else ():
            self.note(warning)

    def finalist(self, result: FinalistResult) -> None:
        """See `autotune.model.View`."""
        trial = f" trial {result.trial}" if result.trial else ""  # a recheck is of no trial
        self.line(f"  {result.stage}{trial}: {format_finalist(result)}")

    def ablation(self, result: AblationResult) -> None:
        """See `autotune.model.View`."""
        self.line(f"  without {result.what}: {'kept' if result.kept else 'dropped'}, {result.reason}")

    def note(self, text: str) -> None:
        """See `autotune.model.View`."""
        self.line(f"note: {text}")


class LiveView(LineView):
    """A panel that is redrawn in place, above which finished things scroll by as lines.

    Args:
        console: A terminal.
        watch: The study's time.
        sesoi: Its smallest effect of interest, as a share.
        name: Of the study.
        budget_s: Time budget, if there is one.
    """

    def __init__(self, console: Console, watch: Stopwatch, *, sesoi: float, name: str, budget_s: float | None) -> None:
        super().__init__(console, watch, sesoi=sesoi)
        self._name = name
        self._budget_s = budget_s
        self._stage = "starting"
        self._detail = self._what = self._floor = ""
        self._doing: dict[str, str] = {}  # by lane
        self._best, self._best_ratio = "none yet below the default's time", 1.0
        self._durations: list[float] = []
        self._left: int | None = None
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, name: str, detail: str) -> None:
        """See `autotune.model.View`."""
        super().stage(name, detail)
        self._stage, self._detail, self._what, self._doing = name, detail, "", {}

    def phase(self, what: str, lane: str = "") -> None:
        """See `autotune.model.View`."""
        is_screen = what.startswith("screening")
        self._doing[lane] = what if is_screen else f"a worker is {_PHASE_WORDS.get(what, what)}"

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """See `autotune.model.View`."""
        about = format_ratio(math.exp(statistics.median(ratios)))
        self._doing[lane] = f"{len(ratios)} pairs of blocks measured, ratio about {about}"

    def floor(self, result: FloorResult) -> None:
        """See `autotune.model.View`."""
        super().floor(result)
        self._floor = f"a trial finds speed-ups from {format_detectable(result.floor.detectable)}"

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `autotune.model.View`."""
        super().trial_starts(config, asked)
        self._what = f"trial {config.number} of {asked}, proposed by {config.origin}: {shorten(config.settings)}"
        self._left = asked - config.number + 1
        self._doing.setdefault("", "starting a worker")

    def trial_ends(self, result: TrialResult) -> None:
        """See `autotune.model.View`."""
        super().trial_ends(result)
        self._durations.append(result.duration_s)
        found = result.comparison.estimate if result.failure is None and result.comparison is not None else None
        if found is not None and found.ratio < self._best_ratio:
            self._best_ratio = found.ratio
            self._best = f"trial {result.number}: {format_estimate(found)}, not yet proven"

    def finalist(self, result: FinalistResult) -> None:
        """See `autotune.model.View`."""
        super().finalist(result)
        if result.verdict is Verdict.FASTER and result.estimate is not None:
            self._best = f"trial {result.trial}: {format_estimate(result.estimate)}, proven in fresh processes"

    def _lanes(self) -> list[tuple[str, str]]:
        """What is under way: a row, or one for each lane."""
        lanes = sorted(filter(None, self._doing))
        if not lanes:
            return [("", self._doing.get("", ""))]
        more = [("", f"and {len(lanes) - MOST_LANES} lanes more")] if len(lanes) > MOST_LANES else []
        return [*((f"  {lane}", self._doing[lane]) for lane in lanes[:MOST_LANES]), *more]

    def _panel(self) -> Group:
        steps = Text("  ".join(f"[{s.name}]" if s.name == self._stage else s.name for s in STAGES), style="cyan")
        left = []
        if self._stage == "search" and self._durations and self._left is not None:
            left.append(f"about {format_seconds(statistics.mean(self._durations) * self._left)} of search left")
        if self._budget_s is not None:
            left.append(f"budget {format_seconds(max(0.0, self._budget_s - self._watch.total_s))} left")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for name, text in (
            ("study", f"{self._name}, {format_seconds(self._watch.total_s)} so far"),
            ("stage", self._detail),
            ("now", self._what),
            *self._lanes(),
            ("best", self._best),
            ("noise", self._floor),
            ("time", ", ".join(left)),
        ):
            if text:
                table.add_row(name, Text(visible_line(text)))
        return Group(Text(), steps, table)
