"""The search space: typed, conditional parameters from a study, a build and a program.

A study names groups and settings; the catalogue gives values and conditions. Every setting that is not searched is
listed with its reason. A program's features follow from counts of devices and nodes and from `workload.mesh`. A value
that equals the build's default is rendered as absence, so that equal sets have equal hashes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autotune.model.errors import SettingError, close_matches
from autotune.model.flags import DEFAULT, FlagSet, render_value
from autotune.model.measurement import WorkloadFacts
from autotune.model.options import option_setting, option_text
from autotune.model.sections import Domain
from autotune.model.spec import StudySpec
from autotune.model.units import format_bytes
from autotune.settings.catalog import DATA, NEVER_SEARCHED, Scope, Setting, Stage, Tier, older, read_data
from autotune.settings.known import KnownSetting, KnownSettings, canonical_value, is_default, is_number

LISTABLE = 4096
"""Largest range that conditions of other parameters can refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One searched setting: either a list of choices, or a range of integers."""

    name: str
    choices: tuple[str, ...] | None = None
    """Values with the default among them; None for a range."""
    low: int | None = None
    high: int | None = None
    step: int = 1
    """1 if `power_of_two`."""
    log: bool = False
    """Whether to search the range on a logarithmic scale."""
    power_of_two: bool = False
    """Whether the range holds powers of two only, `low` and `high` included."""
    default: str | None = None
    """Value when the setting is absent; None if unknown."""
    type: str = "string"
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Further spellings of enum values to the value."""
    condition: Mapping[str, tuple[str, ...]] | None = None
    """Other parameter to the values under which this one acts; None if always."""
    group: str = ""

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.choices) if self.choices is not None else len(self._range())

    def _range(self) -> range | tuple[int, ...]:
        assert self.low is not None
        assert self.high is not None
        if self.power_of_two:
            return tuple(1 << k for k in range(self.low.bit_length() - 1, self.high.bit_length()))
        return range(self.low, self.high + 1, self.step)

    def values(self) -> Iterator[str]:
        """Iterates over the values in order."""
        return iter(self.choices) if self.choices is not None else map(str, self._range())

    def holds(self, value: str) -> bool:
        """Whether a text is one of the values."""
        if self.choices is not None:
            return value in self.choices
        return value.lstrip("+-").isdigit() and int(value) in self._range()

    def match(self, text: str) -> str | None:
        """The value with the meaning of a text; None if there is none."""
        if self.holds(text):
            return text
        if self.is_absent(text):
            return self.default_choice
        named = (v for v in self.choices or () if v != DEFAULT)
        return next((v for v in named if is_default(text, v, self.type, self.spellings)), None)

    def is_absent(self, value: str) -> bool:
        """Whether a value is the default."""
        return value == DEFAULT or is_default(value, self.default, self.type, self.spellings)

    @property
    def default_choice(self) -> str:
        """The value that is the default; `DEFAULT` if there is none."""
        listable = self.values() if self.size <= LISTABLE else ()
        return next((v for v in listable if self.is_absent(v)), DEFAULT)


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
    """Published ideas to try first, with their sources."""
    expected: tuple[Expected, ...] = ()
    """What published effects let expect: a prior, no evidence."""

    def suggest(self, ask: Callable[[Parameter], str]) -> FlagSet:
        """Builds a point by asking for a value of each active parameter; SettingError if the answer is none of them."""
        chosen: dict[str, str] = {}
        for parameter in self.parameters:
            if not self._is_active(parameter, chosen):
                chosen[parameter.name] = parameter.default_choice
                continue
            value = ask(parameter)
            if not parameter.holds(value):
                raise SettingError(f"{parameter.name} must have one of its values but got {value!r}")
            chosen[parameter.name] = value
        return self._render(chosen)

    def locate(self, settings: FlagSet) -> dict[str, str] | None:
        """Inverse of `suggest`: values of the active parameters for a set; None if it is not a point of the space."""
        chosen: dict[str, str] = {}
        asked: dict[str, str] = {}
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

    def size(self) -> int:
        """Number of distinct points, with conditions."""
        needed_later = [
            {n for later in self.parameters[i:] for n in later.condition or {}} for i in range(len(self.parameters) + 1)
        ]

        @functools.cache
        def count(index: int, context: tuple[tuple[str, str], ...]) -> int:
            if index == len(self.parameters):
                return 1
            parameter, chosen = self.parameters[index], dict(context)
            keep = needed_later[index + 1]

            def rest(value: str) -> int:
                kept = {n: v for n, v in {**chosen, parameter.name: value}.items() if n in keep}
                return count(index + 1, tuple(sorted(kept.items())))

            if not self._is_active(parameter, chosen):
                return rest(parameter.default_choice)
            if parameter.name not in keep:
                return parameter.size * rest(DEFAULT)
            return sum(rest(v) for v in parameter.values())

        return count(0, ())

    def _is_active(self, parameter: Parameter, chosen: Mapping[str, str]) -> bool:
        return all(chosen.get(n, DEFAULT) in values for n, values in (parameter.condition or {}).items())

    def _render(self, chosen: Mapping[str, str]) -> FlagSet:
        return FlagSet({p.name: chosen[p.name] for p in self.parameters if not p.is_absent(chosen[p.name])})


