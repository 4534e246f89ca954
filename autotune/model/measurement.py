"""What one comparison measures: worker reports, GPUs, pairs of blocks, losses and energy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Protocol

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
)

from autotune.model.block_sizes import BlockSizes, Split
from autotune.model.files import Texts, TextTable
from autotune.model.flags import FlagSet, Value
from autotune.model.numbers import Record
from autotune.model.redaction import redact_text
from autotune.model.units import format_share
from autotune.stats.estimates import Estimate
from autotune.stats.numbers import (
    Amount,
    AtLeastOne,
    Change,
    Count,
    Elapsed,
    StepTime,
    StepTimes,
    Total,
    TotalAboveZero,
)

HELD_BACK: Mapping[str, str] = {  # what lowers the clocks of a GPU, in words
    "sw_power_cap": "its power limit",
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal": "heat (software)",
    "hw_thermal": "heat (hardware)",
    "power_brake": "a power brake from outside",
}
# Reason that follows from what an arm itself draws; a set that draws less is faster for it.
OF_THE_PROGRAM = "sw_power_cap"
LEAST_SHARE = 0.05  # least share of its time for which an arm counts as held back
OTHER_SHARE = 0.2  # largest share of that in the other arm, if one alone is held back
LEAST_S = 0.5  # seconds in all from which on an arm counts as held back


class GpuState(Record):
    """State of one GPU as the process on it found it; None for what the GPU does not report."""

    name: str | None = None
    uuid: str | None = None
    index: Count | None = None
    vbios: str | None = None
    gsp: str | None = None  # firmware of its system processor
    max_clock_mhz: Count | None = None
    max_memory_clock_mhz: Count | None = None
    application_clock_mhz: Count | None = None
    application_memory_clock_mhz: Count | None = None
    power_limit_w: Amount | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc: bool | None = None


class ArmOfGpus(Record):
    """What the GPUs did while the blocks of one arm ran."""

    seconds: Elapsed
    looks: Count = 0
    held_back: dict[str, Elapsed] = Field(default_factory=dict)  # seconds by reason
    clock_mhz: Amount | None = None  # mean clock of the slowest GPU
    power_w: Amount | None = None
    temperature_c: Count | None = None


class GpusDuring(Record):
    """What the GPUs did while the blocks of both arms ran."""

    reference: ArmOfGpus
    candidate: ArmOfGpus


def held_in_one_arm(during: Sequence[GpusDuring]) -> list[str]:
    """Says for which reasons one arm alone was held back, its own power left out."""
    arms = {"reference": [d.reference for d in during], "candidate": [d.candidate for d in during]}
    sentences = []
    for reason, cause in HELD_BACK.items():
        held_s = {}
        shares = {}
        for name, runs in arms.items():
            # NaN, of which no comparison holds, where a GPU does not report the reason.
            held_s[name] = sum(arm.held_back.get(reason, math.nan) for arm in runs)
            shares[name] = held_s[name] / (sum(arm.seconds for arm in runs) or math.inf)
        better, worse = sorted(shares, key=shares.__getitem__)
        is_alone = reason != OF_THE_PROGRAM and shares[better] <= OTHER_SHARE * shares[worse]
        if is_alone and held_s[worse] >= LEAST_S and shares[worse] >= LEAST_SHARE:
            sentences.append(
                f"the {worse} alone was held back by {cause}: {format_share(shares[worse])} of "
                f"its time, the other arm {format_share(shares[better])}"
            )
    return sentences


def _settings(value: object) -> FlagSet:
    """Parses a table of names and plain values."""
    if isinstance(value, FlagSet):
        return value
    if isinstance(value, dict) and all(isinstance(v, Value) for v in value.values()):
        return FlagSet(value)
    raise ValueError("a table of settings with text, boolean or number values")


_SCALAR = {"type": ["string", "boolean", "number"]}

Settings = Annotated[
    InstanceOf[FlagSet],
    BeforeValidator(_settings),
    PlainSerializer(lambda settings: dict(settings), return_type=TextTable),
    WithJsonSchema({"type": "object", "additionalProperties": _SCALAR}, mode="validation"),
]


class Stamped(Record):
    """A record of `records.jsonl`."""

    at_s: Elapsed = 0.0  # seconds since the study began, over all its sessions
    by: str | None = None  # lane, where the study has several


class FailureKind(StrEnum):
    """Why a trial has no number; the values are shown to users and kept in records."""

    UNKNOWN_FLAG = "unknown_flag"
    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    CRASH = "crash"
    HANG = "hang"
    WRONG_LOSS = "wrong_loss"
    LEAK = "leak"
    SLOWER_IN_TOTAL = "slower_in_total"
    NOT_APPLIED = "not_applied"
    WORKLOAD_ERROR = "workload_error"
    NO_RESULT = "no_result"
    LAUNCH = "launch"
    NODE_LOST = "node_lost"


Redacted = Annotated[str, AfterValidator(redact_text)]


class Failure(Record):
    """One failure, with secrets redacted, and where its whole log is."""

    kind: FailureKind
    message: Redacted
    phase: str
    exit_status: int | None = None
    signal: str | None = None
    log: str | None = None
    last_lines: tuple[Redacted, ...] = ()

    @property
    def is_from_outside(self) -> bool:
        """Whether something from outside ended it, which tells nothing of its settings."""
        return self.kind in (FailureKind.LAUNCH, FailureKind.NODE_LOST)


class DeviceMemory(Record):
    """Peak memory of one device, and what its allocator may take if it reports that, in bytes."""

    peak_bytes: Count
    limit_bytes: Count | None = None


Counts = dict[str, Count]
NOT_TOLD = "not told"  # kind of devices of which a program does not speak


class WorkerReport(Record):
    """What a worker reports once its program is compiled and warm."""

    fingerprint: str  # names the compiled program, whatever flags made it
    platform: str
    device_kind: str
    device_count: AtLeastOne
    process_count: AtLeastOne = 1
    program_problem: str | None = None  # why a command's program is not known
    compile_s: Elapsed | None = None  # lowering and compiling; of a command, all
    start_s: Elapsed  # seconds from the start of the process to readiness
    losses: tuple[float, ...]
    step_numbers: tuple[int, ...] = ()  # of its first lines, where a program is read
    grad_norms: tuple[float, ...]
    state_change: Amount | None = None  # Euclidean, of some arrays in these steps
    state_arrays: Count | None = None
    dtype: str = "float32"
    loss_dtype: str | None = None
    norm_dtype: str | None = None
    warmup_step_times_s: tuple[Elapsed, ...]
    line_s: Elapsed = 0.0  # seconds between lines of a program that is read, else 0
    peak_bytes: Count | None = None  # largest of all devices; on CPU of the host
    device_memory: tuple[DeviceMemory, ...] = ()
    temp_bytes: Count | None = None
    tokens_per_step: Count | None = None
    flops_per_step: Amount | None = None
    layer_bytes: Counts = Field(default_factory=dict)
    collective_bytes: Counts = Field(default_factory=dict)  # by their kind
    mesh: Counts = Field(default_factory=dict)
    versions: TextTable = Field(default_factory=dict)
    packages: str | None = None  # folder from which a user's program imported jaxlib
    gpus: tuple[GpuState, ...] | None = None
    infiniband_ports: Count | None = None  # active ones that NCCL can take, first host
    cloud_networks: Texts | None = None  # of `efa` and `gvnic`, those of that host
    warnings: Texts = ()

    @property
    def step_s(self) -> float:
        """Seconds of a typical step of its warm-up; 0 without one."""
        return statistics.median_high(self.warmup_step_times_s or (0.0,))


class WorkloadFacts(Protocol):
    """What a search space is built from, reported by a process or read from its program."""

    @property
    def device_count(self) -> int | None:
        """Devices of all processes; None if that is not known."""

    @property
    def layer_bytes(self) -> Mapping[str, int]:
        """Bytes of ``weights`` and ``gradients`` of one layer, as far as known."""

    @property
    def collective_bytes(self) -> Mapping[str, int]:
        """Bytes that the program's collectives write, by kind, each once; empty if unknown."""


