"""What a person sees while a study runs: a live panel on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import statistics

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.flags import FlagSet
from autotune.measure import TURNS
from autotune.records import (
    PREDICTED,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FailureKind,
    FinalistResult,
    FloorResult,
    Outcome,
    PredictedStep,
    ScreenRecord,
    TrialConfig,
    TrialResult,
    TrialStatus,
)
from autotune.screening import describe_record
from autotune.stats import Estimate, Verdict
from autotune.store import Stopwatch, Store
from autotune.units import (
    format_bytes,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    format_share,
)

STAGES = ("floor", "screen", "search", "confirm", "minimise", "final", "soak")
_PHASE_WORDS = {
    "import": "importing jax",
    "build": "building the workload",
    "compile": "compiling",
    "warm-up": "checking the loss, warming up",
}
STAGE_WORDS = {
    "confirm": "fresh processes",
    "final": "final proof",
    "full": "final proof, whole set",
    "recheck": "recheck",
}
"""Stages of `FinalistResult`, as shown to users."""


class LineView:
    """Plain lines, one for each thing that happened; for logs, pipes and CI.

    Args:
        console: Where to print.
        watch: The study's time.
    """

    def __init__(self, console: Console, watch: Stopwatch) -> None:
        self._console = console
        self._watch = watch

    def line(self, text: str) -> None:
        """Prints one line with the study's time before it."""
        minutes, seconds = divmod(int(self._watch.total_s), 60)
        self._console.print(f"[{minutes:3d}:{seconds:02d}] {text}", markup=False, highlight=False, soft_wrap=True)

    def stage(self, name: str, detail: str) -> None:
        """See `told.View`."""
        self.line(f"== {name}: {detail}")

    def phase(self, what: str) -> None:
        """See `told.View`; too fine for lines."""

    def pair(self, ratios: list[float]) -> None:
        """See `told.View`; too fine for lines."""

    def proof(self, run: ConfirmRun, asked: int) -> None:
        """See `evaluate.Watcher`."""
        found = "failed" if run.log_ratio is None else f"ratio {format_ratio(math.exp(run.log_ratio))}"
        trial = f"trial {run.trial}, " if run.trial else ""
        self.line(f"  {trial}fresh pair {run.repeat + 1} of {asked}: {found}")

    def floor(self, result: FloorResult) -> None:
        """See `told.View`."""
        for text in describe_floor(result):
            self.line(text)

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `told.View`."""
        self.line(f"trial {config.number} of {asked} ({config.origin}): {shorten(config.settings)}")

    def trial_ends(self, result: TrialResult) -> None:
        """See `told.View`."""
        self.line(f"  -> {describe_trial(result)} ({format_seconds(result.duration_s)})")
        for warning in result.comparison.warnings if result.comparison else ():
            self.note(warning)

    def trial_of_other(self, result: TrialResult) -> None:
        """See `told.View`."""
        self.line(f"worker {result.by}, trial {result.number}: {shorten(result.settings)}")
        self.line(f"  -> {describe_trial(result)}")

    def finalist(self, result: FinalistResult) -> None:
        """See `told.View`."""
        trial = f" trial {result.trial}" if result.trial else ""  # a recheck is of no trial
        self.line(f"  {result.stage}{trial}: {describe_finalist(result)}")

    def ablation(self, result: AblationResult) -> None:
        """See `told.View`."""
        self.line(f"  without {result.left_out}: {'kept' if result.kept else 'dropped'}, {result.reason}")

    def note(self, text: str) -> None:
        """See `told.View`."""
        self.line(f"note: {text}")


class LiveView(LineView):
    """A panel that is redrawn in place, above which finished things scroll by as lines.

    Args:
        console: A terminal.
        watch: The study's time.
        name: Of the study.
        budget_s: Time budget, if there is one.
    """

    def __init__(self, console: Console, watch: Stopwatch, *, name: str, budget_s: float | None) -> None:
        super().__init__(console, watch)
        self._name = name
        self._budget_s = budget_s
        self._stage = "starting"
        self._detail = ""
        self._what = ""
        self._doing = ""
        self._floor = ""
        self._best = "none yet better than the default"
        self._best_ratio = 1.0
        self._durations: list[float] = []
        self._left: int | None = None
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stage(self, name: str, detail: str) -> None:
        """See `told.View`."""
        super().stage(name, detail)
        self._stage, self._detail, self._what, self._doing = name, detail, "", ""

    def phase(self, what: str) -> None:
        """See `told.View`."""
        is_screen = what.startswith("screening")
        self._doing = what if is_screen else f"a worker is {_PHASE_WORDS.get(what, what)}"

    def pair(self, ratios: list[float]) -> None:
        """See `told.View`."""
        self._doing = (
            f"{len(ratios)} pairs of blocks measured, ratio about {format_ratio(math.exp(statistics.median(ratios)))}"
        )

    def floor(self, result: FloorResult) -> None:
        """See `told.View`."""
        super().floor(result)
        self._floor = f"effects from about {format_share(result.floor.detectable)} can be found here"

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """See `told.View`."""
        super().trial_starts(config, asked)
        self._what = f"trial {config.number} of {asked}, proposed by {config.origin}: {shorten(config.settings)}"
        self._left = asked - config.number + 1
        self._doing = "starting a worker"

    def trial_ends(self, result: TrialResult) -> None:
        """See `told.View`."""
        super().trial_ends(result)
        self._durations.append(result.duration_s)
        if (told := result.prediction) is not None and told.ratio < self._best_ratio and result.failure is None:
            self._best_ratio = told.ratio
            self._best = f"trial {result.number}: {format_ratio(told.ratio)}, {PREDICTED}"
        found = result.comparison.estimate if result.comparison else None
        if found is not None and found.ratio < self._best_ratio and result.failure is None:
            self._best_ratio = found.ratio
            self._best = f"trial {result.number}: {_estimate(found)}, not yet proven"

    def finalist(self, result: FinalistResult) -> None:
        """See `told.View`."""
        super().finalist(result)
        if result.verdict is Verdict.FASTER and result.estimate is not None:
            self._best = f"trial {result.trial}: {_estimate(result.estimate)}, proven in fresh processes"

    def _panel(self) -> Group:
        steps = Text("  ".join(f"[{s}]" if s == self._stage else s for s in STAGES), style="cyan")
        left = ""
        if self._stage == "search" and self._durations and self._left is not None:
            left = f"about {format_seconds(statistics.mean(self._durations) * self._left)} of search left"
        if self._budget_s is not None:
            rest = f"budget {format_seconds(max(0.0, self._budget_s - self._watch.total_s))} left"
            left = f"{left}, {rest}" if left else rest
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for name, text in (
            ("study", f"{self._name}, {format_seconds(self._watch.total_s)} so far"),
            ("stage", self._detail),
            ("now", self._what),
            ("", self._doing),
            ("best", self._best),
            ("noise", self._floor),
            ("time", left),
        ):
            if text:
                table.add_row(name, Text(text))
        return Group(Text(), steps, table)


# ---------------------------------------------------------------------- words


def shorten(settings: FlagSet, *, limit: int = 100) -> str:
    """Settings on one line, common prefixes left out, cut to what fits."""
    text = " ".join(f"{n.removeprefix('xla_')}={v}" for n, v in settings.items()) or "(default)"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def describe_begin(store: Store) -> list[str]:
    """What was found before the first trial: the noise floor, or what a model says of the reference; the screen."""
    floor, lines = store.last(FloorResult), []
    if floor is not None:
        lines += describe_floor(floor)
    elif not store.spec.is_predicted:
        lines.append("the noise floor is not measured yet")
    for record in store.of(ScreenRecord):
        if (step := record.prediction) is not None:
            place = f"{step.topology} {step.target}"
            lines.append(f"{PREDICTED}: every figure is a model's, for {place}; reference {describe_prediction(step)}")
        lines += describe_record(record)
    return list(dict.fromkeys(lines))


def describe_floor(result: FloorResult) -> list[str]:
    """The noise floor in words."""
    floor = result.floor
    lines = [
        f"reference: {format_seconds(result.comparison.reference_step_s)} a step, compiled in "
        f"{format_seconds(result.reference.compile_s)}, peak memory {format_bytes(result.reference.peak_bytes)}",
        f"noise floor: two equal processes differ by ratio {_estimate(floor.estimate)}; "
        f"speed-ups from about {format_share(floor.detectable)} can be found in one trial",
    ]
    if result.comparison.mode != TURNS:
        lines.append(
            "one process at a time, in sandwiches of fresh runs (reference, candidate, reference): "
            f"{result.comparison.estimate.pair_count} here, and each counts once in an interval"
        )
    if (energy := result.comparison.energy) is not None:
        tokens = result.reference.tokens_per_step
        lines.append(
            f"energy: {format_joules(energy.reference_step_j)} a step"
            + (f", {tokens / energy.reference_step_j:.3g} tokens/J" if tokens else "")
            + f", of whole devices ({energy.source})"
        )
    if not floor.is_honest:
        lines.append(
            "two equal processes differ here by more than their own interval says: a trial alone can't be believed on "
            "this machine now; the proof in fresh processes can"
        )
    return lines


def describe_trial(result: TrialResult) -> str:
    """A trial's result in words."""
    if result.failure is not None:
        return f"{_words(result.failure.kind)} in phase {result.failure.phase}: {result.failure.message}"[:300]
    if result.is_the_default:
        return "the same program as the default: changes nothing here"
    suffix = ""
    if result.same_as is not None:
        what = "set" if result.status is TrialStatus.SAME_SET else "program"
        suffix = f" (the same {what} as trial {result.same_as}, not measured again)"
    if result.prediction is not None:
        return f"{describe_prediction(result.prediction)}{suffix.replace(', not measured again', '')}"
    if result.comparison is None:
        return f"{str(result.status).replace('_', ' ')}: no number{suffix}"
    return f"{_estimate(result.comparison.estimate)} {result.comparison.verdict}, {result.comparison.stopped}{suffix}"