def format_cannot_act(space: SearchSpace) -> str:
    """Formats which settings were left out since program and machines lack what they act on; empty if none were."""
    found = {lack: [n for n, reason in space.left_out.items() if reason == lack] for lack in _KNOWN.missing.values()}
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
    if parameter.choices is not None:
        return ", ".join(map(repr, parameter.choices))
    how = " in powers of two" if parameter.power_of_two else ""
    how = how or (f" in steps of {parameter.step}" if parameter.step > 1 else "")
    return f"{parameter.low} to {parameter.high}{how}"


_LAYER_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8)  # of one layer's bytes: the advice is at least one layer
_POOL_MULTIPLES = (1, 2, 0.5)  # of what collectives write: operands may be in it, too, and not all is alive at once
_NO_LAYER = "in powers of two, for the workload does not report the bytes of a layer (`layer_bytes`)"
_NO_LAYER_YET = "a run searches 0.25 to 8 times one layer's bytes when its reference has reported them (`layer_bytes`)"
_SEARCHED_TIERS = (Tier.TUNE, Tier.NUMERICS)


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
    spec: StudySpec, known: KnownSettings, reference: WorkloadFacts | None, *,
    machines: Mapping[Scope, bool] | None = None, cpu_count: int | None = None,
) -> SearchSpace:  # fmt: skip
    """Builds the space of a study; one that names nothing searches the default groups of its platform.

    Args:
        reference: Facts from running or compiling the program; None before that.
        machines: Scopes that the machines have or lack; what is not known is missing.

    Raises:
        SettingError: If a name or value is not legal.
    """
    search = spec.search
    asked = list(search.groups)
    scopes = {**known_scopes(spec, reference), **(machines or {})}
    if not (asked or search.settings or search.options):
        is_several = spec.device.platform == "cuda" and scopes.get(Scope.MULTI_DEVICE)
        asked = list(_KNOWN.default_groups["several_gpus" if is_several else spec.device.platform])
    legal = known.catalog.groups
    for group in asked:
        if group not in legal:
            hint = close_matches(group, legal)
            raise SettingError(f"a group must be one of {', '.join(legal)} but got {group!r}{hint}")
    builder = SpaceBuilder(spec, known, reference, scopes, cpu_count or len(os.sched_getaffinity(0)))
    for name, domain in search.settings.items():
        builder.add_from_study(name, domain)
    picked = [s for s in known.catalog.values() if s.name not in builder.found and {s.group, *s.also_in} & set(asked)]
    builder.expect(picked)
    for setting in picked:
        builder.add_from_catalog(setting, numerics=setting.group in search.groups)
    for parameter in option_parameters(spec):
        builder.found[parameter.name] = parameter
    return builder.space()


