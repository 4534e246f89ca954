"""The screen of a study: compiles sets without a GPU to decide which are worth a measurement.

The search begins when the sets of one setting are compiled. Groups of what does nothing alone are
compiled beside the measurements of GPUs, on processors that these can spare, or before the search.
One thread does all compiling. A screen that fails is noted and never ends a study.

The described GPU differs from the one that runs, so what the screen calls no-ops is tried there in
two sets. If one fails, or its interval excludes the reference's time, they return to the space.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from autotune.compiler.screen import (
    Effect,
    Screener,
    ScreenReport,
    SettingReport,
    chains,
    cluster_that_ran,
    domains,
    narrowed,
    open_screener,
)
from autotune.compiler.targets import Target, Topology, compiler_problem, compiler_versions
from autotune.machine.environment import default_cache_dir
from autotune.machine.host import spare_processors
from autotune.measure.memory import compiled_failure
from autotune.model.errors import AutotuneError, LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, WorkerReport
from autotune.model.records import ScreenRecord, TrialResult
from autotune.model.spec import FEWEST_TRIALS, StudySpec
from autotune.model.stop import result_of
from autotune.results.screen_words import describe_screen
from autotune.rundir.store import Store
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.space import NamedSets, SearchSpace
from autotune.stats.estimates import Verdict, judge
from autotune.study.run import StudyRun

R = TypeVar("R")

SHARE_OF_BUDGET = 0.25  # share of the time budget that the screen may take
NO_OPS_TOGETHER = "no-ops together"  # origin of trials of all no-op settings at once


class Precheck(NamedTuple):
    """What compiling a set tells: its program, and why it must not be launched, if known."""

    key: str | None = None
    failure: Failure | None = None


def is_wanted(spec: StudySpec) -> tuple[bool, str]:
    """Returns whether a study is screened, and why not if the user may expect it."""
    enabled = spec.screen.enabled
    if spec.workload.entry is None:
        reason = "not screened: a screen compiles an `entry`, this study runs a command"
        return False, reason if enabled is True else ""
    if enabled != "auto":
        return enabled is True, ""
    if spec.device.platform != "cuda":
        return False, ""
    if problem := compiler_problem(compiler_versions()):
        return False, f"not screened: {problem}"
    return True, ""


class StudyScreener:
    """The screen of one study, open as long as the study runs; `report` is None if it did not."""

    def __init__(self, run: StudyRun) -> None:
        self.report: ScreenReport | None = None
        self._run = run
        self._store = run.store
        self._spec = run.spec
        self._view = run.view
        self._is_on, why_not = is_wanted(run.spec)
        if why_not:
            self._view.note(why_not)
        self._resources = contextlib.ExitStack()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="screen")
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="groups")
        self._groups: Future[ScreenReport] | None = None
        self._groups_end_s = math.inf
        self._screen: Screener | None = None

    def narrow(self, space: SearchSpace, reference: WorkerReport) -> SearchSpace:
        """Screens a space, if that is due and there is time; returns the space to search first."""
        if not (self._is_on and self._run.time.is_enough):
            return space
        target: Target | None = None
        topology: Topology | None = None
        try:
            if self._spec.device.platform == "cuda":
                target, topology = self._cluster(reference)
            self._compile(space, target, topology)
            narrower = self.left(space)
        except Exception as error:
            self._store.append(
                ScreenRecord(
                    target=target.name if target else "cpu",
                    topology=str(topology or reference.device_count),
                    reason=self._give_up(error),
                )
            )
            return space
        if not self._believes_memory:
            self._view.note(
                "the screen says that the reference does not fit, but it runs: memory of the "
                "screen is ignored"
            )
        return narrower

    @property
    def _believes_memory(self) -> bool:
        """Whether what compiling says of memory is not refuted by the reference, which runs."""
        return self.report is not None and self.report.reference.fits is not False

    def left(self, space: SearchSpace) -> SearchSpace:
        """Returns what of a space needs measurements by the report, and says so."""
        assert self.report is not None
        narrower = narrowed(space, self.report)
        for line in describe_screen(self.report):
            self._view.note(line)
        count = len(narrower.parameters)
        self._view.note(f"the space has {count} of {len(space.parameters)} settings left to search")
        return narrower

    def _show(self, done: str) -> None:
        """Shows what is compiled, unless something is measured, which is shown then."""
        if not self._run.lanes.is_measuring:
            self._view.phase(f"screening, {done[:80]}")

    def settled(self, *, wait: bool = False) -> bool:
        """Whether there are new verdicts on what does nothing alone; may `wait` up to the limit."""
        groups = self._groups
        if groups is None or not (wait or groups.done()):
            return False
        started = time.monotonic()
        if wait:
            self._groups_end_s = started + self._limit_s()
        try:
            self.report = result_of(groups)
        except Exception as error:
            self._give_up(error)
            assert self.report is not None
            self.report = self.report.settled({})
        self._groups = None
        self._record(self.report, started)
        return True

    def _compile(
        self, space: SearchSpace, target: Target | None, topology: Topology | None
    ) -> None:
        """Opens compile workers for a cluster or this CPU, and compiles what is not known yet."""
        _, screen = self._resources.enter_context(
            open_screener(
                self._spec,
                study_dir=Path(self._store.study_dir),
                target=target,
                topology=topology,
                cache_dir=default_cache_dir() / "screen",
                progress=self._show,
            )
        )
        self._screen = screen
        self.report = self._known(screen) or self._compile_alone(screen, space)
        if self.report.of_effect(Effect.ALONE):
            self._groups = self._beside.submit(
                screen.together,
                self.report,
                domains(space),
                chains(space),
                on=self._wait,
                is_over=lambda: not self._is_on or time.monotonic() > self._groups_end_s,
            )
            job = screen.job
            if not (job.target and spare_processors(job.topology.gpus_per_node)):
                self.settled(wait=True)

    def _cluster(self, reference: WorkerReport) -> tuple[Target, Topology]:
        target, topology = cluster_that_ran(self._spec, reference)
        if target is None:
            raise LaunchError(
                f"the GPU must be one that is described but got {reference.device_kind!r}; "
                "name the nearest by `screen.target` (see `autotune targets list`)"
            )
        return target, topology

    def _known(self, screen: Screener) -> ScreenReport | None:
        """Returns an earlier session's report for the same GPU, topology and versions."""
        gpu = screen.job.target
        cluster = (gpu.digest if gpu else "", str(screen.job.topology), compiler_versions())
        for record in reversed(self._store.of(ScreenRecord)):
            report = _report_of(record)
            if report and (report.target_digest, record.topology, record.versions) == cluster:
                return report
        return None

    def _compile_alone(self, screen: Screener, space: SearchSpace) -> ScreenReport:
        values = domains(space)
        self._run.begin_stage("screen", f"{len(values)} settings are compiled, none is launched")
        started = time.monotonic()
        limit_s = self._limit_s()
        report = self._wait(
            lambda: screen.alone(values, is_over=lambda: time.monotonic() - started > limit_s)
        )
        self._record(report, started)
        return report

    def _record(self, report: ScreenReport, started: float) -> None:
        self._store.append(
            ScreenRecord(
                target=report.target,
                topology=report.topology,
                versions=compiler_versions(),
                report=report.model_dump(mode="json"),
                duration_s=round(time.monotonic() - started, 3),
            )
        )

    def _limit_s(self) -> float:
        """Seconds for which the study may still wait for its screen."""
        time_left = self._run.time
        kept_s = time_left.reserved_s + FEWEST_TRIALS * time_left.takes.trial_s
        waited_s = sum(r.duration_s for r in self._store.of(ScreenRecord))
        share_s = SHARE_OF_BUDGET * time_left.budget_s - waited_s
        return max(0.0, min(share_s, time_left.budget_s - time_left.elapsed_s - kept_s))

    def _give_up(self, error: Exception) -> str:
        """Compiles nothing more, and says why; returns the reason."""
        self._is_on = False
        reason = str(error)
        if not isinstance(error, AutotuneError):
            reason = f"{type(error).__name__}: {error}"
        self._view.note(f"the study continues without a screen: {reason}")
        return reason

    def _wait(self, work: Callable[[], R]) -> R:
        """Runs work on the compiling thread, beside measurements on processors that they spare."""
        if self._screen:
            gpus = self._screen.job.topology.gpus_per_node
            spare = spare_processors(gpus) if self._run.lanes.is_measuring else ()
            self._screen.compiler.kept_to = frozenset(spare)
        return result_of(self._pool.submit(work))

    def precheck(self, settings: FlagSet) -> Precheck:
        """Returns a set's program, and why it must not be launched, as far as they are known."""
        screen = self._screen
        if screen is None or not self._is_on:
            return Precheck()
        try:
            failure = self._wait(lambda: compiled_failure(self._spec, screen, settings))
            key = self._wait(lambda: screen.program_key(settings))
        except Exception as error:
            self._give_up(error)
            return Precheck()
        return Precheck(key, failure if self._believes_memory else None)

    def close(self) -> None:
        """Ends the compile worker."""
        self._is_on = False
        if self._screen:
            self._screen.compiler.abort()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._beside.shutdown(wait=True, cancel_futures=True)
        self._resources.close()


