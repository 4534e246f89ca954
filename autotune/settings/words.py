"""Settings, verdicts and diagnoses in words, for a face to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from autotune.model import format_bytes
from autotune.settings.build import FlagInfo, JaxOption, ProbeReport
from autotune.settings.catalog import Catalog, Setting
from autotune.settings.check import SettingCheck, SettingVerdict
from autotune.settings.doctor import Diagnosis

Row = tuple[str, str]


def describe_setting(setting: Setting, report: ProbeReport, catalog: Catalog) -> list[Row]:
    """Label and text of all that is known of a setting; an empty text where nothing is."""
    return [*_in_build(setting, report), *_in_catalog(setting, catalog)]


def describe_check(check: SettingCheck) -> tuple[str, str, str, str]:
    """Setting, verdict, whether it starts, and why with what to do."""
    verdict = str(check.verdict)
    if check.verdict is SettingVerdict.RENAMED and check.replacement is not None:
        verdict = f"renamed -> {check.replacement[0]}"
    value = "" if check.value is None else f"={check.value}"
    reason = "; ".join(filter(None, (check.reason, check.advice)))
    return f"{check.name}{value}", verdict, "yes" if check.starts else "NO", reason


def describe_diagnosis(found: Diagnosis) -> Iterator[str]:
    """The lines of `autotune doctor`."""
    yield "versions"
    for name, version in found.versions.items():
        yield f"  {name:14} {version}"
    yield "machine"
    yield f"  {found.cpus} CPUs, {format_bytes(found.memory_bytes)} memory, load {found.load_1min:.1f}"
    for gpu in found.gpus:
        capability = f"compute capability {gpu.compute_capability}"
        yield f"  GPU {gpu.index}: {gpu.name}, {format_bytes(gpu.memory_bytes)}, {capability}"
    if not found.gpus:
        yield "  no GPU"
    for line in (*found.topology.splitlines(), *found.places):
        yield f"  {line}"
    yield "your environment"
    for check in found.steering:
        yield f"  {check.name}={check.value}: {check.verdict}; {check.reason}"
    if not found.steering:
        yield "  nothing steers XLA, NCCL or JAX"
    yield "missing or in the way"
    for finding in found.findings:
        yield f"  {finding.feature}: {finding.problem}"
        yield f"    {finding.command}"
    if not found.findings:
        yield "  nothing"


def _in_build(setting: Setting, report: ProbeReport) -> list[Row]:
    info, option = report.flags.get(setting.name), report.jax_options.get(setting.name)
    if info is not None:
        return _about_flag(setting.name, info, report)
    if option is not None:
        return _about_option(option, report)
    if setting.kind == "env":
        return [("in this build", "an environment variable"), ("type", setting.type)]
    return [("in this build", "" if setting.kind == "layout" else f"{report.build} does not have it")]


def _about_flag(name: str, info: FlagInfo, report: ProbeReport) -> list[Row]:
    ways = ["XLA_FLAGS"] * info.in_xla_flags + ["compiler options"] * info.in_compiler_options
    sets = "" if info.sets in ((name,), ()) else f"; sets {', '.join(info.sets)}"
    if info.in_xla_flags and not info.sets:
        sets = "; stored nowhere"
    edits = "; +X and -X change the default list" if info.edits else ""
    return [
        ("in this build", f"{report.build}: through {' and '.join(ways) or 'nothing'}{sets}"),
        ("type", info.type + (" list" if info.repeated and info.type != "message" else "")),
        ("legal values", ", ".join(info.values) + edits),
        ("default here", "unset" if info.default is None else repr(info.default)),
    ]


def _about_option(option: JaxOption, report: ProbeReport) -> list[Row]:
    return [
        ("in this build", f"jax {report.jax}: through its variable in upper case, or jax.config"),
        ("type", option.type),
        ("legal values", ", ".join(option.values)),
        ("default here", "unset" if option.default is None else repr(option.default)),
    ]


def _in_catalog(setting: Setting, catalog: Catalog) -> list[Row]:
    versions = [f"from {v} {d!r}" if v else repr(d) for v, d in setting.defaults.items()]
    needs = [*setting.needs, *_conditions("if", setting.when), *_conditions("unless", setting.unless)]
    trying = [repr(v) for v in setting.values]
    if setting.low is not None:
        trying = [f"{setting.low} to {setting.high}"]
    sensible = [f"at least {setting.minimum:g}"] if setting.minimum is not None else []
    sensible += [f"at most {setting.maximum:g}"] if setting.maximum is not None else []
    changed = setting.changed_programs
    seen = "" if changed is None else ", ".join(changed) or "none of the test programs"
    sources = [catalog.sources[s] for s in setting.sources]
    return [
        ("known defaults", "; ".join(versions)),
        ("since", setting.since),
        ("gone since", setting.removed),
        ("replaced by", setting.renamed_to),
        ("group", f"{', '.join((setting.group, *setting.also_in))} ({setting.tier})"),
        ("scope", ", ".join(setting.scopes) + (f", {setting.axis} parallelism" if setting.axis else "")),
        ("stage", setting.stage),
        ("worth trying", ", ".join(trying)),
        ("sensible range", ", ".join(sensible)),
        ("changes results", setting.numerics),
        ("memory", setting.memory),
        ("compile time", setting.compile),
        ("danger", setting.danger),
        ("acts", "; ".join(needs)),
        ("excludes", ", ".join(setting.excludes)),
        ("seen to change", seen),
        ("sources", "; ".join(f"{s.title} <{s.url}>" for s in sources)),
    ]


def _conditions(word: str, rules: Mapping[str, Iterable[str]]) -> list[str]:
    return [f"{word} {name} is {' or '.join(map(repr, values))}" for name, values in rules.items()]
