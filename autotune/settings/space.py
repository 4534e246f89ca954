"""The search space: typed, conditional parameters from a study, a build and a program.

A value that equals the build's default is rendered as absence: equal sets have equal hashes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from itertools import chain
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
    Conditions,
    Scope,
    Setting,
    Stage,
    TextMap,
    Texts,
    Tier,
    Values,
    older,
    read_data,
)
from autotune.settings.check import SettingVerdict, check_setting
from autotune.settings.known import KnownSetting, KnownSettings, canonical_value, is_default

# Scopes to whether program and machines have them; unknown ones are missing.
Scopes = Mapping[Scope, bool]
NamedSets = Sequence[tuple[str, FlagSet]]  # sets to try first, each after its origin
MOST_VALUES = 4096  # of a range


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One searched setting."""

    name: str
    choices: Texts  # its values; the default is among them, or a study lists values without it
    is_range: bool = False  # whole numbers in even steps, the lowest first
    default: str | None = None  # value when the setting is absent; None if unknown
    type: str = "string"
    spellings: TextMap = field(default_factory=dict)
    condition: Conditions | None = None  # other parameters to the values they need
    group: str = ""

    def match(self, text: str) -> str | None:
        """The value with the meaning of a text; None if there is none."""
        if text in self.choices:
            return text
        if self.is_absent(text):
            return self.default_choice
        return next((v for v in self.choices if is_default(text, v, self.spellings)), None)

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


@dataclass(frozen=True)
class SearchSpace:
    """Parameters in an order in which each follows those it depends on."""

    parameters: tuple[Parameter, ...]
    left_out: TextMap = field(default_factory=dict)  # setting to why
    notes: TextMap = field(default_factory=dict)  # for the user
    first: NamedSets = ()
    expected: tuple[Expected, ...] = ()  # a prior, no evidence

    def suggest(self, ask: Callable[[Parameter], str]) -> FlagSet:
        """Builds a point of the answers for active parameters; SettingError for an illegal one."""
        values: Values = {}
        for parameter in self.parameters:
            value = parameter.default_choice
            if self._is_active(parameter, values):
                value = ask(parameter)
                if value not in parameter.choices:
                    raise SettingError(
                        f"{parameter.name} must have one of its values but got {value!r}"
                    )
            values[parameter.name] = value
        return self._render(values)

    def locate(self, settings: FlagSet) -> Values | None:
        """Inverse of `suggest`: values of the active parameters; None if the set is no point."""
        values = {}
        active = {}
        names = set(settings)
        for parameter in self.parameters:
            name = parameter.name
            text = settings.get(name, DEFAULT)
            if parameter.is_absent(text):
                names.discard(name)
            values[name] = parameter.default_choice
            if self._is_active(parameter, values):
                value = parameter.match(text)
                if value is None:
                    return None
                active[name] = values[name] = value
        return active if set(self._render(values)) == names else None

    def points(self) -> Iterator[FlagSet]:
        """Iterates over all points; equal ones may come again."""
        return map(self._render, self._extend({}))

    def _extend(self, values: TextMap) -> Iterator[TextMap]:
        if len(values) == len(self.parameters):
            yield values
            return
        parameter = self.parameters[len(values)]
        choices: Texts = (parameter.default_choice,)
        if self._is_active(parameter, values):
            choices = parameter.choices
        for value in choices:
            yield from self._extend({**values, parameter.name: value})

    def size(self) -> int:
        """Number of combinations of values; without conditions the number of points."""
        return math.prod(len(parameter.choices) for parameter in self.parameters)

    def _is_active(self, parameter: Parameter, values: TextMap) -> bool:
        conditions = (parameter.condition or {}).items()
        return all(values.get(name, DEFAULT) in fitting for name, fitting in conditions)

    def _render(self, values: TextMap) -> FlagSet:
        return FlagSet(
            {p.name: values[p.name] for p in self.parameters if not p.is_absent(values[p.name])}
        )


def format_cannot_act(space: SearchSpace) -> str:
    """Formats which settings act on what program and machines lack; empty if none do."""
    clauses = []
    for lack in _KNOWN.missing.values():
        names = [name for name, reason in space.left_out.items() if reason == lack]
        if names:
            clauses.append(f"{lack}: {format_names(names, 4)}")
    return "; ".join(clauses)


