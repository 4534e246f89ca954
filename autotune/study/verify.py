"""Whether this machine is one on which a winner was proven; nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.model import load_study
from autotune.results import (
    Difference,
    RecordCheck,
    Status,
    Winner,
    artefact_differences,
    check_records,
    differences,
    is_unchanged,
    this_machine,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a look at the machine says of a proof.

    Attributes:
        status: Whether nothing differs; a file is unchecked where nothing differs but its run is not here.
        differences: In what the machine, the workload or the file itself is not as it was.
        notes: What was not checked, and what should be done again.
    """

    status: Status
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


def verify_winner(winner: Winner, file: Path, *, study: Path | None = None, run: Path | None = None) -> Verification:
    """Compares this machine with the one of a proof, and a file with the records that it came from.

    Args:
        winner: What was proven.
        file: The export or run directory that it was read from.
        study: Study file of the workload that is meant to run; None does not check the workload.
        run: The run directory of an exported file; default: where one of its name lies, see `check_records`.

    Raises:
        StudyFileError: If the study file is not legal.
        RunDirectoryError: If `run` is not a run directory.
    """
    workload = load_study(study).workload_hash if study else None
    here = this_machine(platform=winner.conditions.platform, workload=workload, like=winner.conditions)
    found, notes, records = differences(winner.conditions, here), list[str](), RecordCheck()
    if winner.loss is not None and winner.loss.is_silent:
        notes.append(winner.loss.words)
    elif winner.loss is not None and not winner.loss.is_ok:
        found.append(Difference(field="loss", proven="nothing", here=winner.loss.words))
    found += artefact_differences(winner, file)
    if file.is_file():
        if not is_unchanged(file.read_text(encoding="utf-8"), winner, file.parent):
            found.append(Difference(field="file", proven="its text as exported", here="changed or moved since"))
        records = check_records(winner, file, run=run)
        found += records.differences
        if records.unchecked is not None:
            notes.append(records.unchecked)
    if workload is None:
        notes.append(f"the workload is not checked (proven: {winner.workload_entry}); name it with --study")
    if winner.soaked_s is None:
        notes.append("it was never soaked: watch the first long run for hangs")
    return Verification(status="differs" if found else records.status, differences=tuple(found), notes=tuple(notes))
