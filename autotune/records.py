"""The records that flow through a study and lie in its run directory, and what the worker reports.

Everything here is data: frozen, checked when read back, written as one JSON object a line. `SCHEMA_VERSION` counts
changes that older readers cannot follow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)

from autotune.flags import FlagSet
from autotune.noise import NoiseFloor
from autotune.stats import Estimate, Verdict

SCHEMA_VERSION = 1
# 1: first published form (2026-11).

REFERENCE_NUMBER = 0
"""`same_as` of a trial whose program is the reference's own."""

PREDICTED = "PREDICTED, NOT MEASURED"
"""Stands wherever a figure of a model is shown in the place of a measurement."""


def _settings(value: object) -> FlagSet:
    """Settings from what JSON or TOML holds: a table of names and plain values."""
    if isinstance(value, FlagSet):
        return value
    if not isinstance(value, dict) or not all(isinstance(v, str | bool | int | float) for v in value.values()):
        raise ValueError("a table of settings with text, boolean or number values")
    return FlagSet(value)


Settings = Annotated[
    InstanceOf[FlagSet],
    BeforeValidator(_settings),
    PlainSerializer(lambda v: dict(v), return_type=dict[str, str]),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
]


class Record(BaseModel):
    """Base of all records: immutable, and unknown fields are an error (another schema wrote them)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Stamped(Record):
    """A record of `records.jsonl`.

    Attributes:
        at_s: Seconds since the study began, over all its sessions, when the record was written.
        by: Name of the worker that wrote it, where several share the study.
    """

    at_s: float = 0.0
    by: str | None = None


class FailureKind(StrEnum):
    """Why a trial has no number; the words are shown to users and kept in records."""

    UNKNOWN_FLAG = "unknown_flag"
    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    HANG = "hang"
    WRONG_LOSS = "wrong_loss"
    NOT_APPLIED = "not_applied"
    WORKLOAD_ERROR = "workload_error"
    NO_RESULT = "no_result"
    LAUNCH = "launch"
    NODE_LOST = "node_lost"


class Objective(StrEnum):
    """What a study makes small; always as a ratio, candidate over reference."""

    STEP_TIME = "step_time"
    MEMORY = "memory"
    COMPILE_TIME = "compile_time"
    ENERGY = "energy"

    @property
    def words(self) -> str:
        """As shown to users."""
        return self.replace("_", " ")


class Failure(Record):
    """One failure: what kind, in which phase, in whose words, and where the whole log is."""

    kind: FailureKind
    message: str
    phase: str
    exit_status: int | None = None
    signal: str | None = None
    log: str | None = None
    last_lines: tuple[str, ...] = ()


class DeviceMemory(Record):
    """Memory of one device, in bytes: the most that was in use, and what the allocator may take if it says."""

    peak_bytes: int
    limit_bytes: int | None = None

    @property
    def share(self) -> float | None:
        """Peak over limit."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else None


class WorkerReport(Record):
    """What a worker says of itself once its program is compiled and warm.

    Attributes:
        fingerprint: Name of the compiled program; equal programs have equal names, whatever flags made them.
        compile_s: Seconds spent lowering and compiling the step; None for a program that does not tell.
        start_s: Seconds from the start of the process to readiness.
        losses: Loss of each of the first steps, from the agreed seed and data.
        grad_norms: Global gradient norm of the same steps.
        warmup_step_times_s: Duration of each warm-up step, in seconds; never part of an estimate.
        peak_bytes: Peak device memory, bytes, over the devices (host memory of the process on CPU).
    """

    fingerprint: str
    platform: str
    device_kind: str
    device_count: int
    process_count: int = 1
    compile_s: float | None = None
    start_s: float
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    dtype: str = "float32"
    warmup_step_times_s: tuple[float, ...]
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    device_memory: tuple[DeviceMemory, ...] = ()
    temp_bytes: int | None = None
    tokens_per_step: int | None = None
    flops_per_step: float | None = None
    param_count: int | None = None
    layer_bytes: dict[str, int] = Field(default_factory=dict)
    mesh: dict[str, int] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Arm(StrEnum):
    """Who ran a block."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"


class Pair(Record):
    """Two neighbouring blocks, one of each arm, in the order in which they ran.

    Attributes:
        reference_s: Duration of each step of the reference's block, in seconds.
        candidate_s: Likewise of the candidate's block.
        at_s: Seconds since the study began, over all its sessions.
        reference_j: Joules that the whole devices drew during the reference's block; None if nothing counted them.
        candidate_j: Likewise during the candidate's block.
    """

    index: int
    first: Arm
    reference_s: tuple[float, ...]
    candidate_s: tuple[float, ...]
    at_s: float
    reference_j: float | None = None
    candidate_j: float | None = None


class TrialStatus(StrEnum):
    """How a trial came to its result."""

    MEASURED = "measured"
    SAME_SET = "same_set"
    SAME_PROGRAM = "same_program"
    PREDICTED = "predicted"
    FAILED = "failed"


REFERENCE_NUMBER = 0
"""`same_as` of a trial whose program is the reference's own."""


