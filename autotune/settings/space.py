"""Builds the search space of a study for one build and one program.

Groups, settings, recipes and symptoms all name settings; the catalogue gives them values and conditions.
Every setting that is not searched is listed with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.model import SettingError, Value, close_matches, render_value
from autotune.settings.build import FlagInfo, ProbeReport, canonical_value
from autotune.settings.catalog import Catalog, Scope, Setting, Stage, Tier, older
from autotune.settings.migrate import for_build
from autotune.settings.parameters import DEFAULT, LISTABLE, Parameter, SearchSpace, describe_condition
from autotune.settings.recipes import find_recipe, find_symptom
from autotune.settings.values import build_default, range_problem, value_problem

__all__ = ["DEFAULT", "DEFAULT_GROUPS", "Parameter", "SearchSpace", "build_space", "describe_condition"]

DEFAULT_GROUPS = {
    "cpu": ("cpu", "cpu_process"),
    "cuda": ("scheduling", "pipelining", "combining", "loops", "command_buffer", "gemm", "fusion", "memory"),
}
"""What is searched when a study names nothing."""

_NUMERIC_GROUPS = ("cpu_numerics", "gpu_numerics", "precision")
_LAYER_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8)  # of one layer's bytes: the advice is at least one layer
_SEARCHED_TIERS = (Tier.TUNE, Tier.NUMERICS)
_REASONS = {
    Tier.EXPERT: "for experts: name it in `search.settings` to search it",
    Tier.AVOID: "rarely of use, or known trouble: name it in `search.settings` to search it",
    Tier.TOOL: "diagnostics or compile time only",
    Tier.DANGER: "not for training",
    Tier.NOOP: "accepted, but does nothing",
    Tier.REMOVED: "gone from all tested builds",
    Tier.LISTED: "not judged yet: name it in `search.settings` to search it",
}
_RANGE_KEYS = ("low", "high", "log", "power_of_two", "step")

Domain = Sequence[Value] | Mapping[str, Value | Sequence[Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """What the space is built for."""

    report: ProbeReport
    catalog: Catalog
    platform: str
    device_count: int
    node_count: int
    mesh: Mapping[str, int]
    layer_bytes: Mapping[str, int]
    has_loop: bool
    cpu_count: int


def build_space(
    *,
    settings: Mapping[str, Domain],
    groups: Sequence[str],
    recipes: Sequence[str],
    symptoms: Sequence[str],
    report: ProbeReport,
    catalog: Catalog,
    platform: str,
    device_count: int,
    node_count: int,
    mesh: Mapping[str, int],
    layer_bytes: Mapping[str, int] | None,
    has_loop: bool,
    cpu_count: int | None = None,
) -> SearchSpace:
    """The space of one study; where the study names nothing, `DEFAULT_GROUPS`.

    Args:
        settings: Setting to its domain: a list of values, or low, high, log, power_of_two, step.
        groups: Groups of the catalogue.
        recipes: Published sets whose settings are searched with the default and the published value.
        symptoms: Symptoms whose groups are searched.
        report: What the installed build has.
        catalog: What the settings mean.
        platform: ``cpu`` or ``cuda``.
        device_count: Devices of the study.
        node_count: Machines of the study.
        mesh: Mesh axis to its size; ``tensor`` and ``pipeline`` count.
        layer_bytes: ``weights`` and ``gradients`` of one layer, in bytes; None if not known.
        has_loop: Whether the program has a loop (scanned layers, pipeline stages).
        cpu_count: CPUs that threads are counted against; default those of this process.

    Raises:
        SettingError: If a name or value is not legal; close matches are named.
    """
    study = _Study(
        report=report,
        catalog=catalog,
        platform=platform,
        device_count=device_count,
        node_count=node_count,
        mesh=mesh,
        layer_bytes=layer_bytes or {},
        has_loop=has_loop,
        cpu_count=cpu_count or len(os.sched_getaffinity(0)),
    )
    asked = [*groups, *(g for s in symptoms for g in find_symptom(s).groups)]
    if not (asked or settings or recipes):
        asked = list(DEFAULT_GROUPS[platform])
    for group in asked:
        if group not in catalog.groups:
            raise SettingError(
                f"a group must be one of {', '.join(catalog.groups)} but got {group!r}"
                + close_matches(group, catalog.groups)
            )
    found: dict[str, Parameter] = {}
    left_out: dict[str, str] = {}
    for name, domain in settings.items():
        reason = _from_study(name, domain, study, found)
        if reason:
            left_out[name] = reason
    for setting in catalog.values():
        if setting.name not in found and {setting.group, *setting.also_in} & set(asked):
            reason = _from_group(setting, study, found, numerics=setting.group in groups)
            if reason:
                left_out[setting.name] = reason
    for recipe in recipes:
        published = for_build(find_recipe(recipe).settings, report, catalog)
        for name, value in published.items():
            _from_recipe(name, value, study, found, left_out)
    parameters = _with_conditions(found, left_out, study)
    return SearchSpace(parameters, left_out)


def _from_study(name: str, domain: Domain, study: _Study, found: dict[str, Parameter]) -> str:
    """Adds a setting with the study's own domain; gives the reason if it cannot act.

    Raises:
        SettingError: If it does not exist, is dangerous, or a value is not legal.
    """
    setting, info = study.catalog.get(name), study.report.flags.get(name)
    if name.startswith(("xla_", "jax_")) and not _exists(name, study.report):
        known = [*study.report.flags, *study.report.jax_options]
        raise SettingError(
            f"`search.settings` must name settings of {study.report.build} but it lacks {name}"
            f"{close_matches(name, known)}; try: autotune flags show {name}"
        )
    if setting is not None and setting.danger:
        raise SettingError(f"`search.settings` must not name {name}: {setting.danger}")
    if setting is not None and (reason := _cannot_act(setting, study)):
        return reason
    parameter = _own_parameter(name, domain, _blank(name, study))
    for value in parameter.choices or (str(parameter.low), str(parameter.high)):
        problem = value_problem(value, info) if info is not None and value != DEFAULT else ""
        problem = problem or (range_problem(value, setting) if setting is not None else "")
        if problem:
            raise SettingError(f"`search.settings.{name}`: {value!r} {problem}")
    found[name] = parameter
    return ""


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


def _from_group(setting: Setting, study: _Study, found: dict[str, Parameter], *, numerics: bool) -> str:
    """Adds a setting with the catalogue's domain; gives the reason if it is not searched."""
    if reason := _not_by_group(setting, study, numerics=numerics):
        return reason
    if reason := _cannot_act(setting, study):
        return reason
    parameter = _catalog_parameter(setting, study)
    if parameter is None:
        return "the catalogue has no values to try for this build: name it in `search.settings` with yours"
    found[setting.name] = parameter
    return ""


