"""What a process, a pair of blocks and a comparison tell: the parts that records are made of."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Protocol

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
)

from autotune.model.base import Record as Record
from autotune.model.flags import FlagSet
from autotune.model.gpus import GpusDuring, GpuState
from autotune.model.kernels import Kernels
from autotune.model.numbers import (
    Amount,
    AtLeastOne,
    Count,
    Elapsed,
    Finite,
    Joules,
    StepJoules,
    StepTime,
)
from autotune.model.secrets import strike_text
from autotune.stats import Estimate


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
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": ["string", "boolean", "number"]}}, mode="validation"
    ),
]


class Stamped(Record):
    """A record of `records.jsonl`.

    Attributes:
        at_s: Seconds since the study began, over all its sessions, when the record was written.
        by: Name of the lane that it was measured on, where the study has several.
    """

    at_s: Elapsed = 0.0
    by: str | None = None


class FailureKind(StrEnum):
    """Why a trial has no number; the words are shown to users and kept in records."""

    UNKNOWN_FLAG = "unknown_flag"
    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    HANG = "hang"
    WRONG_LOSS = "wrong_loss"
    LEAK = "leak"
    SLOWER_IN_TOTAL = "slower_in_total"
    SLOWS_DOWN = "slows_down"
    NOT_APPLIED = "not_applied"
    WORKLOAD_ERROR = "workload_error"
    NO_RESULT = "no_result"
    LAUNCH = "launch"
    NODE_LOST = "node_lost"


class Failure(Record):
    """One failure: what kind, in which phase, in whose words, and where the whole log is.

    What a program prints as it ends is recorded and shown, so secrets that can be told there are struck out.
    """

    kind: FailureKind
    message: str
    phase: str
    exit_status: int | None = None
    signal: str | None = None
    log: str | None = None
    last_lines: tuple[str, ...] = ()

    @field_validator("message")
    @classmethod
    def _strike_message(cls, message: str) -> str:
        return strike_text(message)

    @field_validator("last_lines")
    @classmethod
    def _strike_lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(strike_text, lines))


class DeviceMemory(Record):
    """Memory of one device, in bytes: the most that was in use, and what the allocator may take if it says."""

    peak_bytes: Count
    limit_bytes: Count | None = None

    @property
    def share(self) -> float | None:
        """Peak over limit."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else None


NOT_TOLD = "not told"
"""Kind of the devices of a program that does not say on which it runs."""


class WorkerReport(Record):
    """What a worker says of itself once its program is compiled and warm.

    Attributes:
        fingerprint: Name of the compiled program; equal programs have equal names, whatever flags made them.
        program_problem: Why the compiled program of a command is not known, so that `fingerprint` names its settings;
            None where it is.
        compile_s: Seconds spent lowering and compiling the step; of a command XLA's, for all that it compiled; None
            for a program of which that is not known.
        start_s: Seconds from the start of the process to readiness.
        losses: Loss of each of the first steps, from the agreed seed and data.
        grad_norms: Global gradient norm of the same steps.
        dtype: In which a step computes.
        loss_dtype: In which its loss is told; None where that is not known.
        norm_dtype: Likewise of its gradient norm.
        attention: How a preset's attention is computed on its devices (xla, cudnn, ring); empty if it does not tell.
        warmup_step_times_s: Duration of each warm-up step, in seconds; never part of an estimate.
        peak_bytes: Peak device memory, bytes, over the devices (host memory of the process on CPU; of a command there:
            what the largest of its compiled programs needs).
        kernels: What XLA's autotuner chose in this process; None where it left no results.
        versions: Of JAX, of the libraries that the process had loaded when its steps ran, and of the GPUs' driver.
        packages: Folder from which a user's program had jaxlib, ``~`` for the user's home; None where it is not told.
        gpus: On which its steps ran; None where nothing tells.
    """

    fingerprint: str
    platform: str
    device_kind: str
    device_count: AtLeastOne
    process_count: AtLeastOne = 1
    program_problem: str | None = None
    compile_s: Elapsed | None = None
    start_s: Elapsed
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    dtype: str = "float32"
    loss_dtype: str | None = None
    norm_dtype: str | None = None
    attention: str = ""
    warmup_step_times_s: tuple[Elapsed, ...]
    peak_bytes: Count | None = None
    limit_bytes: Count | None = None
    device_memory: tuple[DeviceMemory, ...] = ()
    temp_bytes: Count | None = None
    tokens_per_step: Count | None = None
    flops_per_step: Amount | None = None
    param_count: Count | None = None
    layer_bytes: dict[str, Count] = Field(default_factory=dict)
    mesh: dict[str, Count] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    packages: str | None = None
    gpus: tuple[GpuState, ...] | None = None
    warnings: tuple[str, ...] = ()
    kernels: Kernels | None = None


