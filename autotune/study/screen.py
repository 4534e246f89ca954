"""The screen of a study: compiles sets without a GPU to decide which are worth a measurement
(`docs/screening.md`).

The search begins when the sets of one setting are compiled. What does nothing alone is searched
last: groups of such settings are compiled beside the measurements of GPUs, on processors that these
can spare, and where there are none, before the search. One thread does all compiling. A screen that
fails is noted and never ends a study.

The described GPU differs from the one that runs, so what the screen calls no-ops is tried there in
two sets: all at their first values, and all at their last. If one fails, or its interval excludes
the reference's time, they return to the space.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

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
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import Verdict, judge
from autotune.study.run import StudyRun

R = TypeVar("R")

SHARE_OF_BUDGET = 0.25
"""Share of the time budget that the screen may take."""

NO_OPS_TOGETHER = "no-ops together"
"""Origin of trials of all no-op settings at once."""


@dataclass(frozen=True, slots=True)
class Precheck:
    """The result of compiling a set."""

    key: str | None = None
    """Identifies its program and the settings read at run time; None if it is not known."""
    failure: Failure | None = None
    """Why it must not be launched."""


def is_wanted(spec: StudySpec) -> tuple[bool, str]:
    """Returns whether a study is screened, and why not if the user may expect it."""
    asked = spec.screen.enabled
    if asked is False:
        return False, ""
    if spec.workload.entry is None:
        return (
            False,
            "not screened: a screen compiles an `entry`, this study runs a command"
            if asked is True
            else "",
        )
    if asked == "auto":
        if spec.device.platform != "cuda":
            return False, ""
        if problem := compiler_problem(compiler_versions()):
            return False, f"not screened: {problem}"
    return True, ""


class StudyScreener:
    """The screen of one study, open as long as the study runs.

    Attributes:
        report: None before it ran, and if it cannot run or is not wanted.
    """

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

    @property
    def _is_measuring(self) -> bool:
        """Whether this machine is measuring now, which compiling must not disturb."""
        return self._run.lanes.is_measuring

    def narrow(self, space: SearchSpace, reference: WorkerReport) -> SearchSpace:
        """Screens a space, unless that was done or there is no time for it; returns the space to
        search first.
        """
        if not (self._is_on and self._run.time.is_enough):
            return space
        target: Target | None = None
        topology: Topology | None = None
        try:
            if self._spec.device.platform == "cuda":
                target, topology = self._cluster(reference)
            screen = self._open(target, topology)
            self.report = self._known(screen) or self._compile_alone(screen, space)
            if self.report.of_effect(Effect.ALONE):
                self._begin_groups(screen, self.report, space)
                if not self._has_room_beside(screen):
                    self.settled(wait=True)
            left = self.left(space)
        except Exception as error:
            self._give_up(
                error, target.name if target else "cpu", str(topology or reference.device_count)
            )
            return space
        if not self._believes_memory:
            self._view.note(
                "the screen says that the reference does not fit, but it runs: memory of the "
                "screen is ignored"
            )
        return left

    @property
    def _believes_memory(self) -> bool:
        """Whether what compiling says of memory is not refuted by the reference, which runs."""
        return self.report is not None and self.report.reference.fits is not False

    def left(self, space: SearchSpace) -> SearchSpace:
        """Returns what of a space needs measurements by the report, and says so."""
        assert self.report is not None
        left = narrowed(space, self.report)
        for line in describe_screen(self.report):
            self._view.note(line)
        self._view.note(
            f"the space has {len(left.parameters)} of {len(space.parameters)} settings left to "
            "search"
        )
        return left

    def _has_room_beside(self, screen: Screener) -> bool:
        """Returns whether groups can be compiled beside a measurement without disturbing it."""
        return screen.job.target is not None and bool(
            spare_processors(screen.job.topology.gpus_per_node)
        )

    def _begin_groups(self, screen: Screener, report: ScreenReport, space: SearchSpace) -> None:
        self._groups = self._beside.submit(
            screen.together,
            report,
            domains(space),
            chains(space),
            on=self._wait,
            progress=self._show,
            is_over=lambda: not self._is_on or time.monotonic() > self._groups_end_s,
        )

    def _show(self, done: str) -> None:
        """Shows what is compiled, unless something is measured, which is shown then."""
        if not self._is_measuring:
            self._view.phase(f"screening, {done[:80]}")

    def settled(self, *, wait: bool = False) -> bool:
        """Returns whether verdicts on what does nothing alone have come since the last call: the
        report then has them.

        Args:
            wait: Whether to wait for that, within the limit of a screen's time.
        """
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

    def _open(self, target: Target | None, topology: Topology | None) -> Screener:
        """Opens the compile workers for a cluster, or for this CPU, without compiling anything."""
        _, self._screen = self._resources.enter_context(
            open_screener(
                self._spec,
                study_dir=Path(self._store.study_dir),
                target=target,
                topology=topology,
                cache_dir=default_cache_dir() / "screen",
                progress=self._show,
            )
        )
        return self._screen

    def _cluster(self, reference: WorkerReport) -> tuple[Target, Topology]:
        """Returns the target and topology that the study names, or those of the machine."""
        target, topology = cluster_that_ran(self._spec, reference)
        if target is None:
            raise LaunchError(
                f"the GPU must be one that is described but got {reference.device_kind!r}; "
                "name the nearest by `screen.target` (see `autotune targets list`)"
            )
        return target, topology

    def _known(self, screen: Screener) -> ScreenReport | None:
        """Returns the report of an earlier session, if it had the same GPU, topology and
        versions.
        """
        gpu = screen.job.target
        here = (gpu.digest if gpu else "", str(screen.job.topology), compiler_versions())
        for record in reversed(self._store.of(ScreenRecord)):
            report = (
                ScreenReport.model_validate(record.report) if record.report is not None else None
            )
            if (
                report is not None
                and (report.target_digest, record.topology, record.versions) == here
            ):
                return report
        return None

    def _compile_alone(self, screen: Screener, space: SearchSpace) -> ScreenReport:
        values = domains(space)
        self._store.tell_stage("screen")
        self._view.stage("screen", f"{len(values)} settings are compiled, none is launched")
        started = time.monotonic()
        limit_s = self._limit_s()
        report = self._wait(
            lambda: screen.alone(
                values, progress=self._show, is_over=lambda: time.monotonic() - started > limit_s
            )
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
        budget_s = self._spec.search.time_budget
        if budget_s is None:
            return math.inf
        time_left = self._run.time
        kept_s = time_left.reserved_s + FEWEST_TRIALS * time_left.takes.trial_s
        left_s = budget_s - time_left.elapsed_s - kept_s
        waited_s = sum(r.duration_s for r in self._store.of(ScreenRecord))
        return max(0.0, min(SHARE_OF_BUDGET * budget_s - waited_s, left_s))

    def _give_up(self, error: Exception, target: str = "", topology: str = "") -> None:
        self._is_on = False
        reason = (
            str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
        )
        self._view.note(f"the study continues without a screen: {reason}")
        if target:
            self._store.append(ScreenRecord(target=target, topology=topology, reason=reason))

    def _wait(self, work: Callable[[], R]) -> R:
        """Runs work on the compiling thread, beside a measurement on processors that it can spare,
        and waits for it.
        """
        if self._screen is not None:
            here = self._screen.job.topology
            spare = spare_processors(here.gpus_per_node) if self._is_measuring else ()
            self._screen.compiler.kept_to = frozenset(spare)
        return result_of(self._pool.submit(work))

    def precheck(self, settings: FlagSet) -> Precheck:
        """Returns a set's program, and why it must not be launched, if anything is known of
        them.
        """
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
        if self._screen is not None:
            self._screen.compiler.abort()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._beside.shutdown(wait=True, cancel_futures=True)
        self._resources.close()


# ---------------------------------------------------------------------- no-op recheck


def no_ops_together(space: SearchSpace, report: ScreenReport | None) -> list[tuple[str, FlagSet]]:
    """Returns one or two sets of all no-ops that a screen removed from a space, for the actual GPU
    may differ.

    There are none without a screen, and where it compiled for the very CPU that runs.
    """
    if report is None or report.limit_bytes is None:
        return []
    names = {p.name for p in space.parameters}
    no_ops = [s for s in report.of_effect(Effect.NO_OP) if s.name in names and s.values]
    sets = (FlagSet({s.name: s.values[at].value for s in no_ops}) for at in (0, -1))
    return [(NO_OPS_TOGETHER, settings) for settings in dict.fromkeys(sets) if settings]


def contradicts(results: Iterable[TrialResult], *, min_effect: float) -> bool:
    """Returns whether a trial of no-op settings failed, or ran faster or slower than the
    reference.
    """
    tried = [r for r in results if r.origin == NO_OPS_TOGETHER]
    verdicts = {
        judge(r.comparison.estimate, min_effect=min_effect)
        for r in tried
        if r.comparison is not None
    }
    return any(r.failure is not None for r in tried) or not verdicts.isdisjoint(
        {Verdict.FASTER, Verdict.SLOWER}
    )


# ---------------------------------------------------------------------- priors

LARGEST_PRIOR = 0.5
"""Upper limit of the prior probability of a setting to act."""

ACTS, ACTS_TOGETHER, UNKNOWN, USELESS = 2.0, 1.0, 1.0, 0.5
"""Weights of settings that change the compiled program, that change it only with others, of which
compiling says nothing, and that do not change it or do not compile.
"""


def priors_of(space: SearchSpace, report: ScreenReport | None) -> dict[str, float]:
    """Returns the prior probability of each parameter to act.

    `EXPECTED` of all searched settings are expected to act (the share `MOST_LIKELY` of a few),
    spread over them by weights, which are judgements: they decide what is tried first, and trials
    soon outweigh them.
    """
    screened = {s.name: s for s in report.settings} if report is not None else {}
    weights = {p.name: _weight(screened.get(p.name)) for p in space.parameters}
    expected = min(EXPECTED, MOST_LIKELY * len(weights))
    total = sum(weights.values())
    return {name: min(LARGEST_PRIOR, expected * weight / total) for name, weight in weights.items()}


def screened_by(store: Store) -> ScreenReport | None:
    """Returns the newest report of a study's screen."""
    record = store.last(ScreenRecord)
    return (
        ScreenReport.model_validate(record.report) if record is not None and record.report else None
    )


def _weight(report: SettingReport | None) -> float:
    if report is None or report.effect is Effect.MEASURE:
        return UNKNOWN
    if report.effect is not Effect.ACTIVE:
        return USELESS
    return ACTS_TOGETHER if report.interacts_with else ACTS
