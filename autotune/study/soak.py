"""The winner runs for a while under a watchdog: some settings hang or diverge only after hundreds of steps."""

from __future__ import annotations

import statistics
from pathlib import Path

from autotune.model import SoakRecord
from autotune.study.bench import Bench
from autotune.study.units import SoakUnit
from autotune.workers import WorkerFailed


def soak_alone(bench: Bench, unit: SoakUnit, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, or until it fails; a program that ends is started again."""
    settings, least_s, least_steps = unit.settings, unit.least_s, unit.least_steps
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
                bench.desk.phase(f"soaking: {len(times)} steps, {sum(times):.0f} of {least_s:.0f} s")
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
    )