def _not_by_group(setting: Setting, study: _Study, *, numerics: bool) -> str:
    if setting.name == "process_layout":
        return "not a setting of a process: run two studies, with `device.process_count` 1 and one for each GPU"
    if setting.tier is Tier.LEGACY:
        replaced = _exists(setting.renamed_to, study.report) or not setting.renamed_to.startswith("xla_")
        return f"an older name of {setting.renamed_to}" if replaced else ""
    if setting.tier is Tier.NUMERICS and not numerics:
        return f"changes results: name the group {setting.group!r} to search it"
    return "" if setting.tier in _SEARCHED_TIERS else _REASONS[setting.tier]


def _cannot_act(setting: Setting, study: _Study) -> str:
    """Why a setting can do nothing in this study, whatever its value; empty if it can."""
    report = study.report
    if setting.kind in ("xla", "jax") and not _exists(setting.name, report):
        since = f"; it came with {setting.since}" if setting.since else ""
        return f"{report.build} does not have it{since}"
    info = report.flags.get(setting.name)
    if info is not None and not info.sets:
        return f"{report.build} takes it in XLA_FLAGS, but stores it nowhere"
    if setting.platform not in ("any", study.platform):
        return f"acts on {setting.platform}, the study runs on {study.platform}"
    if Scope.MULTI_DEVICE in setting.scopes and study.device_count < 2:
        return "acts on several devices, the study has one"
    if Scope.MULTI_NODE in setting.scopes and study.node_count < 2:
        return "acts across nodes, the study has one"
    if Scope.LOOP in setting.scopes and not study.has_loop:
        return "acts on loops, the program has none"
    if setting.axis and study.mesh.get(setting.axis, 1) < 2:
        return f"acts under {setting.axis} parallelism, the mesh has none"
    return ""


def _exists(name: str, report: ProbeReport) -> bool:
    return name in report.jax_options or (name in report.flags and report.flags[name].in_xla_flags)


def _blank(name: str, study: _Study) -> Parameter:
    """A parameter of that name with the build's default, its choices still to be filled."""
    info, option, setting = (
        study.report.flags.get(name),
        study.report.jax_options.get(name),
        study.catalog.get(name),
    )
    default: str | None = None
    kind = "string"
    spellings: Mapping[str, str] = {}
    if info is not None:
        default, kind, spellings = build_default(info, setting), info.type, info.spellings
    elif option is not None:
        default, kind = option.default, option.type
    elif setting is not None:
        kind = setting.type
        default = setting.default_in(study.report.jaxlib)
        if default not in setting.values and not (default or "").isdigit():
            default = None  # a remark, not a value
    return Parameter(name=name, choices=(DEFAULT,), default=default, type=kind, spellings=spellings)