class TrialConfig(Record):
    """One proposed flag set and who proposed it."""

    number: int
    settings: Settings
    origin: str
    params: dict[str, str] = Field(default_factory=dict)


class EnergyUse(Record):
    """Energy of the whole devices in the measured blocks, what they draw when idle included.

    Attributes:
        source: Who counted, in words.
        reference_step_j: Mean energy of one step of the reference, in joules.
        candidate_step_j: Likewise of the candidate.
        estimate: Candidate over reference, with the ordinary 95 % interval.
    """

    source: str
    reference_step_j: float
    candidate_step_j: float
    estimate: Estimate


class Comparison(Record):
    """Candidate against reference: estimate, verdict, and what both arms took.

    Attributes:
        reference_step_s: Median step of the reference in these pairs, in seconds.
        candidate_step_s: Median step of the candidate, in seconds.
        mode: ``turns`` (both resident, blocks in pairs) or ``sandwich`` (reference, candidate, reference, each a fresh
            run; two pairs with one candidate's run in common for each sandwich).
        warnings: What the machine did meanwhile that makes the figures doubtful, in words.
        energy: Energy of both arms; None where nothing counted it, or blocks were too short for the counters.
    """

    estimate: Estimate
    verdict: Verdict
    reference_step_s: float
    candidate_step_s: float
    pair_count: int
    mode: str
    stopped: str
    warnings: tuple[str, ...] = ()
    energy: EnergyUse | None = None


class PredictedStep(Record):
    """What a model says that a compiled program would take on GPUs that are not here. Never a measurement.

    Attributes:
        ratio: Predicted step time over the reference's, both from the same model.
        exposed_s: Communication that computing waits for.
        idle_s: The GPU has nothing to do and waits for no collective.
        mfu: Model FLOPs over the peak of the matrix units.
    """

    target: str
    topology: str
    ratio: float
    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    mfu: float | None = None
    tokens_per_s: float | None = None
    peak_bytes: int | None = None
    compile_s: float | None = None


class TrialResult(Stamped):
    """What became of one trial; the raw samples lie beside it in `directory`.

    Attributes:
        compiled_key: Names what would run, as the screen compiled it without a device: the program and the settings
            that are read at run time. Sets with one key need one measurement.
        prediction: In place of `comparison` where the study predicts.
    """

    kind: Literal["trial"] = "trial"
    number: int
    settings: Settings
    origin: str
    status: TrialStatus
    params: dict[str, str] = Field(default_factory=dict)
    comparison: Comparison | None = None
    same_as: int | None = None
    failure: Failure | None = None
    worker: WorkerReport | None = None
    program_key: str | None = None
    compiled_key: str | None = None
    prediction: PredictedStep | None = None
    duration_s: float = 0.0
    directory: str | None = None

    @property
    def is_the_default(self) -> bool:
        """Whether the program turned out to be the reference's own."""
        return self.status is TrialStatus.SAME_PROGRAM and self.same_as == REFERENCE_NUMBER

    @property
    def tokens_per_j(self) -> float | None:
        """Tokens that one joule trains; None where energy or tokens are not known."""
        tokens = self.worker.tokens_per_step if self.worker else None
        energy = self.comparison.energy if self.comparison else None
        return tokens / energy.candidate_step_j if tokens and energy else None


class ScreenRecord(Stamped):
    """What compiling alone said before anything was measured, or why the study is not screened.

    Attributes:
        report: An `autotune.screen.classify.ScreenReport` as plain data; None if nothing could be compiled.
        reason: Why there is no report.
        prediction: Of the reference, where the study predicts.
    """

    kind: Literal["screen"] = "screen"
    target: str
    topology: str
    versions: dict[str, str] = Field(default_factory=dict)
    report: dict[str, Any] | None = None
    reason: str = ""
    prediction: PredictedStep | None = None
    duration_s: float = 0.0


class SessionRecord(Stamped):
    """One start of the driver; its budgets go on where the last session's stopped."""

    kind: Literal["session"] = "session"
    started: str
    pid: int
    host: str
    asked_trials: int
    command: tuple[str, ...] = ()


class SpanRecord(Stamped):
    """One end of the driver: how long it ran, and how much of that was its own work."""

    kind: Literal["span"] = "span"
    wall_s: float
    waited_s: float
    ended: str


