"""Settings, verdicts and diagnoses in words, for a face to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from autotune.model import format_bytes
from autotune.settings.build import FlagInfo, ProbeReport
from autotune.settings.catalog import Catalog, Setting
from autotune.settings.check import SettingCheck, SettingVerdict
from autotune.settings.doctor import Diagnosis
from autotune.settings.known import KnownSettings

Row = tuple[str, str]


def describe_setting(entry: Setting, known: KnownSettings) -> list[Row]:
    """Label and text of all that is known of a setting; an empty text where nothing is."""
    return [*_in_build(entry, known), *_in_catalog(entry, known.catalog)]


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


def _in_build(entry: Setting, known: KnownSettings) -> list[Row]:
    setting, build = known[entry.name], known.build
    said = setting.flag or setting.option
    if said is None and entry.kind == "env":
        return [("in this build", "an environment variable"), ("type", entry.type)]
    if said is None:
        return [("in this build", "" if entry.kind == "layout" else f"{build.build} does not have it")]
    kind, edits = said.type, ""
    ways = f"jax {build.jax}: through its variable in upper case, or jax.config"
    if setting.flag is not None:
        ways = _ways(setting.flag, build)
        kind += " list" if setting.flag.repeated and kind != "message" else ""
        edits = "; +X and -X change the default list" if setting.flag.edits else ""
    return [
        ("in this build", ways),
        ("type", kind),
        ("legal values", ", ".join(said.values) + edits),
        ("default here", "unset" if said.default is None else repr(said.default)),
    ]


def _ways(flag: FlagInfo, build: ProbeReport) -> str:
    """How a flag reaches the build, and what it sets if that goes by another name."""
    ways = ["XLA_FLAGS"] * flag.in_xla_flags + ["compiler options"] * flag.in_compiler_options
    sets = "" if flag.sets in ((flag.name,), ()) else f"; sets {', '.join(flag.sets)}"
    if flag.in_xla_flags and not flag.sets:
        sets = "; stored nowhere"
    return f"{build.build}: through {' and '.join(ways) or 'nothing'}{sets}"


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
        ("scope", ", ".join(setting.scopes)),
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
        ("source line", setting.source_line and catalog.sources["xla"].link(setting.source_line)),
    ]


def _conditions(word: str, rules: Mapping[str, Iterable[str]]) -> list[str]:
    return [f"{word} {name} is {' or '.join(map(repr, values))}" for name, values in rules.items()]
