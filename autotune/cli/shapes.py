"""What every command prints with `--json`: the one table behind `autotune schema`. Imported only where it is needed."""

from __future__ import annotations

from types import GenericAlias
from typing import (
    Any,
    Literal,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema

from autotune.compiler import (
    Prediction,
    ScreenReport,
    Target,
)
from autotune.model import (
    RECORD,
    SCHEMA_VERSION,
    AnyRecord,
    ConclusionRecord,
    Pair,
    StudySpec,
    TrialResult,
)
from autotune.results import (
    AtlasFinding,
    Status,
    Winner,
)
from autotune.rundir import RunCheck
from autotune.settings import (
    Diagnosis,
    FlagInfo,
    JaxOption,
    Migration,
    Parameter,
    Recipe,
    Setting,
    SettingCheck,
    Symptom,
)
from autotune.stats import Outlook
from autotune.study import (
    Prior,
    Reproduction,
    StudyStatus,
    UnreadableRun,
    Verification,
)


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Checks(_Shape):
    build: str
    starts: bool
    settings: list[SettingCheck]


class _Facts(_Shape):
    source: str
    device_count: int | None
    layer_bytes: dict[str, int]


class _Space(_Shape):
    parameters: list[Parameter]
    left_out: dict[str, str]
    notes: dict[str, str]
    size: float
    build: str
    facts: _Facts
    priors: dict[str, Prior]
    first: dict[str, dict[str, str]]


class _ReadLine(_Shape):
    line: str
    step_s: float | None
    loss: float | None
    is_step: bool


class _ReadBy(_Shape):
    rules: dict[str, Any]
    steps: int
    step_s: float | None


class _Reading(_Shape):
    steps: int
    step_s: float | None
    losses: int
    loss: float | None
    rules: dict[str, Any]
    terminal: bool
    status: int | None
    notes: list[str]
    lines: list[_ReadLine]
    others: list[_ReadBy]


class _Comparison(_Shape):
    by: list[str]
    same: dict[str, Any]
    studies: list[dict[str, Any]]
    settings: list[dict[str, Any]]
    changes: list[str]


def _with(kind: type, /, *, without: str = "", **more: Any) -> Any:
    """A record or dataclass with more fields beside its own, or a dataclass without one of them."""
    fields: Any = {name: (hint, ...) for name, hint in more.items()}
    if issubclass(kind, BaseModel):
        return create_model(f"{kind.__name__}Shown", __base__=kind, **fields)
    own = {name: (hint, ...) for name, hint in get_type_hints(kind).items() if name != without}
    return create_model(f"{kind.__name__}Shown", __base__=_Shape, **{**own, **fields})


def _list_of(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_CANDIDATE: Any = {"settings": dict[str, str], "target": str, "topology": str}
_Predicted = _with(Prediction, without="events", predicted=Literal[True], published=str, **_CANDIDATE)
_Failed = _with(_Shape, failure=str, **_CANDIDATE)
_Setting = _with(Setting, kind=str)
_Winner = _with(Winner, file=str, status=Status)
_Conclusion = _with(ConclusionRecord, run=str)

SHAPES: dict[str, Any] = {
    "atlas show": _list_of(AtlasFinding),
    "best": _with(_Winner, tested=bool, distance=list[str]),
    "compare": _Comparison,
    "doctor": Diagnosis,
    "flags check": _Checks,
    "flags list": _list_of(_Setting),
    "flags migrate": _with(Migration, settings=dict[str, str]),
    "flags show": _with(_Setting, build=str, in_build=FlagInfo | JaxOption | None, recipes=list[str]),
    "fsck": RunCheck,
    "library list": _list_of(_Winner),
    "predict": _list_of(_Predicted | _Failed),
    "read": _Reading,
    "recheck": _Conclusion,
    "recipes list": list[Recipe],
    "recipes show": _with(Recipe, settings=dict[str, str]),
    "repro": Reproduction,
    "run": _Conclusion,
    "screen": ScreenReport,
    "show": list[AnyRecord],
    "show TRIAL": _with(TrialResult, outlook=Outlook | None, pairs=list[Pair]),
    "space": _Space,
    "status": list[StudyStatus | UnreadableRun],
    "symptoms": list[Symptom],
    "targets list": _list_of(_with(Target, without="config_text")),
    "verify": Verification,
}
"""Command to the type of what it prints; in capitals, the argument that makes it print something else."""

SPARSE = frozenset({"show", "show TRIAL"})
"""Those that leave out what is not known."""


def all_schemas() -> dict[str, Any]:
    """The JSON schemas of study files, of records and their samples, and of what each command prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "study": StudySpec.model_json_schema(),
        "record": RECORD.json_schema(),
        "pair": Pair.model_json_schema(),
        "commands": {name: _schema(name, shape) for name, shape in SHAPES.items()},
    }


class _Complete(GenerateJsonSchema):
    """Every field is printed, those with a default too, and nothing else."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return {**super().dataclass_schema(schema), "additionalProperties": False}


def _schema(name: str, shape: Any) -> dict[str, Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(shape)
    if name in SPARSE:
        return adapter.json_schema(mode="validation")
    return adapter.json_schema(mode="serialization", schema_generator=_Complete)
