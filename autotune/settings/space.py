"""Builds the search space of a study for one build and one program.

Groups and settings name settings; the catalogue gives them values and conditions.
Every setting that is not searched is listed with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.model import SettingError, StudySpec, Value, WorkloadFacts, close_matches, render_value
from autotune.settings.catalog import NEVER_SEARCHED, Scope, Setting, Stage, Tier, older
from autotune.settings.known import KnownSetting, KnownSettings, canonical_value
from autotune.settings.options import option_parameters
from autotune.settings.parameters import DEFAULT, LISTABLE, Parameter, SearchSpace
from autotune.settings.scopes import known_scopes, why_asleep

DEFAULT_GROUPS = {
    "cpu": ("cpu", "cpu_process"),
    "cuda": ("scheduling", "pipelining", "combining", "loops", "command_buffer", "gemm", "fusion", "memory"),
}
"""What is searched when a study names nothing."""

_LAYER_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8)  # of one layer's bytes: the advice is at least one layer
_NO_LAYER = "in powers of two, for the workload does not tell the bytes of a layer (`layer_bytes`)"
_NO_LAYER_YET = "a run searches 0.25 to 8 times the bytes of one layer once its reference has told them (`layer_bytes`)"
_SEARCHED_TIERS = (Tier.TUNE, Tier.NUMERICS)
_COMPILED_TIERS = (*_SEARCHED_TIERS, Tier.EXPERT, Tier.AVOID, Tier.LEGACY)
_REASONS = {
    Tier.EXPERT: "for experts: name it in `search.settings` to search it",
    Tier.AVOID: "rarely of use, or known trouble: name it in `search.settings` to search it",
    Tier.TOOL: "diagnostics or compile time only",
    Tier.DANGER: "not for training",
    Tier.NOOP: "accepted, but does nothing",
    Tier.REMOVED: "gone from all tested builds",
    Tier.LISTED: "nobody judged yet whether it pays: name it in `search.settings` to search it",
}
_RANGE_KEYS = ("low", "high", "log", "power_of_two", "step")

Domain = Sequence[Value] | Mapping[str, Value | Sequence[Value]]


def build_space(
    spec: StudySpec, known: KnownSettings, reference: WorkloadFacts | None, *, cpu_count: int | None = None
) -> SearchSpace:
    """The space of one study; where it names nothing to search, that of `DEFAULT_GROUPS`.

    Args:
        spec: The study.
        known: What is known of settings on the installed build.
        reference: What the program told when it ran or was compiled; None before that.
        cpu_count: CPUs that threads are counted against; default those of this process.

    Raises:
        SettingError: If a name or value is not legal; close matches are named.
    """
    search = spec.search
    asked = list(search.groups)
    if not (asked or search.settings or search.options):
        asked = list(DEFAULT_GROUPS[spec.device.platform])
    legal = known.catalog.groups
    for group in asked:
        if group not in legal:
            hint = close_matches(group, legal)
            raise SettingError(f"a group must be one of {', '.join(legal)} but got {group!r}{hint}")
    builder = _Builder(spec, known, reference, cpu_count or len(os.sched_getaffinity(0)))
    for name, domain in search.settings.items():
        builder.add_from_study(name, domain)
    picked = [s for s in known.catalog.values() if s.name not in builder.found and {s.group, *s.also_in} & set(asked)]
    builder.expect(picked)
    for setting in picked:
        builder.add_from_catalog(setting, numerics=setting.group in search.groups)
    for parameter in option_parameters(spec):
        builder.found[parameter.name] = parameter
    return builder.space()


def space_of_all(spec: StudySpec, known: KnownSettings, reference: WorkloadFacts | None) -> SearchSpace:
    """Every setting that a compilation can judge, with the values worth a try: what the atlas compiles.

    Whether the program has what a setting acts on is not asked, for that is what compiling shows.

    Args:
        spec: Names the platform and the workload.
        known: What is known of settings on the installed build.
        reference: What the program told when it was compiled.
    """
    builder = _Builder(spec, known, reference, 1)
    for entry in known.catalog.values():
        builder.add_to_compile(entry)
    return builder.space(is_dropping=False)


class _Builder:
    """Gathers the parameters of one study, and the reasons of what is left out."""

    def __init__(self, spec: StudySpec, known: KnownSettings, reference: WorkloadFacts | None, cpu_count: int) -> None:
        self.found: dict[str, Parameter] = {}
        self._left_out: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._known = known
        self._baseline = spec.baseline
        self._platform = spec.device.platform
        self._scopes = known_scopes(spec, reference)
        self._made: set[Scope] = set()
        self._is_told = reference is not None
        self._layer_bytes = reference.layer_bytes if reference else {}
        self._cpu_count = cpu_count
        self._is_entry = spec.workload.entry is not None

    def add_from_study(self, name: str, domain: Domain) -> None:
        """Adds a setting with the study's own domain: what a person names is tried, whatever the catalogue thinks.

        Raises:
            SettingError: If it does not exist, is dangerous, or a value is not legal.
        """
        setting, build = self._known[name], self._known.build
        if name.startswith(("xla_", "jax_")) and not setting.exists:
            raise SettingError(
                f"`search.settings` must name settings of {build.build} but it lacks {name}"
                f"{close_matches(name, build.names)}; try: autotune flags show {name}"
            )
        if setting.danger:
            raise SettingError(f"`search.settings` must not name {name}: {setting.danger}")
        if reason := self._cannot_act(setting):
            self._notes[name] = f"named by the study, so it is searched; the catalogue says: {reason}"
        parameter = _own_parameter(name, domain, _blank(setting))
        for value in parameter.choices or (str(parameter.low), str(parameter.high)):
            facts = self._known.look(name, value)
            refused = facts.refused if setting.flag is not None and value != DEFAULT else ""
            if problem := refused or facts.out_of_range:
                raise SettingError(f"`search.settings.{name}`: {value!r} {problem}")
        self.found[name] = parameter

    def expect(self, picked: Sequence[Setting]) -> None:
        """Looks up what settings may bring into the program: those of the study, its baseline, and picked ones."""
        named = [self._known[n].entry for n in (*self.found, *self._baseline)]
        makers = [s for s in picked if s.makes and not self._cannot_act(self._known[s.name])]
        self._made = {scope for s in (*named, *makers) if s is not None for scope in s.makes}

    def add_from_catalog(self, entry: Setting, *, numerics: bool) -> None:
        """Adds a setting with the catalogue's domain, or the reason why it is not searched.

        Args:
            entry: The setting.
            numerics: Whether the study names its group, and so takes settings that change results.
        """
        setting = self._known[entry.name]
        reason = self._not_by_group(entry, numerics=numerics) or self._cannot_act(setting)
        parameter = None if reason else self._catalog_parameter(entry, setting)
        if parameter is not None:
            self.found[entry.name] = parameter
            return
        no_values = "the catalogue has no values to try for this build: name it in `search.settings` with yours"
        self._left_out.setdefault(entry.name, reason or no_values)  # what the study says of it comes first

    def add_to_compile(self, entry: Setting) -> None:
        """Adds a setting of the platform, if the program alone says what it does and the catalogue has values."""
        setting = self._known[entry.name]
        is_fit = entry.stage is Stage.PROGRAM and entry.tier in _COMPILED_TIERS and setting.exists
        if not is_fit or entry.platform not in ("any", self._platform):
            return
        parameter = self._catalog_parameter(entry, setting)
        if parameter is not None:
            self.found[entry.name] = parameter

    def _not_by_group(self, entry: Setting, *, numerics: bool) -> str:
        """Why a setting is not searched though its group is; empty if it is."""
        if entry.name == "process_layout":
            return "not a setting of a process: search it by `[search.options] process_count = [1, 8]`"
        if entry.platform in NEVER_SEARCHED:
            return NEVER_SEARCHED[entry.platform]
        if entry.tier is Tier.LEGACY:
            newer = entry.renamed_to
            return f"an older name of {newer}" if self._known[newer].exists or not newer.startswith("xla_") else ""
        if entry.tier is Tier.NUMERICS and not numerics:
            return f"changes results: name the group {entry.group!r} to search it"
        return "" if entry.tier in _SEARCHED_TIERS else _REASONS[entry.tier]

    def _cannot_act(self, setting: KnownSetting) -> str:
        """Why a setting can do nothing in this study, whatever its value; empty if it can."""
        entry, flag, build = setting.entry, setting.flag, self._known.build.build
        if entry is None:
            return ""
        if entry.kind in ("xla", "jax") and not setting.exists:
            since = f"; it came with {entry.since}" if entry.since else ""
            return f"{build} does not have it{since}"
        if flag is not None and not flag.sets:
            return f"{build} takes it in XLA_FLAGS, but stores it nowhere"
        if entry.platform not in ("any", self._platform):
            return f"acts on {entry.platform}, the study runs on {self._platform}"
        if entry.group == "pgle" and entry.kind == "jax" and self._is_entry:
            return "does nothing to a step that is compiled ahead of time: PGLE is a stage of its own, see [pgle]"
        return why_asleep(entry, self._scopes, self._made)

    def _catalog_parameter(self, entry: Setting, setting: KnownSetting) -> Parameter | None:
        """The setting with the values that the catalogue says are worth trying; None without any."""
        blank = _blank(setting)
        layer = self._layer_bytes.get(entry.layer_bytes) if entry.layer_bytes else None
        if layer:
            return replace(blank, choices=_choices([str(round(layer * m)) for m in _LAYER_MULTIPLES], blank))
        if entry.layer_bytes:
            self._notes[entry.name] = _NO_LAYER if self._is_told else _NO_LAYER_YET
        if entry.low is not None and entry.high is not None:
            ranged = replace(
                blank,
                choices=None,
                low=entry.low,
                high=entry.high,
                step=entry.step,
                log=entry.power_of_two,
                power_of_two=entry.power_of_two,
            )
            holds_default = any(ranged.is_absent(v) for v in ranged.values())
            return ranged if holds_default else replace(blank, choices=_choices(list(ranged.values()), blank))
        values = ["true", "false"] if blank.type == "bool" else list(entry.values)
        if entry.stage is Stage.CLIENT and entry.group == "cpu_process" and entry.type == "int":
            values = [v for v in values if int(v) <= self._cpu_count]
        choices = _choices(_as_spelled(values, setting), blank)
        return replace(blank, choices=choices) if len(choices) > 1 else None

    def space(self, *, is_dropping: bool = True) -> SearchSpace:
        """The space: adds conditions, drops what can never act, puts each parameter behind those it depends on.

        Args:
            is_dropping: Whether what can never act goes; else it stays, as if it could always.
        """
        while True:
            conditions = {name: self._conditions(name) for name in self.found}
            never = {name: c for name, c in conditions.items() if isinstance(c, str)}
            if not never:
                break
            if not is_dropping:
                conditions |= {name: {} for name in never}
                break
            # What is dropped stays at its default, which may switch others off: look again.
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
        return SearchSpace(
            tuple(ordered.values()), self._left_out, {n: w for n, w in self._notes.items() if n in ordered}
        )

    def _conditions(self, name: str) -> dict[str, tuple[str, ...]] | str:
        """Other parameters to the values under which this one acts; or the reason why it never does."""
        entry = self._known[name].entry
        rules = []
        if entry is not None and not (entry.condition_since and older(self._known.build.jaxlib, entry.condition_since)):
            rules = [(o, v, True) for o, v in entry.when.items()] + [(o, v, False) for o, v in entry.unless.items()]
        active: dict[str, tuple[str, ...]] = {}
        for other, values, wanted in rules:
            parameter = self.found.get(other, _blank(self._known[other]))
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


def _blank(setting: KnownSetting) -> Parameter:
    """A parameter of that name with the default in force, its choices still to be filled."""
    default, entry = setting.default, setting.entry
    if setting.flag is None and setting.option is None and entry is not None:
        # The catalogue's word for the default of a variable may be a remark, not a value.
        is_value = default in entry.values or (default or "").isdigit()
        default = default if is_value else None
    return Parameter(
        name=setting.name,
        choices=(DEFAULT,),
        default=default,
        type=setting.type,
        spellings=setting.spellings,
        group=entry.group if entry is not None else "",
    )


def _own_parameter(name: str, domain: Domain, blank: Parameter) -> Parameter:
    """A parameter from a domain of a study file."""
    where = f"`search.settings.{name}`"
    if not isinstance(domain, Mapping):
        choices = tuple(dict.fromkeys(render_value(v) for v in domain))
        if not choices:
            raise SettingError(f"{where} must list at least one value but got none")
        return replace(blank, choices=choices, low=None, high=None)
    unknown = set(domain) - set(_RANGE_KEYS)
    if unknown or not {"low", "high"} <= set(domain):
        raise SettingError(
            f"{where} must be a list, or have low, high and of {_RANGE_KEYS[2:]} but got {dict(domain)!r}"
        )
    low, high, step = (domain.get(k, 1) for k in ("low", "high", "step"))
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in (low, high, step)):
        raise SettingError(f"{where} must have whole numbers but got {dict(domain)!r}; list other values one by one")
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(step, int)
    power = bool(domain.get("power_of_two", False))
    if low > high or step < 1 or (power and (low < 1 or low & (low - 1) or high & (high - 1))):
        raise SettingError(
            f"{where} must have low <= high and step >= 1, or two powers of two, but got {dict(domain)!r}"
        )
    return replace(
        blank,
        choices=None,
        low=low,
        high=high,
        step=step,
        log=bool(domain.get("log", power)),
        power_of_two=power,
    )


def _as_spelled(values: Sequence[str], setting: KnownSetting) -> list[str]:
    """Those values that the build takes, as it spells them."""
    flag = setting.flag
    if flag is None:
        return list(values)
    if flag.type == "enum" and not flag.spellings:
        return []  # the build does not name the values: try none
    return [canonical_value(v, flag.type, flag.spellings) for v in values if not setting.refused(v)]


def _choices(values: Sequence[str], blank: Parameter) -> tuple[str, ...]:
    """The values with the default first, by its own name if it has one."""
    others = [v for v in dict.fromkeys(values) if not blank.is_absent(v)]
    named = next((v for v in values if blank.is_absent(v)), None)
    if named is None and blank.type == "bool" and blank.default is not None:
        named = blank.default
    return (DEFAULT if named is None else named, *others)
