"""All records of a run, one JSON object a line, and the callbacks that a running study calls."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, Protocol, Self

from pydantic import Field, TypeAdapter, model_validator

from autotune.model.files import Table, Texts, TextTable
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    Comparison,
    EnergyUse,
    Failure,
    FailureKind,
    GpusDuring,
    LossCheck,
    Settings,
    Stamped,
    WorkerReport,
    WorkPerStep,
)
from autotune.model.numbers import Facts, Record
from autotune.model.units import LARGEST_TOLD
from autotune.stats.aa_noise import AaNoise
from autotune.stats.estimates import Estimate, TrialFinding, Verdict, finding_of
from autotune.stats.long_run import MOST_LOOKS, SOAK_LOOKS, Stalls, TotalTime
from autotune.stats.loss_check import LossSpread
from autotune.stats.numbers import (
    Amount,
    AtLeastOne,
    Chance,
    Change,
    Count,
    Elapsed,
    LogRatio,
    Ratio,
    StepTime,
    StepTimes,
)
from autotune.stats.proof import FIRST_LOOK, OTHER_SIDE


class TaskRecord(Stamped):
    """Result of one task of a lane."""

    duration_s: Elapsed = 0.0
    directory: str | None = None  # in the run directory: logs and raw samples


LeftOut = str | Texts  # one setting, or several left out together


def names_left_out(left_out: LeftOut) -> Texts:
    """Returns the names as a tuple, also of a single setting."""
    return (left_out,) if isinstance(left_out, str) else left_out


class AblationResult(TaskRecord):
    """The winner without one setting, or several together, measured against the whole winner."""

    kind: Literal["ablation"] = "ablation"
    settings: Settings
    left_out: LeftOut
    comparison: Comparison | None = None
    failure: Failure | None = None
    kept: bool
    reason: str

    @property
    def is_same_program(self) -> bool:
        """Whether the program is the same without it."""
        return not self.kept and self.comparison is None

    @property
    def what(self) -> str:
        """What was left out, for people."""
        if isinstance(self.left_out, str):
            return self.left_out
        return f"{len(self.left_out)} settings together ({', '.join(self.left_out)})"


INERT = 0.2  # chance to act below which a setting counts as inert until it is measured


class Believed(Record):
    """Ratio of step times that the model expects, with its 95 % interval."""

    ratio: Ratio
    low: Ratio
    high: Ratio


class ValueEffect(Believed):
    """Effect of one value beside the defaults of all other settings."""

    value: str
    trials: Count


class SearchEnd(Stamped):
    """The search of a session ended; it goes on if other trials or another time are asked for."""

    kind: Literal["search_end"] = "search_end"
    trials: Count  # number of trials that have a result
    asked: Count
    budget_s: Elapsed | None = None
    is_exhausted: bool = False  # nothing untried, or no gain expected of it


class SettingEffect(Record):
    """Effect of one setting."""

    name: str
    chance: Chance  # chance that it acts, alone or together with another
    values: tuple[ValueEffect, ...] = ()  # of those that were tried, less the default
    needs: Texts = ()  # other settings that decide whether this one can act

    def is_useless(self, value: str, least: float) -> bool:
        """Whether the setting counts as inert, or the value surely gains less than `least`."""
        lows = [effect.low for effect in self.values if effect.value == value]
        return self.chance < INERT or any(low > 1.0 - least for low in lows)


class PairEffect(Record):
    """Two settings that may interact, with the chance that they do."""

    names: tuple[str, str]
    chance: Chance


class BestPredicted(Believed):
    """The set with the best predicted step time, of settings believed to help on their own."""

    settings: Settings


class EffectsRecord(Stamped):
    """Effects by a model of the trials when a session's search ended: no proof (docs/search.md)."""

    kind: Literal["effects"] = "effects"
    trials: Count
    measured: Count  # number of trials that the model could learn speed from
    settings: tuple[SettingEffect, ...]  # of all that are searched, likeliest first
    pairs: tuple[PairEffect, ...] = ()  # with some chance to interact, likeliest first
    best: BestPredicted
    expected: tuple[tuple[Count, Ratio], ...] = ()  # trials measured, ratio expected

    def useful(self, settings: FlagSet, *, least: float) -> FlagSet:
        """Returns the set without useless settings that no other one needs or interacts with."""
        effects = {e.name: e for e in self.settings if e.name in settings}
        useless = {n for n, e in effects.items() if e.is_useless(settings[n], least)}
        for pair in self.pairs:
            if pair.chance >= INERT and settings.keys() >= set(pair.names):
                useless -= set(pair.names)
        useful = [*effects.keys() - useless]
        for name in useful:  # which grows
            needed = useless.intersection(effects[name].needs)
            useless -= needed
            useful += needed
        return settings.without(*useless)


