"""Puts a study's context together from what a command line gives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.cluster import Engine
from autotune.model import WITH_SECRETS, Callbacks, Effort, Stopwatch, StudySpec, load_study, parse_study
from autotune.rundir import Store
from autotune.study.preflight import prepare
from autotune.study.recheck import NothingToSearch
from autotune.study.run import StudyRun


def new_run(
    spec: StudySpec,
    path: Path,
    *,
    study_dir: Path,
    view: Callbacks,
    watch: Stopwatch,
    storage: str | None = None,
    devices: Sequence[Sequence[str]] = (),
    make_engine: Callable[[StudyRun], Engine] | None = None,
    command: Sequence[str] = (),
) -> StudyRun:
    """The context of one session, for `run_study`; nothing is started or written yet.

    Args:
        spec: The study.
        path: Its run directory, made or gone on with.
        study_dir: Folder of the study file.
        view: Told what happens.
        watch: Counts the study's time; the view may show it.
        storage: URL of the Optuna storage to keep the study in; None for a journal in the run directory.
        devices: What this driver was given of the machine: one group for each lane; empty for all in one.
        make_engine: Offers lanes; default: this process is the only one.
        command: How the driver was called, for the record.
    """
    create = functools.partial(Store.create_or_resume, path.resolve(), spec, study_dir=study_dir)
    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(watch=watch),
        prepare=lambda note: prepare(spec, study_dir=study_dir, storage=storage, note=note),
        storage=storage,
        devices=devices,
        make_engine=make_engine,
        command=command,
    )


def new_recheck(
    spec: StudySpec, path: Path, *, study_dir: Path, view: Callbacks, watch: Stopwatch, command: Sequence[str] = ()
) -> StudyRun:
    """The context of a recheck, for `recheck_winner`; see `new_run`."""
    create = functools.partial(Store.create_or_resume, path.resolve(), spec, study_dir=study_dir)
    return StudyRun(
        spec=spec,
        view=view,
        open_store=lambda: create(watch=watch),
        prepare=lambda note: NothingToSearch(),
        command=command,
        asked_trials=0,
    )


def study_with(path: Path, given: Mapping[str, Mapping[str, Any]], *, effort: str, seed: int | None) -> StudySpec:
    """A study file with what a command line gives instead, checked like the file.

    Args:
        path: The study file.
        given: Section to key to value; None leaves the file's own.
        effort: How much measuring; see `Effort`.
        seed: Likewise of the study; None leaves the file's own.

    Raises:
        StudyFileError: If the file, or the study that comes out, is not legal.
    """
    data = load_study(path).at_effort(Effort(effort)).model_dump(context=WITH_SECRETS)
    for section, values in given.items():
        data[section].update({key: value for key, value in values.items() if value is not None})
    if seed is not None:
        data["seed"] = seed
    return parse_study(data, source="the study with the options of the command line")