def format_names(names: Sequence[str], most: int) -> str:
    """Formats names, of many the first ones and how many more there are."""
    listed = ", ".join(names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed


def format_condition(parameter: Parameter) -> str:
    """Formats the condition of a parameter as a clause; ``always`` without one."""
    if not parameter.condition:
        return "always"
    return "if " + " and ".join(_format_values(*item) for item in parameter.condition.items())


def _format_values(name: str, values: Texts) -> str:
    return f"{name} is {' or '.join(map(repr, values))}"


def format_domain(parameter: Parameter) -> str:
    """Formats the values of a parameter as a clause."""
    if parameter.is_range:
        low, following, *_, high = parameter.choices
        return f"{low} to {high} in steps of {int(following) - int(low)}"
    return ", ".join(map(repr, parameter.choices))


@dataclass(frozen=True)
class _Known:
    default_groups: Mapping[str, Texts]
    axes: Mapping[str, frozenset[Scope]]
    tiers: Mapping[Tier, str]
    missing: Mapping[Scope, str]


_KNOWN = read_data(DATA / "space.toml", _Known)
GIVES = _KNOWN.axes  # axis of `workload.mesh` to the scopes of its programs


def build_space(
    spec: StudySpec,
    known: KnownSettings,
    reference: WorkloadFacts | None,
    *,
    machines: Scopes | None = None,
) -> SearchSpace:
    """Builds the space of a study; SettingError for a name or value that is not legal.

    `reference` is None before the program ran or was compiled.
    """
    search = spec.search
    groups = set(search.groups)
    scopes = {**known_scopes(spec, reference), **(machines or {})}
    if not (groups or search.settings or search.options):
        place: str = spec.device.platform
        if place == "cuda" and scopes.get(Scope.MULTI_DEVICE):
            place = "several_gpus"
        groups.update(_KNOWN.default_groups[place])
    legal = known.catalog.groups
    for group in sorted(groups.difference(legal)):
        raise SettingError(
            f"a group must be one of {', '.join(legal)} but got "
            f"{group!r}{close_matches(group, legal)}"
        )
    builder = _SpaceBuilder(spec, known, reference, scopes)
    for name, domain in search.settings.items():
        builder.add_from_study(name, domain)
    for name, entry in known.catalog.items():
        if name not in builder.parameters and not groups.isdisjoint((entry.group, *entry.also_in)):
            builder.add_from_catalog(known[name])
    for name, values in search.options.items():
        default = option_text(spec.reference_options[name])
        choices = tuple(dict.fromkeys([default, *map(option_text, values)]))
        setting = option_setting(name)
        builder.parameters[setting] = Parameter(name=setting, choices=choices, default=default)
    return builder.space()


@dataclass
class _SpaceBuilder:
    """Collects the parameters of a study, and the reasons for omissions."""

    spec: StudySpec
    known: KnownSettings
    reference: WorkloadFacts | None
    scopes: Scopes
    parameters: dict[str, Parameter] = field(default_factory=dict)
    left_out: Values = field(default_factory=dict)
    notes: Values = field(default_factory=dict)

    def add_from_study(self, name: str, domain: Domain) -> None:
        """Adds a setting with the study's own domain, whatever the catalogue says."""
        setting = self.known[name]
        if setting.entry.danger:
            raise SettingError(f"`search.settings` must not name {name}: {setting.entry.danger}")
        parameter = _study_parameter(name, domain, self._blank(setting))
        is_missing = name.startswith(("xla_", "jax_")) and not setting.exists
        for value in parameter.choices:
            check = check_setting(name, value, self.known)
            is_refused = is_missing or not check.starts or check.verdict is SettingVerdict.BAD_VALUE
            if is_refused and value != DEFAULT:
                raise SettingError(
                    f"each value of `search.settings` must be legal but got {name}={value}: "
                    f"{check.reason}; {check.advice}; write {DEFAULT!r} for its default"
                )
        if reason := self._cannot_act(setting):
            self.notes[name] = (
                f"named by the study, so it is searched; the catalogue says: {reason}"
            )
        self.parameters[name] = parameter

    def add_from_catalog(self, setting: KnownSetting) -> None:
        """Adds a setting with the catalogue's domain, or why it is not searched."""
        name = setting.name
        reason = self._not_by_group(setting.entry) or self._cannot_act(setting)
        if reason:
            self.left_out[name] = reason
            return
        parameter = self._catalog_parameter(setting)
        if len(parameter.choices) > 1:
            self.parameters[name] = parameter
        else:
            self.left_out.setdefault(
                name,
                "the catalogue has no values to try for this build: name it in `search.settings` "
                "with yours",
            )

    def _not_by_group(self, entry: Setting) -> str:
        """Why a setting is not searched with its group; empty if it is."""
        search = self.spec.search
        if entry.name in search.without:
            return "left out by the study (`search.without`)"
        if entry.name == "process_layout":
            return "no setting of a process: search `[search.options] process_count = [1, 8]`"
        if entry.platform in NEVER_SEARCHED:
            return NEVER_SEARCHED[entry.platform]
        newer = entry.renamed_to
        if entry.tier is Tier.LEGACY:
            is_needed = newer.startswith("xla_") and not self.known[newer].exists
            return "" if is_needed else f"an older name of {newer}"
        if entry.tier is Tier.NUMERICS and entry.group not in search.groups:
            return f"changes results: name the group {entry.group!r} to search it"
        return _KNOWN.tiers.get(entry.tier, "")

    def _cannot_act(self, setting: KnownSetting) -> str:
        """Why a setting cannot act in this study; empty if it may."""
        entry = setting.entry
        build = self.known.build
        platform = self.spec.device.platform
        if not setting.is_catalogued:
            return ""
        if entry.kind in ("xla", "jax") and not setting.exists:
            since = f"; it came with {entry.since}" if entry.since else ""
            return f"{build.build} does not have it{since}"
        if entry.kind == "env" and setting.is_too_new:
            return f"came with {entry.since}, installed is {build.nccl}"
        if setting.is_stored_nowhere:
            return f"{build.build} takes it in XLA_FLAGS, but stores it nowhere"
        if entry.platform not in ("any", platform):
            return f"acts on {entry.platform}, the study runs on {platform}"
        if entry.group == "pgle" and entry.kind == "jax" and self.spec.workload.entry is not None:
            return "does nothing to a step compiled ahead of time; name a profile or run a command"
        if build.nccl and older(build.nccl, entry.nccl):
            return f"needs NCCL {entry.nccl}, installed is {build.nccl}"
        for scope in self._lacked(entry.scopes):
            return _KNOWN.missing[scope]
        return ""

    def _lacked(self, scopes: Iterable[Scope]) -> list[Scope]:
        return [scope for scope in scopes if self.scopes.get(scope) is False]

    def _catalog_parameter(self, setting: KnownSetting) -> Parameter:
        """A parameter with the catalogue's values; its only choice is the default without any."""
        entry = setting.entry
        blank = self._blank(setting)
        values = ["true", "false"] if blank.type == "bool" else self._values(entry)
        if entry.stage is Stage.CLIENT and entry.group == "cpu_process" and entry.type == "int":
            values = [value for value in values if int(value) <= len(os.sched_getaffinity(0))]
        total = self.reference.collective_bytes.get(entry.merges) if self.reference else None
        if total:
            values = [value for value in values if int(value) < total]
            if total > int(blank.default or 0):
                values.append(str(total))
            if not values:
                self.left_out[entry.name] = (
                    f"merges {entry.merges}s, the program's have {format_bytes(total)} in all"
                )
        default = DEFAULT
        choices = {}
        flag = setting.flag
        for value in values:
            if self._lacked(entry.value_scopes.get(value, ())) or setting.avoided(value):
                continue
            if flag and (setting.refused(value) or (flag.type == "enum" and not flag.spellings)):
                continue  # the build does not name the values of some enums: try none
            spelled = canonical_value(value, setting.spellings)
            if blank.is_absent(spelled):
                default = spelled
            else:
                choices[spelled] = True
        return replace(blank, choices=(default, *choices))

    def _values(self, entry: Setting) -> list[str]:
        """The values worth trying: multiples of what the program moves, else the catalogue's."""
        note = (
            "a run searches 0.25 to 8 times one layer's bytes when its reference has "
            "reported them (`layer_bytes`)"
        )
        moved_mib = 0.0
        if self.reference is not None:
            layer = self.reference.layer_bytes.get(entry.layer_bytes)
            if layer:
                return [str(round(layer * multiple)) for multiple in (0.25, 0.5, 1, 2, 4, 8)]
            note = (
                "in powers of two, for the workload does not report the bytes of a layer "
                "(`layer_bytes`)"
            )
            moved_mib = sum(self.reference.collective_bytes.values()) / 2**20
        if entry.layer_bytes:
            self.notes[entry.name] = note
        step_mib = entry.pool_step_mib
        if step_mib and moved_mib:  # not all of it is alive at once
            return [str(step_mib * math.ceil(moved_mib / step_mib * m)) for m in (1, 2, 0.5)]
        return list(entry.values)

    def _blank(self, setting: KnownSetting) -> Parameter:
        """A parameter without its choices; its default is what runs without it."""
        default = setting.default
        entry = setting.entry
        if setting.name in self.spec.baseline:
            default = self.spec.baseline[setting.name]
        elif (
            not (setting.flag or setting.option)
            and default not in entry.values
            and not (default or "").isdigit()
        ):
            default = None  # the catalogue's default of a variable may be a remark
        return Parameter(
            name=setting.name,
            choices=(DEFAULT,),
            default=default,
            type=setting.info.type,
            spellings=setting.spellings,
            group=entry.group,
        )

    def space(self) -> SearchSpace:
        """Builds the space, each parameter after those it depends on, without idle ones."""
        while True:
            conditions = {name: self._conditions(name) for name in self.parameters}
            idle = self.parameters.keys() & self.left_out.keys()
            if not idle:
                break
            for name in idle:  # their defaults may switch others off: repeat
                del self.parameters[name]
        parameters = tuple(
            replace(self.parameters[name], condition=conditions[name] or None)
            for name in TopologicalSorter(conditions).static_order()
        )
        notes = {name: note for name, note in self.notes.items() if name in self.parameters}
        return SearchSpace(parameters, self.left_out, notes)

    def _conditions(self, name: str) -> Conditions:
        """Other parameters to the values under which this one acts; fills `left_out` if never."""
        entry = self.known[name].entry
        conditions: dict[str, Texts] = {}
        if older(self.known.build.jaxlib, entry.condition_since):
            return conditions
        for word, rules in (("if", entry.when), ("unless", entry.unless)):
            for switch, values in rules.items():
                setting = self.known[switch]
                if switch.startswith("xla_") and not setting.exists:
                    continue  # a build without it
                parameter = self.parameters.get(switch) or self._blank(setting)
                default = parameter.default_choice
                texts = {default if parameter.is_absent(v) else v.lower() for v in values}
                fitting = tuple(
                    choice
                    for choice in conditions.get(switch, parameter.choices)
                    if texts.isdisjoint((choice, choice.lower())) == (word == "unless")
                )
                if not fitting:
                    self.left_out[name] = f"acts only {word} {_format_values(switch, values)}"
                    return conditions
                if len(fitting) < len(parameter.choices):
                    conditions[switch] = fitting
        return conditions


def _study_parameter(name: str, domain: Domain, blank: Parameter) -> Parameter:
    where = f"`search.settings.{name}`"
    if not isinstance(domain, Mapping):
        choices = tuple(dict.fromkeys(map(render_value, domain)))
        if not choices:
            raise SettingError(f"{where} must list at least one value but got none")
        return replace(blank, choices=choices)
    numbers: Sequence[int] = ()
    match {"step": 1, "power_of_two": False, **domain}:
        case {
            "low": int(low),
            "high": int(high),
            "step": int(step),
            "power_of_two": doubles,
            **others,
        } if step >= 1 and not others:
            numbers = range(low, high + 1, step)
            if doubles:
                numbers = [1 << k for k in range(high.bit_length()) if low <= 1 << k <= high]
    if not 0 < len(numbers) <= MOST_VALUES:
        raise SettingError(
            f"{where} must be a list of values, or have low, high (whole numbers, low <= high) "
            f"and if wanted step or power_of_two, for at most {MOST_VALUES} values, but got "
            f"{dict(domain)!r}"
        )
    is_range = isinstance(numbers, range) and len(numbers) > 2
    return replace(blank, choices=tuple(map(str, numbers)), is_range=is_range)


def known_scopes(spec: StudySpec, reference: WorkloadFacts | None) -> Scopes:
    """Maps scopes to whether the program has them; unknown ones are missing."""
    mesh = spec.workload.mesh
    count = spec.device.count
    reported = reference.device_count if reference else None
    if spec.workload.command is None:
        count = reported or count
        if count is None and spec.device.platform == "cpu":
            count = 1
    elif count is None and reported and reported > 1:  # at most its own process
        count = reported
    scopes = {Scope.SINGLE_DEVICE: True}
    if mesh is not None:
        scopes |= dict.fromkeys(chain(*GIVES.values()), False)
        for axis, size in mesh.items():
            if size > 1:
                scopes |= dict.fromkeys(GIVES[axis], True)
    if count is not None:
        scopes[Scope.MULTI_DEVICE] = count > 1 or scopes.get(Scope.MULTI_DEVICE, False)
    if spec.device.node_count > 1:
        scopes |= {Scope.MULTI_NODE: True, Scope.MULTI_DEVICE: True}
    elif spec.workload.command is None or scopes.get(Scope.MULTI_DEVICE) is False:
        # A command may start processes elsewhere, an entry runs where it is put.
        scopes[Scope.MULTI_NODE] = False
    return scopes
