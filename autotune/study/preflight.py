"""Probes the installed build, checks settings and builds the search space before a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.compiler.screen import cluster_that_ran
from autotune.machine.devices import restrict_devices
from autotune.machine.environment import caller_environment, steering_settings
from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import WorkerReport, WorkloadFacts
from autotune.model.plugins import load_class
from autotune.model.redaction import refuse_redacted
from autotune.model.spec import StudySpec
from autotune.model.texts import Note
from autotune.programs.look import program_python, refuse_other_build
from autotune.rundir.store import Store
from autotune.settings.catalog import Scope, Stage, find_recipe
from autotune.settings.check import SettingVerdict, check_settings, for_build
from autotune.settings.doctor import nccl_file_findings
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.published import Here, with_published
from autotune.settings.space import NamedSets, SearchSpace, build_space
from autotune.stats.proof import FIRST_LOOK, LEAST_PAIRS
from autotune.study.proposer import open_study
from autotune.study.samplers import check_sampler
from autotune.workers.base import Launcher
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher
from autotune.workers.srun import SrunLauncher

RECIPE = "recipe "  # start of the origin of a set that is a published recipe


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a session is set up with; by itself, to measure given sets without a search."""

    # Sets to try before the sampler proposes, each with its origin.
    first: NamedSets = ()
    # What is known of the build's settings; without it all count as read at run time.
    installed: KnownSettings | None = None

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """Returns the search space, given the facts of the reference."""
        return SearchSpace(())

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """Returns the settings that are read at run time, or unknown, and in no fingerprint."""
        if self.installed is None:
            return settings
        stages = {name: self.installed[name].entry.stage for name in settings}
        return settings.without(*(n for n, stage in stages.items() if stage is Stage.PROGRAM))

    def launcher(self, store: Store) -> Launcher:
        """Creates the launcher of workers."""
        return make_launcher(store.spec, store.study_dir)


@dataclass(frozen=True, kw_only=True)
class Preflight(Setup):
    """The setup of a study that was checked against the build of an interpreter."""

    spec: StudySpec
    installed: KnownSettings
    python: str

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """Builds the search space; StudyFileError if the reference ran on another build."""
        refuse_other_build(self.installed.build.jaxlib, self.python, self.spec, facts)
        return space_here(self.spec, self.installed, facts)


def space_here(
    spec: StudySpec, installed: KnownSettings, facts: WorkloadFacts | None
) -> SearchSpace:
    """Builds the space of a study on the machines that its reference ran on, or that it names."""
    ran = facts if isinstance(facts, WorkerReport) else None
    machines: dict[Scope, bool] = {}
    if spec.device.platform == "cuda":
        target, topology = cluster_that_ran(spec, ran)
        if target:
            # A command on one node may start processes elsewhere.
            is_open = spec.workload.command is not None and spec.device.node_count == 1
            machines = target.scopes(None if is_open else topology)
            installed = KnownSettings(installed.build, target.name)
    if ran and ran.infiniband_ports is not None:
        machines[Scope.INFINIBAND] = ran.infiniband_ports > 0
    if ran and ran.cloud_networks is not None:
        for network in (Scope.EFA, Scope.GVNIC):
            machines[network] = network in ran.cloud_networks
    space = build_space(spec, installed, facts, machines=machines)
    mesh = spec.workload.mesh or {}
    is_mixture = spec.workload.entry == "moe" or mesh.get("expert", 1) > 1
    place = Here(gpus=spec.device.count or 0, experts=is_mixture)
    return with_published(space, installed, machines, place)


