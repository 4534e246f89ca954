"""Where a proof comes from: who recorded it on which machine, and whether a file still says what its run does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.machine import foreign_owner, is_this_host
from autotune.model import ConclusionRecord
from autotune.results.audit import disagreements
from autotune.results.conditions import Difference
from autotune.results.winner import Winner, hosts_of, winner_at
from autotune.results.words import one_line
from autotune.rundir import Store

RUNS = "runs"
"""Folder of run directories."""

_COMPARED = (
    "study",
    "settings",
    "baseline",
    "estimate",
    "step_s",
    "sentence",
    "soaked_s",
    "conditions",
    "kernels",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCheck:
    """What the records of a run say of a file that was exported from it.

    Attributes:
        differences: In what the file is not what its records give.
        notes: Why it could not be compared with them.
    """

    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> RecordCheck:
    """Compares an exported file with the run that it came from, if that is here.

    Args:
        winner: What the file holds.
        file: Where it lies; its run is looked for beside it, in `runs/` beside it, and in `runs/` here.
        run: The run directory, if the caller names one.

    Raises:
        RunDirectoryError: If `run` is not a run directory.
    """
    if winner.proof is None:
        return _unchecked("it carries no digest, as files of older versions; export it again")
    if run is None:
        run = _find_run(winner.proof.run, file)
    if run is None:
        return _unchecked(f"its run {winner.proof.run!r} is not here; name it (autotune verify FILE --run RUN)")
    store = Store.open(run)
    conclusion = next((c for c in store.of(ConclusionRecord) if c.ended == winner.ended), None)
    if conclusion is None:
        return _unchecked(f"{run} is of another proof; name its own (autotune verify FILE --run RUN)")
    if wrong := disagreements(store, conclusion):
        found = [Difference(field="records", proven="what was recorded", here=line) for line in wrong]
        return RecordCheck(differences=tuple(found))
    here = winner_at(store, conclusion)
    assert here.proof is not None
    if here.proof.digest != winner.proof.digest:
        digests = (f"digest {d[:12]}" for d in (winner.proof.digest, here.proof.digest))
        return RecordCheck(differences=(Difference(field="records", proven=next(digests), here=next(digests)),))
    pairs = [(name, getattr(here, name), getattr(winner, name)) for name in _COMPARED]
    found = [Difference(field=n, proven=f"{a} in its records", here=f"{b} in the file") for n, a, b in pairs if a != b]
    return RecordCheck(differences=tuple(found))


def _unchecked(why: str) -> RecordCheck:
    return RecordCheck(notes=(f"it cannot be checked against its records: {why}",))


def _find_run(name: str, file: Path) -> Path | None:
    """The run directory of that name nearest to a file that was exported from it."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    beside = file.resolve().parent
    found = [beside if beside.name == name else beside / name, beside / RUNS / name, Path(RUNS) / name]
    return next((path for path in found if (path / "study.json").is_file()), None)


def origin_line(path: Path, hosts: Sequence[str]) -> str | None:
    """Who recorded something and where, if it was another user or another machine; None for one's own.

    Args:
        path: The run directory or file.
        hosts: The machines on which it was recorded, as far as they are known.
    """
    owner, far = foreign_owner(path), [h for h in hosts if not is_this_host(h)]
    if owner is None and not far:
        return None
    said = [*([f"by user {owner}"] if owner is not None else []), *([f"on host {', '.join(far)}"] if far else [])]
    return one_line(f"{path} was recorded {' '.join(said)}")


def origin_of_run(store: Store) -> str | None:
    """Who recorded a run and where; see `origin_line`."""
    return origin_line(store.path, hosts_of(store))