Share = Annotated[float, Field(ge=0, lt=1)]


class PowerAnalysis(Record):
    """What the proofs of a study can detect, by a cautious estimate of what processes differ."""

    pair_sd: float = Field(ge=0)  # of the log ratio between fresh pairs of processes
    most: AtLeastOne  # the study's cap of pairs of processes in each proof
    smallest: Share | None = None  # gain, proven 9 times in 10; None if above 50 %
    proof_s: Elapsed  # seconds that are planned for all proofs of a study on one lane


MemorySamples = Annotated[tuple[tuple[Count, Count], ...], Field(max_length=1000)]


class MemoryUse(Record):
    """Memory in use at the end of a block."""

    host_bytes: Count | None = None  # of all processes and children, but mapped files
    device_bytes: Count | None = None


class SoakArm(Record):
    """One arm for a while."""

    step_count: AtLeastOne
    steps_s: Elapsed
    stalls: Stalls
    segment_s: StepTimes = Field(min_length=1, max_length=100)  # in order
    processes: AtLeastOne = 1
    early_steps: Count = 0  # first steps, as many as in the proof, if they were kept
    early_s: StepTime | None = None  # their median, which no stall hides
    written: tuple[Count, Count] | None = None  # files in its folder, their bytes
    host: MemorySamples = ()  # memory of its first process and its children
    device: MemorySamples = ()


class SoakLook(Record):
    """Both arms, by turns or one after the other."""

    candidate: SoakArm
    reference: SoakArm | None = None  # None if it failed: then only a leak is found


class SoakArms(Record):
    """Both arms of a soak."""

    looks: tuple[SoakLook, ...] = Field(min_length=1, max_length=MOST_LOOKS)
    most: AtLeastOne = SOAK_LOOKS  # looks that the study allowed
    proven: Estimate | None = None  # per token; None: only a sure loss counts
    process_sd: Amount = 0.0  # standard deviation of that between pairs of processes
    work: WorkPerStep | None = None


REFERENCE_NUMBER = 0  # `same_as` of a trial whose program is the reference's own


class TrialStatus(StrEnum):
    """How a trial came to its result."""

    MEASURED = "measured"
    SAME_PROGRAM = "same_program"
    FAILED = "failed"


class TrialConfig(Record):
    """One proposed flag set and who proposed it."""

    number: Count
    settings: Settings
    origin: str
    params: TextTable = Field(default_factory=dict)


class TrialOutcome(Record):
    """What became of a set."""

    status: TrialStatus
    comparison: Comparison | None = None
    failure: Failure | None = None  # why it has none, or why that trial has none
    same_as: Count | None = None  # trial that it repeats, or `REFERENCE_NUMBER`

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = ("comparison", "failure", "same_as")
        fields = {name for name in names if getattr(self, name) is not None}
        needed = "same_as"
        is_whole = needed in fields
        if self.status is not TrialStatus.SAME_PROGRAM:
            needed = "failure" if self.status is TrialStatus.FAILED else "comparison"
            is_whole = fields == {needed}
        if not is_whole:
            raise ValueError(
                f"a trial that is {self.status} must tell {needed} but tells {sorted(fields)}"
            )
        return self


