"""When a set crashes or hangs: its smallest part that still does, remembered so that no trial walks into it again.

The search is delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE
Transactions on Software Engineering 28(2), 2002) with a bounded number of starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.machine import data_dir, utc_now
from autotune.model import BlameRecord, FailureKind, FlagSet, TrialResult, TrialStatus, WorkerReport
from autotune.rundir import append_synced, cut_torn_line
from autotune.study.bench import Bench
from autotune.workers import WorkerFailed

BLAMED = frozenset({FailureKind.CRASH, FailureKind.HANG, FailureKind.COMPILE_ERROR})
"""Failures whose cause is looked for; out of memory depends on the workload, a wrong loss on the data."""

MOST_STARTS = 12
MOST_HANGS = 4
"""A start that hangs costs its whole time limit, so few of them are tried."""


def next_case(results: Sequence[TrialResult], known: Sequence[BlameRecord]) -> TrialResult | None:
    """A trial that crashed or hung and whose cause nobody has looked for yet, or None."""
    done = {b.trial for b in known}
    for result in results:
        failure = result.failure
        is_crash = result.status is TrialStatus.FAILED and failure is not None and failure.kind in BLAMED
        if is_crash and result.number not in done and not walks_into(result.settings, [b.smallest for b in known]):
            return result
    return None


def minimise_failure(bench: Bench, trial: TrialResult, results: Sequence[TrialResult]) -> BlameRecord:
    """Finds the smallest part of a failing set that fails in the same way.

    Args:
        bench: Where; a living reference is left alone.
        trial: The trial that failed.
        results: All trials so far: what they tell is not started again.
    """
    assert trial.failure is not None
    started = time.monotonic()
    kind = trial.failure.kind
    most = MOST_HANGS if kind is FailureKind.HANG else MOST_STARTS
    starts = 0
    known: dict[FlagSet, bool] = {FlagSet(): False, trial.settings: True}
    for result in results:
        if result.status is TrialStatus.MEASURED:
            known.setdefault(result.settings, False)
        elif result.failure is not None and result.failure.kind is kind:
            known.setdefault(result.settings, True)
    folder = bench.store.folder("blame", f"{trial.number:04d}")

    def fails(part: FlagSet) -> bool | None:
        """Whether a part fails alike; None if the starts are used up."""
        nonlocal starts
        if part not in known:
            if starts == most:
                return None
            starts += 1
            bench.view.phase(f"looking for the cause of the {kind}: start {starts} of at most {most}")
            known[part] = _fails(bench, part, bench.store.folder("blame", folder.name, f"{starts:02d}"), kind)
        return known[part]

    smallest, is_minimal = shrink(trial.settings, fails)
    return BlameRecord(
        trial=trial.number,
        failure_kind=kind,
        settings=trial.settings,
        smallest=smallest,
        is_minimal=is_minimal,
        starts=starts,
        duration_s=round(time.monotonic() - started, 3),
        directory=bench.store.relative(folder),
    )


def shrink(settings: FlagSet, fails: Callable[[FlagSet], bool | None]) -> tuple[FlagSet, bool]:
    """The smallest failing part by delta debugging, and whether no single setting of it can be left out.

    Args:
        settings: A set that fails.
        fails: Whether a part does; None if it can't be asked any more.
    """
    current, pieces = list(settings), 2
    while len(current) > 1:
        size = -(-len(current) // pieces)
        chunks = [current[i : i + size] for i in range(0, len(current), size)]
        rests = [[n for n in current if n not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        for names in (*chunks, *rests):
            verdict = fails(FlagSet({n: settings[n] for n in names}))
            if verdict is None:
                return FlagSet({n: settings[n] for n in current}), False
            if verdict:
                pieces = 2 if names in chunks else max(2, pieces - 1)
                current = names
                break
        else:
            if size == 1:
                break
            pieces = min(len(current), 2 * pieces)
    return FlagSet({n: settings[n] for n in current}), True


def _fails(bench: Bench, part: FlagSet, folder: Path, kind: FailureKind) -> bool:
    """Whether a part fails in the same way, at its start or in its first blocks."""
    try:
        worker = bench.start(part, folder)
    except WorkerFailed as error:
        return error.failure.kind is kind
    try:
        for _ in range(3):
            worker.run_block(bench.steps_for(worker))
    except WorkerFailed as error:
        return error.failure.kind is kind
    finally:
        worker.close()
    return False


def _holds(settings: FlagSet, part: FlagSet) -> bool:
    """Whether a set holds all of a part."""
    return all(settings.get(n) == v for n, v in part.items())


def walks_into(settings: FlagSet, bad: Sequence[FlagSet]) -> bool:
    """Whether a set holds a combination that is known to fail."""
    return any(_holds(settings, part) for part in bad)


# ---------------------------------------------------------------------- what other studies learned


def remember(record: BlameRecord, reference: WorkerReport) -> None:
    """Keeps a combination for later studies with the same build on the same device.

    Raises:
        RunDirectoryError: If it cannot be written.
    """
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
