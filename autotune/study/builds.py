"""Compares two builds: one program under two interpreters, each with its own jax and jaxlib, as the arms of one proof.

The new build is the reference and the old one the candidate. So what a proof shows is the gain of going back, and its
error is that of calling the new build slower where it is not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.compiler.hlo import NAMES
from autotune.machine.environment import caller_environment, steering_settings
from autotune.machine.host import describe_machine, utc_now
from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.flags import DEFAULT, FlagSet, reaches_out
from autotune.model.measurement import WorkerReport
from autotune.model.options import INTERPRETER, option_sets
from autotune.model.records import BUILDS, ConclusionRecord, FinalistResult, Outcome, TrialConfig, TrialResult
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import format_change, format_share
from autotune.programs.arrival import DEVICE_COUNT
from autotune.results.format import format_estimate, format_failure
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ProbeReport, probe_build
from autotune.settings.space import format_names
from autotune.stats.estimates import Estimate
from autotune.study.conclude import RULED_OUT
from autotune.study.driver import Driver, aa_run, probe
from autotune.study.plan import most_pairs
from autotune.study.run import StudyRun

TRIAL = 1
"""Number of the trial of the old build, whose record has the facts of its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One interpreter, what its packages take, and the caller's settings in their names."""

    python: str
    """Its path; links are kept, for they say which environment it is of."""
    report: ProbeReport
    settings: FlagSet

    def refuse_other(self, ran_on: str | None) -> None:
        """Refuses a program that ran on another jaxlib, by a StudyFileError; None where it is not known on which."""
        if ran_on not in (None, self.report.jaxlib):
            raise StudyFileError(
                f"under {self.python} the program must run on jaxlib {self.report.jaxlib} but it ran on jaxlib "
                f"{ran_on}: let it start no other interpreter; if the packages were changed since, give a new --name"
            )


class Builds(NamedTuple):
    """Both arms."""

    old: Build
    new: Build

    @property
    def names(self) -> tuple[str, str]:
        """Names of both in a sentence, with the interpreters where the versions are equal."""
        old, new = (build.report.build for build in self)
        return (old, new) if old != new else (f"{old} of {self.old.python}", f"{new} of {self.new.python}")

    @property
    def going_back(self) -> FlagSet:
        """The candidate: the old interpreter, and its settings in place of the new one's."""
        old, new = self.old.settings, self.new.settings
        unset = {name: DEFAULT for name in new if name not in old}
        other = {name: value for name, value in old.items() if new.get(name) != value}
        return FlagSet({**option_sets({INTERPRETER: self.old.python}), **other, **unset})


def find_build(python: str, platform: str, *, note: Callable[[str], None]) -> Build:
    """Asks an interpreter which settings its packages take, and translates the caller's; notes what changes.

    Raises:
        LaunchError: If it cannot be started, or has no jaxlib.
        SettingError: If the caller's XLA_FLAGS cannot be parsed.
    """
    if (found := shutil.which(python)) is None:
        raise LaunchError(f"a build must be an interpreter but {python} cannot be started; give the path of a Python")
    path = os.path.abspath(found)  # noqa: PTH100  # a Path follows links
    answer = probe_build(path, platform="cpu" if platform == "cpu" else "cuda")
    own = steering_settings(caller_environment())
    own = own.without(DEVICE_COUNT, *filter(reaches_out, own))
    settings = for_build(own, KnownSettings(answer), note=lambda text: note(f"for {answer.build}: {text}"))
    return Build(python=path, report=answer, settings=settings)


def study_of(builds: Builds, words: Sequence[str], base: StudySpec, *, name: str, pairs: int | None) -> StudySpec:
    """Makes a study of two builds by `base`; `words` follow the interpreter; StudyFileError for a bad name or word."""
    pythons = list(dict.fromkeys((builds.new.python, builds.old.python)))
    data = {**base.model_dump(context=WITH_SECRETS), "name": name, "baseline": dict(builds.new.settings)}
    data["description"] = "{1} against {0}".format(*builds.names)
    data["workload"] |= {"command": [f"{{{INTERPRETER}}}", *words], "options": {}, "python": builds.new.python}
    data["search"] |= {"trials": TRIAL, "time_budget": None, "groups": [], "options": {INTERPRETER: pythons}}
    data["measure"] |= {"min_effect": 0.0005}  # a smaller slowdown that is proven is told, too
    data["confirm"] |= {"soak": 0, "processes": pairs or base.confirm.processes}
    return parse_study(data, source="the study of two builds")


