"""The study file: TOML in, a checked `StudySpec` out, before anything starts.

Errors name the file, the key, what was got, what is legal, and close matches of a misspelt key.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from autotune.model.errors import StudyFileError, close_matches
from autotune.model.flags import FlagSet
from autotune.model.measurement import Objective, Settings
from autotune.model.secrets import strike_data
from autotune.model.sections import (
    ConfirmSpec,
    DeviceSpec,
    MeasureSpec,
    PgleSpec,
    ReplaySpec,
    ScreenSpec,
    SearchSpec,
    Section,
    WorkloadSpec,
)

STUDY_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of a study's name."""


class Effort(StrEnum):
    """How much measuring a study may spend; scales the caps of `[measure]` and `[confirm]`."""

    QUICK = "quick"
    STANDARD = "standard"
    FULL = "full"


class StudySpec(Section):
    """A whole study, checked. Equal `identity` means results may share a run directory."""

    name: Annotated[str, Field(pattern=STUDY_NAME)]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    workload: WorkloadSpec
    device: DeviceSpec = DeviceSpec()
    baseline: Settings = Field(default_factory=FlagSet)
    search: SearchSpec = SearchSpec()
    screen: ScreenSpec = ScreenSpec()
    measure: MeasureSpec = MeasureSpec()
    confirm: ConfirmSpec = ConfirmSpec()
    pgle: PgleSpec = PgleSpec()
    replay: ReplaySpec | None = None

    @field_validator("name")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if ".." in name:
            raise ValueError("must not hold `..`")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> StudySpec:
        if self.measure.mode == "turns" and not self.workload.takes_turns:
            raise ValueError(
                'a `command` without the hook can not wait for its turn: `measure.mode` must be "auto" or "sandwich"'
            )
        if self.is_predicted and len(self.search.objectives) > 1:
            raise ValueError(
                '`search.step_time = "predicted"` is of step time alone: give no other `search.objectives`'
            )
        told = {Objective.STEP_TIME, Objective.ENERGY, *((Objective.MEMORY,) if self.workload.hook else ())}
        if self.workload.command is not None and (untold := set(self.search.objectives) - told):
            raise ValueError(f"`search.objectives` can not hold {', '.join(untold)}: a `command` does not tell it")
        if self.workload.command is not None and self.device.process_count > 1:
            raise ValueError("`device.process_count` is of an `entry`; a `command` starts its own processes")
        if self.is_predicted and (self.workload.entry is None or self.replay is not None):
            raise ValueError('`search.step_time = "predicted"` needs a `workload.entry` to compile, and no [replay]')
        return self

    @property
    def is_predicted(self) -> bool:
        """Whether nothing is measured: a model says what compiled programs would take."""
        return self.search.step_time == "predicted"

    @property
    def workload_hash(self) -> str:
        """Names what is measured: workload, its options, devices and processes; flags play no part."""
        return _digest({"workload": self.workload.model_dump(), "device": self.device.model_dump()})

    @property
    def identity(self) -> str:
        """Names what must not change when a study is resumed; see `lasting`."""
        return _digest(self.lasting())

    def lasting(self) -> dict[str, Any]:
        """The study without what may change on resume: budgets, how finalists are proven, what is only shown."""
        data = self.model_dump(mode="json")
        for key in ("name", "description", "confirm", "pgle"):
            data.pop(key)
        for key in ("trials", "time_budget", "gpu_hours"):
            data["search"].pop(key)
        # Keys that are younger than the first runs count only where they are used, so that those runs go on.
        if data["search"]["objectives"] == [Objective.STEP_TIME]:
            data["search"].pop("objectives")
        if data["search"]["known_failures"]:
            data["search"].pop("known_failures")
        screen = data.pop("screen")
        if self.is_predicted:  # then the cluster is what the results are of
            data["screen"] = {key: screen[key] for key in ("target", "topology")}
        else:
            data["search"].pop("step_time")  # so that older runs keep their identity
        if data["replay"] is not None:
            data["replay"].pop("delay_s")
            for key in ("memory_effects", "compile_effects", "profile", "profile_effect", "autotune_results"):
                if not data["replay"][key]:
                    data["replay"].pop(key)
        return data

    def at_effort(self, effort: Effort) -> StudySpec:
        """The same study with its measuring scaled: `quick` about halves it, `full` doubles it and soaks for longer."""
        if effort is Effort.STANDARD:
            return self
        factor = 0.5 if effort is Effort.QUICK else 2.0
        measure = self.measure.model_copy(
            update={
                "pairs_cap": max(12, round(self.measure.pairs_cap * factor)),
                "sandwiches": max(2, round(self.measure.sandwiches * factor)),
            },
        )
        confirm = self.confirm.model_copy(
            update={
                "finalists": max(1, min(20, round(self.confirm.finalists * factor))),
                "processes": max(4, round(self.confirm.processes * factor)),
                "soak": self.confirm.soak * (0.25 if effort is Effort.QUICK else 10.0),
            }
        )
        return self.model_copy(update={"measure": measure, "confirm": confirm})


def load_study(path: Path) -> StudySpec:
    """Reads and checks a study file.

    Raises:
        StudyFileError: If the file is missing, is not TOML, or a key or value is not legal; the message names
            the file and every offending key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = close_matches(path.name, beside)
        raise StudyFileError(f"the study file must exist but there is no {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(f"the study file must be readable UTF-8 text but {path}: {error}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyFileError(f"{path} must be TOML but: {error}") from error
    return parse_study(data, source=str(path))


def parse_study(data: dict[str, Any], *, source: str = "study") -> StudySpec:
    """Checks a study given as plain data; `source` names it in messages.

    Raises:
        StudyFileError: If a key or value is not legal.
    """
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        lines = [_explain(e, data) for e in error.errors()]
        raise StudyFileError(f"{source} is not a legal study:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _explain(error: Any, data: dict[str, Any]) -> str:
    """One line for one error of pydantic: the key as written in TOML, what was got, what is legal."""
    location = [p for p in error["loc"] if not (isinstance(p, str) and p.startswith(("list[", "dict[", "function")))]
    key = ".".join(str(p) for p in location)
    if error["type"] == "extra_forbidden":
        legal = _legal_keys(location[:-1])
        return f"`{key}` is not a key of a study{close_matches(str(location[-1]), legal)} (legal: {', '.join(legal)})"
    if error["type"] == "missing":
        return f"`{key}` must be given; see studies/quickstart.toml for an example"
    got = error.get("input")
    struck = strike_data(got, str(location[-1]) if location else "")
    shown = "" if isinstance(got, dict) and len(got) > 3 else f" but got {struck!r}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not location:  # of the study as a whole; such a message names its keys itself
        return str(message)
    return f"`{key}` must be: {message}{'' if 'but got' in message else shown}"


def _legal_keys(location: list[Any]) -> list[str]:
    """Names of the keys that the section at a location may have."""
    model: Any = StudySpec
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return sorted(model.model_fields)


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
