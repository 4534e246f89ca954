"""What is lost in a run directory that can be read; `autotune.rundir.store` refuses one that
cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.model.errors import RunDirectoryError
from autotune.model.records import AaRecord, AnyRecord, ConfirmRun, SessionRecord, TrialResult
from autotune.rundir.store import RECORDS, Store, lost_pairs, unnamed_folders


def damages(store: Store) -> list[str]:
    """Lists what is lost in a run directory, or recorded twice, one line each; RunDirectoryError as
    `Store.records`.
    """
    records = store.records()
    lines = [f"{RECORDS} line {number}: {problem}" for number, problem in _problems(store, records)]
    folders = unnamed_folders(store.path, records)
    lanes = {record.by for record in store.of(AaRecord)}
    if len(folders) > len(store.of(SessionRecord)) * max(
        1, len(lanes)
    ):  # a killed driver leaves one for each lane
        shown = ", ".join(folders[:3])
        lines.append(
            f"{RECORDS} must name {len(folders)} folders of measurements ({shown}): restore it "
            "from a copy"
        )
    return lines


def _problems(store: Store, records: Sequence[AnyRecord]) -> Iterator[tuple[int, str]]:
    """Yields what is wrong with each record, and its line."""
    trials = {record.number for record in store.of(TrialResult)}
    lines: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        subject = f"line {number}"
        if isinstance(record, TrialResult):
            subject = f"trial {record.number}"
        elif isinstance(record, ConfirmRun):
            subject = (
                f"pair of processes {record.repeat} of the {record.stage} proof of "
                f"{record.settings}"
            )
        if lines.setdefault(subject, number) < number:
            yield (
                number,
                f"is a second record of {subject}, after line {lines[subject]}; delete this line",
            )
        named = {n for n in (getattr(record, "same_as", None), getattr(record, "trial", None)) if n}
        if trials and (missing := named - trials):  # a recheck has no trials at all
            yield (
                number,
                f"names trial {min(missing)}, which is not there; delete this line, and it is "
                "measured again",
            )
        try:
            if problem := lost_pairs(store, record):
                yield number, f"{problem}; its figures stand"
        except RunDirectoryError as error:
            yield number, str(error)
