"""The search space of a study before it runs: the one that a run has, from what its reference is going to tell.

A run builds its space once the reference has told the devices and the size of a layer. Here the same function gets
the same facts from a run that was made already, or from the workload, built in a child process and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.compiler import Facts
from autotune.machine import caller_environment, visible_gpus
from autotune.model import AutotuneError, FlagSet, FloorResult, RunDirectoryError, StudySpec, WorkloadFacts
from autotune.rundir import Store
from autotune.settings import SearchSpace, build_space
from autotune.study.atlas_priors import by_atlas
from autotune.study.library_priors import by_library, entries_for, lessons_of
from autotune.study.preflight import known_settings
from autotune.study.priors import Prior, priors_of, screened_by
from autotune.study.probe import program_python, refuse_other_build
from autotune.workers import WorkerFailed, describe_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What a run of a study would search.

    Attributes:
        space: Before a screen, which may take more out.
        build: The library that was asked, in words.
        told_by: Who told what values and conditions follow from, in words.
        device_count: As told; None if nobody knows.
        layer_bytes: Bytes of ``weights`` and ``gradients`` of one layer, as told.
        priors: Parameter to how likely it is thought to act, and why; by the screen of the run, too, if it has one.
        first: Sets of a library that are tried first, with their names.
    """

    space: SearchSpace
    build: str
    told_by: str
    device_count: int | None = None
    layer_bytes: Mapping[str, int] = field(default_factory=dict)
    priors: Mapping[str, Prior] = field(default_factory=dict)
    first: tuple[tuple[str, FlagSet], ...] = ()


def foretell_space(
    spec: StudySpec, *, study_dir: Path, run_dir: Path, is_asked: bool = False, python: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Foretold:  # fmt: skip
    """The space that a run of a study searches, as far as it can be known before.

    Args:
        spec: The study.
        study_dir: Folder of the study file, where the user's own modules are found.
        run_dir: Where a run of this study may lie; what its reference told is believed.
        is_asked: Whether that run must be there.
        python: Interpreter whose packages are meant; None for that of the workload.
        note: Called with a warning if that is not known.

    Raises:
        SettingError: If the study names a group or setting that does not exist, or an illegal value.
        RunDirectoryError: If `run_dir` must be a run of this study and is none, or its reference has not run.
        StudyFileError: If that run was on another build, or there is no such library.
        LaunchError: If the installed build cannot be asked.
    """
    asked = python or program_python(spec, study_dir, note=note)
    known = known_settings(spec, asked)
    unsized = build_space(spec, known, None)  # a misspelt name must not wait for the workload to be built
    is_sized = any((entry := known[p.name].entry) and entry.layer_bytes for p in unsized.parameters)
    store = _run_of(spec, run_dir, is_asked=is_asked)
    floor = store.last(FloorResult) if store is not None else None
    facts: WorkloadFacts | None = floor.reference if floor is not None else None
    told_by = f"the reference of {run_dir}"
    if facts is None:
        facts, told_by = _without_a_run(spec, study_dir, is_sized=is_sized)
    if python is None:
        refuse_other_build(known.build.jaxlib, asked, spec, facts)
    space = build_space(spec, known, facts)
    report, count = screened_by(store) if store is not None else None, facts.device_count if facts else None
    priors = by_atlas(priors_of(space, report), spec, count, known.build.jaxlib, report)
    kind = floor.reference.device_kind if floor is not None else None
    lessons = lessons_of(entries_for(spec, study_dir), spec, known, device_kind=kind, device_count=count)
    return Foretold(
        space=space,
        build=known.build.build,
        told_by=told_by,
        device_count=count,
        layer_bytes=facts.layer_bytes if facts else {},
        priors=by_library(priors, lessons.winners),
        first=lessons.first,
    )


def _without_a_run(spec: StudySpec, study_dir: Path, *, is_sized: bool) -> tuple[WorkloadFacts | None, str]:
    """What the reference is going to tell, None if nobody knows; and who says so.

    Args:
        spec: The study.
        study_dir: Folder of the study file.
        is_sized: Whether values follow from a layer's size; if none do, the workload need not be built.
    """
    if spec.replay is not None:
        return Facts(device_count=spec.device.count or 1), "the study; a replayed workload tells nothing more"
    if spec.workload.entry is None:
        return None, "the study alone; its command tells more, if anything, when it runs"
    count = _device_count(spec)
    if not is_sized:
        return Facts(device_count=count), "the study; no value follows from its workload"
    try:
        figures = describe_workload(spec, study_dir=study_dir, device_count=count or 1)
    except WorkerFailed as error:
        return None, f"the study alone; its workload could not be built here ({error})"
    facts = Facts(device_count=count, mesh=figures.mesh, layer_bytes=figures.layer_bytes)
    return facts, "the workload, built here and not run"


def _run_of(spec: StudySpec, path: Path, *, is_asked: bool) -> Store | None:
    """The run of this study that lies there, if there is one; where it is asked for, its reference has run."""
    try:
        store = Store.open(path)
    except AutotuneError:
        if is_asked:
            raise
        return None
    is_same = store.spec.identity == spec.identity
    if is_asked and not (is_same and store.of(FloorResult)):
        raise RunDirectoryError(
            f"--run-dir must be a run of this very study whose reference has run but {path} is none; "
            "leave it out to have the workload built instead"
        )
    return store if is_same else None


def _device_count(spec: StudySpec) -> int | None:
    """Devices of an `entry`; of GPUs that the study does not count, those that are here. None if there are none."""
    device = spec.device
    if device.count is not None or device.platform == "cpu":
        return device.count or device.rank_count
    return len(visible_gpus(caller_environment())) * device.node_count or None
