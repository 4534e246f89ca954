"""Screens a study by compiling: which settings change the program, and which must be measured."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.compiler.compile_worker import CompileJob, Progress
from autotune.compiler.compiler import Compiler
from autotune.compiler.interaction import Chains, Domains, InteractionSearch, Sets, kernel_choices
from autotune.compiler.program import CompiledProgram, CompileResult, changes
from autotune.compiler.targets import (
    Target,
    Topology,
    load_target,
    memory_fraction,
    parse_topology,
    target_here,
)
from autotune.model.errors import LaunchError, StoppedError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Settings, WorkerReport
from autotune.model.numbers import Record
from autotune.model.spec import StudySpec
from autotune.settings.catalog import Stage, Texts, load_catalog
from autotune.settings.space import SearchSpace

IsOver = Callable[[], bool]  # whether the time for compiling is up
Fields = dict[str, Any]

DEFAULT_MEMORY_FRACTION = 0.75  # of JAX's client (jax/_src/xla_bridge.py)

# Canaries are tried in turn. All change the toy step of the tests on jaxlib 0.10.2 and 0.12.0.1.
GPU_CANARIES = (
    # Costs no more than the reference, but not every step has graphs.
    FlagSet({"xla_gpu_enable_command_buffer": ""}),
    FlagSet({"xla_disable_hlo_passes": "fusion,priority-fusion,multi_output_fusion"}),
)
CPU_CANARIES = (
    # Other machine code, on every x86 processor since 2011.
    FlagSet({"xla_cpu_max_isa": "SSE4_2"}),
    FlagSet({"xla_disable_hlo_passes": "fusion"}),
)

MOST_VALUES = 5  # of one setting that are compiled, evenly spread over longer ranges


class Effect(StrEnum):
    """Effect of a setting on the program.

    ``active``: some value changes it. ``no-op``: none does, alone or with others
    (`autotune.compiler.interaction`). ``alone``: none does by itself, and what they do with others
    is not known yet. ``measure``: read at run time or by the on-device autotuner, so equal programs
    prove nothing. ``fails``: no value changes it, and some do not compile.
    """

    ACTIVE = "active"
    NO_OP = "no-op"
    ALONE = "alone"
    MEASURE = "measure"
    FAILS = "fails"


class CompiledReport(Record):
    """Result of compiling one set; `message` says why it does not compile."""

    fingerprint: str | None = None
    changes: Texts = ()  # from the reference's program; empty only if it is the same
    message: str = ""
    peak_bytes: int | None = None
    fits: bool | None = None  # in device memory


class ValueReport(CompiledReport):
    """One value of a setting on top of the reference."""

    value: str


class SettingReport(Record):
    """One setting with all its values."""

    name: str
    effect: Effect
    stage: str
    values: tuple[ValueReport, ...] = ()
    interacts_with: Texts = ()  # empty if it is active alone
    under: str = ""  # the only kernel choice under which it is active, if one


class ScreenReport(Record):
    """Result of screening a study on one cluster."""

    target: str
    topology: str
    versions: dict[str, str]
    reference: CompiledReport
    settings: tuple[SettingReport, ...]
    limit_bytes: int | None  # at the study's memory fraction; None for the CPU
    compiled_count: int  # now, without cached ones
    skipped: Texts = ()  # without a verdict, because the time was up
    canary: Settings  # without the baseline; it changed the program, so flags act
    target_digest: str = ""

    def of_effect(self, effect: str) -> list[SettingReport]:
        """Selects settings by effect."""
        return [s for s in self.settings if s.effect == effect]

    def settled(self, verdicts: Mapping[str, Fields]) -> ScreenReport:
        """Returns the report with verdicts on what does nothing alone; it skips the others."""
        settings = [s.model_copy(update=verdicts.get(s.name)) for s in self.settings]
        skipped = sorted(s.name for s in settings if s.effect is Effect.ALONE)
        decided = tuple(s for s in settings if s.effect is not Effect.ALONE)
        return self.model_copy(update={"settings": decided, "skipped": (*skipped, *self.skipped)})


def find_canary(screener: Screener) -> FlagSet:
    """Finds the first canary that changes the reference's program, else forgets: LaunchError."""
    canaries = GPU_CANARIES if screener.job.target is not None else CPU_CANARIES
    without_effect = (None, screener.reference().fingerprint)
    for settings in canaries:  # one that the baseline holds has the reference's program
        if screener.fingerprint(settings) not in without_effect:
            return settings
    screener.compiler.forget([screener.as_compiled(s) for s in (FlagSet(), *canaries)])
    raise LaunchError(
        "a screen must be able to see that a setting changes the program but no canary does: "
        f"{'; '.join(f'[{settings}]' for settings in canaries)}; flags do not seem to reach the "
        "compiler, so nothing is called a no-op"
    )