class Arm(StrEnum):
    """Side of a comparison."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"


class SameStep(Record):
    """What both arms reported of one step."""

    step: Count  # from 0 since a process began
    reference: FiniteFloat  # in this pair or an earlier one
    candidate: FiniteFloat
    reference_norm: FiniteFloat | None = None
    candidate_norm: FiniteFloat | None = None


class Pair(Record):
    """Two neighbouring blocks, one of each arm, in the order in which they ran."""

    index: Count
    first: Arm
    reference_s: StepTimes = Field(min_length=1)
    candidate_s: StepTimes = Field(min_length=1)
    reference_settling_s: StepTimes | None = None  # steps before them
    candidate_settling_s: StepTimes | None = None
    at_s: Elapsed
    reference_j: Total | None = None
    candidate_j: Total | None = None
    reference_clock_s: Elapsed | None = None  # of the whole block, by our own clock
    candidate_clock_s: Elapsed | None = None
    loss: SameStep | None = None  # of the step that ended the candidate's block

    def ran_s(self, arm: Arm) -> tuple[float, ...]:
        """Seconds of all steps of an arm's block, settling ones first."""
        settling_s, counted_s = self.block(arm)
        return settling_s + counted_s

    def block(self, arm: Arm) -> Split:
        """Seconds of the settling steps of an arm's block, and of those that count."""
        if arm is Arm.REFERENCE:
            return self.reference_settling_s or (), self.reference_s
        return self.candidate_settling_s or (), self.candidate_s

    @property
    def lasted_s(self) -> float:
        """Seconds of both blocks, settling included."""
        return sum(sum(self.ran_s(arm)) for arm in Arm)