class SpaceBuilder:
    """Collects the parameters of a study, and the reasons for omissions."""

    def __init__(
        self,
        spec: StudySpec,
        known: KnownSettings,
        reference: WorkloadFacts | None,
        scopes: Mapping[Scope, bool],
        cpu_count: int,
    ) -> None:
        self.found: dict[str, Parameter] = {}
        self._left_out: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._known = known
        self._baseline = spec.baseline
        self._without = spec.search.without
        self._platform = spec.device.platform
        self.scopes = scopes
        self._made: set[Scope] = set()
        self._is_told = reference is not None
        self._layer_bytes = reference.layer_bytes if reference else {}
        self._moved = reference.collective_bytes if reference else {}
        self._cpu_count = cpu_count
        self._is_entry = spec.workload.entry is not None

    def add_from_study(self, name: str, domain: Domain) -> None:
        """Adds a setting with the study's own domain, whatever the catalogue says."""
        setting, build = self._known[name], self._known.build
        if name.startswith(("xla_", "jax_")) and not setting.exists:
            raise SettingError(
                f"`search.settings` must name settings of {build.build} but it lacks {name}"
                f"{self._known.hint(setting)}; try: autotune flags show {name}"
            )
        if setting.entry.danger:
            raise SettingError(f"`search.settings` must not name {name}: {setting.entry.danger}")
        if reason := self.cannot_act(setting):
            self._notes[name] = f"named by the study, so it is searched; the catalogue says: {reason}"
        parameter = _own_parameter(name, domain, self._blank(setting))
        for value in parameter.choices or (str(parameter.low), str(parameter.high)):
            refused = setting.refused(value) if setting.flag is not None and value != DEFAULT else ""
            if problem := refused or setting.out_of_range(value):
                raise SettingError(
                    f"each value of `search.settings.{name}` must be legal but got {value!r}: {name} {problem}; "
                    f"write {DEFAULT!r} for its default"
                )
        self.found[name] = parameter

    def expect(self, picked: Sequence[Setting]) -> None:
        """Records the scopes that settings of the study, its baseline and `picked` may add to the program."""
        named = [self._known[n].entry for n in (*self.found, *self._baseline)]
        makers = [s for s in picked if s.makes and not self.cannot_act(self._known[s.name])]
        self._made = {scope for s in (*named, *makers) for scope in s.makes}

    def add_from_catalog(self, entry: Setting, *, numerics: bool) -> None:
        """Adds a setting with the catalogue's domain, or why it is not searched; `numerics` allows other results."""
        setting = self._known[entry.name]
        reason = self._not_by_group(entry, numerics=numerics) or self.cannot_act(setting)
        parameter = None if reason else self._catalog_parameter(entry, setting)
        if parameter is not None:
            self.found[entry.name] = parameter
            return
        no_values = "the catalogue has no values to try for this build: name it in `search.settings` with yours"
        self._left_out.setdefault(entry.name, reason or no_values)  # a reason from the study comes first

    def _not_by_group(self, entry: Setting, *, numerics: bool) -> str:
        """Why a setting is not searched with its group; empty if it is."""
        if entry.name in self._without:
            return "left out by the study (`search.without`)"
        if entry.name == "process_layout":
            return "not a setting of a process: search it by `[search.options] process_count = [1, 8]`"
        if entry.platform in NEVER_SEARCHED:
            return NEVER_SEARCHED[entry.platform]
        if entry.tier is Tier.LEGACY:
            newer = entry.renamed_to
            return f"an older name of {newer}" if self._known[newer].exists or not newer.startswith("xla_") else ""
        if entry.tier is Tier.NUMERICS and not numerics:
            return f"changes results: name the group {entry.group!r} to search it"
        return "" if entry.tier in _SEARCHED_TIERS else _KNOWN.tiers[entry.tier]

    def cannot_act(self, setting: KnownSetting) -> str:
        """Why a setting cannot act in this study; empty if it may."""
        entry, flag, build = setting.entry, setting.flag, self._known.build.build
        if not setting.is_catalogued:
            return ""
        if entry.kind in ("xla", "jax") and not setting.exists:
            since = f"; it came with {entry.since}" if entry.since else ""
            return f"{build} does not have it{since}"
        if entry.kind == "env" and setting.is_too_new:
            return f"came with {entry.since}, installed is {self._known.build.nccl}"
        if flag is not None and not flag.sets:
            return f"{build} takes it in XLA_FLAGS, but stores it nowhere"
        if entry.platform not in ("any", self._platform):
            return f"acts on {entry.platform}, the study runs on {self._platform}"
        if entry.group == "pgle" and entry.kind == "jax" and self._is_entry:
            return "does nothing to a step that is compiled ahead of time; name a profile, or run a command"
        if entry.nccl and self._known.build.nccl and older(self._known.build.nccl, entry.nccl):
            return f"needs NCCL {entry.nccl}, installed is {self._known.build.nccl}"
        return next((_KNOWN.missing[scope] for scope in self._lacked(entry.scopes)), "")

    def _lacked(self, scopes: Iterable[Scope]) -> list[Scope]:
        return [s for s in scopes if self.scopes.get(s) is False and s not in self._made]

    def _catalog_parameter(self, entry: Setting, setting: KnownSetting) -> Parameter | None:
        """A parameter with the catalogue's values; None without any."""
        blank = self._blank(setting)
        layer = self._layer_bytes.get(entry.layer_bytes) if entry.layer_bytes else None
        if layer:
            return self._sized(entry, blank, [round(layer * m) for m in _LAYER_MULTIPLES])
        if entry.layer_bytes:
            self._notes[entry.name] = _NO_LAYER if self._is_told else _NO_LAYER_YET
        if entry.pools and self._moved:
            steps = [math.ceil(sum(self._moved.values()) / 2**20 / entry.step * m) for m in _POOL_MULTIPLES]
            return self._sized(entry, blank, [entry.step * s for s in steps])
        if entry.low is not None and entry.high is not None:
            power = entry.power_of_two
            ranged = _ranged(blank, entry.low, entry.high, entry.step, log=power, power=power)
            if self._moved.get(entry.merges):
                return self._sized(entry, blank, [int(v) for v in ranged.values()])
            holds_default = any(ranged.is_absent(v) for v in ranged.values())
            return ranged if holds_default else replace(blank, choices=_choices(list(ranged.values()), blank))
        values = ["true", "false"] if blank.type == "bool" else list(entry.values)
        values = [v for v in values if not self._lacked(entry.value_scopes.get(v, ()))]
        values = [v for v in values if not self._known.avoided(entry, v)]
        if entry.stage is Stage.CLIENT and entry.group == "cpu_process" and entry.type == "int":
            values = [v for v in values if int(v) <= self._cpu_count]
        choices = _choices(_as_spelled(values, setting), blank)
        return replace(blank, choices=choices) if len(choices) > 1 else None

    def _sized(self, entry: Setting, blank: Parameter, sizes: Sequence[int]) -> Parameter | None:
        """A parameter with sizes in bytes: those below all that it may merge, and all if above the default."""
        if whole := self._moved.get(entry.merges):
            sizes = [s for s in sizes if s < whole] + ([whole] if whole > int(blank.default or 0) else [])
        if not sizes:
            self._left_out[entry.name] = f"merges {entry.merges}s, the program's have {format_bytes(whole)} in all"
            return None
        return replace(blank, choices=_choices([str(s) for s in sizes], blank))

    def _blank(self, setting: KnownSetting) -> Parameter:
        """A parameter without its choices; its default is what runs without it: the baseline's value first."""
        default, entry = self._baseline.get(setting.name, setting.default), setting.entry
        if setting.name not in self._baseline and setting.flag is None and setting.option is None:
            # The catalogue's default of a variable may be a remark instead of a value.
            is_value = default in entry.values or (default or "").isdigit()
            default = default if is_value else None
        return Parameter(
            name=setting.name,
            choices=(DEFAULT,),
            default=default,
            type=setting.type,
            spellings=setting.spellings,
            group=entry.group,
        )

    def space(self) -> SearchSpace:
        """Builds the space with conditions, each parameter after those it depends on, without those that never act."""
        while True:
            conditions = {name: self._conditions(name) for name in self.found}
            never = {name: c for name, c in conditions.items() if isinstance(c, str)}
            if not never:
                break
            # Dropped parameters stay at their defaults, which may switch others off: repeat.
            self._left_out.update(never)
            for name in never:
                del self.found[name]
        ordered: dict[str, Parameter] = {}

        def add(name: str) -> None:
            if name not in ordered:
                condition = conditions[name]
                assert not isinstance(condition, str)
                for other in condition:
                    add(other)
                ordered[name] = replace(self.found[name], condition=condition or None)

        for name in self.found:
            add(name)
        notes = {n: w for n, w in self._notes.items() if n in ordered}
        return SearchSpace(tuple(ordered.values()), self._left_out, notes)

    def _conditions(self, name: str) -> dict[str, tuple[str, ...]] | str:
        """Other parameters to the values under which this one acts, or the reason why it never does."""
        entry = self._known[name].entry
        rules = []
        if not (entry.condition_since and older(self._known.build.jaxlib, entry.condition_since)):
            rules = [(o, v, True) for o, v in entry.when.items()] + [(o, v, False) for o, v in entry.unless.items()]
        active: dict[str, tuple[str, ...]] = {}
        for other, values, wanted in rules:
            if other.startswith("xla_") and not self._known[other].exists:
                continue  # a build without it
            parameter = self.found.get(other) or self._blank(self._known[other])
            if parameter.size > LISTABLE:
                continue
            named = {parameter.default_choice if parameter.is_absent(v) else v.lower() for v in values}
            before = active.get(other, tuple(parameter.values()))
            fitting = tuple(v for v in before if (v in named or v.lower() in named) == wanted)
            if not fitting:
                return f"acts only {'if' if wanted else 'unless'} {other} is {' or '.join(map(repr, values))}"
            if len(fitting) < parameter.size:
                active[other] = fitting
        return active


