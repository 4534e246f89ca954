"""Compares two variants of one program, A and B, as the arms of one proof: is B slower, faster or no different.

B is the reference and A the candidate. So what a proof shows is the gain of going back to A, and its error is that of
calling B slower where it is not.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.compiler.hlo import NAMES
from autotune.machine.host import describe_machine, utc_now
from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import StudyFileError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.options import option_sets
from autotune.model.records import BUILDS, ConclusionRecord, FinalistResult, Outcome, TrialConfig, TrialResult
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import format_bytes, format_change, format_seconds, format_share
from autotune.results.format import format_estimate, format_failure
from autotune.settings.space import format_names
from autotune.stats.estimates import Estimate
from autotune.study.conclude import RULED_OUT
from autotune.study.driver import Driver, aa_run, probe
from autotune.study.plan import most_pairs
from autotune.study.run import StudyRun

TRIAL = 1
"""Number of the trial of A, whose record has the facts of its process."""

SCRIPT = "script"
"""The option of a study that holds the script of a variant, where command lines or variables differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side of a comparison: what is run, with which variables and settings."""

    command: tuple[str, ...]
    settings: FlagSet = field(default_factory=FlagSet)
    """XLA flags and variables that steer performance, those of the caller included."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Other variables, added to the caller's environment."""

    @property
    def text(self) -> str:
        """The script that runs it."""
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items()]
        return f"#!/bin/sh\n{''.join(exports)}exec {shlex.join(self.command)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Both sides, as a proof knows them."""

    names: tuple[str, str]
    """Of A and of B, in a sentence."""
    going_back: FlagSet
    """What makes A of B."""
    refuse_other: Callable[[str, str | None], None] = lambda name, jaxlib: None
    """Raises StudyFileError if the variant of a name ran on another jaxlib than it should."""


def going_back(a: FlagSet, b: FlagSet, **options: str) -> FlagSet:
    """Returns what makes the settings of A of those of B, with options of A."""
    unset = {name: DEFAULT for name in b if name not in a}
    other = {name: value for name, value in a.items() if b.get(name) != value}
    return FlagSet({**option_sets(options), **other, **unset})


def study_of(
    base: StudySpec,
    variants: Variants,
    *,
    name: str,
    command: Sequence[str],
    options: Mapping[str, Sequence[str]],
    settings: FlagSet,
    python: str | None = None,
    pairs: int | None = None,
) -> StudySpec:
    """Makes the study of two variants by that of a program.

    Args:
        command: Of both, with options in braces where they differ.
        options: Values of these, that of B first.
        settings: Of B.
        python: Interpreter of B, where it is told.
        pairs: Most pairs of processes.

    Raises:
        StudyFileError: If a name or word is not legal.
    """
    data = {**base.model_dump(context=WITH_SECRETS), "name": name, "baseline": dict(settings)}
    data["description"] = "{1} against {0}".format(*variants.names)
    data["workload"] |= {"command": [*command], "options": {}}
    data["workload"] |= {"python": python} if python is not None else {"tokens_per_step": 1}  # a step is a step
    data["search"] |= {"trials": TRIAL, "time_budget": None, "groups": [], "options": dict(options)}
    data["measure"] |= {"min_effect": 0.0005}  # a smaller slowdown that is proven is told, too
    data["confirm"] |= {"soak": 0, "processes": pairs or base.confirm.processes}
    return parse_study(data, source="the study of two variants")


def prepare_variants(
    base: StudySpec, a: Variant, b: Variant, path: Path, *, pairs: int | None = None
) -> tuple[StudySpec, Variants]:
    """Makes the study of two variants; scripts are written beside the run directory `path` where they are needed.

    Raises:
        StudyFileError: If the variants are equal, or the run directory is of other ones.
    """
    names = ("A", "B")
    if (a.command, dict(a.variables)) == (b.command, dict(b.variables)):
        if a.settings == b.settings:
            raise StudyFileError("A and B must differ but are equal; say what B has: --b-env, --b-args, or -- A -- B")
        variants = Variants(names=names, going_back=going_back(a.settings, b.settings))
        command, options = list(b.command), dict[str, list[str]]()
    else:
        files = [str(_written(variant, path.with_name(f"{path.name}-{x}.sh"))) for variant, x in ((b, "b"), (a, "a"))]
        variants = Variants(names=names, going_back=going_back(a.settings, b.settings, script=files[1]))
        command, options = ["/bin/sh", f"{{{SCRIPT}}}"], {SCRIPT: files}
    spec = study_of(base, variants, name=path.name, command=command, options=options, settings=b.settings, pairs=pairs)
    return spec, variants


