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

OF_OTHER_RUNS = ("run", "further", "at_scale")  # fields not in its own records


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Comparison of a proof with the records of its run, or with this machine."""

    differences: tuple[Difference, ...] = ()
    unchecked: str | None = None  # why an exported file's run was not looked at
    notes: tuple[str, ...] = ()  # checks not made, and actions to repeat

    @property
    def status(self) -> Literal["holds", "unchecked", "differs"]:
        """Whether nothing differs."""
        if self.differences:
            return "differs"
        return "unchecked" if self.unchecked else "holds"


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> Verification:
    """Compares a winner with the records of its run: `run` (or it raises), else one near `file`."""
    if file.is_dir():  # the winner was made from its records
        return Verification(notes=_of_elsewhere(Store.open(file)))
    path = run or _find_run(winner.run, file)
    if not path:
        return _unchecked(f"its run {winner.run!r} is not here; name it with --run RUN")
    try:
        store = Store.open(path)
        same = [c for c in store.of(ConclusionRecord) if c.ended == winner.ended]
        if not same:
            return _unchecked(f"{path} is of another proof; name its own with --run RUN")
        lines = disagreements(store, same[0])
    except RunDirectoryError as error:
        if run:
            raise
        lines = [str(error)]
    recorded = "what was recorded"
    differing = [Difference(field="records", proven=recorded, here=line) for line in lines]
    if differing:
        return Verification(differences=tuple(differing))
    for name, value in winner_at(store, same[0]):
        exported = getattr(winner, name)
        if name not in OF_OTHER_RUNS and value != exported:
            proven = f"{value} in its records"
            differing.append(Difference(field=name, proven=proven, here=f"{exported} in the file"))
    return Verification(differences=tuple(differing), notes=_of_elsewhere(store))


def _of_elsewhere(store: Store) -> tuple[str, ...]:
    """Notes that a run was measured on another machine, whose facts are taken as recorded."""
    hosts = {session.host for session in store.of(SessionRecord)} - {socket.gethostname()}
    measured = f"that they were measured on {', '.join(sorted(hosts))}"
    note = f"the records agree with themselves; {measured} is not checked"
    return (note,) if hosts else ()


def _unchecked(reason: str) -> Verification:
    unproven = "unchecked, so nothing here shows that it was proven"
    return Verification(unchecked=f"{unproven}: {reason}")


def _find_run(name: str, file: Path) -> Path | None:
    """Finds the run directory of that name nearest to an exported file."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    folder = file.resolve().parent
    candidates = [folder / name, folder / RUNS / name, Path(RUNS) / name]
    if folder.name == name:
        candidates[0] = folder
    return next((path for path in candidates if (path / "study.json").is_file()), None)