class FloorResult(Stamped):
    """The noise floor: the reference against a second process of itself."""

    kind: Literal["floor"] = "floor"
    floor: NoiseFloor
    reference: WorkerReport
    comparison: Comparison
    provenance: dict[str, Any]
    loss_tolerance: float
    directory: str


class ConfirmRun(Stamped):
    """One fresh pair of processes of one finalist, or the failure that took its place.

    Attributes:
        stage: ``confirm`` for finalists, ``final`` for the minimal set, ``full`` for the set before minimisation.
        log_ratio: Logarithm of candidate over reference step time, estimated from this pair of processes alone.
        others: Likewise of the study's other objectives; None if step time is its only one.
    """

    kind: Literal["confirm_run"] = "confirm_run"
    stage: str
    settings: Settings
    trial: int
    repeat: int
    log_ratio: float | None = None
    pair_count: int
    failure: Failure | None = None
    reference_step_s: float | None = None
    candidate_step_s: float | None = None
    energy: EnergyUse | None = None
    others: dict[Objective, float] | None = None
    duration_s: float = 0.0
    directory: str | None = None


class FinalistResult(Stamped):
    """A finalist's verdict over fresh processes.

    Attributes:
        estimate: Ratio with its ordinary 95 % interval over processes.
        corrected: The same with the interval widened for the number of finalists; this one decides.
        others: The study's other objectives, with intervals widened alike; None if step time is its only one.
    """

    kind: Literal["finalist"] = "finalist"
    stage: str
    trial: int
    settings: Settings
    estimate: Estimate | None = None
    corrected: Estimate | None = None
    verdict: Verdict
    process_count: int
    failure: Failure | None = None
    others: dict[Objective, Estimate] | None = None


class AblationResult(Stamped):
    """One setting left out of the winner, measured against the whole winner: does the setting pay?"""

    kind: Literal["ablation"] = "ablation"
    settings: Settings
    left_out: str
    comparison: Comparison | None = None
    failure: Failure | None = None
    kept: bool
    reason: str
    duration_s: float = 0.0
    directory: str | None = None


class Outcome(StrEnum):
    """How a study ended; ``predicted``: nothing was measured, whatever the model says."""

    WINNER = "winner"
    FRONT = "front"
    NOTHING_BEATS_THE_DEFAULT = "nothing_beats_the_default"
    NOTHING_RAN = "nothing_ran"
    PREDICTED = "predicted"


class ConclusionRecord(Stamped):
    """The study's one sentence, and the set that earned it if there is one.

    Attributes:
        front: Trials that are proven to trade one objective for another, fastest first; None in a study by step time
            alone. `settings`, `trial` and `estimate` are then of the fastest, if it beats the default's step time.
    """

    kind: Literal["conclusion"] = "conclusion"
    outcome: Outcome
    sentence: str
    settings: Settings | None = None
    trial: int | None = None
    estimate: Estimate | None = None
    prediction: PredictedStep | None = None
    front: tuple[int, ...] | None = None
    soaked_s: float | None = None
    trial_count: int
    ended: str
    provenance: dict[str, Any] = Field(default_factory=dict)


class SoakRecord(Stamped):
    """The winner's long run under a watchdog.

    Attributes:
        asked_s: Seconds of steps that were asked for.
        asked_steps: Fewest steps that were asked for.
        steps_s: Seconds of steps that were run.
        starts: Processes that it took; more than one where a program ends by itself.
        drift: Median step of the last quarter over that of the first.
        failure: What ended it early; a winner that fails here is none.
    """

    kind: Literal["soak"] = "soak"
    settings: Settings
    asked_s: float
    asked_steps: int
    steps_s: float
    step_count: int
    starts: int
    drift: float | None = None
    failure: Failure | None = None
    duration_s: float = 0.0
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
    trial: int
    failure_kind: FailureKind
    settings: Settings
    smallest: Settings
    is_minimal: bool
    starts: int
    duration_s: float = 0.0
    directory: str | None = None


class IncidentRecord(Stamped):
    """Something that happened to the tuner, not to a trial: the reference died and was started again."""

    kind: Literal["incident"] = "incident"
    what: str


AnyRecord = Annotated[
    TrialResult
    | ScreenRecord
    | SessionRecord
    | SpanRecord
    | FloorResult
    | ConfirmRun
    | FinalistResult
    | AblationResult
    | ConclusionRecord
    | SoakRecord
    | BlameRecord
    | IncidentRecord,
    Field(discriminator="kind"),
]

RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)
"""Reads and checks one line of `records.jsonl`."""
