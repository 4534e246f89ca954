"""What one comparison measures: worker reports, GPUs, pairs of blocks, losses, energy, estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

from autotune.model.flags import FlagSet
from autotune.model.kernels import Kernels
from autotune.model.numbers import (
    Amount,
    AtLeastOne,
    Change,
    Count,
    Elapsed,
    Finite,
    Joules,
    Record,
    StepJoules,
    StepTime,
)
from autotune.model.redaction import redact_text
from autotune.model.turn_sizes import TurnSizes
from autotune.model.units import format_share
from autotune.stats import Estimate

HELD_BACK: Mapping[str, str] = {
    "sw_power_cap": "its power limit",
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal": "heat (software)",
    "hw_thermal": "heat (hardware)",
    "power_brake": "a power brake from outside",
}
"""What lowers the clocks of a GPU below those that it could have, in words."""

LEAST_SHARE = 0.05
"""Share of one arm's time from which on it counts as held back: what is less can't have made the difference."""

OTHER_SHARE = 0.2
"""Share of that share which the other arm may have, if one alone is to be called held back."""

LEAST_S = 0.5
"""Seconds in all below which nothing is made of it."""


class GpuState(Record):
    """One GPU, as the process that ran steps on it found it; None for what it does not tell.

    Attributes:
        name: As its driver calls it; of a part that MIG made, the part's.
        index: As nvidia-smi counts.
        vbios: Version of the firmware on the board.
        gsp: Version of the firmware that the driver gives its system processor.
        max_clock_mhz: Highest clock of the multiprocessors.
        max_memory_clock_mhz: Likewise of the memory.
        application_clock_mhz: Clock that it was set to keep where it can.
        application_memory_clock_mhz: Likewise of the memory.
        power_limit_w: Set by whoever runs the machine.
        persistence: Whether its driver stays loaded when nobody uses it.
        mig: Whether it is divided.
        ecc: Whether its memory corrects errors.
    """

    name: str | None = None
    uuid: str | None = None
    index: Count | None = None
    vbios: str | None = None
    gsp: str | None = None
    max_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    application_clock_mhz: Count | None = None
    application_memory_clock_mhz: Count | None = None
    power_limit_w: Amount | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None


class ArmOfGpus(Record):
    """What the GPUs did while the blocks of one arm ran.

    Attributes:
        seconds: Of its blocks together.
        looks: Samples of each GPU within them.
        held_back: Seconds for which the GPU that was worst off was held back, by what (`HELD_BACK`); what the GPUs do
            not tell is missing in both arms.
        clock_mhz: Mean clock of the slowest GPU's multiprocessors; None where no look fell into a block.
        power_w: Mean power of all GPUs together.
        temperature_c: Highest of any GPU.
    """

    seconds: Elapsed
    looks: Count = 0
    held_back: dict[str, Elapsed] = Field(default_factory=dict)
    clock_mhz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Count | None = None


class GpusDuring(Record):
    """What the GPUs did while the blocks of both arms ran."""

    reference: ArmOfGpus
    candidate: ArmOfGpus


def held_in_one_arm(during: Sequence[GpusDuring]) -> list[str]:
    """What held back one arm alone, over some measurements together, a sentence each; empty if nothing did.

    Whichever arm it was, the two did not run on the same machine: a gain over a reference that was held back is none,
    and of a candidate that was nobody knows what it does where it is not, or longer.
    """
    known = set(HELD_BACK).intersection(*(d.reference.held_back.keys() & d.candidate.held_back.keys() for d in during))
    found = []
    for reason in [r for r in HELD_BACK if r in known]:
        held = {arm: sum(getattr(d, arm).held_back[reason] for d in during) for arm in ("reference", "candidate")}
        whole = {arm: sum(getattr(d, arm).seconds for d in during) for arm in held}
        shares = {arm: held[arm] / whole[arm] if whole[arm] else 0.0 for arm in held}
        one = max(shares, key=lambda arm: shares[arm])
        other = min(shares.values())
        if held[one] >= LEAST_S and shares[one] >= LEAST_SHARE and other <= OTHER_SHARE * shares[one]:
            found.append(
                f"the {one} alone was held back by {HELD_BACK[reason]}: "
                f"{format_share(shares[one])} of its time, the other arm {format_share(other)}"
            )
    return found


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

    What a program prints as it ends is recorded and shown, so secrets that can be told there are redacted.
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
    def _redact_message(cls, message: str) -> str:
        return redact_text(message)

    @field_validator("last_lines")
    @classmethod
    def _redact_lines(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(redact_text, lines))


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
    """Energy of the whole devices in the measured blocks, what they draw when idle included.

    Attributes:
        source: Who counted, in words.
        reference_step_j: Mean energy of one step of the reference, in joules.
        candidate_step_j: Likewise of the candidate.
        estimate: Candidate over reference, with the ordinary 95 % interval; per unit of work where that differs.
    """

    source: str
    reference_step_j: StepJoules
    candidate_step_j: StepJoules
    estimate: Estimate


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
        energy_problem: Why there is no figure of energy although something counted, in words.
        during: What the GPUs did while the blocks of either arm ran; None where they do not tell.
        work: Where a step of one arm does more than one of the other: then `estimate`, and that of `energy`, are of
            time and energy per unit of work. Step times stay those of steps.
    """

    estimate: Estimate
    reference_step_s: StepTime
    candidate_step_s: StepTime
    pair_count: Count
    mode: str
    stopped: str
    warnings: tuple[str, ...] = ()
    energy: EnergyUse | None = None
    energy_problem: str | None = None
    during: GpusDuring | None = None
    work: WorkPerStep | None = None

    @property
    def work_ratio(self) -> float:
        """Work of a step of the candidate over one of the reference."""
        return self.work.ratio if self.work is not None else 1.0


