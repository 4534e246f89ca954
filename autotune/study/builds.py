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
from typing import NamedTuple

from autotune.machine.environment import caller_environment, steering_settings
from autotune.machine.host import describe_machine, utc_now
from autotune.measure.tasks import PendingTask, TrialTask
from autotune.model.errors import LaunchError, StudyFileError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.measurement import WorkerReport
from autotune.model.options import INTERPRETER, option_sets
from autotune.model.proofs import Report
from autotune.model.records import CONFIRM, ConclusionRecord, FinalistResult, Outcome, TrialConfig, TrialResult
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import format_change, format_share
from autotune.programs.arrival import DEVICE_COUNT
from autotune.results.format import format_estimate, format_failure
from autotune.settings.check import for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ProbeReport, probe_build
from autotune.study.conclude import RULED_OUT
from autotune.study.confirm import most_pairs, prove, report
from autotune.study.run import StudyRun
from autotune.study.stages import aa_run, probe

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
        """Refuses a program that ran on another jaxlib; None where it is not known on which.

        Raises:
            StudyFileError: With both versions.
        """
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
    """Asks an interpreter which settings its packages take, and translates the caller's settings for them.

    Args:
        note: Called for each of the caller's settings that is renamed or left out.

    Raises:
        LaunchError: If it cannot be started, or has no jax.
        SettingError: If the caller's XLA_FLAGS cannot be parsed.
    """
    if (found := shutil.which(python)) is None:
        raise LaunchError(
            f"a build must be named by its interpreter but {python} cannot be started; give the path of a Python with "
            "jax, such as /path/to/venv/bin/python"
        )
    path = os.path.abspath(found)  # noqa: PTH100  # a Path follows links
    answer = probe_build(path, platform="cpu" if platform == "cpu" else "cuda")
    if answer.jax is None:
        raise LaunchError(f"jax must be installed for {path} but is not; run: {path} -m pip install jax")
    own = steering_settings(caller_environment()).without(DEVICE_COUNT)
    whose = f"your environment, for {answer.build}"
    settings = for_build(own, KnownSettings(answer), note=lambda text: note(f"{whose}: {text}"))
    return Build(python=path, report=answer, settings=settings)


def study_of_builds(
    base: StudySpec, name: str, words: Sequence[str], builds: Builds, *, pairs: int | None, budget_s: float | None
) -> StudySpec:
    """Makes the study of two builds.

    Args:
        base: How the program is measured, by a first look at it or an earlier session.
        words: What follows the interpreter in the command.
        pairs: Most fresh pairs of processes; None for those of `base`.

    Raises:
        StudyFileError: If a word cannot be an argument of a study's command.
    """
    pythons = list(dict.fromkeys((builds.new.python, builds.old.python)))
    data = {**base.model_dump(context=WITH_SECRETS), "name": name, "baseline": dict(builds.new.settings)}
    data["workload"] |= {"command": [f"{{{INTERPRETER}}}", *words], "options": {}, "python": builds.new.python}
    data["search"] |= {"trials": TRIAL, "time_budget": budget_s, "groups": [], "options": {INTERPRETER: pythons}}
    data["confirm"] |= {"soak": 0, "processes": pairs or base.confirm.processes}
    return parse_study(data, source="the study of two builds")


def compare_builds(run: StudyRun, builds: Builds) -> ConclusionRecord:
    """Measures the old build against the new one until the proof is settled, from where an earlier session stopped.

    Raises:
        LaunchError: If the program does not run under the new build.
        StudyFileError: If it runs on other packages than those of its interpreter.
    """
    with contextlib.closing(run):
        probe(run)
        aa_run(run)
        assert run.reference is not None
        builds.new.refuse_other(run.reference.versions.get("jaxlib"))
        trial = _trial(run, builds.going_back)
        if trial.worker is not None:
            builds.old.refuse_other(trial.worker.versions.get("jaxlib"))
        result = None
        if trial.failure is None:
            run.begin_stage("confirm", f"the old build against the new one, {most_pairs(run, CONFIRM)} pairs at most")
            result = prove(run, [(TRIAL, trial.settings)], stage=CONFIRM)[0]
        run.store.append_news(_conclusion(run, trial, result, builds.names))
        run.conclusion = run.store.of(ConclusionRecord)[-1]
    return run.conclusion


