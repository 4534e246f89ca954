"""What studies of this user found to crash or hang, kept for later ones: a fact for the same workload, else a hint.

One file a finding, written whole and named by what it holds: studies that find something at once cannot disturb each
other, and whoever knows better deletes a file. They may be edited by hand, so that each is checked when it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError, field_validator

from autotune.machine import data_dir, utc_now
from autotune.model import BlameRecord, FailureKind, FlagSet, Record, Settings, StudySpec, WorkerReport
from autotune.rundir import plain_content, write_atomically

MOST_NAMED = 5
"""Combinations that one note names."""


class KnownFailure(Record):
    """A combination of settings that crashed or hung.

    Attributes:
        workload: Whose, see `name_of_workload`; None in files that are older than this key.
    """

    settings: Settings
    failure: FailureKind
    date: str = ""
    workload: str | None = None

    @field_validator("settings")
    @classmethod
    def _refuse_nothing(cls, settings: FlagSet) -> FlagSet:
        """No settings would be part of every set, and what an option does is known of its own study only."""
        if not settings or settings.of_kind("option"):
            raise ValueError("some settings, none of them an option")
        return settings


@dataclass(frozen=True, slots=True)
class KnownFailures:
    """What is known on one build and kind of device.

    Attributes:
        facts: Of this workload: no proposal holds one.
        hints: Of others, or of nobody knows which: shown, and tried all the same.
    """

    facts: tuple[KnownFailure, ...] = ()
    hints: tuple[KnownFailure, ...] = ()


def name_of_workload(spec: StudySpec, study_dir: str) -> str:
    """Names what a study measures: workload, devices, the reference's options and settings.

    A program of the user's own is found in the study's folder: one of the same name elsewhere is another one.
    """
    is_preset = spec.workload.entry is not None and ":" not in spec.workload.entry
    place = "" if is_preset else str(Path(study_dir).resolve())
    return _digest(spec.under(FlagSet()).workload_hash, dict(spec.baseline), place)


def keep_failure(record: BlameRecord, reference: WorkerReport, *, workload: str) -> None:
    """Keeps a combination for later studies with the same build on the same kind of device, unless it holds an option.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
    if record.smallest.of_kind("option"):
        return
    found = KnownFailure(
        settings=record.smallest, failure=record.failure_kind, date=utc_now(), workload=workload
    )  # fmt: skip
    name = _digest(workload, dict(record.smallest))
    write_atomically(_place(reference) / f"{name}.json", found.model_dump_json() + "\n")


def known_failures(reference: WorkerReport, *, workload: str) -> KnownFailures:
    """What is kept for this build and kind of device; what cannot be read, or is no such thing, is left out."""
    found = {(k.workload, k.settings): k for k in _kept(_place(reference))}  # the newest of each
    facts = {k.settings: k for k in found.values() if k.workload == workload}
    hints = {k.settings: k for k in found.values() if k.settings not in facts}
    return KnownFailures(tuple(facts.values()), tuple(hints.values()))


def name_failures(found: tuple[KnownFailure, ...]) -> str:
    """Combinations in words, the first few by name."""
    named = [f"{k.settings} ({k.failure})" for k in found[:MOST_NAMED]]
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return ", ".join([*named, *more])


def _kept(place: Path) -> Iterator[KnownFailure]:
    """Everything that is kept in one place, older forms (a line of one file for each) first."""
    for path in (place.with_name(f"{place.name}.jsonl"), *sorted(place.glob("*.json"))):
        try:
            content = plain_content(path)
        except OSError:
            continue
        for line in content.splitlines() if path.suffix == ".jsonl" else [content]:
            try:
                yield KnownFailure.model_validate_json(line)
            except ValidationError:
                continue  # torn, or edited to something else: what it held is found again


def _place(reference: WorkerReport) -> Path:
    """Where they are kept: one folder for each build and kind of device."""
    name = f"{reference.versions.get('jaxlib', 'unknown')}-{reference.platform}-{reference.device_kind}"
    return data_dir() / "failures" / "".join(c if c.isalnum() or c in "._-" else "_" for c in name)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
