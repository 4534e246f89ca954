"""One process at a time: where two do not fit into the device's memory, or the program can not wait for its turn.

A sandwich is three fresh runs, reference, candidate, reference, so that a steady drift of the machine cancels and what
is left of it widens the interval. It is stored as two pairs that have the candidate's run in common: the raw samples
of a study read the same whichever way they were measured.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from autotune import measure
from autotune.energy import EnergyMeter
from autotune.flags import FlagSet
from autotune.launch.base import Worker, WorkerFailed
from autotune.noise import NoiseFloor
from autotune.records import Arm, Comparison, Pair, WorkerReport
from autotune.spec import StudySpec
from autotune.stats import Estimate, Sandwich, estimate_sandwiches
from autotune.store import Store, append_synced
from autotune.telemetry import GpuWatch

MODE = "sandwich"

LARGEST_GAP = 0.1
"""Share by which the steps of a program that runs on by itself may miss the time over which its energy was counted."""


class Watcher(Protocol):
    """Told of each pair."""

    def pair(self, ratios: list[float]) -> None:
        """One more pair is done; log ratios so far."""


class Bench(Protocol):
    """What is needed of `autotune.evaluate.Bench`, which is built upon this module."""

    store: Store
    spec: StudySpec
    gpus: GpuWatch
    meter: EnergyMeter

    @property
    def watcher(self) -> Watcher:
        """The live view."""

    def start(self, settings: FlagSet, folder: Path, *, alone: bool) -> Worker:
        """Starts a worker."""

    def steps_for(self, worker: Worker) -> int:
        """Steps in a block."""


Inspect = Callable[[WorkerReport], None]
"""Called with a worker's report before its run; raises to end the measurement there."""