class Screener:
    """Compiles sets merged into the baseline, and compares their programs with the reference's."""

    def __init__(self, compiler: Compiler, *, baseline: FlagSet) -> None:
        self.compiler = compiler
        self.job = compiler.job
        self.baseline = baseline
        self._catalog = load_catalog()
        self._results: dict[FlagSet, CompileResult] = {}
        self.choices = kernel_choices(baseline, is_gpu=self.job.target is not None)

    def run(
        self,
        domains: Domains,
        *,
        chains: Chains | None = None,
        is_over: IsOver = lambda: False,
    ) -> ScreenReport:
        """Screens settings alone, then those without an effect alone in groups."""
        report = self.alone(domains, is_over=is_over)
        return self.together(report, domains, chains or {}, is_over=is_over)

    def alone(self, domains: Domains, *, is_over: IsOver) -> ScreenReport:
        """Screens settings one at a time until `is_over`; LaunchError if flags do not act."""
        reference = self.reference()
        canary = find_canary(self)
        stages = (Stage.PROGRAM, Stage.AUTOTUNER)
        names = [name for name in domains if self.stage(name) in stages]
        single_sets = [FlagSet({name: value}) for name in names for value in domains[name]]
        with contextlib.suppress(StoppedError):  # what is known by then is reported
            self.compile_all(single_sets, is_over, are_shown=True)
        unknown = [s for s in single_sets if not self.is_known(s)]
        skipped = {n for s in unknown for n in s if self.stage(n) is Stage.PROGRAM}
        return ScreenReport(
            target=self.target_name,
            topology=str(self.job.topology),
            versions=reference.versions,
            reference=CompiledReport(**self._compiled(FlagSet())),
            settings=tuple(self._setting(n, v) for n, v in domains.items() if n not in skipped),
            limit_bytes=self.limit_bytes(FlagSet()),
            compiled_count=self._compiled_count,
            skipped=tuple(sorted(skipped)),
            canary=canary,
            target_digest=self.job.target.digest if self.job.target else "",
        )

    @property
    def _compiled_count(self) -> int:
        return sum(not result.from_cache for result in self._results.values())

    def compile_all(
        self, sets: Sets, is_over: IsOver = lambda: False, *, are_shown: bool = False
    ) -> None:
        """Compiles the sets without a result, several at once; StoppedError once `is_over`."""
        distinct = dict.fromkeys(map(self.as_compiled, sets))
        missing = [settings for settings in distinct if settings not in self._results]
        with contextlib.closing(self.compiler.compile(missing)) as results:
            for count in range(len(sets) - len(missing), len(sets)):
                if is_over():
                    raise StoppedError("the time for compiling is up")
                result = next(results)
                self._results[result.settings] = result
                if are_shown:
                    self.compiler.progress(f"{count + 1} of {len(sets)} single sets compiled")

    @property
    def target_name(self) -> str:
        """Name of the target; ``cpu`` without one."""
        return self.job.target.name if self.job.target else "cpu"

    def stage(self, name: str) -> Stage:
        """Returns the stage at which a setting acts; run time if the catalogue lacks it."""
        return self._catalog[name].stage if name in self._catalog else Stage.RUNTIME

    def limit_bytes(self, settings: FlagSet) -> int | None:
        """Returns the device memory that JAX takes under a set; None for the CPU."""
        if self.job.target is None:
            return None
        share = memory_fraction(self.baseline.merge(settings)) or DEFAULT_MEMORY_FRACTION
        return int(self.job.target.memory_bytes * share)

    def program_key(self, settings: FlagSet) -> str | None:
        """Returns the key of a set's program and run-time settings; None if it is not settled."""
        merged = self.baseline.merge(settings)
        unjudged = merged.without(*(n for n in merged if self.stage(n) is Stage.PROGRAM))
        if any(self.stage(n) is Stage.AUTOTUNER for n in unjudged):
            return None
        keys = [self.fingerprint(settings.merge(forced)) for forced in self.choices.values()]
        if None in keys:
            return None
        return "-".join([*map(str, keys), unjudged.digest])

    def fingerprint(self, settings: FlagSet) -> str | None:
        """Returns the fingerprint of a set's program; None if it does not compile."""
        program = self.result(settings).program
        return program.fingerprint if program is not None else None

    def result(self, settings: FlagSet) -> CompileResult:
        """Returns the result of a set; compiles it if necessary."""
        self.compile_all([settings])
        return self._results[self.as_compiled(settings)]

    def is_known(self, settings: FlagSet) -> bool:
        """Returns whether a set has a result."""
        return self.as_compiled(settings) in self._results

    def as_compiled(self, settings: FlagSet) -> FlagSet:
        """Returns the set merged into the baseline, without variables that the compiler ignores."""
        merged = self.baseline.merge(settings)
        return merged.without(*(n for n in merged if n.startswith(("NCCL_", "CUDA_"))))

    def reference(self) -> CompiledProgram:
        """Returns the reference's program; LaunchError if it does not compile."""
        result = self.result(FlagSet())
        if result.program is None:
            assert result.failure is not None
            reason = "\n  ".join([result.failure.message, *result.failure.last_lines[:4]])
            raise LaunchError(
                f"the reference (baseline settings: {self.baseline}) must compile but did not: "
                f"{reason}"
            )
        return result.program

    def _setting(self, name: str, values: Iterable[str]) -> SettingReport:
        stage = self.stage(name)
        if stage is not Stage.PROGRAM:
            return SettingReport(name=name, effect=Effect.MEASURE, stage=stage)
        reports = tuple(
            ValueReport(value=value, **self._compiled(FlagSet({name: value}))) for value in values
        )
        effect = Effect.ALONE
        if any(r.changes for r in reports):
            effect = Effect.ACTIVE
        elif any(r.message for r in reports):
            effect = Effect.FAILS
        return SettingReport(name=name, effect=effect, stage=stage, values=reports)

    def _compiled(self, settings: FlagSet) -> Fields:
        """Returns the fields of a `CompiledReport`."""
        result = self.result(settings)
        program = result.program
        if program is None:
            assert result.failure is not None
            return {"message": f"{result.failure.kind}: {result.failure.message}"}
        differences = tuple(changes(self.reference(), program))
        fields: Fields = {"fingerprint": program.fingerprint, "changes": differences}
        if program.memory is not None:
            fields["peak_bytes"] = program.memory.peak_bytes
            limit = self.limit_bytes(settings)
            if limit is not None:
                fields["fits"] = program.memory.peak_bytes <= limit
        return fields

    def together(
        self,
        report: ScreenReport,
        domains: Domains,
        chains: Chains,
        *,
        is_over: IsOver,
        on: Callable[[Callable[[], Any]], Any] = lambda work: work(),
    ) -> ScreenReport:
        """Settles under each kernel choice whether what does nothing alone acts with others.

        `report` is of `alone`, with the same `domains`. Once `is_over` says so the rest is skipped.
        `on` does what compiles, elsewhere if need be.
        """
        # Settings of the autotuner are always measured, and may interact with others.
        active = {s.name: [v.value for v in s.values] for s in report.settings} | {
            n: list(v) for n, v in domains.items() if self.stage(n) is Stage.AUTOTUNER
        }
        no_ops = {s.name: active.pop(s.name) for s in report.of_effect(Effect.ALONE)}

        def programs(sets: Sets) -> list[str | None]:
            forced_sets = [settings.merge(self.choices[choice]) for settings in sets]
            if not all(map(self.is_known, forced_sets)):
                on(lambda: self.compile_all(forced_sets, is_over))
            return [self.fingerprint(settings) for settings in forced_sets]

        verdicts: dict[str, Fields] = {}
        own_choice = next(iter(self.choices))  # the compiler's
        for choice in self.choices:
            search = InteractionSearch(programs, no_ops, active)
            title = f"groups {choice}".strip()
            for count in search.run(chains):
                self.compiler.progress(f"{title}: {count} done")
            for name, others in search.found_active.items():
                verdicts[name] = {"effect": Effect.ACTIVE, "interacts_with": others}
                if choice != own_choice:
                    verdicts[name]["under"] = choice
                active[name] = no_ops[name]
            if not search.is_settled:
                break
            no_ops = search.no_ops
        else:
            verdicts |= {name: {"effect": Effect.NO_OP} for name in no_ops}
        return report.settled(verdicts).model_copy(update={"compiled_count": self._compiled_count})