def with_other_values(space: SearchSpace, names: Sequence[str]) -> FlagSet:
    """Returns the point of a space with another value of each of these settings: the next lower one, or the first."""

    def ask(parameter: Parameter) -> str:
        usual, now = parameter.default_choice, parameter.default or ""
        others = [v for v in parameter.values() if not parameter.is_absent(v)] if parameter.name in names else []
        if not others:
            return usual if parameter.holds(usual) else next(parameter.values())
        lower = [v for v in others if is_number(now) and is_number(v) and float(v) < float(now)]
        return max(lower, key=float, default=others[0])

    return space.suggest(ask)


def _own_parameter(name: str, domain: Domain, blank: Parameter) -> Parameter:
    """A parameter from a domain of a study file."""
    where = f"`search.settings.{name}`"
    if not isinstance(domain, Mapping):
        choices = tuple(dict.fromkeys(render_value(v) for v in domain))
        if not choices:
            raise SettingError(f"{where} must list at least one value but got none")
        return replace(blank, choices=choices, low=None, high=None)
    low, high, step = domain.get("low"), domain.get("high"), domain.get("step", 1)
    power = bool(domain.get("power_of_two", False))
    is_legal = set(domain) <= {"low", "high", "log", "power_of_two", "step"} and _is_range(low, high, step)
    if not is_legal or (power and not all(isinstance(v, int) and v > 0 and not v & (v - 1) for v in (low, high))):
        raise SettingError(
            f"{where} must be a list of values, or have low, high (whole numbers, low <= high) and if wanted step, log "
            f"and power_of_two (both are then powers of two) but got {dict(domain)!r}"
        )
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(step, int)
    return _ranged(blank, low, high, step, log=bool(domain.get("log", power)), power=power)


