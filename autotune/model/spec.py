"""Reads a study file: TOML in, a checked `StudySpec` out, before anything starts.

Errors name the file, the key, what was got, what is legal, and close matches of a misspelt key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from autotune.model.block_sizes import BlockSizes
from autotune.model.errors import SettingError, StudyFileError, close_matches
from autotune.model.files import plain_text
from autotune.model.flags import OPTION, FlagSet, captures_collectives
from autotune.model.measurement import Settings
from autotune.model.options import (
    MOST_NESTED,
    PROCESS_COUNT,
    factors,
    filled_command,
    is_nested_deeper,
    options_in,
    product_of,
)
from autotune.model.redaction import redact_data, redact_text
from autotune.model.sections import (
    NAME_IN_WORDS,
    STUDY_NAME,
    ConfirmSpec,
    DeviceSpec,
    LimitsSpec,
    MeasureSpec,
    NamedSet,
    ReadSpec,
    ScreenSpec,
    SearchSpec,
    Section,
    WorkloadSpec,
)


def explain(error: Any) -> str:
    """One line for one error of pydantic: the key as written in TOML, what was got, what is
    legal.
    """
    of_types = ("list[", "dict[", "function", "[key]")
    location = [part for part in map(str, error["loc"]) if not part.startswith(of_types)]
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        sections = [part for part in location[:-1] if part in _SECTIONS]
        legal = sorted((_SECTIONS[sections[-1]] if sections else StudySpec).model_fields)
        return (
            f"`{key}` is not a key of a study{close_matches(location[-1], legal)} (legal: "
            f"{', '.join(legal)})"
        )
    if error["type"] == "missing":
        return f"`{key}` must be given; see studies/quickstart.toml for an example"
    got = error.get("input")
    redacted = redact_data(got, location[-1] if location else "")
    shown = "" if isinstance(got, dict) and len(got) > 3 else f" but got {redacted!r}"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if error.get("ctx", {}).get("pattern") == STUDY_NAME:
        message = NAME_IN_WORDS
    if not location:  # of the study as a whole; such a message names its keys itself
        return message
    return f"`{key}` must be: {message}{'' if 'but got' in message else shown}"


_SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadSpec,
    "read": ReadSpec,
    "device": DeviceSpec,
    "search": SearchSpec,
    "first": NamedSet,
    "screen": ScreenSpec,
    "measure": MeasureSpec,
    "confirm": ConfirmSpec,
    "limits": LimitsSpec,
}
"""Key of each section, at the top or within another, to its type."""


FEWEST_TRIALS = 4
"""Trials that the budget holds which is named where one is too small."""

SOAK_STEPS, SOAK_STEPS_OF_RUNS, SOAK_STEPS_OF_GRAPHS = 200, 20, 1000
"""Fewest steps of a soak, where the program waits for orders and where it runs by itself; of a set
whose command buffers hold collectives, see `HUNG_AT`.
"""


class StudySpec(Section):
    """A whole study, checked. Equal `identity` means results may share a run directory."""

    name: Annotated[str, Field(pattern=STUDY_NAME)]
    """Of the study; its run directory is ``runs/NAME`` unless a command says otherwise."""
    description: Annotated[str, AfterValidator(redact_text)] = ""
    """Shown in reports."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of proposals, data and order: the same seed proposes the same."""
    workload: WorkloadSpec
    """What runs."""
    device: DeviceSpec = DeviceSpec()
    """Where it runs."""
    baseline: Settings = Field(default_factory=FlagSet)
    """Settings of the reference, and so of every candidate: setting to value."""
    search: SearchSpec = SearchSpec()
    """What is searched, how long, and what is tried first."""
    screen: ScreenSpec = ScreenSpec()
    """What is compiled before anything is measured."""
    measure: MeasureSpec = MeasureSpec()
    """How a comparison is measured."""
    confirm: ConfirmSpec = ConfirmSpec()
    """How finalists prove themselves."""
    limits: LimitsSpec = LimitsSpec()
    """What a candidate must keep, whatever its speed."""

    @field_validator("name")
    @classmethod
    def _stays_inside(cls, name: str) -> str:
        if ".." in name:
            raise ValueError("must not hold `..`")
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> StudySpec:
        mesh = self.workload.mesh
        count = self.device.count
        if mesh is not None and count is not None and math.prod(mesh.values()) != count:
            raise ValueError(
                f"`workload.mesh` must be of the {count} devices of `device.count` but {mesh} is "
                "of "
                f"{math.prod(mesh.values())}; change either of them"
            )
        if self.workload.command is not None and self.device.process_count > 1:
            raise ValueError(
                "`device.process_count` is of an `entry`; a `command` starts its own processes"
            )
        return self

    @model_validator(mode="after")
    def _options_have_a_place(self) -> StudySpec:
        if named := [n for n in self.baseline if n.startswith(OPTION)]:
            raise ValueError(f"`baseline` holds settings; write {named[0]} into `workload.options`")
        workload = self.workload
        options = self.search.options
        if workload.command is not None and (lost := sorted(set(options) - workload.placeholders)):
            raise ValueError(
                f"`search.options.{lost[0]}` must stand in an argument of `workload.command` as "
                f"{{{lost[0]}}} but "
                "does not"
            )
        for first in self.search.first:
            if unknown := sorted({*first.options, *options_in(first.settings)} - set(options)):
                hint = close_matches(unknown[0], options)
                raise ValueError(
                    f"`search.first` `{first.name}`: `{unknown[0]}` must be in "
                    f"`search.options`{hint}"
                )
        for name, values in self._option_values().items():
            for value in values:
                filled_command(workload.command or (), {name: value})
        for count in options.get(PROCESS_COUNT, ()) if workload.entry is not None else ():
            self._with_processes(count)
        return self

    @model_validator(mode="after")
    def _work_is_given(self) -> StudySpec:
        domains = self._option_values()
        if (text := self.workload.tokens_per_step) is not None:
            for name in factors(text):
                if not name.isdecimal() and name not in domains:
                    raise ValueError(
                        f"`workload.tokens_per_step` names {name!r}, which is not in "
                        "`workload.options` or "
                        f"`search.options`; write its value there{close_matches(name, domains)}"
                    )
                for value in domains.get(name, ()):
                    product_of(name, {name: value})
        elif self.workload.command and self.search.options:
            raise ValueError(
                "where the options of a `command` are searched, the work of a step must be given: "
                '`workload.tokens_per_step = "batch * seq"`, or a number if no option changes it'
            )
        return self

    @property
    def reference_name(self) -> str:
        """What candidates are compared with: the build's defaults, or this study's baseline."""
        return "the baseline" if self.baseline else "the default"

    def _option_values(self) -> dict[str, list[Any]]:
        """Each option with all values that a set of this study may give it."""
        found = {n: [value] for n, value in self.reference_options.items()}
        for name, values in self.search.options.items():
            found[name] += [v for v in values if v not in found[name]]
        for first in self.search.first:
            for name, value in options_in(first.whole).items():
                found[name] += [] if value in found[name] else [value]
        return found

    def work_under(self, settings: FlagSet) -> int | None:
        """Tokens of a step under a set's options, by `workload.tokens_per_step`; None where that is
        not given.

        Raises:
            SettingError: If an option or value of the set is not in the study.
        """
        options = self.options_under(settings)
        text = self.workload.tokens_per_step
        return None if text is None else product_of(text, options)

    def _with_processes(self, count: Any) -> DeviceSpec:
        return DeviceSpec.model_validate({**self.device.model_dump(), PROCESS_COUNT: count})

    @property
    def reference_options(self) -> dict[str, Any]:
        """Options of the reference: those of the workload, else the first that are searched."""
        found = {
            **{n: values[0] for n, values in self.search.options.items()},
            **self.workload.options,
        }
        if self.workload.entry is not None and PROCESS_COUNT in self.search.options:
            found[PROCESS_COUNT] = self.device.process_count
        return found

    def options_under(self, settings: FlagSet) -> dict[str, Any]:
        """All options under a set: the reference's, those of the set in their places.

        Sets come from files of other people too, and options end in a command: only listed values
        are used.

        Raises:
            SettingError: If an option or value of the set is not in the study.
        """
        named = options_in(settings)
        known = self.reference_options
        if unknown := sorted(set(named) - set(known)):
            raise SettingError(
                f"an option must be one of the study ({', '.join(known) or 'it has none'}) but "
                f"got {unknown[0]!r}"
                f"{close_matches(unknown[0], known)}; add it to `search.options`"
            )
        legal = self._option_values()
        for name, value in named.items():
            if value not in legal[name]:
                raise SettingError(
                    f"option {name!r} must have a value that the study lists ({legal[name]}) but "
                    f"got {value!r:.100}; "
                    "add it to `search.options`"
                )
        return {**known, **named}

    def under(self, settings: FlagSet) -> StudySpec:
        """The study with the options of one set in place, none left to search; raises as
        `options_under` does.
        """
        options = self.options_under(settings)
        device = self.device
        if self.workload.entry is not None and PROCESS_COUNT in options:
            device = self._with_processes(options.pop(PROCESS_COUNT))
        workload = self.workload.model_copy(update={"options": options})
        search = self.search.model_copy(update={"options": {}})
        return self.model_copy(update={"workload": workload, "device": device, "search": search})

    @property
    def block_sizes(self) -> BlockSizes:
        """Sizes of blocks and isolated runs on this study's devices."""
        return self.measure.block_sizes_on(self.device.platform, can_wait=self.workload.can_wait)

    def soak_steps(self, settings: Mapping[str, str]) -> int:
        """Fewest steps of a soak: fewer of a program that runs by itself, which may end and then
        starts again.
        """
        if not self.workload.can_wait:
            return SOAK_STEPS_OF_RUNS
        return SOAK_STEPS_OF_GRAPHS if captures_collectives(settings) else SOAK_STEPS

    @property
    def workload_hash(self) -> str:
        """Names what is measured: workload, its options, devices and processes, but no flags."""
        workload = self.workload.model_dump(exclude={"mesh", "python"})  # change nothing
        if self.workload.launcher is None:
            workload.pop("launcher")
        return _digest(
            {"workload": workload, "device": self.device.model_dump(exclude={"nic_bytes_per_s"})}
        )

    @property
    def identity(self) -> str:
        """Names what must not change when a study is resumed; see `lasting`."""
        return _digest(self.lasting())

    @property
    def question(self) -> str:
        """Names what a study asks: studies with another seed, budget or name ask the same again."""
        return _digest({key: value for key, value in self.lasting().items() if key != "seed"})

    def lasting(self) -> dict[str, Any]:
        """The study without what may change on resume: budgets, how finalists are proven, what is
        only shown.
        """
        data = self.model_dump(mode="json", exclude={"name", "description", "screen", "confirm"})
        data["device"].pop("nic_bytes_per_s")
        for key in ("trials", "time_budget"):
            data["search"].pop(key)
        return data


