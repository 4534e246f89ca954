"""The winner runs for a while under a watchdog: some settings hang or diverge only after hundreds of steps."""

from __future__ import annotations

import statistics
import time

from autotune.model import FlagSet, SoakRecord
from autotune.rundir import attempts
from autotune.study.bench import Bench
from autotune.study.run import StudyRun
from autotune.workers import WorkerFailed


def soak_set(run: StudyRun, settings: FlagSet) -> SoakRecord:
    """Runs a set alone for as long as the study asks, or until it fails.

    Programs that end by themselves are started again. What an earlier session soaked at least as long is not repeated.
    """
    least_s, least_steps = run.spec.confirm.soak, run.spec.confirm.soak_steps

    def recorded() -> SoakRecord | None:
        for record in run.store.of(SoakRecord):
            enough = record.steps_s >= least_s and record.step_count >= least_steps
            if record.settings == settings and (enough or record.failure is not None):
                return record
        return None

    key = f"soak-{settings.digest}-{least_s:.0f}-{least_steps}"
    return run.once(
        key, recorded, lambda attempt: _soak(run.bench, settings, attempts(key, attempt), least_s, least_steps)
    )


def _soak(bench: Bench, settings: FlagSet, name: str, least_s: float, least_steps: int) -> SoakRecord:
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
                bench.view.phase(f"soaking: {len(times)} steps, {sum(times):.0f} of {least_s:.0f} s")
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