def _catalog_parameter(setting: Setting, study: _Study) -> Parameter | None:
    blank = _blank(setting.name, study)
    layer = study.layer_bytes.get(setting.layer_bytes) if setting.layer_bytes else None
    if layer:
        values = [str(round(layer * m)) for m in _LAYER_MULTIPLES]
        return replace(blank, choices=_choices(values, blank))
    if setting.low is not None and setting.high is not None:
        ranged = replace(
            blank,
            choices=None,
            low=setting.low,
            high=setting.high,
            step=setting.step,
            log=setting.power_of_two,
            power_of_two=setting.power_of_two,
        )
        if any(ranged.is_absent(v) for v in ranged.values()):
            return ranged
        return replace(blank, choices=_choices(list(ranged.values()), blank))
    values = ["true", "false"] if blank.type == "bool" else list(setting.values)
    if setting.stage is Stage.CLIENT and setting.group == "cpu_process" and setting.type == "int":
        values = [v for v in values if int(v) <= study.cpu_count]
    info = study.report.flags.get(setting.name)
    if info is not None:
        legal = [v for v in values if _is_legal(v, info)]
        values = [canonical_value(v, info.type, info.spellings) for v in legal]
    choices = _choices(values, blank)
    return replace(blank, choices=choices) if len(choices) > 1 else None


def _is_legal(value: str, info: FlagInfo) -> bool:
    unclear = info.type == "enum" and not info.spellings  # the build does not name the values: try none
    return not unclear and not value_problem(value, info)


def _choices(values: Sequence[str], blank: Parameter) -> tuple[str, ...]:
    """The values with the default first, by its own name if it has one."""
    others = [v for v in dict.fromkeys(values) if not blank.is_absent(v)]
    named = next((v for v in values if blank.is_absent(v)), None)
    if named is None and blank.type == "bool" and blank.default is not None:
        named = blank.default
    return (DEFAULT if named is None else named, *others)


def _from_recipe(name: str, value: str, study: _Study, found: dict[str, Parameter], left_out: dict[str, str]) -> None:
    """Makes a published value reachable: the default and that value, or one more choice."""
    setting = study.catalog.get(name)
    if setting is None or setting.danger or setting.tier in (Tier.NOOP, Tier.TOOL, Tier.DANGER):
        left_out.setdefault(name, _REASONS.get(setting.tier, "") if setting else "not in the catalogue")
        return
    if name not in found:
        if reason := _cannot_act(setting, study):
            left_out[name] = reason
            return
        blank = _blank(name, study)
        found[name] = replace(blank, choices=_choices([value], blank))
        left_out.pop(name, None)
    elif found[name].choices is not None and found[name].match(value) is None:
        parameter = found[name]
        found[name] = replace(parameter, choices=(*(parameter.choices or ()), value))


def _with_conditions(found: dict[str, Parameter], left_out: dict[str, str], study: _Study) -> tuple[Parameter, ...]:
    """Adds the conditions, drops what can never act, and orders each parameter behind those it depends on."""
    while True:
        conditions = {name: _conditions(name, found, study) for name in found}
        never = {name: c for name, c in conditions.items() if isinstance(c, str)}
        if not never:
            break
        left_out.update(never)  # what is dropped stays at its default, which may switch others off: look again
        for name in never:
            del found[name]
    ordered: dict[str, Parameter] = {}

    def add(name: str) -> None:
        if name not in ordered:
            condition = conditions[name]
            assert not isinstance(condition, str)
            for other in condition:
                add(other)
            ordered[name] = replace(found[name], condition=condition or None)

    for name in found:
        add(name)
    return tuple(ordered.values())


def _conditions(name: str, found: Mapping[str, Parameter], study: _Study) -> dict[str, tuple[str, ...]] | str:
    """Other parameters to the values under which this one acts; or the reason why it never does."""
    setting = study.catalog.get(name)
    if setting is None or (setting.condition_since and older(study.report.jaxlib, setting.condition_since)):
        return {}
    active: dict[str, tuple[str, ...]] = {}
    rules = [(o, v, True) for o, v in setting.when.items()] + [(o, v, False) for o, v in setting.unless.items()]
    for other, values, wanted in rules:
        blank = _blank(other, study)
        parameter = found.get(other, blank)
        if parameter.size > LISTABLE:
            continue
        named = {parameter.default_choice if blank.is_absent(v) else v.lower() for v in values}
        fitting = tuple(v for v in parameter.values() if (v in named or v.lower() in named) == wanted)
        if not fitting:
            return f"acts only {'if' if wanted else 'unless'} {other} is {' or '.join(map(repr, values))}"
        if len(fitting) < parameter.size:
            active[other] = fitting
    return active
