"""One trial: the set that was proposed, and what became of it, as a tagged union of outcomes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from autotune.model.losses import LossCheck
from autotune.model.measurement import (
    Comparison,
    Failure,
    Record,
    Settings,
    Stamped,
    WorkerReport,
)
from autotune.model.numbers import Count, Elapsed
from autotune.stats import Outlook, outlook_of

REFERENCE_NUMBER = 0
"""`same_as` of a trial whose program is the reference's own."""


class TrialStatus(StrEnum):
    """How a trial came to its result."""

    MEASURED = "measured"
    SAME_SET = "same_set"
    SAME_PROGRAM = "same_program"
    FAILED = "failed"


class TrialConfig(Record):
    """One proposed flag set and who proposed it."""

    number: Count
    settings: Settings
    origin: str
    params: dict[str, str] = Field(default_factory=dict)


class Measured(Record):
    """The set ran against the reference."""

    status: Literal[TrialStatus.MEASURED] = TrialStatus.MEASURED
    comparison: Comparison


class Twin(Record):
    """Nothing ran: an earlier trial, or the reference, had this set or this program and stands for it.

    Attributes:
        same_as: Number of that trial.
        comparison: Its figures; None for the reference, and where it has none.
    """

    status: Literal[TrialStatus.SAME_SET, TrialStatus.SAME_PROGRAM]
    same_as: Count
    comparison: Comparison | None = None
    failure: Failure | None = None


class Failed(Record):
    """The set has no number."""

    status: Literal[TrialStatus.FAILED] = TrialStatus.FAILED
    failure: Failure


TrialOutcome = Annotated[Measured | Twin | Failed, Field(discriminator="status")]
_OF_OUTCOME = ("status", "comparison", "same_as", "failure")


class TrialResult(Stamped):
    """What became of one trial; the raw samples lie beside it in `directory`.

    Attributes:
        worker: What the candidate's process said of itself, if it became ready.
        program_key: Names the program that ran and the settings that are read at run time.
        compiled_key: Likewise, as the screen compiled it without a device. Sets with one key need one measurement.
        loss: How its loss was compared, or that it was not.
    """

    kind: Literal["trial"] = "trial"
    number: Count
    settings: Settings
    origin: str
    params: dict[str, str] = Field(default_factory=dict)
    outcome: TrialOutcome
    worker: WorkerReport | None = None
    program_key: str | None = None
    compiled_key: str | None = None
    loss: LossCheck | None = None
    duration_s: Elapsed = 0.0
    directory: str | None = None

    # In JSON the outcome's fields lie beside the trial's own: one flat object a line, as readers of records know it.

    @model_validator(mode="before")
    @classmethod
    def _gather_outcome(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "outcome" in data:
            return data
        outcome = {n: data[n] for n in _OF_OUTCOME if data.get(n) is not None}
        return {**{n: v for n, v in data.items() if n not in _OF_OUTCOME}, "outcome": outcome}

    @model_serializer(mode="wrap")
    def _spread_outcome(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = handler(self)
        outcome = data.pop("outcome")
        return {**data, **outcome}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The flat form."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        found: dict[str, Any] = {}
        for variant in schema["properties"].pop("outcome")["oneOf"]:
            for name, described in handler.resolve_ref_schema(variant)["properties"].items():
                found.setdefault(name, []).append({k: v for k, v in described.items() if k != "default"})
        schema["properties"] |= {name: {"anyOf": kinds} for name, kinds in found.items()}
        schema["required"] = [n if n != "outcome" else "status" for n in schema["required"]]
        return schema

    @property
    def status(self) -> TrialStatus:
        """Which outcome it is."""
        return self.outcome.status

    @property
    def comparison(self) -> Comparison | None:
        """The figures that stand for this set, its own or its twin's."""
        return self.outcome.comparison if isinstance(self.outcome, Measured | Twin) else None

    def outlook_at(self, *, sesoi: float) -> Outlook | None:
        """Whether its figures promise a gain, which a proof has to show; None where it has none.

        Args:
            sesoi: The study's smallest effect of interest, as a share.
        """
        return outlook_of(self.comparison.estimate, sesoi=sesoi) if self.comparison is not None else None

    @property
    def failure(self) -> Failure | None:
        """Why there is no number, of this set or its twin."""
        return self.outcome.failure if isinstance(self.outcome, Failed | Twin) else None

    @property
    def same_as(self) -> int | None:
        """The earlier trial that stands for this one; `REFERENCE_NUMBER` is the reference."""
        return self.outcome.same_as if isinstance(self.outcome, Twin) else None

    @property
    def is_the_default(self) -> bool:
        """Whether the program turned out to be the reference's own."""
        return self.status is TrialStatus.SAME_PROGRAM and self.same_as == REFERENCE_NUMBER
