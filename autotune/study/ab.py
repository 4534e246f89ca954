"""Compares two variants of one program, B as the reference of one proof and A as its candidate.

What a proof shows is the gain of going back to A; its error is to call B slower where it is not.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import NamedTuple

from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import StudyFileError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.options import Domains, option_sets
from autotune.model.records import (
    AB,
    REFERENCE_NUMBER,
    ConclusionRecord,
    FinalistResult,
    Outcome,
    TrialConfig,
    TrialResult,
)
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import format_bytes, format_change, format_seconds, format_share
from autotune.programs.variants import Variant
from autotune.results.format import format_estimate, format_failure, format_finalist, time_of
from autotune.stats.estimates import Estimate, Verdict
from autotune.study.conclude import RULED_OUT
from autotune.study.driver import begin, prove, report_on
from autotune.study.plan import most_pairs
from autotune.study.profile import Names, profile_once
from autotune.study.run import StudyRun

TRIAL = 1  # number of the trial of A, whose record has the facts of its process
SCRIPT = "script"  # option of a study: the script of a variant, where more than settings differ
TOKENS = "tokens"  # option of a study: the tokens of a step of a variant
LEAST_EFFECT = 0.0005  # share below which no difference is proven: a small slowdown is told, too
LEAST_CHANGE = 0.01  # share by which memory or compile time must change to be told


class Variants(NamedTuple):
    """Both sides, with their names in a sentence and the settings that make A of B."""

    a: Variant
    b: Variant
    names: Names
    going_back: FlagSet


def prepare_variants(
    base: StudySpec,
    a: Variant,
    b: Variant,
    path: Path,
    *,
    tokens: tuple[int, int] = (1, 1),
    pairs: int | None = None,
    time_budget: str | None = None,
    min_effect: float = LEAST_EFFECT,
) -> tuple[StudySpec, Variants]:
    """Makes a study of B's, `base`, for two variants; writes their scripts beside `path`."""
    a_tokens, b_tokens = tokens
    b_command = list(b.command)
    options: Domains = {}
    if a.body != b.body or a_tokens != b_tokens:
        options[SCRIPT] = [_written(b, path, "b"), _written(a, path, "a")]
        b_command = ["/bin/sh", "{script}"]
    elif b.first_command != b.command:
        b_command = ["/bin/sh", _written(b, path, "b")]
    tokens_per_step: int | str = b_tokens
    if a_tokens != b_tokens:
        options[TOKENS] = [b_tokens, a_tokens]
        b_command.append("{tokens}")  # an argument that the script does not read
        tokens_per_step = TOKENS
    of_a = {
        **option_sets({name: values[1] for name, values in options.items()}),
        **dict(a.settings.items() - b.settings.items()),
        **dict.fromkeys(b.settings.keys() - a.settings, DEFAULT),
    }
    names = ("A", "B")
    if a.name != b.name:
        names = (a.name or "A", b.name or "B")
    data = base.model_dump(context=WITH_SECRETS)
    data["name"] = path.name
    data["description"] = f"{names[1]} against {names[0]}"
    data["baseline"] = dict(b.settings)
    data["workload"] |= {"command": b_command, "options": {}, "tokens_per_step": tokens_per_step}
    data["search"] |= {
        "trials": TRIAL,
        "time_budget": time_budget,
        "groups": [],
        "options": options,
    }
    data["measure"]["min_effect"] = min_effect
    data["confirm"] |= {"soak": 0, "finalists": 1, "processes": pairs or base.confirm.processes}
    study = parse_study(data, source="the study of two variants")
    return study, Variants(a, b, names, FlagSet(of_a))


