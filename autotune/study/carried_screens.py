"""Screens on their way: what a study records of one, takes over from another machine, and hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.compiler import Screener, ScreenReport, compiler_versions, domains, find_screen, keep_screen
from autotune.machine import caller_environment, default_cache_dir
from autotune.model import RunDirectoryError, ScreenRecord, ScreenSpec, View
from autotune.rundir import Store
from autotune.settings import SearchSpace


def cache_folder(asked: ScreenSpec) -> Path | None:
    """Where compiled programs are kept: with the screens that are carried, else in this user's cache; None for none."""
    if asked.carried is not None:
        return Path(asked.carried)
    return default_cache_dir(caller_environment()) / "screen" if asked.cache else None


def record_of(report: ScreenReport, duration_s: float) -> ScreenRecord:
    """What is recorded of a screen that took so many seconds."""
    return ScreenRecord(
        target=report.target, topology=report.topology, versions=compiler_versions(),
        report=report.model_dump(mode="json"), duration_s=round(duration_s, 3),
    )  # fmt: skip


def take_over(store: Store, screen: Screener, space: SearchSpace, view: View) -> ScreenReport | None:
    """The report of a screen that was made on another machine, recorded; None where none of the same is there.

    Raises:
        LaunchError: If the reference does not compile.
    """
    if store.spec.screen.carried is None:
        return None
    folder = Path(store.spec.screen.carried)
    found = find_screen(folder, screen, domains(space))
    if found.screen is None:
        why = f"{found.path}: {'; '.join(found.differences)}" if found.path else f"there is none in {folder}"
        view.note(f"no screen is taken over, it is made here: {why}")
        return None
    screen.read_also(found.screen.job)
    view.note(f"the screen is taken over from {found.path}, made of the same")
    gpu = screen.job.target  # described by itself here, perhaps, and by a table there: the reference is the same
    report = found.screen.report.model_copy(update={"target_digest": gpu.digest if gpu else ""})
    store.append(record_of(report, 0.0))
    return report


def hand_on(
    store: Store, screen: Screener, values: Mapping[str, Sequence[str]], report: ScreenReport, view: View
) -> None:
    """Keeps a screen that was made here for other machines, where the study says in which folder."""
    if store.spec.screen.carried is None:
        return
    try:
        keep_screen(Path(store.spec.screen.carried), screen, values, report)
    except RunDirectoryError as error:  # it is in the records of this study, which goes on
        view.note(f"the screen is not kept for other machines: {error}")
