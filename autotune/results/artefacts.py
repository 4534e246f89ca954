"""The artefacts of a winner: copied beside what is exported, and in force only if they lie there unchanged."""

from __future__ import annotations

from pathlib import Path

from autotune.model import KERNELS, Artefact, AutotuneError, FlagSet, reference_to
from autotune.results.conditions import Difference
from autotune.results.winner import Winner
from autotune.rundir import (
    ARTEFACTS,
    Store,
    artefact_problems,
    artefacts_for,
    in_force,
    place_artefacts,
    read_artefacts,
)


def loading_kernels(winner: Winner) -> Winner:
    """The winner with the autotuner's results of its soak, so that the same kernels run.

    Raises:
        AutotuneError: If none were kept.
    """
    if winner.kernels is None:
        raise AutotuneError(
            "--same-kernels needs the autotuner's results but this winner has none: they are kept of a soak "
            "(`[confirm] soak`) on the GPUs of one node, if something was autotuned there"
        )
    return winner.model_copy(update={"loads_kernels": True})


def artefact_folder(file: Path) -> Path:
    """Where the artefacts of a run directory, or of an exported file, must lie: in it, or beside it."""
    return file / ARTEFACTS if file.is_dir() else file.parent


def settings_in_force(winner: Winner, file: Path) -> FlagSet:
    """The set that a program is started under, the paths of its artefacts in place.

    Args:
        winner: What was proven.
        file: What it was read from.

    Raises:
        AutotuneError: If an artefact is missing, a link, no plain file, or holds something else.
    """
    return in_force(winner.in_force, artefact_folder(file))


def artefact_differences(winner: Winner, file: Path) -> list[Difference]:
    """In what the artefacts of a winner are not what they were."""
    problems = artefact_problems(winner.in_force, artefact_folder(file))
    return [Difference(field="artefact", proven="a file beside it", here=p) for p in problems]


def put_beside(winner: Winner, source: Store | Path, folder: Path) -> None:
    """Copies what belongs to a winner into a folder: what it needs, and the kernels that it may load.

    Args:
        winner: What is exported.
        source: The run, or the file that the winner was read from.
        folder: Where its file goes.

    Raises:
        AutotuneError: If something of it is missing or was changed.
        RunDirectoryError: If it cannot be written.
    """
    wanted = winner.in_force
    if winner.kernels is not None:
        wanted = wanted.merge({KERNELS: reference_to(winner.kernels)})
    found = artefacts_for(source, wanted) if isinstance(source, Store) else _read_what_is_there(winner, source, wanted)
    place_artefacts(found, folder)
    in_force(winner.in_force, folder)


def _read_what_is_there(winner: Winner, file: Path, wanted: FlagSet) -> tuple[Artefact, ...]:
    """Artefacts beside a file; kernels that it only may load may be missing."""
    folder = artefact_folder(file)
    is_whole = not artefact_problems(wanted, folder)
    return read_artefacts(wanted if is_whole else winner.in_force, folder)


def keep_in_run(store: Store, settings: FlagSet, kernels: Artefact | None) -> None:
    """Writes the artefacts of a run's winner into its own folder, for `exec` and `verify` of the run itself.

    Raises:
        RunDirectoryError: If they cannot be written.
    """
    found = [*artefacts_for(store, settings), *([kernels] if kernels is not None else [])]
    if found:
        place_artefacts(found, store.folder(ARTEFACTS))
