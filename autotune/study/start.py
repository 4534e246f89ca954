"""Starts a study from a command line, a script or a notebook."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from autotune.model.clock import Stopwatch
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, load_study, parse_study
from autotune.model.stop import stoppable
from autotune.results.live import LineView
from autotune.results.verify import RUNS
from autotune.study.driver import new_run, run_study
from autotune.study.engines import choose_engine
from autotune.study.run import StudyRun

if TYPE_CHECKING:
    from autotune.results.api import Study


def run(
    study: str | Path | Mapping[str, Any],
    run_dir: str | Path | None = None,
    *,
    trials: int | None = None,
    time_budget: str | None = None,
    progress: bool = True,
    profile: bool = False,
    tracker: str | Sequence[str] = (),
) -> Study:
    """Runs a study, or continues it where it was stopped, with the checks of `autotune run`.

    Ctrl-C, and in the main thread SIGTERM, ends its processes and raises KeyboardInterrupt; the
    same call continues.

    Args:
        study: A study file, or its sections as a mapping, whose programs are looked for in the
            current folder.
        run_dir: Default: ``runs/NAME``.
        trials: Trials in all, over all sessions; default: those of the study.
        time_budget: Wall time of the whole study, such as ``30m``; default: that of the study.
        profile: Whether the default and the winner are traced in the end, as by ``--profile``.
        tracker: One or several of ``wandb``, ``mlflow`` and ``tensorboard``.

    Raises:
        StudyFileError: If the study, or an argument, is not legal; nothing was started.
        AutotuneError: If the study cannot start or go on; its records stay.
    """
    # It imports pandas, which no command line needs.
    from autotune.results.api import Study

    if isinstance(study, Mapping):
        spec = parse_study(dict(study))
        folder = Path.cwd()
    else:
        spec = load_study(Path(study))
        folder = Path(study).resolve().parent
    spec = study_with(spec, trials=trials, time_budget=time_budget)
    path = Path(run_dir) if run_dir is not None else Path(RUNS, spec.name)
    console = Console(
        markup=False, highlight=False, emoji=False, force_jupyter=False, quiet=not progress
    )
    if spec.device.platform == "cuda" and "jax" in sys.modules:
        console.print(
            "note: this process has imported jax; once it uses GPUs, it holds the memory that "
            "the study needs"
        )
    try:
        session = run_shown(
            spec,
            path,
            console,
            do=functools.partial(run_study, profiled=profile),
            study_dir=folder,
            make_engine=choose_engine(spec, ()),
            trackers=[tracker] if isinstance(tracker, str) else tracker,
        )
    except KeyboardInterrupt:
        print(
            f"autotune: stopped; everything so far is in {path}; the same call continues",
            file=sys.stderr,
        )
        raise
    return Study(session.store.path)


def study_with(spec: StudySpec, *, trials: int | None, time_budget: str | None) -> StudySpec:
    """Gives a study another size, None its own; raises StudyFileError if that is not legal."""
    data = spec.model_dump(context=WITH_SECRETS)
    if trials is not None:
        data["search"]["trials"] = trials
    if time_budget is not None:
        data["search"]["time_budget"] = time_budget
    return parse_study(data, source="the study with the options of the command line")


def run_shown(
    spec: StudySpec,
    path: Path,
    console: Console,
    *,
    do: Callable[[StudyRun], object] = run_study,
    **session: Any,
) -> StudyRun:
    """Runs a study, or what else `do` does with its session, with its progress on a console."""
    watch = Stopwatch()
    view = LineView(console, watch, min_effect=spec.measure.min_effect)
    session_run = new_run(spec, path, view=view, watch=watch, **session)
    with stoppable(), view:
        do(session_run)
    return session_run
