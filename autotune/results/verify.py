"""Compares an exported winner with the records of its run."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.model.errors import RunDirectoryError
from autotune.model.records import ConclusionRecord, SessionRecord
from autotune.results.audit import disagreements
from autotune.results.conditions import Difference
from autotune.results.winner import Winner, winner_at
from autotune.rundir.store import Store

RUNS = "runs"

OF_OTHER_RUNS = ("run", "further", "at_scale")
"""Fields of a winner that its own records do not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Comparison of a proof with the records of its run, or with this machine."""

    differences: tuple[Difference, ...] = ()
    """In the records, the machine, the workload or the file itself."""
    unchecked: str | None = None
    """Reason in one sentence if the run of an exported file was not looked at."""
    notes: tuple[str, ...] = ()
    """Checks that were not made, and actions to repeat."""

    @property
    def status(self) -> Literal["holds", "unchecked", "differs"]:
        """Whether nothing differs."""
        if self.differences:
            return "differs"
        return "unchecked" if self.unchecked else "holds"


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> Verification:
    """Compares an exported winner with the records of its run, if found.

    Args:
        file: Its run is searched beside it, in `runs/` beside it, and in `runs/` here.
        run: The run directory, instead of a search.

    Raises:
        RunDirectoryError: If `run` is not a run directory.
    """
    if file.is_dir():  # the winner was made from its records
        return Verification(notes=_of_elsewhere(Store.open(file)))
    path = run or _find_run(winner.run, file)
    if not path:
        return _unchecked(f"its run {winner.run!r} is not here; name it with --run RUN")
    try:
        store = Store.open(path)
        conclusion = next((c for c in store.of(ConclusionRecord) if c.ended == winner.ended), None)
        if not conclusion:
            return _unchecked(f"{path} is of another proof; name its own with --run RUN")
        lines = disagreements(store, conclusion)
    except RunDirectoryError as error:
        if run:
            raise
        lines = [str(error)]
    if lines:
        return Verification(
            differences=tuple(
                Difference(field="records", proven="what was recorded", here=line) for line in lines
            )
        )
    assert conclusion  # or there are lines
    exported = dict(winner)
    return Verification(
        differences=tuple(
            Difference(
                field=name,
                proven=f"{recorded} in its records",
                here=f"{exported[name]} in the file",
            )
            for name, recorded in winner_at(store, conclusion)
            if name not in OF_OTHER_RUNS and recorded != exported[name]
        ),
        notes=_of_elsewhere(store),
    )


def _of_elsewhere(store: Store) -> tuple[str, ...]:
    """Notes that a run was measured on another machine, whose facts are taken as recorded."""
    hosts = {session.host for session in store.of(SessionRecord)} - {socket.gethostname()}
    if not hosts:
        return ()
    return (
        "the records agree with themselves; that they were measured on "
        f"{', '.join(sorted(hosts))} is not checked",
    )


def _unchecked(reason: str) -> Verification:
    return Verification(unchecked=f"unchecked, so nothing here shows that it was proven: {reason}")


def _find_run(name: str, file: Path) -> Path | None:
    """Finds the run directory of that name nearest to an exported file."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    folder = file.resolve().parent
    candidates = [
        folder if folder.name == name else folder / name,
        folder / RUNS / name,
        Path(RUNS) / name,
    ]
    return next((path for path in candidates if (path / "study.json").is_file()), None)