def describe_prediction(step: PredictedStep) -> str:
    """What a model says of a program, marked as such."""
    return (
        f"{format_ratio(step.ratio)}, {format_seconds(step.step_s)} a step of which {format_seconds(step.exposed_s)} "
        f"exposed communication: {PREDICTED}"
    )


def describe_energy(result: TrialResult) -> str:
    """A trial's energy in words; empty where it is not known."""
    energy = result.comparison.energy if result.comparison is not None else None
    if energy is None:
        return ""
    rate = f", {result.tokens_per_j:.3g} tokens/J" if result.tokens_per_j else ""
    return (
        f"energy: {format_joules(energy.candidate_step_j)} a step{rate}; ratio {_estimate(energy.estimate)} "
        f"(whole devices, {energy.source})"
    )


def describe_finalist(result: FinalistResult) -> str:
    """A finalist's verdict in words."""
    if result.failure is not None:
        return f"{_words(result.failure.kind)} in a fresh process: {result.failure.message}"[:300]
    if result.estimate is None or result.corrected is None:
        return "no number"
    others = "".join(f"; {o.words} {_estimate(e)}" for o, e in (result.others or {}).items())
    return (
        f"{_estimate(result.estimate)} over {result.process_count} fresh pairs of processes "
        f"(corrected {format_interval(result.corrected.low, result.corrected.high)}): {result.verdict}{others}"
    )


def _words(kind: FailureKind) -> str:
    return str(kind).replace("_", " ")


def _estimate(estimate: Estimate) -> str:
    return f"{format_ratio(estimate.ratio)} {format_interval(estimate.low, estimate.high)}"


def conclusion_style(conclusion: ConclusionRecord) -> str:
    """How the one sentence is coloured."""
    return "bold green" if conclusion.outcome is Outcome.WINNER else "bold"
