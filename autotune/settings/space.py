"""The search space: typed, conditional parameters from a study, a build and a program.

A study names groups and settings; the catalogue gives values and conditions. Every setting that is
not searched is listed with its reason. A program's features follow from counts of devices and nodes
and from `workload.mesh`. A value that equals the build's default is rendered as absence, so that
equal sets have equal hashes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from typing import NamedTuple

from autotune.model.errors import SettingError, close_matches
from autotune.model.flags import DEFAULT, FlagSet, render_value
from autotune.model.measurement import WorkloadFacts
from autotune.model.options import option_setting, option_text
from autotune.model.sections import Domain
from autotune.model.spec import StudySpec
from autotune.model.units import format_bytes
from autotune.settings.catalog import (
    DATA,
    NEVER_SEARCHED,
    SEARCHED,
    Conditions,
    Scope,
    Setting,
    Stage,
    Tier,
    older,
    read_data,
)
from autotune.settings.check import SettingVerdict, check_setting
from autotune.settings.known import KnownSetting, KnownSettings, canonical_value, is_default
from autotune.settings.probe import Spellings

MOST_VALUES = 4096
"""Limit of the values of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One searched setting."""

    name: str
    choices: tuple[str, ...]
    """Its values; the default is among them, or a study lists values without it."""
    is_range: bool = False
    """Whether the values are whole numbers in even steps, the lowest first."""
    default: str | None = None
    """Value when the setting is absent; None if unknown."""
    type: str = "string"
    spellings: Spellings = field(default_factory=dict)
    """Further spellings of enum values to the value."""
    condition: Conditions | None = None
    """Other parameter to the values under which this one acts; None if always."""
    group: str = ""

    def match(self, text: str) -> str | None:
        """The value with the meaning of a text; None if there is none."""
        if text in self.choices:
            return text
        if self.is_absent(text):
            return self.default_choice
        named = (v for v in self.choices if v != DEFAULT)
        return next((v for v in named if is_default(text, v, self.spellings)), None)

    def is_absent(self, value: str) -> bool:
        """Returns whether a value is the default."""
        return value == DEFAULT or is_default(value, self.default, self.spellings)

    @property
    def default_choice(self) -> str:
        """The value that is the default; `DEFAULT` if there is none."""
        return next((v for v in self.choices if self.is_absent(v)), DEFAULT)

    @property
    def usual(self) -> str:
        """The value that is the default, if there is one; else the first."""
        return self.default_choice if self.default_choice in self.choices else self.choices[0]


class Expected(NamedTuple):
    """An expected effect of a set: the log of its ratio, with its standard deviation."""

    settings: FlagSet
    log_ratio: float
    sd: float


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Parameters in an order in which each follows those it depends on."""

    parameters: tuple[Parameter, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Setting to the reason why it is not searched."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Searched setting to a note for the user."""
    first: tuple[tuple[str, FlagSet], ...] = ()
    """Published sets to try first, with their sources."""
    expected: tuple[Expected, ...] = ()
    """What published effects let expect: a prior, no evidence."""

    def suggest(self, ask: Callable[[Parameter], str]) -> FlagSet:
        """Builds a point by asking for a value of each active parameter; SettingError if the answer
        is none of them.
        """
        chosen: dict[str, str] = {}
        for parameter in self.parameters:
            if not self._is_active(parameter, chosen):
                chosen[parameter.name] = parameter.default_choice
                continue
            value = ask(parameter)
            if value not in parameter.choices:
                raise SettingError(
                    f"{parameter.name} must have one of its values but got {value!r}"
                )
            chosen[parameter.name] = value
        return self._render(chosen)

    def locate(self, settings: FlagSet) -> dict[str, str] | None:
        """Inverse of `suggest`: values of the active parameters for a set; None if it is not a
        point of the space.
        """
        chosen: dict[str, str] = {}
        asked = {}
        for parameter in self.parameters:
            value = parameter.match(settings.get(parameter.name, DEFAULT))
            if not self._is_active(parameter, chosen):
                value = parameter.default_choice
            elif value is None:
                return None
            else:
                asked[parameter.name] = value
            chosen[parameter.name] = value
        rendered = self._render(chosen)
        absent = {p.name for p in self.parameters if p.is_absent(settings.get(p.name, DEFAULT))}
        return asked if set(rendered) == set(settings) - absent else None

    def points(self) -> Iterator[FlagSet]:
        """Iterates over all points; equal ones may come again."""
        return map(self._render, self._extend({}))

    def _extend(self, chosen: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
        if len(chosen) == len(self.parameters):
            yield chosen
            return
        parameter = self.parameters[len(chosen)]
        is_active = self._is_active(parameter, chosen)
        for value in parameter.choices if is_active else [parameter.default_choice]:
            yield from self._extend({**chosen, parameter.name: value})

    def size(self) -> int:
        """Number of combinations of values; the number of points, if no parameter has a
        condition.
        """
        return math.prod(len(parameter.choices) for parameter in self.parameters)

    def _is_active(self, parameter: Parameter, chosen: Mapping[str, str]) -> bool:
        return all(
            chosen.get(n, DEFAULT) in values for n, values in (parameter.condition or {}).items()
        )

    def _render(self, chosen: Mapping[str, str]) -> FlagSet:
        return FlagSet(
            {p.name: chosen[p.name] for p in self.parameters if not p.is_absent(chosen[p.name])}
        )


def format_cannot_act(space: SearchSpace) -> str:
    """Formats which settings were left out since program and machines lack what they act on; empty
    if none were.
    """
    found = {
        lack: [n for n, reason in space.left_out.items() if reason == lack]
        for lack in _KNOWN.missing.values()
    }
    return "; ".join(f"{lack}: {format_names(names, 4)}" for lack, names in found.items() if names)


def format_names(names: Sequence[str], most: int) -> str:
    """Formats names, of many the first ones and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def format_condition(parameter: Parameter) -> str:
    """Formats the condition of a parameter as a clause; ``always`` without one."""
    condition = parameter.condition or {}
    clauses = [f"{name} is {' or '.join(map(repr, values))}" for name, values in condition.items()]
    return "if " + " and ".join(clauses) if clauses else "always"


def format_domain(parameter: Parameter) -> str:
    """Formats the values of a parameter as a clause."""
    if parameter.is_range:
        low, following, *_, high = parameter.choices
        return f"{low} to {high} in steps of {int(following) - int(low)}"
    return ", ".join(map(repr, parameter.choices))


_LAYER_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8)  # of one layer's bytes: the advice is at least one layer
_POOL_MULTIPLES = (
    1,
    2,
    0.5,
)  # of what collectives write: operands may be in it, too, and not all is alive at once
_NO_LAYER = (
    "in powers of two, for the workload does not report the bytes of a layer (`layer_bytes`)"
)
_NO_LAYER_YET = (
    "a run searches 0.25 to 8 times one layer's bytes when its reference has "
    "reported them (`layer_bytes`)"
)


@dataclass(frozen=True, slots=True)
class _Known:
    default_groups: Mapping[str, tuple[str, ...]]
    axes: Mapping[str, frozenset[Scope]]
    tiers: Mapping[Tier, str]
    missing: Mapping[Scope, str]


_KNOWN = read_data(DATA / "space.toml", _Known)
GIVES = _KNOWN.axes
"""Axis of `workload.mesh` to the scopes of its programs."""


def build_space(
    spec: StudySpec,
    known: KnownSettings,
    reference: WorkloadFacts | None,
    *,
    machines: Mapping[Scope, bool] | None = None,
    cpu_count: int | None = None,
) -> SearchSpace:
    """Builds the space of a study; one that names nothing searches the default groups of its
    platform.

    Args:
        reference: Facts from running or compiling the program; None before that.
        machines: Scopes that the machines have or lack; what is not known is missing.

    Raises:
        SettingError: If a name or value is not legal.
    """
    search = spec.search
    asked = set(search.groups)
    scopes = {**known_scopes(spec, reference), **(machines or {})}
    if not (asked or search.settings or search.options):
        is_several = spec.device.platform == "cuda" and scopes.get(Scope.MULTI_DEVICE)
        asked = set(_KNOWN.default_groups["several_gpus" if is_several else spec.device.platform])
    legal = known.catalog.groups
    for group in sorted(asked.difference(legal)):
        hint = close_matches(group, legal)
        raise SettingError(f"a group must be one of {', '.join(legal)} but got {group!r}{hint}")
    builder = _SpaceBuilder(
        spec, known, reference, scopes, cpu_count or len(os.sched_getaffinity(0))
    )
    for name, domain in search.settings.items():
        builder.add_from_study(name, domain)
    for entry in known.catalog.values():
        if entry.name not in builder.found and not asked.isdisjoint((entry.group, *entry.also_in)):
            builder.add_from_catalog(known[entry.name])
    for parameter in option_parameters(spec):
        builder.found[parameter.name] = parameter
    return builder.space()


@dataclass(slots=True)
class _SpaceBuilder:
    """Collects the parameters of a study, and the reasons for omissions."""

    spec: StudySpec
    known: KnownSettings
    reference: WorkloadFacts | None
    scopes: Mapping[Scope, bool]
    cpu_count: int
    found: dict[str, Parameter] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add_from_study(self, name: str, domain: Domain) -> None:
        """Adds a setting with the study's own domain, whatever the catalogue says."""
        setting = self.known[name]
        if setting.entry.danger:
            raise SettingError(f"`search.settings` must not name {name}: {setting.entry.danger}")
        parameter = _own_parameter(name, domain, self._blank(setting))
        is_missing = name.startswith(("xla_", "jax_")) and not setting.exists
        for value in parameter.choices:
            check = check_setting(name, value, self.known)
            is_refused = is_missing or not check.starts or check.verdict is SettingVerdict.BAD_VALUE
            if is_refused and value != DEFAULT:
                raise SettingError(
                    f"each value of `search.settings` must be legal but got {name}={value}: "
                    f"{check.reason}; "
                    f"{check.advice}; write {DEFAULT!r} for its default"
                )
        if reason := self.cannot_act(setting):
            self.notes[name] = (
                f"named by the study, so it is searched; the catalogue says: {reason}"
            )
        self.found[name] = parameter

    def add_from_catalog(self, setting: KnownSetting) -> None:
        """Adds a setting with the catalogue's domain, or why it is not searched."""
        reason = self._not_by_group(setting.entry) or self.cannot_act(setting)
        parameter = None if reason else self._catalog_parameter(setting)
        if parameter is not None:
            self.found[setting.name] = parameter
            return
        no_values = (
            "the catalogue has no values to try for this build: name it in "
            "`search.settings` with yours"
        )
        self.left_out.setdefault(
            setting.name, reason or no_values
        )  # a reason from the study comes first

    def _not_by_group(self, entry: Setting) -> str:
        """Why a setting is not searched with its group; empty if it is."""
        if entry.name in self.spec.search.without:
            return "left out by the study (`search.without`)"
        if entry.name == "process_layout":
            return (
                "not a setting of a process: search it by `[search.options] process_count = [1, 8]`"
            )
        if entry.platform in NEVER_SEARCHED:
            return NEVER_SEARCHED[entry.platform]
        if entry.tier is Tier.LEGACY:
            newer = entry.renamed_to
            return (
                f"an older name of {newer}"
                if self.known[newer].exists or not newer.startswith("xla_")
                else ""
            )
        if entry.tier is Tier.NUMERICS and entry.group not in self.spec.search.groups:
            return f"changes results: name the group {entry.group!r} to search it"
        return "" if entry.tier in SEARCHED else _KNOWN.tiers[entry.tier]

    def cannot_act(self, setting: KnownSetting) -> str:
        """Why a setting cannot act in this study; empty if it may."""
        entry = setting.entry
        build = self.known.build.build
        if not setting.is_catalogued:
            return ""
        if entry.kind in ("xla", "jax") and not setting.exists:
            since = f"; it came with {entry.since}" if entry.since else ""
            return f"{build} does not have it{since}"
        if entry.kind == "env" and setting.is_too_new:
            return f"came with {entry.since}, installed is {self.known.build.nccl}"
        if setting.is_stored_nowhere:
            return f"{build} takes it in XLA_FLAGS, but stores it nowhere"
        if entry.platform not in ("any", self.spec.device.platform):
            return f"acts on {entry.platform}, the study runs on {self.spec.device.platform}"
        if entry.group == "pgle" and entry.kind == "jax" and self.spec.workload.entry is not None:
            return (
                "does nothing to a step that is compiled ahead of time; name a profile, or "
                "run a command"
            )
        if entry.nccl and self.known.build.nccl and older(self.known.build.nccl, entry.nccl):
            return f"needs NCCL {entry.nccl}, installed is {self.known.build.nccl}"
        return next((_KNOWN.missing[scope] for scope in self._lacked(entry.scopes)), "")

    def _lacked(self, scopes: Iterable[Scope]) -> list[Scope]:
        return [s for s in scopes if self.scopes.get(s) is False]

    def _catalog_parameter(self, setting: KnownSetting) -> Parameter | None:
        """A parameter with the catalogue's values; None without any."""
        entry = setting.entry
        blank = self._blank(setting)
        values = ["true", "false"] if blank.type == "bool" else self._values(entry)
        values = [
            v
            for v in values
            if not self._lacked(entry.value_scopes.get(v, ())) and not setting.avoided(v)
        ]
        if entry.stage is Stage.CLIENT and entry.group == "cpu_process" and entry.type == "int":
            values = [v for v in values if int(v) <= self.cpu_count]
        whole = self.reference.collective_bytes.get(entry.merges) if self.reference else None
        if whole:
            values = [v for v in values if int(v) < whole]
            if whole > int(blank.default or 0):
                values.append(str(whole))
            if not values:
                self.left_out[entry.name] = (
                    f"merges {entry.merges}s, the program's have {format_bytes(whole)} in all"
                )
        choices = _choices(_as_spelled(values, setting), blank)
        return replace(blank, choices=choices) if len(choices) > 1 else None

    def _values(self, entry: Setting) -> list[str]:
        """The values worth trying: multiples of what the program moves, if it reports that, else
        the catalogue's.
        """
        if self.reference is None:
            if entry.layer_bytes:
                self.notes[entry.name] = _NO_LAYER_YET
            return list(entry.values)
        layer = self.reference.layer_bytes.get(entry.layer_bytes)
        if layer:
            return [str(round(layer * multiple)) for multiple in _LAYER_MULTIPLES]
        if entry.layer_bytes:
            self.notes[entry.name] = _NO_LAYER
        moved_mib = sum(self.reference.collective_bytes.values()) / 2**20
        if entry.pool_step_mib and moved_mib:
            steps = [
                math.ceil(moved_mib / entry.pool_step_mib * multiple)
                for multiple in _POOL_MULTIPLES
            ]
            return [str(entry.pool_step_mib * count) for count in steps]
        return list(entry.values)

    def _blank(self, setting: KnownSetting) -> Parameter:
        """A parameter without its choices; its default is what runs without it: the baseline's
        value first.
        """
        default = setting.default
        entry = setting.entry
        if setting.name in self.spec.baseline:
            default = self.spec.baseline[setting.name]
        elif setting.info is None and default not in entry.values and not (default or "").isdigit():
            default = (
                None  # the catalogue's default of a variable may be a remark instead of a value
            )
        return Parameter(
            name=setting.name,
            choices=(DEFAULT,),
            default=default,
            type=setting.type,
            spellings=setting.spellings,
            group=entry.group,
        )

    def space(self) -> SearchSpace:
        """Builds the space with conditions, each parameter after those it depends on, without those
        that never act.
        """
        while True:
            conditions = {name: self._conditions(name) for name in self.found}
            never = self.found.keys() & self.left_out.keys()
            if not never:
                break
            for name in never:  # they stay at their defaults, which may switch others off: repeat
                del self.found[name]
        order = TopologicalSorter(conditions).static_order()
        parameters = tuple(
            replace(self.found[name], condition=conditions[name] or None) for name in order
        )
        notes = {name: note for name, note in self.notes.items() if name in self.found}
        return SearchSpace(parameters, self.left_out, notes)

    def _conditions(self, name: str) -> dict[str, tuple[str, ...]]:
        """Other parameters to the values under which this one acts; adds the reason to `left_out`
        if it never does.
        """
        entry = self.known[name].entry
        active: dict[str, tuple[str, ...]] = {}
        if entry.condition_since and older(self.known.build.jaxlib, entry.condition_since):
            return active
        rules = [(o, v, True) for o, v in entry.when.items()] + [
            (o, v, False) for o, v in entry.unless.items()
        ]
        for other, values, wanted in rules:
            if other.startswith("xla_") and not self.known[other].exists:
                continue  # a build without it
            parameter = self.found.get(other) or self._blank(self.known[other])
            named = {
                parameter.default_choice if parameter.is_absent(v) else v.lower() for v in values
            }
            before = active.get(other, parameter.choices)
            fitting = tuple(v for v in before if (v in named or v.lower() in named) == wanted)
            if not fitting:
                word = "if" if wanted else "unless"
                self.left_out[name] = (
                    f"acts only {word} {other} is {' or '.join(map(repr, values))}"
                )
                break
            if len(fitting) < len(parameter.choices):
                active[other] = fitting
        return active


def _own_parameter(name: str, domain: Domain, blank: Parameter) -> Parameter:
    """A parameter from a domain of a study file."""
    where = f"`search.settings.{name}`"
    if not isinstance(domain, Mapping):
        choices = tuple(dict.fromkeys(render_value(v) for v in domain))
        if not choices:
            raise SettingError(f"{where} must list at least one value but got none")
        return replace(blank, choices=choices)
    numbers = (
        _numbers(**domain) if domain.keys() <= {"low", "high", "step", "power_of_two"} else None
    )
    if not numbers or len(numbers) > MOST_VALUES:
        raise SettingError(
            f"{where} must be a list of values, or have low, high (whole numbers, low <= high) "
            "and if wanted step "
            f"or power_of_two, for at most {MOST_VALUES} values, but got {dict(domain)!r}"
        )
    return replace(
        blank,
        choices=tuple(map(str, numbers)),
        is_range=isinstance(numbers, range) and len(numbers) > 2,
    )


def _numbers(
    low: object = None, high: object = None, step: object = 1, power_of_two: object = False
) -> Sequence[int] | None:
    """The numbers of a range of a study file; None if it is none."""
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(step, int) and step >= 1):
        return None
    if not power_of_two:
        return range(low, high + 1, step)
    return [1 << k for k in range(high.bit_length()) if low <= 1 << k <= high]


def _as_spelled(values: Sequence[str], setting: KnownSetting) -> list[str]:
    """The values that the build accepts, in its spelling."""
    flag = setting.flag
    if flag is None:
        return list(values)
    if flag.type == "enum" and not flag.spellings:
        return []  # the build does not name the values: try none
    return [canonical_value(v, setting.spellings) for v in values if not setting.refused(v)]


def _choices(values: Sequence[str], blank: Parameter) -> tuple[str, ...]:
    """The values with the default (or `DEFAULT`) first."""
    others = [v for v in dict.fromkeys(values) if not blank.is_absent(v)]
    unnamed = blank.default if blank.type == "bool" else None
    named = next((v for v in values if blank.is_absent(v)), unnamed)
    return (DEFAULT if named is None else named, *others)


def option_parameters(spec: StudySpec) -> Iterator[Parameter]:
    """One parameter for each searched option; its default is the reference's value."""
    reference = spec.reference_options
    for name, values in spec.search.options.items():
        own = option_text(reference[name])
        choices = tuple(dict.fromkeys([own, *map(option_text, values)]))
        yield Parameter(name=option_setting(name), choices=choices, default=own)


def known_scopes(spec: StudySpec, reference: WorkloadFacts | None) -> dict[Scope, bool]:
    """Maps scopes to whether the program has them, by counts or declarations; unknown scopes are
    missing.
    """
    mesh = spec.workload.mesh
    count = _device_count(spec, reference)
    scopes = {Scope.SINGLE_DEVICE: True}
    if mesh is not None:
        scopes |= dict.fromkeys(
            (Scope.MULTI_DEVICE, Scope.COLLECTIVE_PERMUTE, Scope.SHARDED_MATMUL), False
        )
        for axis, size in mesh.items():
            scopes |= dict.fromkeys(GIVES[axis] if size > 1 else (), True)
    if count is not None:
        scopes[Scope.MULTI_DEVICE] = count > 1 or scopes.get(Scope.MULTI_DEVICE, False)
    if spec.device.node_count > 1:
        scopes |= {Scope.MULTI_NODE: True, Scope.MULTI_DEVICE: True}
    elif spec.workload.command is None or scopes.get(Scope.MULTI_DEVICE) is False:
        scopes[Scope.MULTI_NODE] = (
            False  # a command may start processes elsewhere, an entry runs where it is put
        )
    return scopes


def _device_count(spec: StudySpec, reference: WorkloadFacts | None) -> int | None:
    """Number of devices of the program; None if uncertain."""
    told = reference.device_count if reference is not None else None
    if spec.workload.command is not None:  # a user's program reports at most its own process
        return spec.device.count or (told if told and told > 1 else None)
    return told or spec.device.count or (1 if spec.device.platform == "cpu" else None)
