"""Screens a study by compiling: which settings change the program, and which must be measured."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.compiler.compile_worker import CompileJob, Progress
from autotune.compiler.compiler import Compiler
from autotune.compiler.interaction import Chains, Domains, InteractionSearch, kernel_choices
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
from autotune.settings.catalog import Stage, load_catalog
from autotune.settings.space import Parameter, SearchSpace

IsOver = Callable[[], bool]
"""Whether the time for compiling is up."""

DEFAULT_MEMORY_FRACTION = 0.75
"""Share of the device memory that JAX's client takes by default (jax/_src/xla_bridge.py)."""

GPU_CANARIES = (
    FlagSet(
        {"xla_gpu_enable_command_buffer": ""}
    ),  # costs no more than the reference, but not every step has graphs
    FlagSet({"xla_disable_hlo_passes": "fusion,priority-fusion,multi_output_fusion"}),
)
CPU_CANARIES = (
    FlagSet({"xla_cpu_max_isa": "SSE4_2"}),  # other machine code, on every x86 processor since 2011
    FlagSet({"xla_disable_hlo_passes": "fusion"}),
)
"""Tried in turn. All change the scanned toy step of the tests on jaxlib 0.10.2 and 0.12.0.1."""

MOST_VALUES = 5
"""Values of one setting that are compiled, evenly spread over longer ranges."""


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
    """Result of compiling one set."""

    fingerprint: str | None = None
    """Fingerprint of its program; None if it does not compile."""
    changes: tuple[str, ...] = ()
    """What differs from the reference's program; empty only if nothing does."""
    message: str = ""
    """Why it does not compile."""
    peak_bytes: int | None = None
    fits: bool | None = None
    """Whether the step fits in device memory; None if unknown."""


class ValueReport(CompiledReport):
    """One value of a setting on top of the reference."""

    value: str


class SettingReport(Record):
    """One setting with all its values."""

    name: str
    effect: Effect
    stage: str
    values: tuple[ValueReport, ...] = ()
    interacts_with: tuple[str, ...] = ()
    """Settings with which it is active; empty if it is active alone."""
    under: str = ""
    """The only kernel choice under which it is active; empty if that is the compiler's own."""


class ScreenReport(Record):
    """Result of screening a study on one cluster."""

    target: str
    topology: str
    versions: dict[str, str]
    reference: CompiledReport
    settings: tuple[SettingReport, ...]
    limit_bytes: int | None
    """Device memory at the study's memory fraction; None for the CPU."""
    compiled_count: int
    """Programs compiled now, without cached ones."""
    skipped: tuple[str, ...] = ()
    """Settings without a verdict, because the time was up."""
    canary: Settings
    """A set (without the baseline) that changed the program, which shows that flags act."""
    target_digest: str = ""
    """`Target.digest`; empty for the CPU."""

    def of_effect(self, effect: str) -> list[SettingReport]:
        """Selects settings by effect."""
        return [s for s in self.settings if s.effect == effect]

    def settled(self, verdicts: Mapping[str, Mapping[str, Any]]) -> ScreenReport:
        """Returns the report with verdicts on settings without an effect alone; those without a
        verdict are skipped.
        """
        settings = [s.model_copy(update=verdicts.get(s.name)) for s in self.settings]
        alone = sorted(s.name for s in settings if s.effect is Effect.ALONE)
        decided = tuple(s for s in settings if s.effect is not Effect.ALONE)
        return self.model_copy(update={"settings": decided, "skipped": (*alone, *self.skipped)})


def find_canary(screener: Screener) -> FlagSet:
    """Finds the first canary that changes the reference's program; LaunchError, and nothing is
    kept, if none does.
    """
    canaries = GPU_CANARIES if screener.job.target is not None else CPU_CANARIES
    without_effect = (None, screener.reference().fingerprint)
    for settings in canaries:
        is_in_force = screener.baseline.merge(settings) == screener.baseline
        if not is_in_force and screener.fingerprint(settings) not in without_effect:
            return settings
    screener.forget((FlagSet(), *canaries))
    tried = "; ".join(f"[{settings}]" for settings in canaries)
    raise LaunchError(
        "a screen must be able to see that a setting changes the program but no canary does: "
        f"{tried}; flags do not "
        "seem to reach the compiler, so nothing is called a no-op"
    )