LOSS_NOT_CHECKED = "loss not checked"
"""Stands wherever a set is spoken well of whose program tells no loss."""


class LossBasis(StrEnum):
    """By what a candidate's loss was compared with the reference's."""

    STEPS = "steps"
    ROUNDING = "rounding"
    WORK = "work"
    DTYPE = "dtype"


class LossCheck(Record):
    """Whether a candidate trains as the reference does.

    Attributes:
        basis: ``steps``: flags alone, step by step. ``rounding``: other options, the same work, step by step.
            ``work``: another batch, at equal work. ``dtype``: another arithmetic, over a long run.
        is_ok: None where it cannot be told: that is inconclusive, and no proof.
        steps: How many steps were compared, one by one.
        difference: Relative difference of the candidate's loss, where it is largest; above 0 it is higher.
        tolerance: What it is held to.
        words: What was compared and what came out, for people.
        is_final: Whether nothing is left to be compared: a long run says more than the first steps.
    """

    basis: LossBasis
    is_ok: bool | None = None
    difference: Change | None = None
    tolerance: Amount | None = None
    steps: Count | None = None
    words: str
    is_final: bool = True

    @property
    def is_silent(self) -> bool:
        """Whether flags alone differ and no loss was told: nothing speaks against the set, and nothing for it."""
        return self.is_ok is None and self.basis is LossBasis.STEPS


TURNS = "turns"
"""Mode of a comparison whose blocks are in pairs; the other one is `autotune.study.alone.MODE`."""


def block_step_s(step_times_s: Sequence[float]) -> float:
    """A block's step time, in seconds: its whole duration over its steps, for training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair, work: WorkPerStep | None = None) -> float:
    """Logarithm of candidate over reference of one pair: of step time, or of time per unit where `work` differs."""
    shift = math.log(work.ratio) if work is not None else 0.0
    return math.log(block_step_s(pair.candidate_s) / block_step_s(pair.reference_s)) - shift


def is_divided_as_told(pair: Pair, sizes: TurnSizes, *, is_alone: bool = False) -> bool:
    """Whether a pair counts the steps that the study's sizes say, no more and no fewer: it follows from their times.

    Args:
        pair: With all steps of its blocks.
        sizes: Of the study.
        is_alone: Whether it is known to hold runs alone; if not, it may: a study may come to measure one at a time.
    """
    counted = (pair.reference_s, pair.candidate_s)
    ways = (sizes.split_alone,) if is_alone else (sizes.split, sizes.split_alone)
    return any(tuple(way(pair.ran_s(arm))[1] for arm in Arm) == counted for way in ways)
