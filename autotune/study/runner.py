"""Does units of work on one lane: the far side of `autotune.study.lanes`, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path

from autotune.machine import describe_machine
from autotune.model import (
    AblationResult,
    AnyRecord,
    Comparison,
    Failure,
    FailureKind,
    FlagSet,
    FloorResult,
    LaunchError,
    LossCheck,
    StudySpec,
    WorkerReport,
    figures_of,
    kernel_spread,
)
from autotune.rundir import Folders
from autotune.stats import DEFAULT_PROOF_SIZE, LossSpread, SequentialPlan, Verdict, judge
from autotune.study.alone import SANDWICH, OneAtATime
from autotune.study.bench import Bench, Desk, ReferenceFailed
from autotune.study.blame import minimise_failure
from autotune.study.comparer import Comparer, MeasuredFloor, sequential
from autotune.study.loss_gate import with_blocks
from autotune.study.measure import measure_trial
from autotune.study.profiling import profile_alone
from autotune.study.soak import soak_alone
from autotune.study.traces import ROUNDINGS, known_at_start, not_finite, spread_of_floor, spread_of_rounding
from autotune.study.turns import InTurns
from autotune.study.units import AblationUnit, Assignment, FloorUnit, PairUnit, ProfileUnit, SoakUnit, TrialUnit
from autotune.workers import Launcher, WorkerFailed

MOST_LOST_IN_A_ROW = 3
"""Units in a row over which the reference did not stay alive, after which the lane is of no use."""


class Runner:
    """One lane's bench, and how it compares.

    Args:
        spec: The study.
        folders: Where logs go.
        launcher: Starts workers.
        desk: Told what is under way.
        is_shared: Other lanes may be at work on the same machine.

    Attributes:
        comparer: How it compares; may change once the noise floor has told what fits into memory.
    """

    def __init__(
        self, spec: StudySpec, folders: Folders, launcher: Launcher, desk: Desk, *, is_shared: bool = False
    ) -> None:
        self._spec = spec
        self._folders = folders
        self._plan = SequentialPlan(cap=spec.measure.pairs_cap)
        self._lost_in_a_row = 0
        self.bench = Bench(spec, folders, launcher, desk, is_shared=is_shared)
        self.comparer = self._open_comparer(spec.measure.mode)

    def _open_comparer(self, mode: str) -> Comparer:
        """How a study compares: as it asks, or as its workload allows."""
        alone = mode == SANDWICH or (mode == "auto" and not self._spec.workload.takes_turns)
        return OneAtATime(self.bench) if alone else InTurns(self.bench)

    def do(self, assignment: Assignment) -> AnyRecord:
        """Does one unit; a failing set is data, never an exception.

        Raises:
            LaunchError: If the reference cannot be kept alive here.
            RunDirectoryError: If the logs cannot be written.
        """
        unit, bench = assignment.unit, self.bench
        started = time.monotonic()
        bench.begin(assignment.lane, assignment.at_s)
        bench.runtime = frozenset(assignment.runtime)
        bench.programs.update(assignment.programs)
        bench.loss_tolerance = assignment.loss_tolerance
        bench.loss_spread = assignment.loss_spread or known_at_start(assignment.loss_tolerance)
        bench.spread, bench.artefacts = assignment.spread, assignment.artefacts
        if assignment.limits is not None:
            bench.limit_times(assignment.limits)
        if assignment.mode is not None and assignment.mode != self.comparer.mode:
            self.comparer = self._open_comparer(assignment.mode)
        if isinstance(unit, PairUnit | AblationUnit | SoakUnit | ProfileUnit) or self.comparer.mode == SANDWICH:
            bench.release_reference()  # proofs start fresh processes of both arms, and nothing else may run beside
        folder = self._folders.folder(*assignment.folder)
        try:
            record = self._record(assignment, folder)
        except ReferenceFailed as error:
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= MOST_LOST_IN_A_ROW or isinstance(unit, FloorUnit):
                raise LaunchError(
                    f"the reference must stay alive but {error.failure.message}. Look at "
                    f"{'/'.join(assignment.folder)} and floor/reference/worker.log, then run the same command again"
                ) from error
            record = unit.failed(error.failure)
        else:
            self._lost_in_a_row = 0
        done = {"directory": "/".join(assignment.folder)}
        if not isinstance(unit, FloorUnit):
            done["duration_s"] = round(time.monotonic() - started, 3)  # type: ignore[assignment]
        return record.model_copy(update=done)

    def _record(self, assignment: Assignment, folder: Path) -> AnyRecord:
        unit, name = assignment.unit, assignment.name
        if isinstance(unit, FloorUnit):
            return self._floor(folder)
        if isinstance(unit, TrialUnit):
            return measure_trial(self.bench, self.comparer, self._plan, unit, folder, name=name)
        if isinstance(unit, PairUnit):
            return self._pair(unit, folder, name)
        if isinstance(unit, AblationUnit):
            return self._ablation(unit, folder, name)
        if isinstance(unit, SoakUnit):
            return soak_alone(self.bench, unit, folder)
        if isinstance(unit, ProfileUnit):
            return profile_alone(self.bench, unit, folder)
        return minimise_failure(self.bench, unit, folder, alone=self.comparer.mode == SANDWICH)

    def close(self) -> None:
        """Ends every process of the lane."""
        self.bench.close()

    # ------------------------------------------------------------------ units

    def _floor(self, folder: Path) -> FloorResult:
        """The reference against other processes of itself."""
        bench = self.bench
        found: MeasuredFloor | None = None
        while found is None:
            try:
                found = self.comparer.floor(folder, plan=self._plan)
            except ReferenceFailed:
                raise
            except WorkerFailed as error:
                if error.failure.kind is FailureKind.WRONG_LOSS:
                    raise not_finite(error.failure.message) from error
                if error.failure.phase != "step":
                    raise LaunchError(
                        f"a second reference must run beside the first but did not: {error}; its log is "
                        f"{error.failure.log}. If both do not fit in memory together, let them run one at a time "
                        '(measure.mode = "auto" or "sandwich")'
                    ) from error
                bench.lose_reference(error)
        if found.comparison.mode != self.comparer.mode:
            self.comparer = self._open_comparer(found.comparison.mode)
        spread = spread_of_floor([found.reference, *found.seconds], found.pairs)
        rounding = self._rounding(found, folder)
        return FloorResult(
            floor=found.noise,
            reference=found.reference,
            comparison=found.comparison,
            provenance=describe_machine(),
            loss_tolerance=found.drift,
            rounding=rounding.seen(len(found.reference.losses)) if rounding.is_rounded else None,
            loss_spread=spread.joined(rounding),
            kernels=kernel_spread([r.kernels for r in (found.reference, *found.seconds)], found.log_times),
            directory=self._folders.relative(folder),
        )

    def _rounding(self, found: MeasuredFloor, folder: Path) -> LossSpread:
        """How far the reference in another rounding is off, over the steps that the floor's reference told."""
        bench = self.bench
        beside = self._folders.folder(*Path(self._folders.relative(folder)).parts, "rounding")

        def look(settings: FlagSet, alone: bool) -> LossSpread:
            with contextlib.closing(bench.start(settings, beside, alone=alone)) as worker:
                return spread_of_rounding(self._spec, worker, found.reference, found.pairs)

        for settings in ROUNDINGS:
            try:
                return bench.where_it_fits(functools.partial(look, settings), alone=self.comparer.mode == SANDWICH)
            except WorkerFailed as error:
                bench.desk.incident(f"what rounding does to the loss is not known from {settings}: {error}"[:300])
        return LossSpread()

    def _pair(self, unit: PairUnit, folder: Path, name: str) -> AnyRecord:
        """One fresh pair of processes: its figures, or its failure."""
        loss: LossCheck | None = None

        def inspect(reference: WorkerReport, candidate: WorkerReport) -> Failure | None:
            nonlocal loss
            checked = self.bench.check_loss(unit.settings, reference, candidate)
            loss = checked if isinstance(checked, LossCheck) else None
            return checked if isinstance(checked, Failure) else None

        pairs = unit.pairs or DEFAULT_PROOF_SIZE
        comparer = OneAtATime(self.bench, blocks=pairs) if unit.is_alone else self.comparer
        try:
            found = comparer.fresh_pair(
                unit.settings, folder, name=name, pairs=pairs, against=unit.against, inspect=inspect
            )
        except ReferenceFailed:
            raise
        except WorkerFailed as error:
            return unit.failed(error.failure)
        if (figures := found.comparison) is None:
            assert found.settled is not None
            return unit.failed(found.settled)
        return unit.base().model_copy(
            update={
                **figures_of(found.pairs, figures.work),
                "energy": figures.energy,
                "energy_problem": figures.energy_problem,
                "warnings": figures.warnings or None,
                "during": figures.during,
                "work": figures.work,
                "loss": with_blocks(loss, found.pairs, found.reference, self.bench.loss_spread),
                "reference_kernels": found.reference.kernels,
                "candidate_kernels": found.candidate.kernels,
                "is_alone": unit.is_alone or figures.mode != self.comparer.mode,
            }
        )

    def _ablation(self, unit: AblationUnit, folder: Path, name: str) -> AblationResult:
        """A set without one setting, or several, against the whole set."""
        bench, settings, min_effect = self.bench, unit.settings, self._spec.measure.min_effect
        less = unit.rest

        def is_one_program(whole: WorkerReport, without: WorkerReport) -> bool | None:
            return bench.program_key(settings, whole) == bench.program_key(less, without) or None

        rule = sequential(self._plan, min_effect=min_effect, incumbent=None, spread=bench.spread, most=unit.most)
        base = AblationResult(settings=settings, left_out=unit.left_out, kept=True, reason="")
        try:
            found = self.comparer.compare(less, folder, name=name, rule=rule, against=settings, inspect=is_one_program)
        except WorkerFailed as error:
            return base.model_copy(update={"failure": error.failure, "reason": "the rest does not run without it"})
        kept, reason = pays(found.comparison, min_effect)
        return base.model_copy(update={"comparison": found.comparison, "kept": kept, "reason": reason})


def pays(comparison: Comparison | None, min_effect: float) -> tuple[bool, str]:
    """Whether a setting stays, from what leaving it out does (None: nothing, the program is the same), and why."""
    if comparison is None:
        return False, "the program is the same without it"
    # Of the set without it, in two processes: no proof either.
    found = judge(comparison.estimate, min_effect=min_effect)
    if found is Verdict.SLOWER:
        return True, "it seems to pay"
    if found is Verdict.UNRESOLVED and comparison.estimate.ratio > 1 + min_effect:
        return True, "not settled, but it pays by its estimate"
    return False, "no sign that it pays"
