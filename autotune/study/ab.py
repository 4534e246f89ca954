"""Compares two variants of one program, A and B, as the arms of one proof: is B slower, faster or
no different.

B is the reference and A the candidate. So what a proof shows is the gain of going back to A, and
its error is that of calling B slower where it is not.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import StudyFileError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.options import option_sets
from autotune.model.records import (
    AB,
    ConclusionRecord,
    FinalistResult,
    Outcome,
    TrialConfig,
    TrialResult,
)
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import format_bytes, format_change, format_seconds, format_share
from autotune.results.format import format_estimate, format_failure, format_finalist, time_of
from autotune.stats.estimates import Estimate, Verdict
from autotune.study.conclude import RULED_OUT
from autotune.study.driver import Driver, begin
from autotune.study.plan import most_pairs
from autotune.study.profile import profile_once
from autotune.study.run import StudyRun
from autotune.study.variants import Variant

TRIAL = 1
"""Number of the trial of A, whose record has the facts of its process."""

SCRIPT, TOKENS = "script", "tokens"
"""Options of a study: the script of a variant, where more than settings differ, and the tokens of a
step of it.
"""


LEAST_EFFECT = 0.0005
"""Share below which no difference is proven: a small slowdown is told, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """Both sides, as a proof knows them."""

    a: Variant
    b: Variant
    names: tuple[str, str]
    """Of A and of B, in a sentence."""
    going_back: FlagSet
    """What makes A of B."""


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
    """Makes the study of two variants; scripts are written beside the run directory `path` where
    they are needed.

    Args:
        base: Study of the program B.
        tokens: Of a step of A and of B.
        pairs: Most pairs of processes.
        min_effect: Difference, as a share, at which a proof ends once it is proven or excluded.

    Raises:
        StudyFileError: If the variants are equal, or the run directory is of other ones.
    """
    options: dict[str, list[Any]] = {}
    command = list(b.command)
    if a.body != b.body or tokens[0] != tokens[1]:
        options[SCRIPT] = [str(_written(b, path, "b")), str(_written(a, path, "a"))]
        command = ["/bin/sh", f"{{{SCRIPT}}}"]
    elif a.settings == b.settings:
        raise StudyFileError(
            "A and B must differ but are equal; name a change: --b-env, --b-args, --b-rev, or -- "
            "A -- B; "
            "--drop-each needs settings, such as those of --a-env-file"
        )
    elif b.first_command != b.command:
        command = ["/bin/sh", str(_written(b, path, "b"))]
    if tokens[0] != tokens[1]:
        options[TOKENS] = [tokens[1], tokens[0]]
        command.append(f"{{{TOKENS}}}")  # an argument that the script does not read
    back = going_back(
        a.settings, b.settings, **{name: values[1] for name, values in options.items()}
    )
    names = (a.name or "A", b.name or "B")
    if names[0] == names[1]:
        names = (f"A, {names[0]},", f"B, {names[1]},")
    variants = Variants(a=a, b=b, names=names, going_back=back)
    data = {
        **base.model_dump(context=WITH_SECRETS),
        "name": path.name,
        "baseline": dict(b.settings),
    }
    data["description"] = f"{names[1]} against {names[0]}"
    data["workload"] |= {"command": command, "options": {}}
    data["workload"] |= {"tokens_per_step": TOKENS if TOKENS in options else tokens[0]}
    data["search"] |= {
        "trials": TRIAL,
        "time_budget": time_budget,
        "groups": [],
        "options": options,
    }
    data["measure"] |= {"min_effect": min_effect}
    data["confirm"] |= {"soak": 0, "finalists": 1, "processes": pairs or base.confirm.processes}
    return parse_study(data, source="the study of two variants"), variants


def going_back(a: FlagSet, b: FlagSet, **options: Any) -> FlagSet:
    """Returns what makes the settings of A of those of B, with options of A."""
    unset = {name: DEFAULT for name in b if name not in a}
    other = {name: value for name, value in a.items() if b.get(name) != value}
    return FlagSet({**option_sets(options), **other, **unset})


