"""Opens a screen for a study: its workload, on a described cluster or on this machine's CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.compiler.compiler import Compiler
from autotune.compiler.job import CompileJob, Progress
from autotune.compiler.program import CompiledProgram
from autotune.compiler.reports import Effect, ScreenReport, SettingReport, ValueReport
from autotune.compiler.targets import Target, Topology, load_target, memory_fraction, parse_topology, target_here
from autotune.compiler.verdicts import Screener
from autotune.machine import caller_environment
from autotune.model import FlagSet, StudyFileError, StudySpec, WorkerReport
from autotune.settings import Parameter, SearchSpace, load_catalog

MOST_VALUES = 5
"""Values of one setting that are compiled; of longer ranges, evenly spread ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a search space is built from, told by a workload that was compiled or built, not run.

    Attributes:
        layer_bytes: ``weights`` and ``gradients`` of one layer.
    """

    device_count: int | None
    mesh: Mapping[str, int] = field(default_factory=dict)
    layer_bytes: Mapping[str, int] = field(default_factory=dict)


def facts_of(program: CompiledProgram, topology: Topology) -> Facts:
    """The facts that a compiled reference tells."""
    return Facts(device_count=topology.device_count, mesh=program.mesh, layer_bytes=program.layer_bytes)


def on_cluster(spec: StudySpec, target: Target | None, topology: Topology | None) -> tuple[StudySpec, Topology]:
    """The study as it would be for that cluster, and the cluster.

    Args:
        spec: The study.
        target: The GPU; None is this machine's CPU.
        topology: The cluster; None takes the study's own devices, else one machine of the target.

    Raises:
        StudyFileError: If a study for GPUs, or a topology, comes without a target.
    """
    device = spec.device
    if target is None:
        if topology is not None or device.platform == "cuda":
            raise StudyFileError(
                "to compile for GPUs the kind must be named: add --target, such as --target h100-sxm "
                "(see `autotune targets list`)"
            )
        topology = Topology(1, device.count or 1)
    elif topology is None:
        own = device.count // device.node_count if device.platform == "cuda" and device.count else None
        usual = target.network.gpus_per_node if target.network else 1
        topology = Topology(device.node_count, own or usual)
    moved = type(device)(platform="cuda" if target else "cpu", count=topology.device_count, node_count=topology.nodes)
    return spec.model_copy(update={"device": moved}), topology


def cluster_that_ran(spec: StudySpec, ran: WorkerReport) -> tuple[Target | None, Topology]:
    """The GPU and the cluster that a study names, or those that ran it; None for a GPU that is not described.

    A GPU of that kind that is attached here is described by itself, see `target_here`.
    """
    asked, nodes = spec.screen, spec.device.node_count
    target = load_target(asked.target) if asked.target else target_here(ran.device_kind)
    target = target and target.on_network(spec.device.nic_bytes_per_s)
    if asked.topology:
        return target, parse_topology(asked.topology)
    return target, Topology(nodes, max(1, ran.device_count // nodes))


@contextlib.contextmanager
def open_screener(
    spec: StudySpec,
    *,
    study_dir: Path,
    target: Target | None,
    topology: Topology | None = None,
    cache_dir: Path | None = None,
    limit_s: float | None = None,
    progress: Progress = lambda what: None,
    processors: Callable[[], int] = lambda: 1,
) -> Iterator[tuple[StudySpec, Screener]]:
    """A screen with its compile worker, which ends with the block.

    Args:
        spec: The study.
        study_dir: Folder of the study file, where the user's own modules are found.
        target: The GPU; None is this machine's CPU.
        topology: The cluster; see `on_cluster`.
        cache_dir: Where programs are kept; None keeps none.
        limit_s: Longest time for one compilation; default: what follows from the reference's.
        progress: Told what is under way.
        processors: Gives how many compilations may run at once.

    Raises:
        StudyFileError: If the study runs a command, or the cluster does not fit.
        LaunchError: If nothing can be compiled for GPUs with what is installed.
    """
    if spec.workload.entry is None:
        raise StudyFileError(
            "to compile without running, a study must name a workload by `workload.entry` but this one runs a "
            "command; write the step as module:function (see workloads/example.py)"
        )
    moved, cluster = on_cluster(spec, target, topology)
    if target is not None:  # as the reference will have it: XLA's scheduler overlaps less where memory is short
        target = target.with_memory(memory_fraction(spec.baseline)).on_network(spec.device.nic_bytes_per_s)
    job = CompileJob(
        entry=spec.workload.entry,
        options=spec.under(FlagSet()).workload.options,
        target=target,
        topology=cluster,
        paths=(str(study_dir),),
        base=caller_environment(),
    )
    with Compiler(job, cache_dir=cache_dir, limit_s=limit_s, progress=progress, processors=processors) as compiler:
        yield moved, Screener(compiler, baseline=spec.baseline, catalog=load_catalog())


def narrowed(space: SearchSpace, report: ScreenReport, *, keeps_dead: bool = False) -> SearchSpace:
    """The space without what measuring could not tell apart: dead settings, and values that do not fit in memory.

    What failed to compile stays unless it was compiled for the very CPU that runs it: without a device some sets
    fail that compile on one. A parameter that is said to act only under a value of a dead one stays, without that
    condition: the dead one's value makes no other program than its default, so the two act alike under both, and
    whether that is to act or not, its own verdict says.

    Args:
        space: As it was screened.
        report: What the screen found.
        keeps_dead: Whether dead settings stay, because a measurement has shown that the screen is wrong about them.
    """
    found = {s.name: s for s in report.settings}
    dead = {} if keeps_dead else {n: s for n, s in found.items() if s.effect is Effect.DEAD}
    reasons = {n: _dead_reason(s, report) for n, s in dead.items()}
    kept: list[Parameter] = []
    for parameter in space.parameters:
        if parameter.name in reasons:
            continue
        left = {n: v for n, v in (parameter.condition or {}).items() if n not in reasons} or None
        refused = _refused_values(found.get(parameter.name), report)
        choices = parameter.choices and tuple(c for c in parameter.choices if c not in refused)
        if choices == ():
            reasons[parameter.name] = "no value of it compiles and fits here"
            continue
        kept.append(dataclasses.replace(parameter, condition=left, choices=choices))
    return SearchSpace(tuple(kept), {**space.left_out, **reasons}, space.notes)


def _dead_reason(setting: SettingReport, report: ScreenReport) -> str:
    tried = ", ".join(v.value or "(empty)" for v in setting.values)
    return f"dead here: compiled for {report.target} {report.topology}, no value ({tried}) changes the program"


def _refused_values(setting: SettingReport | None, report: ScreenReport) -> set[str]:
    """Values that must not be launched; where not even the reference is said to fit, memory is not believed.

    A value that would fit with all that other settings save, each by itself, stays: what does not fit is told of each
    set before it is launched.
    """
    values = setting.values if setting else ()
    is_cpu, believed = report.limit_bytes is None, report.reference.fits is not False
    saved = sum(_saved_bytes(s, report) for s in report.settings if setting is None or s.name != setting.name)

    def never_fits(value: ValueReport) -> bool:
        if value.peak_bytes is None or report.limit_bytes is None:
            return value.fits is False
        return value.peak_bytes - saved > report.limit_bytes

    return {v.value for v in values if (v.fits is False and believed and never_fits(v)) or (is_cpu and v.message)}


def _saved_bytes(setting: SettingReport, report: ScreenReport) -> int:
    """Device memory that the best value of a setting saves by itself."""
    reference = report.reference.peak_bytes or 0
    return max([0, *(reference - v.peak_bytes for v in setting.values if v.peak_bytes is not None)])


def chains(space: SearchSpace) -> dict[str, list[FlagSet]]:
    """Each parameter with conditions to the sets that make them true: so many that each value that does is in one."""
    by_name = {p.name: p for p in space.parameters}

    def needed(name: str, index: int) -> FlagSet:
        found = FlagSet()
        for other, values in (by_name[name].condition or {}).items():
            value = values[index % len(values)]
            if other in by_name and not by_name[other].is_absent(value):
                found = found.merge(needed(other, index)).merge({other: value})
        return found

    sets = {n: [needed(n, i) for i in range(_longest_condition(by_name, n))] for n in by_name}
    return {n: list(dict.fromkeys(s for s in of if s)) for n, of in sets.items() if any(of)}


def _longest_condition(by_name: Mapping[str, Parameter], name: str) -> int:
    """Values of that condition, of a parameter and all it depends on, which has most."""
    condition = (by_name[name].condition if name in by_name else None) or {}
    return max([1, *map(len, condition.values()), *(_longest_condition(by_name, n) for n in condition)])


def domains(space: SearchSpace) -> Mapping[str, list[str]]:
    """Values to compile for each parameter of a search space; those that leave a setting alone are the reference."""
    return {p.name: spread([v for v in p.values() if not p.is_absent(v)]) for p in space.parameters}


def spread(values: list[str], most: int = MOST_VALUES) -> list[str]:
    """At most so many of some values, two or more, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def with_options(spec: StudySpec, pairs: Sequence[str]) -> StudySpec:
    """The study with options of its workload as ``NAME=VALUE``; a value that is no JSON is text.

    Raises:
        StudyFileError: If a pair has no ``=``.
    """
    merged = dict(spec.workload.options)
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise StudyFileError(f"--option must be NAME=VALUE but got {pair!r}")
        try:
            merged[name] = json.loads(text)
        except json.JSONDecodeError:
            merged[name] = text
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"options": merged})})