def _written(variant: Variant, path: Path, letter: str) -> str:
    """Writes a variant's script beside a run directory; StudyFileError if another one is there."""
    file = path.with_name(f"{path.name}-{letter}.sh")
    text = f"#!/bin/sh\n{variant.body}"
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise StudyFileError(
            f"{file} must be the script of this variant but holds another one: give a new "
            "--name, or remove it"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return str(file.absolute())


def measure_variants(run: StudyRun, variants: Variants, *, profiled: bool = False) -> None:
    """Measures A against B until the proof is settled; traces both after that if `profiled`."""
    with contextlib.closing(run):
        reference = begin(run)
        variants.b.refuse_other(reference.versions.get("jaxlib"))
        a, b = variants.names
        run.begin_stage("search", f"one trial of {a}: whether it runs, and trains as {b} does")
        config = TrialConfig(number=TRIAL, settings=variants.going_back, origin=a)
        trial = _trial(run, TrialTask(config=config), TRIAL)
        if trial.worker:
            variants.a.refuse_other(trial.worker.versions.get("jaxlib"))
        _conclude(run, reference, trial, variants.names)
        if profiled and run.conclusion.estimate:
            profile_once(run, variants.names, (trial.settings, FlagSet()))


def _begin_stage(run: StudyRun, subject: str) -> None:
    run.begin_stage(AB, f"{subject}, {most_pairs(run.spec, AB)} pairs at most")


def _trial(run: StudyRun, task: TrialTask, total: int) -> TrialResult:
    """Returns the result of a trial, which runs now if it is not recorded."""
    number = task.config.number
    for trial in run.store.of(TrialResult):
        if trial.number == number:
            return trial
    run.view.trial_starts(task.config, total)
    run.lanes.do(PendingTask(task, ("trials", f"{number:04d}"), f"trial-{number}"))
    return run.store.of(TrialResult)[-1]


def _conclude(run: StudyRun, reference: WorkerReport, trial: TrialResult, names: Names) -> None:
    outcome = Outcome.NOTHING_RAN
    estimate: Estimate | None = None
    failure = trial.failure
    if not failure:
        _begin_stage(run, " against ".join(names))
        result = prove(run, trial.settings, trial=TRIAL, stage=AB)
        failure = result.failure
    if failure:
        a, b = names
        name = b if "/reference/" in (failure.log or "") else a
        sentence = f"{b} and {a} are not compared: {format_failure(failure, f'under {name}')}"
    else:
        report = report_on(run, result)
        estimate = report.estimate
        outcome = Outcome.INCONCLUSIVE
        sentence = f"not settled: {format_finalist(result)}; a larger --time-budget goes on"
    if estimate:
        outcome, sentence = _answer(result, estimate, names)
        if outcome is Outcome.WINNER and report.objection:
            outcome = Outcome.INCONCLUSIVE
            estimate = None
            sentence = f"not settled: {sentence}, but {report.objection.reason}"
        if trial.loss:
            sentence += f"; {trial.loss.words}"
        sentence += format_beside(trial.worker, reference)
    won = {"settings": trial.settings, "trial": TRIAL} if outcome is Outcome.WINNER else {}
    run.conclude(outcome=outcome, sentence=sentence, estimate=estimate, **won)


def format_beside(a: WorkerReport | None, b: WorkerReport) -> str:
    """Formats peak memory and compile time of both, where they differ by a hundredth."""
    if a is None:
        return ""
    text = ""
    for quantity, before, after, form in (
        ("peak memory", a.peak_bytes, b.peak_bytes, format_bytes),
        ("compilation", a.compile_s, b.compile_s, format_seconds),
    ):
        if before and after and abs(after / before - 1.0) >= LEAST_CHANGE:
            text += f"; {quantity} {form(before)} -> {form(after)}"
    return text


def _answer(result: FinalistResult, back: Estimate, names: Names) -> tuple[Outcome, str]:
    """Returns what a proof says of B, given the ratio of going back to A."""
    a, b = names
    over = f"over {result.process_count} fresh pairs of processes on this machine"
    unit = "for each token" if result.work else "for this step"
    outcome = Outcome.WINNER if result.is_passed else Outcome.NOTHING_BEATS_THE_DEFAULT
    if back.low > 1.0 or result.is_passed:
        low, high = sorted(abs(100.0 * (1.0 / end - 1.0)) for end in (back.low, back.high))
        return outcome, (
            f"{b} is {format_change(1.0 / back.ratio)} than {a} {unit} [{low:.1f}, {high:.1f}], "
            f"{over}: going back has {time_of(result.work)} ratio {format_estimate(back)}"
        )
    slower = 1.0 / back.low - 1.0
    faster = max(0.0, 1.0 - 1.0 / back.high)
    text = (
        f"between {b} and {a} {unit}, {over}: more than {format_share(slower)} slower and more "
        f"than {format_share(faster)} faster are excluded"
    )
    if result.veto:
        text += f"; it looked slower but {result.veto}"
    if slower > RULED_OUT:
        return Outcome.INCONCLUSIVE, f"not settled: the difference {text}; more --pairs may do"
    return outcome, f"no difference found {text}"


def leave_out_each(run: StudyRun, *, max_slowdown: float) -> None:
    """Leaves out each setting of the reference in turn, and says which are not needed.

    What is not needed stays out while the next ones are tried, and each set is compared with the
    whole one: so the last that is no slower is proven, whatever its settings do together.
    """
    everything = run.spec.baseline
    total = len(everything)
    with contextlib.closing(run):
        begin(run)
        outcome = Outcome.NOTHING_BEATS_THE_DEFAULT
        estimate = None
        left_out = FlagSet()
        clauses = ""
        same_program = {REFERENCE_NUMBER}  # trials of what is left out so far
        for number, name in enumerate(everything, 1):
            without = FlagSet({**left_out, name: DEFAULT})
            _begin_stage(run, f"without {', '.join(without)}")
            config = TrialConfig(number=number, settings=without, origin=f"without {name}")
            task = TrialTask(config=config, most=1)  # only to see its program
            if _trial(run, task, total).same_as in same_program:
                left_out = without
                clauses += f"; {name} is not needed: without it the program is the same"
                continue
            remaining = total - number + 1
            result = prove(run, without, trial=number, stage=AB, count=remaining)
            ratio = result.corrected
            need = "stays"
            if not result.is_vetoed:
                if ratio and ratio.high <= 1.0 + max_slowdown:
                    need = "is not needed"
                    left_out = without
                    estimate = ratio
                    same_program.add(number)
                elif result.verdict is Verdict.UNRESOLVED:
                    outcome = Outcome.INCONCLUSIVE
            clauses += f"; {name} {need}: without it {format_finalist(result)}"
        environment = everything.merge(left_out).to_environment()
        assignments = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
        run.conclude(
            outcome=outcome,
            sentence=(
                f"{len(left_out)} of {total} settings are not needed on this machine, "
                f"these stay: {' '.join(assignments) or 'none'}{clauses}"
            ),
            settings=left_out or None,
            estimate=estimate,
        )


# Exit status without a ratio of two variants: nothing was compared, or every setting stays.
WITHOUT_ESTIMATE = {
    Outcome.NOTHING_RAN: 2,
    Outcome.INCONCLUSIVE: 3,
    Outcome.NOTHING_BEATS_THE_DEFAULT: 1,
}


def exit_status(conclusion: ConclusionRecord, *, max_slowdown: float) -> int:
    """Returns a comparison's exit status: 0 no slower, 1 slower, 2 not compared, 3 not settled."""
    if conclusion.settings and conclusion.outcome is not Outcome.WINNER:
        return 0  # some settings are not needed
    estimate = conclusion.estimate
    if estimate is None:
        return WITHOUT_ESTIMATE[conclusion.outcome]
    bound = 1.0 / (1.0 + max_slowdown)
    if estimate.low >= bound:
        return 0
    return 1 if estimate.high < bound else 3