class TrialResult(TrialConfig, TrialOutcome, TaskRecord):
    """What became of one trial; the raw samples are in `directory`."""

    kind: Literal["trial"] = "trial"
    worker: WorkerReport | None = None
    program_key: str | None = None  # names program and run-time settings
    compiled_key: str | None = None  # likewise, as the screen compiled it
    loss: LossCheck | None = None

    @property
    def is_the_default(self) -> bool:
        """Whether the program turned out to be the reference's own."""
        return self.same_as == REFERENCE_NUMBER

    def finding_at(self, *, min_effect: float, provable: float | None) -> TrialFinding | None:
        """Returns what its figures say of a proof, see `finding_of`; None where it has none."""
        if self.comparison is None:
            return None
        return finding_of(self.comparison.estimate, min_effect=min_effect, provable=provable)


SCHEMA_VERSION = 3  # counts the changes of records that other readers cannot follow


class ScreenRecord(Stamped):
    """Result of compiling without measuring, or why the study is not screened."""

    kind: Literal["screen"] = "screen"
    target: str
    topology: str
    versions: TextTable = Field(default_factory=dict)
    report: Table | None = None  # `ScreenReport`; None if nothing compiled
    reason: str = ""
    duration_s: Elapsed = 0.0


class SessionRecord(Stamped):
    """One start of the driver; its budgets go on where the last session's stopped."""

    kind: Literal["session"] = "session"
    identity: str  # `StudySpec.identity`
    started: str
    pid: Count
    host: str
    asked_trials: Count
    command: Texts = ()


class LedgerRecord(Stamped):
    """What the study has used so far in all sessions, written again and again."""

    kind: Literal["ledger"] = "ledger"
    device_s: float  # seconds reserved, summed over devices: what a cluster charges
    lanes: Texts = ()


class AaRecord(Stamped):
    """The A/A run: the reference against other processes of itself."""

    kind: Literal["aa_run"] = "aa_run"
    noise: AaNoise
    reference: WorkerReport
    comparison: Comparison
    provenance: Facts
    loss_spread: LossSpread
    power: PowerAnalysis | None = None
    directory: str

    @property
    def provable(self) -> float | None:
        """Smallest gain that is proven 9 times in 10, at most `LARGEST_TOLD`; None if unknown."""
        if self.power is None:
            return None
        return LARGEST_TOLD if self.power.smallest is None else self.power.smallest


class ConfirmRun(TaskRecord):
    """One fresh pair of processes of a finalist, or the failure in its place."""

    kind: Literal["confirm_run"] = "confirm_run"
    stage: str  # `CONFIRM`, `ISOLATED` or `AB`; `recheck` for an old winner
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
    is_isolated: bool = False  # whether each arm ran alone though the study interleaves
    total: TotalTime | None = None
    untold: Change | None = None
    warnings: Texts = ()
    during: GpusDuring | None = None


CONFIRM = "confirm"  # stage of proofs: finalists, in interleaved pairs
ISOLATED = "isolated"  # stage of proofs: a proven set, in isolated runs
AB = "ab"  # stage of proofs: two variants


class ProofRecord(Stamped):
    """Plan of one proof, made before its first pair of processes: its error over all looks."""

    kind: Literal["proof"] = "proof"
    stage: str
    settings: Settings
    # This and the next three are those of `autotune.stats.proof.ProofPlan`.
    base: int = Field(ge=FIRST_LOOK, le=10_000)
    error: float = Field(gt=0, lt=0.1)
    least: Count
    other_side: float = Field(OTHER_SIDE, ge=1)
    trial: Count = 0  # trial that had the set first; 0 for none


class Objection(NamedTuple):
    """What speaks against a set whose typical step is faster."""

    reason: str
    is_slower_in_total: bool = False  # all of its steps together are no faster


class FinalistResult(Stamped):
    """Verdict on a finalist over fresh processes."""

    kind: Literal["finalist"] = "finalist"
    stage: str
    trial: Count
    settings: Settings
    estimate: Estimate | None = None  # ordinary interval, biased by the stopping rule
    corrected: Estimate | None = None  # holds over all looks and sets; this decides
    verdict: Verdict
    process_count: Count
    failure: Failure | None = None
    work: WorkPerStep | None = None
    most: int | None = Field(None, ge=0, le=1000)  # cap of pairs of processes
    reason: str = ""  # why its proof ended
    veto: str | None = None  # reason of an `Objection`
    is_slower_in_total: bool = False

    @property
    def objection(self) -> Objection | None:
        """What speaks against a set whose typical step is faster; None if nothing does."""
        if self.veto is None:
            return None
        return Objection(self.veto, self.is_slower_in_total)

    @property
    def is_vetoed(self) -> bool:
        """Whether something speaks against the set, whatever its step time."""
        return self.failure is not None or self.veto is not None

    @property
    def is_passed(self) -> bool:
        """Whether the set is proven to be faster."""
        return self.verdict is Verdict.FASTER and not self.is_vetoed