class WorkloadFacts(Protocol):
    """What a search space is built from: told by a process that runs the workload, or by its compiled program."""

    @property
    def device_count(self) -> int | None:
        """Devices of all processes; None if that is not known."""

    @property
    def mesh(self) -> Mapping[str, int]:
        """Axes of the device mesh with their sizes."""

    @property
    def layer_bytes(self) -> Mapping[str, int]:
        """Bytes of ``weights`` and ``gradients`` of one layer, as far as they are known."""


class Arm(StrEnum):
    """Who ran a block."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"


class SameStep(Record):
    """What both arms told of one step: the same for both, if they compute the same.

    Attributes:
        step: Counted from 0 since a process began.
        reference: Loss of the reference there, in this pair or, where it has lived longer, in an earlier one.
        candidate: Loss of the candidate there.
        reference_norm: Global gradient norm of the reference, where it is told.
        candidate_norm: Likewise of the candidate.
    """

    step: Count
    reference: Finite
    candidate: Finite
    reference_norm: Finite | None = None
    candidate_norm: Finite | None = None


class Pair(Record):
    """Two neighbouring blocks, one of each arm, in the order in which they ran.

    Attributes:
        reference_s: Duration of each counted step of the reference's block, in seconds.
        candidate_s: Likewise of the candidate's block.
        reference_settling_s: Of each step before those, not counted, for the device had not come to rest yet after the
            switch; None where every step counts.
        candidate_settling_s: Likewise of the candidate's block.
        at_s: Seconds since the study began, over all its sessions.
        reference_j: Joules that the whole devices drew during the reference's block; None if nothing counted them.
        candidate_j: Likewise during the candidate's block.
        loss: What both told of the step that ended the candidate's block; None where one of them told nothing of it.
    """

    index: Count
    first: Arm
    reference_s: Annotated[tuple[StepTime, ...], Field(min_length=1)]
    candidate_s: Annotated[tuple[StepTime, ...], Field(min_length=1)]
    reference_settling_s: tuple[StepTime, ...] | None = None
    candidate_settling_s: tuple[StepTime, ...] | None = None
    at_s: Elapsed
    reference_j: Joules | None = None
    candidate_j: Joules | None = None
    loss: SameStep | None = None

    def ran_s(self, arm: Arm) -> tuple[float, ...]:
        """Seconds of all steps of an arm's block, in order: those that settled the device, and those that count."""
        if arm is Arm.REFERENCE:
            return (*(self.reference_settling_s or ()), *self.reference_s)
        return (*(self.candidate_settling_s or ()), *self.candidate_s)

    @property
    def lasted_s(self) -> float:
        """Seconds of both blocks, every step of them."""
        return sum(sum(self.ran_s(arm)) for arm in Arm)


class WorkPerStep(Record):
    """What one step of each arm gets done, in the study's unit (tokens), where that differs.

    Attributes:
        reference: Units in a step of the reference.
        candidate: Units in a step of the candidate.
    """

    reference: AtLeastOne
    candidate: AtLeastOne

    @property
    def ratio(self) -> float:
        """Candidate over reference; time per unit is step time over this."""
        return self.candidate / self.reference


class EnergyUse(Record):
    """Mean energy of one step of both arms, in joules: of the whole GPUs, what they draw when idle included."""

    reference_step_j: StepJoules
    candidate_step_j: StepJoules


class Comparison(Record):
    """Candidate against reference in one pair of processes: the estimate, and what both arms took.

    It holds no word of judgement: that follows from the estimate (`autotune.stats.outlook_of`).

    Attributes:
        reference_step_s: Median step of the reference in these pairs, in seconds.
        candidate_step_s: Median step of the candidate, in seconds.
        mode: ``turns`` (both resident, blocks in pairs) or ``sandwich`` (reference, candidate, reference, each a fresh
            run; two pairs with one candidate's run in common for each sandwich).
        warnings: What the machine did meanwhile that makes the figures doubtful, in words.
        energy: Energy of both arms; None where nothing counted it, or blocks were too short for the counters.
        during: What the GPUs did while the blocks of either arm ran; None where they do not tell.
        work: Where a step of one arm does more than one of the other: then `estimate` is of time per unit of work. Step
            times stay those of steps.
    """

    estimate: Estimate
    reference_step_s: StepTime
    candidate_step_s: StepTime
    pair_count: Count
    mode: str
    stopped: str
    warnings: tuple[str, ...] = ()
    energy: EnergyUse | None = None
    during: GpusDuring | None = None
    work: WorkPerStep | None = None

    @property
    def work_ratio(self) -> float:
        """Work of a step of the candidate over one of the reference."""
        return self.work.ratio if self.work is not None else 1.0