class Screener:
    """Compiles sets of a study, each merged into the baseline, and compares their programs with the
    reference's.
    """

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
        progress: Progress = lambda done: None,
        is_over: IsOver = lambda: False,
    ) -> ScreenReport:
        """Screens settings alone, then those without an effect alone in groups; see those
        methods.
        """
        report = self.alone(domains, progress=progress, is_over=is_over)
        return self.together(report, domains, chains or {}, progress=progress, is_over=is_over)

    def alone(
        self,
        domains: Domains,
        *,
        progress: Progress = lambda done: None,
        is_over: IsOver = lambda: False,
    ) -> ScreenReport:
        """Screens settings one at a time.

        Args:
            progress: Called with what is done.
            is_over: Called before each compilation but those of the reference; once it is true, the
                rest is skipped.

        Raises:
            LaunchError: If the reference does not compile, or flags do not act.
        """
        reference = self.reference()
        canary = find_canary(self)
        acting = [name for name in domains if self.stage(name) in (Stage.PROGRAM, Stage.AUTOTUNER)]
        wanted = [FlagSet({name: value}) for name in acting for value in domains[name]]
        with contextlib.suppress(StoppedError):  # what is known by then is reported
            self.compile_all(
                wanted,
                is_over,
                lambda done: progress(f"{done} of {len(wanted)} single sets compiled"),
            )
        unknown = {name for settings in wanted if not self.is_known(settings) for name in settings}
        judged = [n for n in domains if n not in unknown or self.stage(n) is not Stage.PROGRAM]
        return ScreenReport(
            target=self.target_name,
            topology=str(self.job.topology),
            versions=reference.versions,
            reference=CompiledReport(**self._compiled(FlagSet())),
            settings=tuple(self._setting(name, domains[name]) for name in judged),
            limit_bytes=self.limit_bytes(self.baseline),
            compiled_count=self._compiled_count,
            skipped=tuple(sorted(domains.keys() - set(judged))),
            canary=canary,
            target_digest=self.job.target.digest if self.job.target else "",
        )

    @property
    def _compiled_count(self) -> int:
        return sum(not result.from_cache for result in self._results.values())

    def compile_all(
        self,
        wanted: Sequence[FlagSet],
        is_over: IsOver = lambda: False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Compiles the sets without a result, several at once; StoppedError if that, or `is_over`,
        ended it early.
        """
        missing = [
            s for s in dict.fromkeys(map(self._as_compiled, wanted)) if s not in self._results
        ]
        with contextlib.closing(self.compiler.compile(missing)) as results:
            for done in range(len(wanted) - len(missing), len(wanted)):
                if is_over():
                    raise StoppedError("the time for compiling is up")
                result = next(results)
                self._results[result.settings] = result
                progress(done + 1)

    @property
    def target_name(self) -> str:
        """Name of the target; ``cpu`` without one."""
        return self.job.target.name if self.job.target else "cpu"

    def stage(self, name: str) -> Stage:
        """Returns the stage at which a setting acts; run time if the catalogue lacks it."""
        return self._catalog[name].stage if name in self._catalog else Stage.RUNTIME

    def limit_bytes(self, settings: Mapping[str, str]) -> int | None:
        """Returns the device memory that JAX takes under these settings; None for the CPU."""
        if self.job.target is None:
            return None
        return int(
            self.job.target.memory_bytes * (memory_fraction(settings) or DEFAULT_MEMORY_FRACTION)
        )

    def program_key(self, settings: FlagSet) -> str | None:
        """Returns the key of sets with one program and the same run-time settings, which need only
        one measurement.

        None if the set does not compile, or holds a setting of the on-device autotuner.
        """
        merged = self.baseline.merge(settings)
        unjudged = FlagSet({n: v for n, v in merged.items() if self.stage(n) is not Stage.PROGRAM})
        if any(self.stage(n) is Stage.AUTOTUNER for n in unjudged):
            return None
        programs = [self.fingerprint(settings.merge(forced)) for forced in self.choices.values()]
        return None if None in programs else "-".join([*map(str, programs), unjudged.digest])

    def fingerprint(self, settings: FlagSet) -> str | None:
        """Returns the fingerprint of a set's program; None if it does not compile."""
        program = self.result(settings).program
        return program.fingerprint if program is not None else None

    def result(self, settings: FlagSet) -> CompileResult:
        """Returns the result of a set; compiles it if necessary."""
        self.compile_all([settings])
        return self._results[self._as_compiled(settings)]

    def forget(self, sets: Sequence[FlagSet]) -> None:
        """Drops the results of sets, also from the cache."""
        compiled = [self._as_compiled(s) for s in sets]
        for settings in compiled:
            self._results.pop(settings, None)
        self.compiler.forget(compiled)

    def is_known(self, settings: FlagSet) -> bool:
        """Returns whether a set has a result."""
        return self._as_compiled(settings) in self._results

    def _as_compiled(self, settings: FlagSet) -> FlagSet:
        """Returns the set merged into the baseline, without variables that the compiler ignores."""
        merged = self.baseline.merge(settings)
        return merged.without(*(n for n in merged if n.startswith(("NCCL_", "CUDA_"))))

    def reference(self) -> CompiledProgram:
        """Returns the reference's program; LaunchError if it does not compile."""
        result = self.result(FlagSet())
        if result.program is None:
            failure = result.failure
            reason = "\n  ".join([failure.message, *failure.last_lines[:4]]) if failure else ""
            raise LaunchError(
                f"the reference (baseline settings: {self.baseline}) must compile but did not: "
                f"{reason}"
            )
        return result.program

    def _setting(self, name: str, values: Sequence[str]) -> SettingReport:
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

    def _compiled(self, settings: FlagSet) -> dict[str, Any]:
        """Returns the fields of a `CompiledReport`."""
        result = self.result(settings)
        if result.program is None:
            assert result.failure is not None
            return {"message": f"{result.failure.kind}: {result.failure.message}"}
        program = result.program
        peak_bytes = program.memory.peak_bytes if program.memory else None
        limit = self.limit_bytes(self.baseline.merge(settings))
        return {
            "fingerprint": program.fingerprint,
            "changes": tuple(changes(self.reference(), program)),
            "peak_bytes": peak_bytes,
            "fits": None if peak_bytes is None or limit is None else peak_bytes <= limit,
        }

    def together(
        self,
        report: ScreenReport,
        domains: Domains,
        chains: Chains,
        *,
        progress: Progress = lambda done: None,
        is_over: IsOver = lambda: False,
        on: Callable[[Callable[[], Any]], Any] = lambda work: work(),
    ) -> ScreenReport:
        """Settles, under each kernel choice, whether what does nothing alone acts with others; the
        rest is skipped.

        Args:
            report: Of `alone`, with the same `domains`.
            is_over: Called before each compilation; once it is true, what is not settled is
                skipped.
            on: Does what compiles, elsewhere if need be, and returns its result.
        """
        # Settings of the autotuner are always measured, and may interact with others.
        values = {s.name: [v.value for v in s.values] for s in report.settings}
        active = values | {
            n: list(v) for n, v in domains.items() if self.stage(n) is Stage.AUTOTUNER
        }
        no_ops = {s.name: active.pop(s.name) for s in report.of_effect(Effect.ALONE)}

        def programs(sets: Sequence[FlagSet]) -> list[str | None]:
            if not all(map(self.is_known, sets)):
                on(lambda: self.compile_all(sets, is_over))
            return [self.fingerprint(settings) for settings in sets]

        verdicts: dict[str, dict[str, Any]] = {}
        forced_choices = list(self.choices)[1:]  # the first is the compiler's own
        for choice, forced in self.choices.items():
            search = InteractionSearch(programs, no_ops, active, forced=forced)
            words = f"groups {choice}".strip()
            search.run(chains, lambda count, words=words: progress(f"{words}: {count} done"))  # type: ignore[misc]
            under = choice if choice in forced_choices else ""
            for name, others in search.found_active.items():
                verdicts[name] = {"effect": Effect.ACTIVE, "interacts_with": others, "under": under}
                active[name] = no_ops[name]
            if not search.is_settled:
                break
            no_ops = search.no_ops
        else:
            verdicts |= {name: {"effect": Effect.NO_OP} for name in no_ops}
        return report.settled(verdicts).model_copy(update={"compiled_count": self._compiled_count})


def topology_of(spec: StudySpec, target: Target | None) -> Topology:
    """Returns the cluster of a study's devices; where it does not name their number, one machine as
    it is sold.
    """
    device = spec.device
    if target is None:
        return Topology(1, device.count or 1)
    if device.platform == "cuda" and device.count:
        return Topology(device.node_count, max(1, device.count // device.node_count))
    return Topology(device.node_count, target.network.gpus_per_node)


def cluster_that_ran(spec: StudySpec, ran: WorkerReport | None) -> tuple[Target | None, Topology]:
    """Returns the GPU and the cluster that a study names, else those that ran it; None for an
    unknown GPU.
    """
    target = None
    if spec.screen.target:
        target = load_target(spec.screen.target)
    elif ran is not None:
        target = target_here(ran.device_kind)
    if target is not None:
        target = target.on_network(spec.device.nic_bytes_per_s)
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
    """Opens a screener; its compile workers end with the block.

    Args:
        study_dir: Folder of the study file, from which the user's modules are imported.

    Raises:
        StudyFileError: If the study runs a command, or the cluster does not fit.
        LaunchError: If no fitting CUDA plugin is installed.
    """
    if spec.workload.entry is None:
        raise StudyFileError(
            "to compile without running, a study must name a workload by `workload.entry` but "
            "this one runs a "
            "command; write the step as module:function (see workloads/example.py)"
        )
    if target is None and (topology is not None or spec.device.platform == "cuda"):
        raise StudyFileError(
            "to compile for GPUs the kind must be named: add --target, such as --target h100-sxm "
            "(see `autotune targets list`)"
        )
    cluster = topology or topology_of(spec, target)
    platform = "cuda" if target else "cpu"
    device = type(spec.device)(
        platform=platform, count=cluster.device_count, node_count=cluster.nodes
    )
    moved = spec.model_copy(update={"device": device})
    if (
        target is not None
    ):  # as in the reference: XLA's scheduler overlaps less where memory is short
        share = memory_fraction(spec.baseline) or target.memory_share
        target = dataclasses.replace(target, memory_share=share).on_network(
            spec.device.nic_bytes_per_s
        )
    job = CompileJob(
        entry=spec.workload.entry,
        options=spec.under(FlagSet()).workload.options,
        target=target,
        topology=cluster,
        paths=(str(study_dir),),
    )
    with Compiler(
        job, cache_dir=cache_dir, progress=progress, processors=_usable_processors
    ) as compiler:
        yield moved, Screener(compiler, baseline=spec.baseline)


def _usable_processors() -> int:
    return len(os.sched_getaffinity(0))


def narrowed(
    space: SearchSpace, report: ScreenReport, *, keeps_no_ops: bool = False
) -> SearchSpace:
    """Removes no-ops, and what does nothing alone so far, from a space.

    Values that failed to compile stay, except for this machine's CPU: some sets fail only without a
    device. A condition on a no-op is removed: all values of a no-op give one program, so the
    parameter's own verdict holds under each.

    Args:
        keeps_no_ops: Whether no-ops stay, because a measurement contradicted the screen.
    """
    inert = () if keeps_no_ops else (Effect.NO_OP, Effect.ALONE)
    reasons = {s.name: _no_op_reason(s, report) for s in report.settings if s.effect in inert}
    refused = {
        (s.name, v.value)
        for s in report.settings
        for v in s.values
        if v.message and report.limit_bytes is None
    }
    parameters: list[Parameter] = []
    for parameter in space.parameters:
        if parameter.name in reasons:
            continue
        condition = {
            n: v for n, v in (parameter.condition or {}).items() if n not in reasons
        } or None
        choices = tuple(c for c in parameter.choices if (parameter.name, c) not in refused)
        if choices:
            parameters.append(dataclasses.replace(parameter, condition=condition, choices=choices))
        else:
            reasons[parameter.name] = "no value of it compiles here"
    return dataclasses.replace(
        space, parameters=tuple(parameters), left_out={**space.left_out, **reasons}
    )


def _no_op_reason(setting: SettingReport, report: ScreenReport) -> str:
    tried = ", ".join(v.value or "(empty)" for v in setting.values)
    return (
        f"no-op here: compiled for {report.target} {report.topology}, no value ({tried}) "
        "changes the program"
    )


def chains(space: SearchSpace) -> dict[str, list[FlagSet]]:
    """Maps each parameter with conditions to sets that fulfil them and hold every fulfilling
    value.
    """
    by_name = {p.name: p for p in space.parameters}
    conditions = {p.name: p.condition or {} for p in space.parameters}
    longest = max(
        (len(values) for condition in conditions.values() for values in condition.values()),
        default=0,
    )

    def needed(name: str, index: int) -> FlagSet:
        settings = FlagSet()
        for parent, values in conditions[name].items():
            value = values[index % len(values)]
            if parent in by_name and not by_name[parent].is_absent(value):
                settings = settings.merge(needed(parent, index)).merge({parent: value})
        return settings

    sets = {name: [needed(name, index) for index in range(longest)] for name in by_name}
    return {
        name: list(filter(None, dict.fromkeys(of_name)))
        for name, of_name in sets.items()
        if any(of_name)
    }


def domains(space: SearchSpace) -> Mapping[str, list[str]]:
    """Returns the values to compile for each parameter, other than its default."""
    return {p.name: spread([v for v in p.choices if not p.is_absent(v)]) for p in space.parameters}


def spread(values: list[str], most: int = MOST_VALUES) -> list[str]:
    """Returns at most `most` (at least 2) evenly spread values, first and last included."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