class ReferenceFailed(Exception):
    """A fresh run of the reference failed: not the candidate's fault."""

    def __init__(self, error: WorkerFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Run(NamedTuple):
    """One fresh run: its report, the duration of each step in seconds, and the joules drawn if they are known."""

    report: WorkerReport
    times_s: tuple[float, ...]
    joules: float | None


def run_alone(bench: Bench, settings: FlagSet, folder: Path, inspect: Inspect | None = None) -> Run:
    """One fresh process: started, warmed up, measured, ended.

    Raises:
        WorkerFailed: If it gave no number.
    """
    worker = bench.start(settings, folder, alone=True)
    try:
        if inspect is not None:
            inspect(worker.report)
        steps = bench.spec.measure.run_steps
        if bench.spec.workload.takes_turns:
            steps = max(steps, bench.steps_for(worker))
        begun = time.monotonic()
        times, joules = bench.meter.measure(lambda: worker.run_block(steps))
        if not bench.spec.workload.takes_turns:
            # Such a program runs on whether it is asked or not: the steps must fill the time that was metered.
            metered_s = time.monotonic() - begun
            joules = joules if abs(sum(times) - metered_s) < LARGEST_GAP * metered_s else None
        bench.gpus.look(folder)
        return Run(worker.report, times, joules)
    finally:
        worker.close()


def run_sandwiches(
    bench: Bench,
    reference: FlagSet,
    candidate: FlagSet,
    folder: Path,
    *,
    inspect: Callable[[WorkerReport, WorkerReport], None],
) -> list[Pair]:
    """Measures two sets in as many sandwiches as the study asks for; every run is stored as it comes.

    Args:
        bench: Where; nothing else of it may be running.
        reference: The set to compare with.
        candidate: The set on trial.
        folder: Where raw samples and logs go.
        inspect: Called with the reports of the reference and of the candidate once both are known, before the
            candidate's first run counts; raises to end the trial there.

    Raises:
        ReferenceFailed: If a run of the reference failed.
        WorkerFailed: If a run of the candidate failed.
    """
    beside = bench.store.folder(*Path(bench.store.relative(folder)).parts, "reference")
    file = folder / "pairs.jsonl"
    file.unlink(missing_ok=True)  # what a killed session left of this measurement
    pairs: list[Pair] = []

    def run_reference() -> Run:
        try:
            return run_alone(bench, reference, beside)
        except WorkerFailed as error:
            raise ReferenceFailed(error) from error

    def keep(first: Arm, own: Run, other: Run) -> None:
        at_s = round(bench.store.watch.total_s, 3)
        pairs.append(_pair(len(pairs), first, own, other, at_s=at_s))
        append_synced(file, pairs[-1].model_dump_json(exclude_none=True) + "\n", sync=False)
        bench.watcher.pair([measure.log_ratio(p) for p in pairs])

    for number in range(bench.spec.measure.sandwiches):
        before = run_reference()
        first_time = (lambda own, other=before.report: inspect(other, own)) if number == 0 else None
        middle = run_alone(bench, candidate, folder, first_time)
        keep(Arm.REFERENCE, before, middle)
        keep(Arm.CANDIDATE, run_reference(), middle)
    return pairs


def run_fresh_pair(
    bench: Bench, candidate: FlagSet, folder: Path, *, name: str, inspect: Callable[[WorkerReport, WorkerReport], None]
) -> Pair:
    """One fresh run of the baseline and one of a set, a coin decides which goes first; `name` seeds it.

    Raises:
        ReferenceFailed: If the run of the reference failed.
        WorkerFailed: If the run of the candidate failed.
    """
    beside = bench.store.folder(*Path(bench.store.relative(folder)).parts, "reference")
    order = [Arm.REFERENCE, Arm.CANDIDATE]
    if random.Random(f"{bench.spec.seed}/{name}").random() < 0.5:
        order.reverse()
    runs: dict[Arm, Run] = {}
    at_s = round(bench.store.watch.total_s, 3)
    for arm in order:
        try:
            own = (FlagSet(), beside) if arm is Arm.REFERENCE else (candidate, folder)
            runs[arm] = run_alone(bench, *own)
        except WorkerFailed as error:
            if arm is Arm.REFERENCE:
                raise ReferenceFailed(error) from error
            raise
    inspect(runs[Arm.REFERENCE].report, runs[Arm.CANDIDATE].report)
    pair = _pair(0, order[0], runs[Arm.REFERENCE], runs[Arm.CANDIDATE], at_s=at_s)
    (folder / "pairs.jsonl").write_text(pair.model_dump_json(exclude_none=True) + "\n", encoding="utf-8")
    bench.watcher.pair([measure.log_ratio(pair)])
    return pair


def _pair(index: int, first: Arm, reference: Run, candidate: Run, *, at_s: float) -> Pair:
    return Pair(
        index=index,
        first=first,
        reference_s=reference.times_s,
        candidate_s=candidate.times_s,
        at_s=at_s,
        reference_j=reference.joules,
        candidate_j=candidate.joules,
    )


# ---------------------------------------------------------------------- numbers


def estimate(pairs: Sequence[Pair]) -> Estimate:
    """The estimate of sandwiches stored as pairs, two for each."""
    return estimate_sandwiches(
        [
            Sandwich(
                before_s=measure.block_step_s(before.reference_s),
                candidate_s=measure.block_step_s(before.candidate_s),
                after_s=measure.block_step_s(after.reference_s),
            )
            for before, after in zip(pairs[::2], pairs[1::2], strict=True)
        ]
    )


def compare(bench: Bench, pairs: Sequence[Pair]) -> Comparison:
    """The comparison of sandwiches stored as pairs."""
    return measure.compare(
        pairs,
        estimate(pairs),
        sesoi=bench.spec.measure.smallest_effect,
        stopped=f"all {len(pairs) // 2} sandwiches run",
        mode=MODE,
        warnings=bench.gpus.warnings(),
        meter=bench.meter,
    )


def noise_floor(pairs: Sequence[Pair], *, sesoi: float) -> NoiseFloor:
    """What sandwiches of the reference with itself say about this machine.

    Args:
        pairs: Sandwiches stored as pairs.
        sesoi: Smallest effect of interest.
    """
    found = estimate(pairs)
    count = found.pair_count
    half = math.log(found.high / found.low) / 2
    ratios = [sum(measure.log_ratio(p) for p in two) / 2 for two in zip(pairs[::2], pairs[1::2], strict=True)]
    mean = sum(ratios) / count
    return NoiseFloor(
        estimate=found,
        is_honest=found.low <= 1.0 <= found.high,
        pair_sd=math.sqrt(sum((r - mean) ** 2 for r in ratios) / max(1, count - 1)),
        autocorrelation=0.0,
        # The order is always the same here, so nothing is known of it.
        order_effect=Estimate(ratio=1.0, low=0.0, high=math.inf, level=found.level, pair_count=0),
        half_width=half,
        # A true effect of twice the half width is found more than 9 times in 10.
        detectable=sesoi + 1.0 - math.exp(-2 * half),
        pairs_for_sesoi=math.ceil(count * (half / sesoi) ** 2),
    )
