"""Progress of a study on the console: plain lines, and on a terminal a status line below them."""

from __future__ import annotations

import math
import statistics

from rich.console import Console
from rich.text import Text

from autotune.machine.environment import without_secrets
from autotune.model.clock import Stopwatch
from autotune.model.records import (
    AaRecord,
    AblationResult,
    AnyRecord,
    ConfirmRun,
    FailingSetRecord,
    FinalistResult,
    SoakRecord,
    TrialConfig,
    TrialResult,
)
from autotune.model.redaction import visible_line
from autotune.model.units import format_ratio, format_seconds
from autotune.results.format import (
    format_aa_run,
    format_ablation,
    format_failing_set,
    format_finalist,
    format_soak,
    format_trial,
    shorten,
)


class LineView:
    """`Callbacks` that print a line for each event, and on a terminal show what a worker does."""

    def __init__(self, console: Console, watch: Stopwatch, *, min_effect: float) -> None:
        self._console = console
        # The status's thread must not disturb what is measured.
        self._status = console.status("", refresh_per_second=1)
        self._watch = watch
        self._min_effect = min_effect
        self._provable: float | None = None

    def __enter__(self) -> LineView:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def line(self, text: str) -> None:
        """Prints one line after the study's time."""
        minutes, seconds = divmod(int(self._watch.total_s), 60)
        line = f"[{minutes:3d}:{seconds:02d}] {visible_line(without_secrets(text))}"
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stage(self, name: str, detail: str) -> None:
        """See `Callbacks`."""
        self.line(f"== {name}: {detail}")

    def phase(self, what: str, lane: str = "") -> None:
        """See `Callbacks`; too fine for a line of its own."""
        self._status.update(Text(visible_line(f"{lane} {what}".strip())))

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """See `Callbacks`; too fine for a line of its own."""
        about = format_ratio(math.exp(statistics.median(ratios)))
        self.phase(f"{len(ratios)} pairs of blocks measured, ratio about {about}", lane)

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `Callbacks`."""
        self.line(f"trial {config.number} of {asked} ({config.origin}): {shorten(config.settings)}")

    def result(self, record: AnyRecord) -> None:
        """See `Callbacks`."""
        match record:
            case AaRecord():
                if self._provable is None:  # of the study's workload
                    self._provable = record.provable
                lane = f"lane {record.by}: " if record.by else ""
                for text in format_aa_run(record, record.power):
                    self.line(f"{lane}{text}")
            case TrialResult():
                lane = f"trial {record.number} on lane {record.by}: " if record.by else ""
                finding = record.finding_at(min_effect=self._min_effect, provable=self._provable)
                text = format_trial(record, finding)
                self.line(f"  -> {lane}{text} ({format_seconds(record.duration_s)})")
                for warning in record.comparison.warnings if record.comparison else ():
                    self.note(warning)
            case ConfirmRun():
                trial = f"trial {record.trial}, " if record.trial else ""
                ratio = "failed"
                if record.log_ratio is not None:
                    ratio = f"ratio {format_ratio(math.exp(record.log_ratio))}"
                self.line(f"  {trial}fresh pair {record.repeat + 1}: {ratio}")
            case FinalistResult():
                trial = f" trial {record.trial}" if record.trial else ""
                self.line(f"  {record.stage}{trial}: {format_finalist(record)}")
            case AblationResult():
                self.line(f"  {format_ablation(record)}")
            case SoakRecord():
                self.note(format_soak(record))
            case FailingSetRecord():
                self.note(format_failing_set(record))

    def note(self, text: str) -> None:
        """See `Callbacks`."""
        self.line(f"note: {text}")
