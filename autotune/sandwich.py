"""One process at a time: where two do not fit into the device's memory, or the program can not wait for its turn.

A sandwich is three fresh runs, reference, candidate, reference, so that a steady drift of the machine cancels and what
is left of it widens the interval. It is stored as two pairs that have the candidate's run in common: the raw samples
of a study read the same whichever way they were measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from autotune import measure
from autotune.flags import FlagSet
from autotune.launch.base import Worker, WorkerFailed
from autotune.records import Arm, Comparison, Pair, WorkerReport
from autotune.spec import StudySpec
from autotune.stats import Estimate, NoiseFloor, Sandwich, estimate_sandwiches
from autotune.store import Store, append_synced
from autotune.telemetry import GpuWatch

MODE = "sandwich"


class Watcher(Protocol):
    """Told of each pair."""

    def pair(self, ratios: list[float]) -> None:
        """One more pair is done; log ratios so far."""


class Bench(Protocol):
    """What is needed of `autotune.evaluate.Bench`, which is built upon this module."""

    store: Store
    spec: StudySpec
    gpus: GpuWatch

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


def run_alone(
    bench: Bench, settings: FlagSet, folder: Path, inspect: Inspect | None = None
) -> tuple[WorkerReport, tuple[float, ...]]:
    """One fresh process: started, warmed up, measured, ended.

    Returns:
        Its report, and the duration of each measured step in seconds.

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
        times = worker.run_block(steps)
        bench.gpus.look(folder)
        return worker.report, times
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

    def run_reference() -> tuple[WorkerReport, tuple[float, ...]]:
        try:
            return run_alone(bench, reference, beside)
        except WorkerFailed as error:
            raise ReferenceFailed(error) from error

    def keep(first: Arm, reference_s: tuple[float, ...], candidate_s: tuple[float, ...]) -> None:
        at_s = round(bench.store.watch.total_s, 3)
        pairs.append(Pair(index=len(pairs), first=first, reference_s=reference_s, candidate_s=candidate_s, at_s=at_s))
        append_synced(file, pairs[-1].model_dump_json() + "\n", sync=False)
        bench.watcher.pair([measure.log_ratio(p) for p in pairs])

    for number in range(bench.spec.measure.sandwiches):
        report, before_s = run_reference()
        first_time = (lambda own, other=report: inspect(other, own)) if number == 0 else None
        _, candidate_s = run_alone(bench, candidate, folder, first_time)
        keep(Arm.REFERENCE, before_s, candidate_s)
        keep(Arm.CANDIDATE, run_reference()[1], candidate_s)
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
    reports: dict[Arm, WorkerReport] = {}
    times: dict[Arm, tuple[float, ...]] = {}
    at_s = round(bench.store.watch.total_s, 3)
    for arm in order:
        try:
            if arm is Arm.REFERENCE:
                reports[arm], times[arm] = run_alone(bench, FlagSet(), beside)
            else:
                reports[arm], times[arm] = run_alone(bench, candidate, folder)
        except WorkerFailed as error:
            if arm is Arm.REFERENCE:
                raise ReferenceFailed(error) from error
            raise
    inspect(reports[Arm.REFERENCE], reports[Arm.CANDIDATE])
    pair = Pair(index=0, first=order[0], reference_s=times[Arm.REFERENCE], candidate_s=times[Arm.CANDIDATE], at_s=at_s)
    (folder / "pairs.jsonl").write_text(pair.model_dump_json() + "\n", encoding="utf-8")
    bench.watcher.pair([measure.log_ratio(pair)])
    return pair


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
