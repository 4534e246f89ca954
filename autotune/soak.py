"""The winner runs for a while under a watchdog: some settings hang or diverge only after hundreds of steps."""

from __future__ import annotations

import statistics
import time

from autotune.claims import Unit, attempts, work_off
from autotune.evaluate import Bench
from autotune.flags import FlagSet
from autotune.launch.base import WorkerFailed
from autotune.records import SoakRecord

SLOWER = 1.1
"""A soak whose last quarter is slower than its first by more than this factor is noted."""


def soak(bench: Bench, settings: FlagSet, *, least_s: float, least_steps: int) -> SoakRecord:
    """Runs a set alone until so many seconds of steps, and so many steps, are behind it, or until it fails.

    Programs that end by themselves are started again. What an earlier session soaked at least as long is not repeated.

    Args:
        bench: Where.
        settings: The winner.
        least_s: Seconds of steps; starting and compiling are not counted.
        least_steps: Fewest steps.
    """

    def found() -> SoakRecord | None:
        for record in bench.store.of(SoakRecord):
            enough = record.steps_s >= least_s and record.step_count >= least_steps
            if record.settings == settings and (enough or record.failure is not None):
                return record
        return None

    key = f"soak-{settings.digest}-{least_s:.0f}-{least_steps}"

    def do(attempt: int) -> None:
        record = _run(bench, settings, attempts(key, attempt), least_s, least_steps)
        if bench.store.claims.commit(key, attempt):
            bench.store.append(record)

    work_off(bench.store.claims, [Unit(key, lambda: found() is not None, do)], waiting=bench.store.watch.waiting)
    record = found()
    assert record is not None
    return record


def _run(bench: Bench, settings: FlagSet, name: str, least_s: float, least_steps: int) -> SoakRecord:
    """One soak, in as many processes as it takes."""
    started = time.monotonic()
    folder = bench.store.folder("soak", name)
    times: list[float] = []
    starts = 0
    failure = None
    while failure is None and (sum(times) < least_s or len(times) < least_steps):
        try:
            worker = bench.start(settings, folder, alone=True)
        except WorkerFailed as error:
            failure = error.failure
            break
        starts += 1
        try:
            steps = max(bench.spec.measure.run_steps, bench.steps_for(worker))
            while sum(times) < least_s or len(times) < least_steps:
                times += worker.run_block(steps)
                bench.watcher.phase(f"soaking: {len(times)} steps, {sum(times):.0f} of {least_s:.0f} s")
                if not bench.spec.workload.takes_turns:
                    break  # a program of its own length: again from the start
        except WorkerFailed as error:
            failure = error.failure
        finally:
            worker.close()
    quarter = max(1, len(times) // 4)
    return SoakRecord(
        settings=settings,
        asked_s=least_s,
        asked_steps=least_steps,
        steps_s=round(sum(times), 3),
        step_count=len(times),
        starts=starts,
        drift=statistics.median(times[-quarter:]) / statistics.median(times[:quarter]) if times else None,
        failure=failure,
        duration_s=round(time.monotonic() - started, 3),
        directory=bench.store.relative(folder),
    )


def describe(record: SoakRecord) -> str:
    """A soak in words."""
    if record.failure is not None:
        after = f"after {record.step_count} steps" if record.step_count else "at its start"
        return f"failed {after}: {str(record.failure.kind).replace('_', ' ')}: {record.failure.message}"
    slower = ""
    if record.drift is not None and record.drift > SLOWER:
        slower = f", but its last quarter took {record.drift:.2f} times as long a step as its first"
    return f"{record.step_count} steps in {record.steps_s:.0f} s without a fault{slower}"