def reports_of(run: StudyRun) -> tuple[WorkerReport | None, WorkerReport | None]:
    """Returns what the processes of the old and of the new build reported of themselves."""
    return run.store.of(TrialResult)[0].worker, run.reference


def _trial(run: StudyRun, settings: FlagSet) -> TrialResult:
    """Returns the trial of the old build, as recorded or measured now."""
    if not run.store.of(TrialResult):
        config = TrialConfig(number=TRIAL, settings=settings, origin="the old build")
        run.begin_stage("search", "one trial of the old build: whether it runs, and trains as the new one does")
        run.view.trial_starts(config, TRIAL)
        run.lanes.do(PendingTask(TrialTask(config=config), ("trials", "0001"), "trial-1", run.store.append))
        run.view.trial_ends(run.store.of(TrialResult)[0])
    return run.store.of(TrialResult)[0]


# ---------------------------------------------------------------------- the answer


def _conclusion(
    run: StudyRun, trial: TrialResult, result: FinalistResult | None, names: tuple[str, str]
) -> ConclusionRecord:
    failure = trial.failure or (result.failure if result is not None else None)
    found: dict[str, object]
    if failure is not None or result is None or result.corrected is None or result.corrected.low <= 0.0:
        why = format_failure(failure, f"under {names[0]}") if failure is not None else "no time for enough pairs"
        found = {"outcome": Outcome.NOTHING_RAN, "sentence": f"{names[1]} and {names[0]} are not compared: {why}"}
    else:
        found = _answer(run, result, names)
        loss = trial.loss.words if trial.loss is not None else ""
        found["sentence"] = "; ".join(filter(None, (str(found["sentence"]), loss)))
    return ConclusionRecord(trial_count=TRIAL, ended=utc_now(), provenance=describe_machine(), **found)


def _answer(run: StudyRun, result: FinalistResult, names: tuple[str, str]) -> dict[str, object]:
    """Returns outcome and sentence of a proof with a figure, and the winner if going back is one."""
    found = report(run, result) if result.is_passed else Report(result.corrected, objection=result.veto)
    back, (old, new) = found.estimate or result.corrected, names
    assert back is not None
    over = f"over {result.process_count} fresh pairs of processes on this machine"
    is_winner = result.is_passed and found.objection is None
    if back.low > 1.0 or (back.high < 1.0 and found.objection is None):
        ratio = f"going back has step time ratio {format_estimate(back)}"
        low, high = sorted(abs(100.0 * (1.0 / end - 1.0)) for end in (back.low, back.high))
        change = f"{new} is {format_change(1.0 / back.ratio)} than {old} for this step [{low:.1f}, {high:.1f}]"
        won = {"settings": result.settings, "trial": TRIAL, "estimate": back} if is_winner else {}
        outcome = Outcome.WINNER if is_winner else Outcome.NOTHING_BEATS_THE_DEFAULT
        return {"outcome": outcome, "sentence": f"{change}, {over}: {ratio}", **won}
    slower, faster = 1.0 / back.low - 1.0, max(0.0, 1.0 - 1.0 / back.high)
    is_open = slower > max(run.spec.measure.min_effect, RULED_OUT)
    what = "not settled: the difference" if is_open else "no difference found"
    but = f"; it looked slower but {found.objection}" if found.objection is not None else ""
    return {
        "outcome": Outcome.INCONCLUSIVE if is_open else Outcome.NOTHING_BEATS_THE_DEFAULT,
        "sentence": f"{what} between {new} and {old} for this step, {over}: more than {format_share(slower)} slower and more than "
        f"{format_share(faster)} faster are excluded{but}",
    }