def load_study(path: Path) -> StudySpec:
    """Reads and checks a study file; StudyFileError if it is missing or no TOML, or with all wrong
    keys and values.
    """
    try:
        text = plain_text(path, most=MOST_BYTES)
    except FileNotFoundError:
        hint = (
            close_matches(path.name, [p.name for p in path.parent.glob("*.toml")])
            or "; `autotune tune -- COMMAND` writes one"
        )
        raise StudyFileError(f"no such file: {path}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StudyFileError(
            f"the study file must be readable UTF-8 text but {path}: {error}"
        ) from error
    _refuse_endless(text, path)
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise StudyFileError(f"{path} must be TOML but: {error}") from error
    except RecursionError:
        raise _too_deep(str(path)) from None
    return parse_study(data, source=str(path))


MOST_BYTES = 1_000_000
_ENDLESS = {
    "a number of 300 digits": re.compile(r"[=\[,]\s*[+-]?\d\w{299}"),
    "a key of 100 parts": re.compile(
        r"""(?m)(?:^|[\[{,])[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){99}"""
    ),
}
"""What a parser of TOML works on without an end, by what it is."""


def _refuse_endless(text: str, path: Path) -> None:
    """Raises StudyFileError for a text that is too long or takes too long to parse."""
    if len(text) >= MOST_BYTES:
        raise StudyFileError(
            f"a study file must be smaller than {MOST_BYTES:,} bytes but {path} is not; shorten it"
        )
    for what, pattern in _ENDLESS.items():
        if found := pattern.search(text):
            line = text.count("\n", 0, found.end()) + 1
            raise StudyFileError(
                f"a study file must not hold {what} but line {line} of {path} does; write it "
                "shorter"
            )


def parse_study(data: dict[str, Any], *, source: str = "study") -> StudySpec:
    """Checks a study given as plain data, or raises StudyFileError; `source` names it in
    messages.
    """
    if is_nested_deeper(data):
        raise _too_deep(source)
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        lines = [explain(e) for e in error.errors()]
        raise StudyFileError(
            f"{source} is not a legal study:\n" + "\n".join(f"  - {line}" for line in lines)
        ) from None


def _too_deep(source: str) -> StudyFileError:
    return StudyFileError(
        f"{source} must not have more than {MOST_NESTED} lists or tables in each other but has; "
        "write them flatter"
    )


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]
