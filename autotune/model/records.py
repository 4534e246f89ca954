"""The records that flow through a study and lie in its run directory, and what the worker reports.

Everything here is data: frozen, checked when read back, written as one JSON object a line. `SCHEMA_VERSION` counts
changes that older readers cannot follow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    TypeAdapter,
)

from autotune.model.ablation import AblationResult as AblationResult
from autotune.model.artefacts import Artefact
from autotune.model.effects import EffectsRecord
from autotune.model.gpus import GpusDuring
from autotune.model.kernels import Kernels, KernelSpread
from autotune.model.long_run import SoakArms
from autotune.model.losses import LossCheck
from autotune.model.measurement import (
    Comparison,
    EnergyUse,
    Failure,
    FailureKind,
    Settings,
    Stamped,
    WorkerReport,
    WorkPerStep,
)
from autotune.model.numbers import Amount, Count, Elapsed, Facts, LogRatio, Ratio, StepTime
from autotune.model.promise import Promise
from autotune.model.trial import TrialResult
from autotune.stats import Estimate, LossSpread, NoiseFloor, TotalTime, Verdict

SCHEMA_VERSION = 2
# 1: first published form (2026-11).


class ScreenRecord(Stamped):
    """What compiling alone said before anything was measured, or why the study is not screened.

    Attributes:
        report: An `autotune.compiler.verdicts.ScreenReport` as plain data; None if nothing could be compiled.
        reason: Why there is no report.
    """

    kind: Literal["screen"] = "screen"
    target: str
    topology: str
    versions: dict[str, str] = Field(default_factory=dict)
    report: dict[str, Any] | None = None
    reason: str = ""
    duration_s: Elapsed = 0.0


class SessionRecord(Stamped):
    """One start of the driver; its budgets go on where the last session's stopped.

    Attributes:
        identity: Of the study (`StudySpec.identity`): records can be told from another study's without `study.json`.
    """

    kind: Literal["session"] = "session"
    identity: str | None = None
    started: str
    pid: Count
    host: str
    asked_trials: Count
    command: tuple[str, ...] = ()


class SpanRecord(Stamped):
    """One end of the driver: how long it ran, and how much of that its own processor did nothing."""

    kind: Literal["span"] = "span"
    wall_s: Elapsed
    waited_s: Elapsed
    ended: str


class LedgerRecord(Stamped):
    """What the study has used up so far, all sessions together; written now and then, for a driver may be killed.

    Attributes:
        device_s: Seconds of devices that stood ready for it, summed over them: what a cluster charges.
        lanes: Lanes there are now.
    """

    kind: Literal["ledger"] = "ledger"
    device_s: float
    lanes: tuple[str, ...] = ()


class FloorResult(Stamped):
    """The noise floor: the reference against other processes of itself.

    Attributes:
        loss_tolerance: Largest relative difference of loss and gradient norm between any of them and the living one.
        rounding: Likewise to the reference in another rounding; None where that did not run.
        loss_spread: How far references were apart, by step, through blocks too; what candidates are held to. Older
            runs have none.
        promise: What the study's proofs can find here; of its first noise floor, where times are known and real.
        kernels: What XLA's autotuner chose in its processes; None where fewer than two told.
    """

    kind: Literal["floor"] = "floor"
    floor: NoiseFloor
    reference: WorkerReport
    comparison: Comparison
    provenance: Facts
    loss_tolerance: Amount
    rounding: Amount | None = None
    loss_spread: LossSpread | None = None
    promise: Promise | None = None
    kernels: KernelSpread | None = None
    directory: str


class ConfirmRun(Stamped):
    """One fresh pair of processes of one finalist, or the failure that took its place.

    Attributes:
        stage: ``confirm`` for finalists, ``final`` for the minimal set, ``full`` for the set before minimisation,
            ``pgle`` for a set with its profile against the same without; ``gain`` and ``alone`` for what a proven set
            is measured by once more.
        log_ratio: Logarithm of candidate over reference step time, estimated from this pair of processes alone.
        work: What these two processes said that a step of them does, where it differs; the ratios are then per unit.
        loss: How their losses were compared, or that they were not.
        against: What it was compared with; None is the study's reference.
        is_alone: Whether each ran with nothing beside it, one after the other, though the study measures in turns.
        total: Total times and stalls of both arms over the raw pairs; runs of older versions have none.
        reference_kernels: What XLA's autotuner chose in the reference's process; None where it did not tell.
        candidate_kernels: Likewise in the candidate's.
        warnings: What the machine did meanwhile that makes the figures doubtful, in words; None if nothing.
        during: What the GPUs did while the blocks of either arm ran; None where they do not tell.
    """

    kind: Literal["confirm_run"] = "confirm_run"
    stage: str
    settings: Settings
    trial: Count
    repeat: Count
    log_ratio: LogRatio | None = None
    pair_count: Count
    failure: Failure | None = None
    reference_step_s: StepTime | None = None
    candidate_step_s: StepTime | None = None
    energy: EnergyUse | None = None
    work: WorkPerStep | None = None
    loss: LossCheck | None = None
    against: Settings | None = None
    is_alone: bool = False
    total: TotalTime | None = None
    reference_kernels: Kernels | None = None
    candidate_kernels: Kernels | None = None
    warnings: tuple[str, ...] | None = None
    during: GpusDuring | None = None
    duration_s: Elapsed = 0.0
    directory: str | None = None


ONCE_MORE = ("gain", "alone")
"""Stages that measure what is proven once more; they decide nothing but may speak against it."""


class ProofRecord(Stamped):
    """The plan of one proof, made before its first pair of processes: what it may err, over all looks at it.

    Attributes:
        stage: As in `ConfirmRun`.
        base: Pairs of processes within which most of the error is spent; see `autotune.stats.ProofPlan`.
        hurdle: One-sided error at which the set goes on to what comes next.
        claim: One-sided error of what is said of it.
        first: Number of the first pair that counts: those before were seen before the plan was made.
    """

    kind: Literal["proof"] = "proof"
    stage: str
    settings: Settings
    base: Count
    hurdle: Annotated[float, Field(gt=0, lt=0.5)]
    claim: Annotated[float, Field(gt=0, lt=0.5)]
    first: Count = 0


class FinalistResult(Stamped):
    """A finalist's verdict over fresh processes.

    Attributes:
        estimate: Ratio with its ordinary 95 % interval over processes; what stopped the proof has chosen it, too.
        corrected: The same with the interval that holds over all looks and all sets of the stage; this one decides.
        goes_on: Whether the set holds at the error of the plan's hurdle.
        most: Pairs of processes after which the proof would have ended in any case; None of what has no cap.
        reason: Why it ended, in plain words.
        veto: Why the set is no winner although it is faster by its typical step; None if nothing speaks against it.
        work: As its processes told it, where it differs from the reference's.
    """

    kind: Literal["finalist"] = "finalist"
    stage: str
    trial: Count
    settings: Settings
    estimate: Estimate | None = None
    corrected: Estimate | None = None
    verdict: Verdict
    process_count: Count
    failure: Failure | None = None
    work: WorkPerStep | None = None
    goes_on: bool = False
    most: Count | None = None
    reason: str = ""
    veto: str | None = None

    @property
    def is_vetoed(self) -> bool:
        """Whether something speaks against the set, whatever its step time."""
        return self.failure is not None or self.veto is not None

    @property
    def is_passed(self) -> bool:
        """Whether it goes on to what comes next."""
        return self.goes_on and not self.is_vetoed


class ProfileRecord(Stamped):
    """What the instructions of a set's program take: the profile that XLA's scheduler reads in the next compilation.

    Attributes:
        settings: The set that was profiled.
        steps: Steps that were profiled.
        profile: None where there is none.
        failure: Why there is none, if its process failed.
        reason: Why there is none otherwise.
    """

    kind: Literal["profile"] = "profile"
    settings: Settings
    steps: Count
    profile: Artefact | None = None
    failure: Failure | None = None
    reason: str = ""
    duration_s: Elapsed = 0.0
    directory: str | None = None


class Outcome(StrEnum):
    """How a study ended.

    ``nothing_beats_the_default``: gains above the bound that its sentence tells are ruled out; ``inconclusive``: they
    are not.
    """

    WINNER = "winner"
    NOTHING_BEATS_THE_DEFAULT = "nothing_beats_the_default"
    INCONCLUSIVE = "inconclusive"
    NOTHING_RAN = "nothing_ran"


class ConclusionRecord(Stamped):
    """The study's one sentence, and the set that earned it if there is one."""

    kind: Literal["conclusion"] = "conclusion"
    outcome: Outcome
    sentence: str
    settings: Settings | None = None
    trial: Count | None = None
    estimate: Estimate | None = None
    soaked_s: Elapsed | None = None
    trial_count: Count
    ended: str
    provenance: Facts = Field(default_factory=dict)