def _is_range(low: object, high: object, step: object) -> bool:
    whole = [v for v in (low, high, step) if isinstance(v, int) and not isinstance(v, bool)]
    return len(whole) == 3 and whole[0] <= whole[1] and whole[2] >= 1


def _ranged(blank: Parameter, low: int, high: int, step: int, *, log: bool, power: bool) -> Parameter:
    return replace(blank, choices=None, low=low, high=high, step=step, log=log, power_of_two=power)


def _as_spelled(values: Sequence[str], setting: KnownSetting) -> list[str]:
    """The values that the build accepts, in its spelling."""
    flag = setting.flag
    if flag is None:
        return list(values)
    if flag.type == "enum" and not flag.spellings:
        return []  # the build does not name the values: try none
    return [canonical_value(v, flag.type, flag.spellings) for v in values if not setting.refused(v)]


def _choices(values: Sequence[str], blank: Parameter) -> tuple[str, ...]:
    """The values with the default (or `DEFAULT`) first."""
    others = [v for v in dict.fromkeys(values) if not blank.is_absent(v)]
    named = next((v for v in values if blank.is_absent(v)), None)
    if named is None and blank.type == "bool" and blank.default is not None:
        named = blank.default
    return (DEFAULT if named is None else named, *others)


def option_parameters(spec: StudySpec) -> Iterator[Parameter]:
    """One parameter for each searched option; its default is the reference's value."""
    reference = spec.reference_options
    for name, values in spec.search.options.items():
        own = option_text(reference[name])
        choices = tuple(dict.fromkeys([own, *map(option_text, values)]))
        yield Parameter(name=option_setting(name), choices=choices, default=own)


