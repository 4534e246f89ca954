"""Finds what is lost in a readable run directory; `store` refuses one that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.model.errors import RunDirectoryError
from autotune.model.records import AaRecord, AnyRecord, ConfirmRun, SessionRecord, TrialResult
from autotune.rundir.store import RECORDS, Store, lost_pairs, unnamed_folders


def damages(store: Store) -> list[str]:
    """Lists what is lost in a run directory, or recorded twice; raises as `Store.records`."""
    records = store.records()
    lines = list(_problems(store, records))
    folders = unnamed_folders(store.path, records)
    lanes = {record.by for record in store.of(AaRecord)}
    # A killed driver leaves one for each lane.
    if len(folders) > len(store.of(SessionRecord)) * max(1, len(lanes)):
        lines.append(
            f"{RECORDS} must name {len(folders)} folders of measurements "
            f"({', '.join(folders[:3])}): restore it from a copy"
        )
    return lines


def _problems(store: Store, records: Sequence[AnyRecord]) -> Iterator[str]:
    """Yields what is wrong with each record, and its line."""
    trials = {record.number for record in store.of(TrialResult)}
    lines: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        place = f"{RECORDS} line {number}"
        subject = place
        if isinstance(record, TrialResult):
            subject = f"trial {record.number}"
        elif isinstance(record, ConfirmRun):
            proof = f"{record.stage} proof of {record.settings}"
            subject = f"pair of processes {record.repeat} of the {proof}"
        line = lines.setdefault(subject, number)
        if line < number:
            yield f"{place}: is a second record of {subject}, after line {line}; delete this line"
        for trial in (getattr(record, "same_as", None), getattr(record, "trial", None)):
            if trial and trials and trial not in trials:  # a recheck has none
                yield (
                    f"{place}: names trial {trial}, which is not there; delete this line, and it "
                    "is measured again"
                )
        try:
            loss = lost_pairs(store, record)
            if loss:
                yield f"{place}: {loss}; its figures stand"
        except RunDirectoryError as error:
            yield f"{place}: {error}"