def prepare(spec: StudySpec, *, study_dir: Path, storage: str | None, note: Note) -> Preflight:
    """Probes the build, checks all settings that the study names, and collects its first sets."""
    refuse_missing_secrets(spec, source="the study")
    check_sampler(spec.search, str(study_dir))
    note("asking the installed build which settings it has")
    processes = spec.confirm.processes
    if processes < LEAST_PAIRS:
        note(
            f"a proof needs {LEAST_PAIRS} fresh pairs of processes to see slow ones but "
            f"`confirm.processes` allows {processes}: {max(FIRST_LOOK, processes)} are made, and "
            "may settle nothing"
        )
    python = program_python(spec, study_dir, note=note)
    installed = known_settings(spec, python)
    build = installed.build
    note(f"{build.build}: {sum(f.in_xla_flags for f in build.flags.values())} XLA flags")
    _refuse(spec, installed)
    if spec.device.platform == "cuda":
        for finding in nccl_file_findings(caller_environment()):
            note(finding.problem)
    first_sets = _first_sets(spec, installed, note)
    # An unknown group, or a mistyped URL, is found before the reference runs.
    space_here(spec, installed, None)
    if storage is not None:
        open_study(spec, storage)
    return Preflight(spec=spec, installed=installed, python=python, first=first_sets)


def known_settings(spec: StudySpec, python: str) -> KnownSettings:
    """Probes the settings of an interpreter's build; LaunchError if it cannot be probed."""
    return KnownSettings(probe_build(python, platform=spec.device.platform), spec.screen.target)


def make_launcher(spec: StudySpec, study_dir: str, devices: Sequence[str] = ()) -> Launcher:
    """Creates a study's launcher, restricted to devices; tests put a simulated machine here."""
    if devices:
        restrict_devices(spec.device.platform, devices)
    kind: type[LocalLauncher] = LocalLauncher
    if spec.workload.launcher is not None:
        kind = load_class(spec.workload.launcher, Launcher, study_dir, key="workload.launcher")
    elif spec.device.node_count > 1:
        kind = SrunLauncher
    elif spec.workload.command is not None:
        kind = CommandLauncher
    return kind(spec, study_dir=study_dir, base=caller_environment())


def refuse_missing_secrets(spec: StudySpec, *, source: str) -> None:
    """Refuses a study from a record whose secrets were redacted, by a StudyFileError."""
    advice = "name the study file that has them (`recheck --study STUDY.toml`, or `run STUDY.toml`)"
    refuse_redacted(spec.workload.command, [spec.workload.options], source=source, advice=advice)


def _refuse(spec: StudySpec, known: KnownSettings) -> None:
    places = [("baseline", spec.baseline)]
    places += [(f"search.first `{s.name}`", s.settings) for s in spec.search.first]
    problems = ""
    for place, settings in places:
        for check in check_settings(FlagSet().merge(settings), known):  # DEFAULT is no value
            if not check.starts or check.verdict is SettingVerdict.DANGEROUS:
                problems += (
                    f"\n  - {place}: {check.name}={check.value}: {check.reason}; {check.advice}"
                )
    if problems:
        raise SettingError(
            f"every setting of a study must be one that {known.build.build} takes but:{problems}"
        )


def _first_sets(spec: StudySpec, known: KnownSettings, note: Note) -> NamedSets:
    """Returns the caller's settings, named sets and recipes, without what the build ignores."""

    def fitted(origin: str, settings: FlagSet) -> tuple[str, FlagSet]:
        return origin, for_build(
            settings, known, over=spec.baseline, note=lambda text: note(f"{origin}: {text}")
        )

    sets = [fitted("your environment", steering_settings(caller_environment()))]
    sets += [(f"set {s.name}", s.whole) for s in spec.search.first]
    sets += [fitted(RECIPE + name, find_recipe(name).settings) for name in spec.search.recipes]
    return [pair for pair in sets if pair[1]]


def preview_space(
    spec: StudySpec, *, study_dir: Path, python: str | None = None, note: Note | None = None
) -> tuple[SearchSpace, str]:
    """Builds the space of a study that has not run, and names the build (of `python`, if given)."""
    installed = known_settings(spec, python or program_python(spec, study_dir, note=note))
    return space_here(spec, installed, None), installed.build.build