def known_scopes(spec: StudySpec, reference: WorkloadFacts | None) -> dict[Scope, bool]:
    """Maps scopes to whether the program has them, by counts or declarations; unknown scopes are missing."""
    workload, nodes = spec.workload, spec.device.node_count
    mesh, count = workload.mesh, _device_count(spec, reference)
    axes = [axis for axis, size in (mesh or {}).items() if size > 1]
    has = {Scope.SINGLE_DEVICE, *(scope for axis in axes for scope in GIVES[axis])}
    if max(count or 1, nodes, math.prod((mesh or {}).values())) > 1:
        has.add(Scope.MULTI_DEVICE)
    if nodes > 1:
        has.add(Scope.MULTI_NODE)
    lacks: set[Scope] = set()
    if mesh is not None:
        lacks |= {Scope.MULTI_DEVICE, Scope.COLLECTIVE_PERMUTE, Scope.SHARDED_MATMUL}
    if count == 1:
        lacks.add(Scope.MULTI_DEVICE)
    if workload.command is None or (Scope.MULTI_DEVICE in lacks and Scope.MULTI_DEVICE not in has):
        lacks.add(Scope.MULTI_NODE)  # a command may start processes elsewhere, an entry runs where it is put
    return {scope: scope in has for scope in Scope if scope in has | lacks}


def _device_count(spec: StudySpec, reference: WorkloadFacts | None) -> int | None:
    """Number of devices of the program; None if uncertain."""
    told = reference.device_count if reference is not None else None
    if spec.workload.command is not None:  # a user's program reports at most its own process
        return spec.device.count or (told if told and told > 1 else None)
    return told or spec.device.count or (1 if spec.device.platform == "cpu" else None)