def _written(variant: Variant, file: Path) -> Path:
    """Writes the script of a variant; StudyFileError if another one is there."""
    if file.exists() and file.read_text(encoding="utf-8") != variant.text:
        raise StudyFileError(
            f"{file} must be the script of this variant but holds another one: give a new --name, or remove it"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(variant.text, encoding="utf-8")
    return file.absolute()


def measure_variants(run: StudyRun, variants: Variants) -> None:
    """Measures A against B until the proof is settled, from where an earlier session stopped.

    Raises:
        LaunchError: If B does not run.
        StudyFileError: If a variant runs on other packages than it should.
    """
    with contextlib.closing(run):
        probe(run)
        variants.refuse_other(variants.names[1], aa_run(run).versions.get("jaxlib"))
        trial, result = _trial(run, variants), None
        if trial.failure is None:
            a, b = variants.names
            run.begin_stage(BUILDS, f"{a} against {b}, {most_pairs(run.spec, BUILDS)} pairs at most")
            result = Driver(run).prove(trial.settings, trial=TRIAL, stage=BUILDS)
        run.conclusion = _conclusion(run, trial, result, variants)
        run.store.append_news(run.conclusion)


def _trial(run: StudyRun, variants: Variants) -> TrialResult:
    """Returns the trial of A, as recorded or measured now."""
    a, b = variants.names
    if not run.store.of(TrialResult):
        config = TrialConfig(number=TRIAL, settings=variants.going_back, origin=a)
        run.begin_stage("search", f"one trial of {a}: whether it runs, and trains as {b} does")
        run.view.trial_starts(config, TRIAL)
        run.lanes.do(PendingTask(TrialTask(config=config), ("trials", "0001"), "trial-1", run.store.append))
        run.view.trial_ends(run.store.of(TrialResult)[0])
    trial = run.store.of(TrialResult)[0]
    variants.refuse_other(a, trial.worker.versions.get("jaxlib") if trial.worker is not None else None)
    return trial


def _conclusion(
    run: StudyRun, trial: TrialResult, result: FinalistResult | None, variants: Variants
) -> ConclusionRecord:
    failure = trial.failure or (result.failure if result is not None else None)
    outcome, sentence, estimate = Outcome.NOTHING_RAN, "", None
    a, b = variants.names
    if failure is not None:
        who = b if "/reference/" in (failure.log or "") else a
        sentence = f"{b} and {a} are not compared: {format_failure(failure, f'under {who}')}"
    elif result is not None and (estimate := Driver(run).report(result).estimate) is not None:
        outcome, sentence = _answer(result, estimate, variants.names)
        sentence += f"; {trial.loss.words}" if trial.loss is not None else ""
        sentence += format_beside(trial.worker, run.reference)
        sentence += format_program_change(trial.worker, run.reference)
    won = {"settings": trial.settings, "trial": TRIAL} if outcome is Outcome.WINNER else {}
    return ConclusionRecord(
        outcome=outcome, sentence=sentence, trial_count=TRIAL, ended=utc_now(), provenance=describe_machine(),
        estimate=estimate, **won,
    )  # fmt: skip


def format_beside(a: WorkerReport | None, b: WorkerReport | None) -> str:
    """Formats peak memory and compile time of both, where they are known and differ by a hundredth."""
    if a is None or b is None:
        return ""
    told = ""
    for what, before, after, form in (
        ("peak memory", a.peak_bytes, b.peak_bytes, format_bytes),
        ("compilation", a.compile_s, b.compile_s, format_seconds),
    ):
        if before and after and abs(after / before - 1.0) >= LEAST_CHANGE:
            told += f"; {what} {form(before)} -> {form(after)}"
    return told


LEAST_CHANGE = 0.01
"""Share by which memory or compile time must change to be told."""


def format_program_change(a: WorkerReport | None, b: WorkerReport | None) -> str:
    """Formats what B compiles otherwise, most changed first; empty where a program is not known."""
    if a is None or b is None or not (a.opcodes and b.opcodes):
        return ""
    counts = {n: (a.opcodes.get(n, 0), b.opcodes.get(n, 0)) for n in sorted({**a.opcodes, **b.opcodes})}
    changed = {n: -abs(y - x) for n, (x, y) in counts.items() if x != y and n not in NAMES["plumbing"]}
    if not changed:
        return "; both compile the step to as many instructions of each kind"
    shown = [f"{n} {counts[n][0]} -> {counts[n][1]}" for n in sorted(changed, key=changed.__getitem__)]
    return f"; in the compiled programs: {format_names(shown, 6)}"


def _answer(result: FinalistResult, back: Estimate, names: tuple[str, str]) -> tuple[Outcome, str]:
    """Returns what a proof says of B, given the ratio of going back to A; that wins where B is slower."""
    a, b = names
    over = f"over {result.process_count} fresh pairs of processes on this machine"
    outcome = Outcome.WINNER if result.is_passed else Outcome.NOTHING_BEATS_THE_DEFAULT
    if back.low > 1.0 or result.is_passed:
        low, high = sorted(abs(100.0 * (1.0 / end - 1.0)) for end in (back.low, back.high))
        change = f"{b} is {format_change(1.0 / back.ratio)} than {a} for this step [{low:.1f}, {high:.1f}]"
        return outcome, f"{change}, {over}: going back has step time ratio {format_estimate(back)}"
    slower, faster = 1.0 / back.low - 1.0, max(0.0, 1.0 - 1.0 / back.high)
    excluded = f"more than {format_share(slower)} slower and more than {format_share(faster)} faster are excluded"
    excluded += f"; it looked slower but {result.veto}" if result.veto is not None else ""
    found = f"between {b} and {a} for this step, {over}: {excluded}"
    if slower > RULED_OUT:
        return Outcome.INCONCLUSIVE, f"not settled: the difference {found}"
    return outcome, f"no difference found {found}"


def exit_status(conclusion: ConclusionRecord, *, max_slowdown: float) -> int:
    """Returns the exit status of a comparison: 0 no slower than that, 1 slower, 2 not compared, 3 not settled."""
    if conclusion.outcome is Outcome.NOTHING_RAN or conclusion.estimate is None:
        return 2
    least = 1.0 / (1.0 + max_slowdown)
    if conclusion.estimate.low >= least:
        return 0
    return 1 if conclusion.estimate.high < least else 3