class WorkPerStep(Record):
    """Tokens in a step of each arm, where they differ."""

    reference: AtLeastOne
    candidate: AtLeastOne


def ratio_of_work(work: WorkPerStep | None) -> float:
    """Work of a candidate's step over one of the reference; None stands for equal steps."""
    return 1.0 if work is None else work.candidate / work.reference


class EnergyUse(Record):
    """Mean energy of one step of both arms, in joules, with what idle GPUs draw."""

    reference_step_j: TotalAboveZero
    candidate_step_j: TotalAboveZero


class Comparison(Record):
    """Candidate against reference in one pair of processes."""

    estimate: Estimate
    reference_step_s: StepTime
    candidate_step_s: StepTime
    pair_count: Count
    mode: str
    stopped: str
    warnings: Texts = ()
    energy: EnergyUse | None = None
    during: GpusDuring | None = None
    work: WorkPerStep | None = None  # where set, `estimate` is per token

    @property
    def work_ratio(self) -> float:
        """See `ratio_of_work`; a column of tables."""
        return ratio_of_work(self.work)


LOSS_NOT_CHECKED = "loss not checked"  # said where a program reports no loss


class LossBasis(StrEnum):
    """How a candidate's loss was compared with the reference's."""

    STEPS = "steps"  # flags alone differ: step by step
    ROUNDING = "rounding"  # options differ, work does not: step by step
    WORK = "work"  # another batch: at equal work
    DTYPE = "dtype"  # another arithmetic: over a long run
    ORDER = "order"  # equal runs see other data: over a long run


class LossCheck(Record):
    """Whether a candidate trains as the reference does."""

    basis: LossBasis
    is_ok: bool | None = None  # None: it cannot be decided, which is no proof
    difference: Change | None = None  # relative, the largest; above 0 for a higher loss
    tolerance: Amount | None = None
    steps: Count | None = None
    words: str
    is_final: bool = True  # whether a later, longer check adds nothing

    @property
    def is_silent(self) -> bool:
        """Whether flags alone differ and no loss was reported: neither for nor against the set."""
        return self.is_ok is None and self.basis is LossBasis.STEPS


INTERLEAVED = "interleaved"
ABA = "aba"  # mode of comparison: isolated runs of reference, candidate and reference


def block_step_s(step_times_s: Sequence[float]) -> float:
    """Mean step time of a block, in seconds: training pays for slow steps too."""
    return sum(step_times_s) / len(step_times_s)


def log_ratio(pair: Pair, work: WorkPerStep | None = None) -> float:
    """Log of candidate over reference of one pair: of step time, or time per token."""
    ratio = block_step_s(pair.candidate_s) / block_step_s(pair.reference_s)
    return math.log(ratio) - math.log(ratio_of_work(work))


def is_divided_as_told(pair: Pair, sizes: BlockSizes, *, is_isolated: bool = False) -> bool:
    """Returns whether a pair, or one of isolated runs, counts the steps that the sizes say."""
    rules = [sizes.split_isolated]
    if not is_isolated:
        rules.append(sizes.split)
    return any(all(rule(pair.ran_s(arm)) == pair.block(arm) for arm in Arm) for rule in rules)