def _written(variant: Variant, path: Path, letter: str) -> Path:
    """Writes the script of a variant beside a run directory; StudyFileError if another one is
    there.
    """
    file = path.with_name(f"{path.name}-{letter}.sh")
    text = f"#!/bin/sh\n{variant.body}"
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise StudyFileError(
            f"{file} must be the script of this variant but holds another one: give a new "
            "--name, or remove it"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file.absolute()


def measure_variants(run: StudyRun, variants: Variants, *, profiled: bool = False) -> None:
    """Measures A against B until the proof is settled, from where an earlier session stopped.

    Args:
        profiled: Whether both are traced after that, once.

    Raises:
        LaunchError: If B does not run.
        StudyFileError: If a variant runs on other packages than it should.
    """
    with contextlib.closing(run):
        reference = begin(run)
        variants.b.refuse_other(reference.versions.get("jaxlib"))
        trial = _trial(run, variants)
        result = None
        if trial.failure is None:
            names = " against ".join(variants.names)
            run.begin_stage(AB, f"{names}, {most_pairs(run.spec, AB)} pairs at most")
            result = Driver(run).prove(trial.settings, trial=TRIAL, stage=AB)
        _conclude(run, reference, trial, result, variants.names)
        if profiled and run.conclusion.estimate is not None:
            profile_once(run, variants.names, (trial.settings, FlagSet()))


def _trial(run: StudyRun, variants: Variants) -> TrialResult:
    """Returns the trial of A, as recorded or measured now."""
    a, b = variants.names
    if not run.store.of(TrialResult):
        config = TrialConfig(number=TRIAL, settings=variants.going_back, origin=a)
        run.begin_stage("search", f"one trial of {a}: whether it runs, and trains as {b} does")
        run.view.trial_starts(config, TRIAL)
        run.lanes.do(
            PendingTask(TrialTask(config=config), ("trials", "0001"), "trial-1", run.record)
        )
    trial = run.store.of(TrialResult)[0]
    variants.a.refuse_other(
        trial.worker.versions.get("jaxlib") if trial.worker is not None else None
    )
    return trial


def _conclude(
    run: StudyRun,
    reference: WorkerReport,
    trial: TrialResult,
    result: FinalistResult | None,
    names: tuple[str, str],
) -> None:
    failure = trial.failure or (result.failure if result is not None else None)
    outcome = Outcome.NOTHING_RAN
    sentence = ""
    estimate: Estimate | None = None
    a, b = names
    if failure is not None:
        who = b if "/reference/" in (failure.log or "") else a
        sentence = f"{b} and {a} are not compared: {format_failure(failure, f'under {who}')}"
    elif result is not None:
        report = Driver(run).report(result)
        estimate = report.estimate
        if estimate is not None:
            outcome, sentence = _answer(result, estimate, names)
            if outcome is Outcome.WINNER and report.objection is not None:
                outcome = Outcome.INCONCLUSIVE
                estimate = None
                sentence = f"not settled: {sentence}, but {report.objection.reason}"
            sentence += f"; {trial.loss.words}" if trial.loss is not None else ""
            sentence += format_beside(trial.worker, reference)
    won = {"settings": trial.settings, "trial": TRIAL} if outcome is Outcome.WINNER else {}
    run.conclude(outcome=outcome, sentence=sentence, trial_count=TRIAL, estimate=estimate, **won)


def format_beside(a: WorkerReport | None, b: WorkerReport) -> str:
    """Formats peak memory and compile time of both, where they are known and differ by a
    hundredth.
    """
    if a is None:
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


def _answer(result: FinalistResult, back: Estimate, names: tuple[str, str]) -> tuple[Outcome, str]:
    """Returns what a proof says of B, given the ratio of going back to A; that wins where B is
    slower.
    """
    a, b = names
    over = f"over {result.process_count} fresh pairs of processes on this machine"
    of = "for this step" if result.work is None else "for each token"
    outcome = Outcome.WINNER if result.is_passed else Outcome.NOTHING_BEATS_THE_DEFAULT
    if back.low > 1.0 or result.is_passed:
        low, high = sorted(abs(100.0 * (1.0 / end - 1.0)) for end in (back.low, back.high))
        change = f"{b} is {format_change(1.0 / back.ratio)} than {a} {of} [{low:.1f}, {high:.1f}]"
        return (
            outcome,
            f"{change}, {over}: going back has {time_of(result.work)} ratio "
            f"{format_estimate(back)}",
        )
    slower, faster = 1.0 / back.low - 1.0, max(0.0, 1.0 - 1.0 / back.high)
    excluded = (
        f"more than {format_share(slower)} slower and more than {format_share(faster)} "
        "faster are excluded"
    )
    excluded += f"; it looked slower but {result.veto}" if result.veto is not None else ""
    found = f"between {b} and {a} {of}, {over}: {excluded}"
    if slower > RULED_OUT:
        return Outcome.INCONCLUSIVE, f"not settled: the difference {found}"
    return outcome, f"no difference found {found}"


def leave_out_each(run: StudyRun, *, max_slowdown: float) -> None:
    """Leaves out each setting of the reference in turn, and says without which the program is
    proven to be no slower.

    What is not needed stays out while the next ones are tried, and every set is compared with the
    whole one. So the last one that is no slower is proven as it is, whatever its settings do
    together.

    Raises:
        LaunchError: If the program does not run with all settings.
    """
    everything = run.spec.baseline
    with contextlib.closing(run):
        begin(run)
        outcome = Outcome.NOTHING_BEATS_THE_DEFAULT
        estimate = None
        left_out = FlagSet()
        clauses = list[str]()
        for number, name in enumerate(everything):
            without = FlagSet({**left_out, name: DEFAULT})
            run.begin_stage(
                AB, f"without {', '.join(without)}, {most_pairs(run.spec, AB)} pairs at most"
            )
            result = Driver(run).prove(without, trial=0, stage=AB, count=len(everything) - number)
            ratio = result.corrected
            need = "stays"
            if not result.is_vetoed and ratio is not None and ratio.high <= 1.0 + max_slowdown:
                need = "is not needed"
                left_out = without
                estimate = ratio
            elif result.verdict is Verdict.UNRESOLVED and not result.is_vetoed:
                outcome = Outcome.INCONCLUSIVE
            clauses.append(f"{name} {need}: without it {format_finalist(result)}")
        environment = everything.merge(left_out).to_environment()
        staying = (
            " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
            or "none"
        )
        count = (
            f"{len(left_out)} of {len(everything)} settings are not needed on this machine, "
            f"these stay: {staying}"
        )
        sentence = "; ".join([count, *clauses])
        run.conclude(
            outcome=outcome,
            sentence=sentence,
            settings=left_out or None,
            estimate=estimate,
            trial_count=0,
        )


WITHOUT_ESTIMATE = {
    Outcome.NOTHING_RAN: 2,
    Outcome.INCONCLUSIVE: 3,
    Outcome.NOTHING_BEATS_THE_DEFAULT: 1,
}
"""Exit status without a ratio of two variants: nothing was compared, or every setting stays."""


def exit_status(conclusion: ConclusionRecord, *, max_slowdown: float) -> int:
    """Returns the exit status of a comparison: 0 no slower than that, 1 slower, 2 not compared, 3
    not settled.
    """
    if conclusion.settings and conclusion.outcome is not Outcome.WINNER:
        return 0  # some settings are not needed
    if conclusion.estimate is None:
        return WITHOUT_ESTIMATE[conclusion.outcome]
    least = 1.0 / (1.0 + max_slowdown)
    if conclusion.estimate.low >= least:
        return 0
    return 1 if conclusion.estimate.high < least else 3
