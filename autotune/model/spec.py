"""Reads a study file: TOML in, a checked `StudySpec` out, before anything starts."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from autotune.model.block_sizes import CPU_SIZES, GPU_SIZES, BlockSizes
from autotune.model.errors import SettingError, StudyFileError, close_matches
from autotune.model.files import Table, plain_text
from autotune.model.flags import FlagSet, captures_collectives, digest_of
from autotune.model.measurement import Redacted, Settings
from autotune.model.options import (
    MOST_NESTED,
    PROCESS_COUNT,
    Domains,
    factors,
    filled_command,
    is_nested_deeper,
    options_in,
    product_of,
)
from autotune.model.redaction import redact_data
from autotune.model.sections import (
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
    """One line for one error of pydantic: the key as in TOML, what was got, what is legal."""
    of_types = ("list[", "dict[", "function", "[key]")
    location = [key for key in map(str, error["loc"]) if not key.startswith(of_types)]
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if not location:  # of the study as a whole; such a message names its keys itself
        return message
    *sections, name = location
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        model: type[Section] = StudySpec
        for section in sections:
            model = _SECTIONS.get(section, model)
        legal = sorted(model.model_fields)
        return (
            f"`{key}` is not a key of a study{close_matches(name, legal)} (legal: "
            f"{', '.join(legal)})"
        )
    if error["type"] == "missing":
        return f"`{key}` must be given; see studies/quickstart.toml for an example"
    if error.get("ctx", {}).get("pattern") == STUDY_NAME:
        message = (
            "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first, "
            "such as my-model"
        )
    value = error["input"]
    is_long = isinstance(value, dict) and len(value) > 3
    if not is_long and "but got" not in message:
        message += f" but got {redact_data(value, name)!r}"
    return f"`{key}` must be: {message}"


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

FEWEST_TRIALS = 4  # trials within the budget that is named where one is too small
SOAK_STEPS = 200  # fewest steps of a soak
SOAK_STEPS_OF_RUNS = 20  # fewest steps of a soak of a program that runs by itself
SOAK_STEPS_OF_GRAPHS = 1000  # where command buffers hold collectives, see `HUNG_AT`


class StudySpec(Section):
    """A whole study, checked. Equal `identity` means results may share a run directory."""

    name: str = Field(pattern=STUDY_NAME)
    """Of the study; its run directory is ``runs/NAME`` unless a command says otherwise."""
    description: Redacted = ""
    """Shown in reports."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of proposals, data and order: the same seed proposes the same."""
    workload: WorkloadSpec
    """What runs."""
    device: DeviceSpec = DeviceSpec()
    baseline: Settings = Field(default_factory=FlagSet)
    """Settings of the reference, and so of every candidate: setting to value."""
    search: SearchSpec = SearchSpec()
    screen: ScreenSpec = ScreenSpec()
    measure: MeasureSpec = MeasureSpec()
    confirm: ConfirmSpec = ConfirmSpec()
    limits: LimitsSpec = LimitsSpec()

    @model_validator(mode="after")
    def _fits_together(self) -> StudySpec:
        if ".." in self.name:
            raise ValueError("`name` must not hold `..`")
        mesh = self.workload.mesh
        count = self.device.count
        if mesh is not None and count not in (None, math.prod(mesh.values())):
            raise ValueError(
                f"`workload.mesh` must be of the {count} devices of `device.count` but {mesh} is "
                f"of {math.prod(mesh.values())}; change either of them"
            )
        if self.workload.command is not None and self.device.process_count > 1:
            raise ValueError(
                "`device.process_count` is of an `entry`; a `command` starts its own processes"
            )
        return self

    @model_validator(mode="after")
    def _options_have_a_place(self) -> StudySpec:
        for name in self.baseline.of_kind("option"):
            raise ValueError(f"`baseline` holds settings; write {name} into `workload.options`")
        command = self.workload.command
        options = self.search.options
        if command is None:
            for count in options.get(PROCESS_COUNT, ()):
                self._with_processes(count)
        else:
            for name in sorted(options.keys() - self.workload.placeholders):
                raise ValueError(
                    f"`search.options.{name}` must stand in an argument of `workload.command` as "
                    f"{{{name}}} but does not"
                )
        for named_set in self.search.first:
            names = {*named_set.options, *options_in(named_set.settings)}
            for name in sorted(names - options.keys()):
                raise ValueError(
                    f"`search.first` `{named_set.name}`: `{name}` must be in "
                    f"`search.options`{close_matches(name, options)}"
                )
        for name, values in self._option_values().items():
            for value in values:
                filled_command(command or (), {name: value})
        return self

    @model_validator(mode="after")
    def _work_is_given(self) -> StudySpec:
        domains = self._option_values()
        product = self.workload.tokens_per_step
        if product is not None:
            for name in factors(product):
                if not name.isdecimal() and name not in domains:
                    raise ValueError(
                        f"`workload.tokens_per_step` names {name!r}, which is not in "
                        "`workload.options` or `search.options`; write its value "
                        f"there{close_matches(name, domains)}"
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

    def _option_values(self) -> Domains:
        """Each option with all values that a set of this study may give it."""
        domains = {name: [value] for name, value in self.reference_options.items()}
        for name, values in self.search.options.items():
            domains[name] += [value for value in values if value not in domains[name]]
        for named_set in self.search.first:
            for name, value in options_in(named_set.whole).items():
                if value not in domains[name]:
                    domains[name].append(value)
        return domains

    def work_under(self, settings: FlagSet) -> int | None:
        """Tokens of a step by `workload.tokens_per_step`, if given; raises as `options_under`."""
        options = self.options_under(settings)
        product = self.workload.tokens_per_step
        return None if product is None else product_of(product, options)

    def _with_processes(self, count: Any) -> DeviceSpec:
        return DeviceSpec.model_validate({**self.device.model_dump(), PROCESS_COUNT: count})

    @property
    def reference_options(self) -> Table:
        """Options of the reference: those of the workload, else the first that are searched."""
        options = {name: values[0] for name, values in self.search.options.items()}
        options |= self.workload.options
        if self.workload.entry is not None and PROCESS_COUNT in self.search.options:
            options[PROCESS_COUNT] = self.device.process_count
        return options

    def options_under(self, settings: FlagSet) -> Table:
        """Returns the reference's options with those of a set; SettingError if not in the study."""
        options = options_in(settings)
        domains = self._option_values()
        for name, value in options.items():
            if name not in domains:
                raise SettingError(
                    f"an option must be one of the study ({', '.join(domains) or 'it has none'}) "
                    f"but got {name!r}{close_matches(name, domains)}; add it to `search.options`"
                )
            if value not in domains[name]:
                raise SettingError(
                    f"option {name!r} must have a value that the study lists ({domains[name]}) but "
                    f"got {value!r:.100}; add it to `search.options`"
                )
        return {**self.reference_options, **options}

    def under(self, settings: FlagSet) -> StudySpec:
        """The study with a set's options in place, none to search; raises as `options_under`."""
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
        sizes = GPU_SIZES if self.device.platform == "cuda" else CPU_SIZES
        if self.measure.block_s != "auto":
            sizes = sizes._replace(block_s=self.measure.block_s)
        if not self.workload.can_wait:  # it may end, so its warm-up must do
            sizes = sizes._replace(steady_s=0.0)
        return sizes

    def soak_steps(self, settings: Mapping[str, str]) -> int:
        """Fewest steps of a soak; a program that runs by itself may end and then starts again."""
        if not self.workload.can_wait:
            return SOAK_STEPS_OF_RUNS
        return SOAK_STEPS_OF_GRAPHS if captures_collectives(settings) else SOAK_STEPS

    @property
    def workload_hash(self) -> str:
        """Names what is measured: workload, its options, devices and processes, but no flags."""
        workload = self.workload.model_dump(exclude={"mesh", "python"})  # no effect
        if self.workload.launcher is None:
            workload.pop("launcher")
        device = self.device.model_dump(exclude={"nic_bytes_per_s"})
        return digest_of({"workload": workload, "device": device})

    @property
    def identity(self) -> str:
        """Names what must not change when a study is resumed; see `lasting`."""
        return digest_of(self.lasting())

    @property
    def question(self) -> str:
        """Names what a study asks: studies with another seed, budget or name ask the same again."""
        data = self.lasting()
        data.pop("seed")
        return digest_of(data)

    def lasting(self) -> Table:
        """The study without what may change on resume: budgets, proofs, what is only shown."""
        data = self.model_dump(mode="json", exclude={"name", "description", "screen", "confirm"})
        data["device"].pop("nic_bytes_per_s")
        for key in ("trials", "time_budget"):
            data["search"].pop(key)
        return data


def load_study(path: Path) -> StudySpec:
    """Reads and checks a study file; a StudyFileError names all wrong keys and values."""
    try:
        text = plain_text(path, most=MOST_BYTES)
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob("*.toml")]
        hint = close_matches(path.name, names) or "; `autotune tune -- COMMAND` writes one"
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
_ENDLESS = {  # what a parser of TOML works on without an end
    "a number of 300 digits": re.compile(r"[=\[,]\s*[+-]?\d\w{299}"),
    "a key of 100 parts": re.compile(
        r"""(?m)(?:^|[\[{,])[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){99}"""
    ),
}


def _refuse_endless(text: str, path: Path) -> None:
    """Raises StudyFileError for a text that is too long or takes too long to parse."""
    if len(text) >= MOST_BYTES:
        raise StudyFileError(
            f"a study file must be smaller than {MOST_BYTES:,} bytes but {path} is not; shorten it"
        )
    for name, pattern in _ENDLESS.items():
        if match := pattern.search(text):
            line = text.count("\n", 0, match.end()) + 1
            raise StudyFileError(
                f"a study file must not hold {name} but line {line} of {path} does; write it "
                "shorter"
            )


def parse_study(data: Table, *, source: str = "study") -> StudySpec:
    """Checks a study given as plain data, which messages call `source`, or a StudyFileError."""
    if is_nested_deeper(data):
        raise _too_deep(source)
    try:
        return StudySpec.model_validate(data)
    except ValidationError as error:
        problems = "".join(f"\n  - {explain(problem)}" for problem in error.errors())
        raise StudyFileError(f"{source} is not a legal study:{problems}") from None


def _too_deep(source: str) -> StudyFileError:
    return StudyFileError(
        f"{source} must not have more than {MOST_NESTED} lists or tables in each other but has; "
        "write them flatter"
    )
