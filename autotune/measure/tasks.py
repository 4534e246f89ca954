"""Tasks: what a lane is asked to do, and what the driver records if no lane lives through it.

A task is data, for it may travel to another machine. What comes back is a record of the study,
measured under the driver's rules: an assignment carries all that a lane needs to know of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from autotune.model.files import Texts
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, LossBasis, Settings
from autotune.model.numbers import Record
from autotune.model.records import (
    ISOLATED,
    AaRecord,
    AblationResult,
    AnyRecord,
    ConfirmRun,
    FailingSetRecord,
    LeftOut,
    SoakRecord,
    TrialConfig,
    TrialResult,
    TrialStatus,
    names_left_out,
)
from autotune.stats.aa_noise import DEFAULT_PROOF_SIZE, UNKNOWN_NOISE, AaNoise
from autotune.stats.estimates import Estimate
from autotune.stats.long_run import SOAK_LOOKS


class AaTask(Record):
    """The A/A run, each lane's first task; if it fails there is no lane, and no record."""

    kind: Literal["aa_run"] = "aa_run"


class TrialTask(Record):
    """One set against the reference."""

    kind: Literal["trial"] = "trial"
    config: TrialConfig
    incumbent: Estimate | None = None
    """The best estimate so far; None where no set is given up for being worse."""
    compiled_key: str | None = None
    most: int | None = None
    """Pairs of blocks for which there is time; None for as many as the study allows."""

    def failed(self, failure: Failure) -> AnyRecord:
        """Its record when it failed, or killed lane after lane."""
        return TrialResult(
            **dict(self.config),
            status=TrialStatus.FAILED,
            failure=failure,
            compiled_key=self.compiled_key,
        )


class PairTask(Record):
    """One fresh pair of processes of a proof; see `ConfirmRun`."""

    kind: Literal["pair"] = "pair"
    stage: str
    trial: int
    settings: Settings
    repeat: int
    pairs: int = DEFAULT_PROOF_SIZE

    @property
    def is_isolated(self) -> bool:
        """Whether each arm runs with nothing beside it."""
        return self.stage == ISOLATED

    def base(self) -> ConfirmRun:
        """The record, but for its figures."""
        return ConfirmRun(
            stage=self.stage,
            settings=self.settings,
            trial=self.trial,
            repeat=self.repeat,
            pair_count=0,
            is_isolated=self.is_isolated,
        )

    def failed(self, failure: Failure) -> AnyRecord:
        """Its record when it failed, or killed lane after lane."""
        return self.base().model_copy(update={"failure": failure})


class AblationTask(Record):
    """A set without one setting or several, against the whole set; `most` as in `TrialTask`."""

    kind: Literal["ablation"] = "ablation"
    settings: Settings
    left_out: LeftOut
    most: int | None = None

    @property
    def rest(self) -> FlagSet:
        """The set without them."""
        return self.settings.without(*names_left_out(self.left_out))

    def failed(self, failure: Failure, reason: str = "it could not be left out") -> AblationResult:
        """Its record when it failed: what cannot be told to be useless stays."""
        return AblationResult(
            settings=self.settings,
            left_out=self.left_out,
            kept=True,
            failure=failure,
            reason=reason,
        )

    def of_same_program(self) -> AblationResult:
        """Its record when nothing is measured."""
        return AblationResult(
            settings=self.settings,
            left_out=self.left_out,
            kept=False,
            reason="the program is the same without it",
        )


class SoakTask(Record):
    """The winner for a while."""

    kind: Literal["soak"] = "soak"
    settings: Settings
    least_s: float
    least_steps: int
    basis: LossBasis = LossBasis.STEPS
    proven: Estimate | None = None
    """Ratio of the typical step, per unit of work, with the interval over all looks."""
    process_sd: float = 0.0
    """Standard deviation of that from one pair of processes to the next, alone or not."""
    proven_steps: int = 0  # Steps of a process of the proof; 0 where that is not known
    most: int = SOAK_LOOKS
    is_interleaved: bool = False
    """Whether both arms run by turns, as in the proof; else one after the other, in isolation."""

    def failed(self, failure: Failure) -> AnyRecord:
        """Its record when it failed, or killed lane after lane."""
        return SoakRecord(
            settings=self.settings, steps_s=0.0, step_count=0, starts=0, failure=failure
        )


class FailingSetTask(Record):
    """Looking for the smallest part of a failing set that fails alike."""

    kind: Literal["failing_set"] = "failing_set"
    trial: int
    settings: Settings
    failure_kind: FailureKind
    known: tuple[tuple[Settings, bool], ...] = ()
    """Parts of which it is known from other trials whether they fail so."""

    def failed(self, failure: Failure) -> AnyRecord:
        """Its record when it failed: the whole set is what is known to fail."""
        return FailingSetRecord(
            trial=self.trial,
            failure_kind=self.failure_kind,
            settings=self.settings,
            smallest=self.settings,
            is_minimal=False,
            starts=0,
        )


AnyTask = Annotated[
    AaTask | TrialTask | PairTask | AblationTask | SoakTask | FailingSetTask,
    Field(discriminator="kind"),
]


class Assignment(Record):
    """A task, and what its lane must know to do it as every other lane would."""

    task: AnyTask = AaTask()
    lane: str = ""
    """Name of the lane, which is where its reference's logs lie; empty where there is only one."""
    folder: Texts = ()
    name: str = ""  # Seeds the order of its blocks, whichever lane does it and however often
    aa_run: AaRecord | None = None
    runtime: Texts = ()
    """Names of settings that are read when a program runs; programs that differ so are measured."""
    programs: dict[str, int] = Field(default_factory=dict)
    """Names of the programs that were measured, each with its trial's number."""
    at_s: float = 0.0  # The study's time now

    @property
    def noise(self) -> AaNoise:
        """What the A/A run showed of this lane."""
        return self.aa_run.noise if self.aa_run is not None else UNKNOWN_NOISE


@dataclass(slots=True)
class PendingTask:
    """One task on its way to a result."""

    task: AnyTask
    folder: Texts
    name: str
    lost: int = 0  # Lanes that were lost over it

    @property
    def own_folder(self) -> Texts:
        """The folder of this attempt: a lane that only seemed lost may still write into another."""
        if not self.lost:
            return self.folder
        return (*self.folder[:-1], f"{self.folder[-1]}.{self.lost + 1}")
