"""Sets that crash or hang: whose cause is to be looked for, and what was found: no trial walks into it again."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from pathlib import Path

from autotune.machine import data_dir, utc_now
from autotune.model import BlameRecord, FailureKind, FlagSet, TrialResult, TrialStatus, WorkerReport
from autotune.rundir import append_synced, cut_torn_line
from autotune.study.units import BlameUnit

BLAMED = frozenset({FailureKind.CRASH, FailureKind.HANG, FailureKind.COMPILE_ERROR})
"""Failures whose cause is looked for; out of memory depends on the workload, a wrong loss on the data."""


def next_case(
    results: Sequence[TrialResult], known: Sequence[BlameRecord], looked_for: Container[int] = ()
) -> TrialResult | None:
    """A trial that crashed or hung and whose cause nobody has looked for yet, or looks for now; or None."""
    done = {b.trial for b in known}
    for result in results:
        failure = result.failure
        is_crash = result.status is TrialStatus.FAILED and failure is not None and failure.kind in BLAMED
        if (
            is_crash
            and result.number not in done
            and result.number not in looked_for
            and not walks_into(result.settings, [b.smallest for b in known])
        ):
            return result
    return None


def blame_unit(trial: TrialResult, results: Sequence[TrialResult]) -> BlameUnit:
    """The search for a trial's culprit; what other trials tell is not started again."""
    assert trial.failure is not None
    kind = trial.failure.kind
    known = []
    for result in results:
        if result.status is TrialStatus.MEASURED:
            known.append((result.settings, False))
        elif result.failure is not None and result.failure.kind is kind:
            known.append((result.settings, True))
    return BlameUnit(trial=trial.number, settings=trial.settings, failure_kind=kind, known=tuple(known))


def _holds(settings: FlagSet, part: FlagSet) -> bool:
    """Whether a set holds all of a part."""
    return all(settings.get(n) == v for n, v in part.items())


def walks_into(settings: FlagSet, bad: Sequence[FlagSet]) -> bool:
    """Whether a set holds a combination that is known to fail."""
    return any(_holds(settings, part) for part in bad)


# ---------------------------------------------------------------------- what other studies learned


def remember(record: BlameRecord, reference: WorkerReport) -> None:
    """Keeps a combination for later studies with the same build on the same device, if it is of settings alone.

    What an option does is known of this study's program only.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
    if record.smallest.of_kind("option"):
        return
    file = _file(reference)
    file.parent.mkdir(parents=True, exist_ok=True)
    cut_torn_line(file)
    entry = {"settings": dict(record.smallest), "failure": str(record.failure_kind), "date": utc_now()}
    append_synced(file, json.dumps(entry) + "\n")


def remembered(reference: WorkerReport) -> list[FlagSet]:
    """Combinations that failed in earlier studies with this build on this kind of device."""
    file = _file(reference)
    if not file.exists():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(FlagSet(json.loads(line)["settings"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # torn by a crash; what it held is found again
    return found


def _file(reference: WorkerReport) -> Path:
    """Where they are kept: one file for each build and kind of device."""
    name = f"{reference.versions.get('jaxlib', 'unknown')}-{reference.platform}-{reference.device_kind}"
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    return data_dir() / "failures" / f"{plain}.jsonl"