def measure_builds(run: StudyRun, builds: Builds) -> None:
    """Measures the old build against the new one until the proof is settled, from where an earlier session stopped.

    Raises:
        LaunchError: If the program does not run under the new build.
        StudyFileError: If it runs on other packages than those of its interpreter.
    """
    with contextlib.closing(run):
        probe(run)
        builds.new.refuse_other(aa_run(run).versions.get("jaxlib"))
        trial, result = _trial(run, builds), None
        if trial.failure is None:
            most = most_pairs(run.spec, BUILDS)
            run.begin_stage(BUILDS, f"the old build against the new one, {most} pairs at most")
            result = Driver(run).prove(trial.settings, trial=TRIAL, stage=BUILDS)
        run.conclusion = _conclusion(run, trial, result, builds)
        run.store.append_news(run.conclusion)


def _trial(run: StudyRun, builds: Builds) -> TrialResult:
    """Returns the trial of the old build, as recorded or measured now."""
    if not run.store.of(TrialResult):
        config = TrialConfig(number=TRIAL, settings=builds.going_back, origin="the old build")
        run.begin_stage("search", "one trial of the old build: whether it runs, and trains as the new one does")
        run.view.trial_starts(config, TRIAL)
        run.lanes.do(PendingTask(TrialTask(config=config), ("trials", "0001"), "trial-1", run.store.append))
        run.view.trial_ends(run.store.of(TrialResult)[0])
    trial = run.store.of(TrialResult)[0]
    builds.old.refuse_other(trial.worker.versions.get("jaxlib") if trial.worker is not None else None)
    return trial


def _conclusion(run: StudyRun, trial: TrialResult, result: FinalistResult | None, builds: Builds) -> ConclusionRecord:
    failure = trial.failure or (result.failure if result is not None else None)
    outcome, sentence, won = Outcome.NOTHING_RAN, "", dict[str, Any]()
    if failure is not None:
        old, new = builds.names
        who = new if "/reference/" in (failure.log or "") else old
        sentence = f"{new} and {old} are not compared: {format_failure(failure, f'under {who}')}"
    elif result is not None and (back := Driver(run).report(result).estimate) is not None:
        outcome, sentence = _answer(result, back, builds.names)
        sentence += f"; {trial.loss.words}" if trial.loss is not None else ""
        sentence += format_program_change(trial.worker, run.reference)
        if outcome is Outcome.WINNER:
            won = {"settings": result.settings, "trial": TRIAL, "estimate": back}
    return ConclusionRecord(
        outcome=outcome, sentence=sentence, trial_count=TRIAL, ended=utc_now(), provenance=describe_machine(), **won
    )


def format_program_change(old: WorkerReport | None, new: WorkerReport | None) -> str:
    """Formats what the new build compiles otherwise, most changed first; empty where a program is not known."""
    if old is None or new is None or not (old.opcodes and new.opcodes):
        return ""
    counts = {n: (old.opcodes.get(n, 0), new.opcodes.get(n, 0)) for n in sorted({**old.opcodes, **new.opcodes})}
    changed = {n: -abs(b - a) for n, (a, b) in counts.items() if a != b and n not in NAMES["plumbing"]}
    if not changed:
        return "; both compile the step to as many instructions of each kind"
    shown = [f"{n} {counts[n][0]} -> {counts[n][1]}" for n in sorted(changed, key=changed.__getitem__)]
    return f"; in the compiled programs: {format_names(shown, 6)}"


def _answer(result: FinalistResult, back: Estimate, names: tuple[str, str]) -> tuple[Outcome, str]:
    """Returns what a proof says of the new build, given the ratio of going back; that wins where it is slower."""
    old, new = names
    over = f"over {result.process_count} fresh pairs of processes on this machine"
    outcome = Outcome.WINNER if result.is_passed else Outcome.NOTHING_BEATS_THE_DEFAULT
    if back.low > 1.0 or result.is_passed:
        low, high = sorted(abs(100.0 * (1.0 / end - 1.0)) for end in (back.low, back.high))
        change = f"{new} is {format_change(1.0 / back.ratio)} than {old} for this step [{low:.1f}, {high:.1f}]"
        return outcome, f"{change}, {over}: going back has step time ratio {format_estimate(back)}"
    slower, faster = 1.0 / back.low - 1.0, max(0.0, 1.0 - 1.0 / back.high)
    excluded = f"more than {format_share(slower)} slower and more than {format_share(faster)} faster are excluded"
    excluded += f"; it looked slower but {result.veto}" if result.veto is not None else ""
    found = f"between {new} and {old} for this step, {over}: {excluded}"
    if slower > RULED_OUT:
        return Outcome.INCONCLUSIVE, f"not settled: the difference {found}"
    return outcome, f"no difference found {found}"