def no_ops_together(space: SearchSpace, report: ScreenReport | None) -> NamedSets:
    """Returns sets of all no-ops that a screen removed; none if it compiled for this very CPU."""
    if report is None or report.limit_bytes is None:
        return []
    names = {p.name for p in space.parameters}
    no_ops = [s for s in report.of_effect(Effect.NO_OP) if s.name in names and s.values]
    sets = (FlagSet({s.name: s.values[at].value for s in no_ops}) for at in (0, -1))
    return [(NO_OPS_TOGETHER, settings) for settings in dict.fromkeys(sets) if settings]


def contradicts(results: Iterable[TrialResult], *, min_effect: float) -> bool:
    """Returns whether a trial of no-ops failed, or was faster or slower than the reference."""
    for result in results:
        if result.origin == NO_OPS_TOGETHER:
            if result.failure:
                return True
            if result.comparison:
                verdict = judge(result.comparison.estimate, min_effect=min_effect)
                if verdict in (Verdict.FASTER, Verdict.SLOWER):
                    return True
    return False


LARGEST_PRIOR = 0.5  # upper limit of the prior probability of a setting to act
ACTS = 2.0  # weight of a setting that changes the compiled program
UNCLEAR = 1.0  # weight of one that changes it only with others, or of which nothing is known
USELESS = 0.5  # weight of one that does not change it, or does not compile


def priors_of(space: SearchSpace, report: ScreenReport | None) -> dict[str, float]:
    """Returns the prior probability of each parameter to act.

    `EXPECTED` of all searched settings are expected to act (the share `MOST_LIKELY` of a few),
    spread by weights, which decide what is tried first, until trials outweigh them.
    """
    screened = {s.name: s for s in report.settings} if report else {}
    weights = {p.name: _weight(screened.get(p.name)) for p in space.parameters}
    expected = min(EXPECTED, MOST_LIKELY * len(weights))
    total = sum(weights.values())
    return {name: min(LARGEST_PRIOR, expected * weight / total) for name, weight in weights.items()}


def screened_by(store: Store) -> ScreenReport | None:
    """Returns the newest report of a study's screen."""
    record = store.last(ScreenRecord)
    return _report_of(record) if record else None


def _report_of(record: ScreenRecord) -> ScreenReport | None:
    return ScreenReport.model_validate(record.report) if record.report else None


def _weight(report: SettingReport | None) -> float:
    if report is None or report.effect is Effect.MEASURE:
        return UNCLEAR
    if report.effect is not Effect.ACTIVE:
        return USELESS
    return UNCLEAR if report.interacts_with else ACTS