class SoakRecord(Stamped):
    """The winner's long run under a watchdog.

    Attributes:
        asked_s: Seconds of steps that were asked for.
        asked_steps: Fewest steps that were asked for.
        steps_s: Seconds of steps that were run.
        starts: Processes that it took; more than one where a program ends by itself.
        drift: Median step of the last quarter over that of the first.
        loss: Its loss against the reference's after as much work, where dtype or batch differ.
        failure: What ended it early, or what both arms say against it; a winner that fails here is none.
        kernels: The autotuner's results of its last process; None where none were kept.
        arms: What both arms did; soaks of older versions, and failed ones, have none.
    """

    kind: Literal["soak"] = "soak"
    settings: Settings
    asked_s: Elapsed
    asked_steps: Count
    steps_s: Elapsed
    step_count: Count
    starts: Count
    drift: Ratio | None = None
    loss: LossCheck | None = None
    failure: Failure | None = None
    kernels: Artefact | None = None
    arms: SoakArms | None = None
    duration_s: Elapsed = 0.0
    directory: str | None = None


class BlameRecord(Stamped):
    """The smallest part of a failing set that still fails in the same way.

    Attributes:
        settings: The whole set of the trial.
        smallest: Its part.
        is_minimal: Whether no setting of it can be left out, as far as single starts tell.
        starts: Processes that were started to find it.
    """

    kind: Literal["blame"] = "blame"
    trial: Count
    failure_kind: FailureKind
    settings: Settings
    smallest: Settings
    is_minimal: bool
    starts: Count
    duration_s: Elapsed = 0.0
    directory: str | None = None


class IncidentRecord(Stamped):
    """Something that happened to the tuner, not to a trial: the reference died and was started again."""

    kind: Literal["incident"] = "incident"
    what: str


AnyRecord = Annotated[
    TrialResult
    | EffectsRecord
    | ScreenRecord
    | SessionRecord
    | SpanRecord
    | LedgerRecord
    | FloorResult
    | ConfirmRun
    | ProofRecord
    | FinalistResult
    | AblationResult
    | ProfileRecord
    | ConclusionRecord
    | SoakRecord
    | BlameRecord
    | IncidentRecord,
    Field(discriminator="kind"),
]

RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)
"""Reads and checks one line of `records.jsonl`."""