class Outcome(StrEnum):
    """How a study ended."""

    WINNER = "winner"
    NOTHING_BEATS_THE_DEFAULT = "nothing_beats_the_default"  # larger gains ruled out
    INCONCLUSIVE = "inconclusive"
    NOTHING_RAN = "nothing_ran"


class ConclusionRecord(Stamped):
    """The study's sentence, and the proven set if there is one."""

    kind: Literal["conclusion"] = "conclusion"
    outcome: Outcome
    sentence: str
    settings: Settings | None = None
    trial: Count | None = None
    estimate: Estimate | None = None
    soaked_s: Elapsed | None = None
    needed_s: Elapsed | None = None  # would do where the budget was too small
    trial_count: Count
    ended: str
    provenance: Facts = Field(default_factory=dict)
    record_count: Count | None = None  # from which it was drawn, once written


class SoakRecord(TaskRecord):
    """The winner's long run under a watchdog."""

    kind: Literal["soak"] = "soak"
    settings: Settings
    steps_s: Elapsed
    step_count: Count
    starts: Count  # processes that it took; several where a program ends by itself
    longest: Count | None = None  # steps of the process that ran longest
    loss: LossCheck | None = None
    failure: Failure | None = None
    seen_outside: Ratio | None = None  # seconds a line, as a user would run both
    unsettled: str | None = None  # why it does not show that the gain stays
    arms: SoakArms | None = None


class FailingSetRecord(TaskRecord):
    """The smallest part of a failing set that fails in the same way."""

    kind: Literal["failing_set"] = "failing_set"
    trial: Count
    failure_kind: FailureKind
    settings: Settings
    smallest: Settings
    is_minimal: bool  # whether no setting of it can be left out, by single starts
    starts: Count


class ProfileRow(Record):
    """One kind of work, or one kernel, in a step of both variants."""

    name: str
    seconds: tuple[float, float]  # in a step of A and of B, on the first device
    counts: tuple[float, float]  # runs of a kernel; 0 of a kind of work


class ProfileRecord(Stamped):
    """What short traces of both variants say of their difference, or why there are none."""

    kind: Literal["profile"] = "profile"
    names: tuple[str, str]
    rows: tuple[ProfileRow, ...] = ()
    problem: str = ""


class IncidentRecord(Stamped):
    """Something that happened to the tuner, not to a trial, such as a restart of the reference."""

    kind: Literal["incident"] = "incident"
    what: str


AnyRecord = Annotated[
    TrialResult
    | SearchEnd
    | EffectsRecord
    | ScreenRecord
    | SessionRecord
    | LedgerRecord
    | AaRecord
    | ConfirmRun
    | ProofRecord
    | FinalistResult
    | AblationResult
    | ConclusionRecord
    | SoakRecord
    | FailingSetRecord
    | ProfileRecord
    | IncidentRecord,
    Field(discriminator="kind"),
]

RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)  # one line of `records.jsonl`


class Callbacks(Protocol):
    """Called as a study goes on: the command line shows it, tests record it."""

    def phase(self, what: str, lane: str = "") -> None:
        """A worker reached a phase of its start; on which lane, if there are several."""

    def pair(self, ratios: list[float], lane: str = "") -> None:
        """One more pair is done; log ratios so far."""

    def stage(self, name: str, detail: str) -> None:
        """A stage begins."""

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        """A set is about to be tried."""

    def result(self, record: AnyRecord) -> None:
        """A record was written: of the A/A run, a trial, a pair of processes, a verdict."""

    def note(self, text: str) -> None:
        """Something the user should know."""