def topology_of(spec: StudySpec, target: Target | None) -> Topology:
    """Returns the cluster of a study's devices; without their number one machine as it is sold."""
    device = spec.device
    if target is None:
        return Topology(1, device.count or 1)
    if device.platform == "cuda" and device.count:
        return Topology(device.node_count, max(1, device.count // device.node_count))
    return Topology(device.node_count, target.network.gpus_per_node)


def cluster_that_ran(spec: StudySpec, ran: WorkerReport | None) -> tuple[Target | None, Topology]:
    """Returns the GPU and cluster that a study names, else that ran it; None for an unknown GPU."""
    target = None
    if spec.screen.target:
        target = load_target(spec.screen.target)
    elif ran is not None:
        target = target_here(ran.device_kind)
    if spec.screen.topology:
        return target, parse_topology(spec.screen.topology)
    if ran is None:
        return target, topology_of(spec, target)
    nodes = spec.device.node_count
    return target, Topology(nodes, max(1, ran.device_count // nodes))


@contextlib.contextmanager
def open_screener(
    spec: StudySpec,
    *,
    study_dir: Path,
    target: Target | None,
    topology: Topology | None = None,
    cache_dir: Path | None = None,
    progress: Progress = lambda what: None,
) -> Iterator[tuple[StudySpec, Screener]]:
    """Opens a screener, whose compile workers end with the block, and the study for its cluster.

    The user's modules are imported from `study_dir`. StudyFileError if the study runs a command, or
    the cluster does not fit; LaunchError if no fitting CUDA plugin is installed.
    """
    if spec.workload.entry is None:
        raise StudyFileError(
            "to compile without running, a study must name a workload by `workload.entry` but "
            "this one runs a command; write the step as module:function (see workloads/example.py)"
        )
    if target is None and (topology is not None or spec.device.platform == "cuda"):
        raise StudyFileError(
            "to compile for GPUs the kind must be named: add --target, such as --target h100-sxm "
            "(see `autotune targets list`)"
        )
    cluster = topology or topology_of(spec, target)
    device = type(spec.device)(
        platform="cuda" if target else "cpu", count=cluster.device_count, node_count=cluster.nodes
    )
    if target is not None:
        # As in the reference: XLA's scheduler overlaps less where memory is short.
        target = dataclasses.replace(
            target, memory_share=memory_fraction(spec.baseline) or target.memory_share
        )
        target = target.on_network(spec.device.nic_bytes_per_s)
    job = CompileJob(
        entry=spec.workload.entry,
        options=spec.under(FlagSet()).workload.options,
        target=target,
        topology=cluster,
        paths=(str(study_dir),),
    )
    compiler = Compiler(
        job,
        cache_dir=cache_dir,
        progress=progress,
        processors=lambda: len(os.sched_getaffinity(0)),
    )
    with contextlib.closing(compiler):
        yield spec.model_copy(update={"device": device}), Screener(compiler, baseline=spec.baseline)


def narrowed(
    space: SearchSpace, report: ScreenReport, *, keeps_no_ops: bool = False
) -> SearchSpace:
    """Removes no-ops, and what does nothing alone so far, from a space.

    Values that failed to compile stay, except for this machine's CPU: some sets fail only without a
    device. A condition on a no-op is removed: all its values give one program. No-ops stay where a
    measurement contradicted the screen (`keeps_no_ops`).
    """
    inert = () if keeps_no_ops else (Effect.NO_OP, Effect.ALONE)
    reasons = {}
    refused = {}
    for setting in report.settings:
        if setting.effect in inert:
            values = ", ".join(v.value or "(empty)" for v in setting.values)
            reasons[setting.name] = (
                f"no-op here: compiled for {report.target} {report.topology}, no value ({values}) "
                "changes the program"
            )
        if report.limit_bytes is None:
            refused[setting.name] = [v.value for v in setting.values if v.message]
    parameters = []
    for parameter in space.parameters:
        if parameter.name in reasons:
            continue
        condition = {
            n: v for n, v in (parameter.condition or {}).items() if n not in reasons
        } or None
        failing = refused.get(parameter.name, ())
        choices = tuple(choice for choice in parameter.choices if choice not in failing)
        if choices:
            parameters.append(dataclasses.replace(parameter, condition=condition, choices=choices))
        else:
            reasons[parameter.name] = "no value of it compiles here"
    return dataclasses.replace(
        space, parameters=tuple(parameters), left_out={**space.left_out, **reasons}
    )


def chains(space: SearchSpace) -> Chains:
    """Maps each parameter with conditions to sets that fulfil them with every possible value."""
    parameters = {p.name: p for p in space.parameters}
    conditions = [p.condition or {} for p in space.parameters]
    counts = [len(values) for condition in conditions for values in condition.values()]

    def needed(name: str, index: int) -> FlagSet:
        settings = FlagSet()
        for parent, values in (parameters[name].condition or {}).items():
            value = values[index % len(values)]
            if parent in parameters and not parameters[parent].is_absent(value):
                settings = settings.merge(needed(parent, index)).merge({parent: value})
        return settings

    chains_of = {}
    indices = range(max(counts, default=0))
    for name in parameters:
        sets = dict.fromkeys(needed(name, index) for index in indices)
        sets.pop(FlagSet(), None)
        if sets:
            chains_of[name] = list(sets)
    return chains_of


def domains(space: SearchSpace) -> Domains:
    """Returns the values to compile for each parameter: evenly spread, without its default."""
    values_of = {}
    for parameter in space.parameters:
        values = [v for v in parameter.choices if not parameter.is_absent(v)]
        count = min(len(values), MOST_VALUES)
        step = max(1.0, (len(values) - 1) / (MOST_VALUES - 1))
        values_of[parameter.name] = [values[round(i * step)] for i in range(count)]
    return values_of
