"""The winner runs for a while under a watchdog: some settings hang or diverge only after hundreds of steps.

One whose options change dtype or batch is held to the reference's loss on the way: the reference runs as long, by work
done, and both learn from batches that they have not seen before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.model import (
    DUMPED_KERNELS,
    KERNELS,
    Artefact,
    Failure,
    FlagSet,
    LossBasis,
    LossCheck,
    SoakRecord,
    StudySpec,
    WorkerReport,
)
from autotune.stats import compare_long_runs
from autotune.study.bench import Bench
from autotune.study.loss_gate import judge_long_run
from autotune.study.units import SoakUnit
from autotune.workers import WorkerFailed

DUMP = "autotune.textproto"
NOTHING = FlagSet()

LOSSES = 24
"""Blocks, at least, into which a run is cut whose losses are compared: each tells one."""

LONGEST_REFERENCE = 64
"""Steps of the reference for each of the candidate, at most: a bound for a program that tells nonsense of its work."""


@dataclass(slots=True)
class _LongRun:
    """What a set did for a while.

    Attributes:
        losses: Steps of the first process up to the end of a block, and the loss there, as far as it is told.
    """

    times: list[float] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    starts: int = 0
    report: WorkerReport | None = None
    failure: Failure | None = None


DUMP = "autotune.textproto"
NOTHING = FlagSet()


def soak_alone(bench: Bench, unit: SoakUnit, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, or until it fails; a program that ends is started again."""
    settings, least_s, least_steps = unit.settings, unit.least_s, unit.least_steps
    dump = told_to_dump(bench.spec, settings, folder)
    (folder / DUMP).unlink(missing_ok=True)  # of a session that was ended in it
    run = _LongRun()

    def is_enough(times: list[float]) -> bool:
        return sum(times) >= least_s and len(times) >= least_steps

    compared = least_steps if unit.basis is not None else None
    _run_long(bench, settings, folder, is_enough, of_s=least_s, compared=compared, run=run, dump=dump)
    loss, failure = None, run.failure
    if unit.basis is not None and failure is None and run.report is not None:
        judged = _judge_loss(bench, unit.basis, run, folder)
        loss, failure = (None, judged) if isinstance(judged, Failure) else (judged, None)
    times, quarter = run.times, max(1, len(run.times) // 4)
    return SoakRecord(
        settings=unit.settings,
        asked_s=least_s,
        asked_steps=least_steps,
        steps_s=round(sum(times), 3),
        step_count=len(times),
        starts=run.starts,
        drift=statistics.median(times[-quarter:]) / statistics.median(times[:quarter]) if times else None,
        loss=loss,
        failure=failure,
        kernels=_kept_kernels(bench, folder) if failure is None else None,
    )


def _run_long(
    bench: Bench,
    settings: FlagSet,
    folder: Path,
    is_enough: Callable[[list[float]], bool],
    *,
    of_s: float,
    compared: int | None,
    run: _LongRun,
    dump: FlagSet = NOTHING,
) -> None:
    """Runs a set until it is enough, kept in `run`.

    Args:
        bench: Where.
        settings: What.
        folder: Where the log goes.
        is_enough: Given the times of all steps so far.
        of_s: Seconds that it may take, to be shown.
        compared: Over so many steps its losses are compared: every step gets a batch of its own, where a worker makes
            its batches, and losses are told often enough. None where they are not.
        run: What it did so far.
        dump: What makes it leave the autotuner's results; left out where it does not start with that.
    """
    while run.failure is None and not is_enough(run.times):
        try:
            worker = bench.start(settings.merge(dump), folder, alone=True)
        except WorkerFailed as error:
            if dump and not run.starts:  # the program may not take that, and the winner must not fail by it
                dump = NOTHING
                continue
            run.failure = error.failure
            break
        run.starts += 1
        run.report = worker.report
        worker.fresh_batches = compared is not None
        try:
            steps = max(bench.spec.measure.run_steps, bench.steps_for(worker))
            if compared is not None:
                steps = min(steps, max(1, compared // LOSSES))
            while not is_enough(run.times):
                run.times += worker.run_block(steps)
                if run.starts == 1 and worker.last_loss is not None:  # a second process learns from the start again
                    run.losses.append((len(run.times), worker.last_loss))
                bench.desk.phase(f"soaking: {len(run.times)} steps, {sum(run.times):.0f} of {of_s:.0f} s")
                if not bench.spec.workload.takes_turns:
                    break  # a program of its own length: again from the start
        except WorkerFailed as error:
            run.failure = error.failure
        finally:
            worker.close()


def _judge_loss(bench: Bench, basis: LossBasis, run: _LongRun, folder: Path) -> LossCheck | Failure:
    """Holds the losses of a long run against those of the reference after as much work."""
    assert run.report is not None
    beside = bench.folders.folder(*Path(bench.folders.relative(folder)).parts, "reference")
    mine, steps = run.report.tokens_per_step or 1, len(run.times)

    def has_done_as_much(times: list[float]) -> bool:
        return len(times) >= most_steps or len(times) * base(reference) >= steps * mine

    def base(of: _LongRun) -> int:
        return (of.report.tokens_per_step if of.report is not None else None) or 1

    most_steps, reference = LONGEST_REFERENCE * steps, _LongRun()
    _run_long(bench, FlagSet(), beside, has_done_as_much, of_s=sum(run.times), compared=steps, run=reference)
    if reference.failure is not None:
        said = reference.failure.message
        return LossCheck(basis=basis, is_ok=None, words=f"inconclusive: the reference beside it failed: {said}"[:500])
    found = compare_long_runs(
        [(n * base(reference), loss) for n, loss in reference.losses],
        [(n * mine, loss) for n, loss in run.losses],
        tolerance=bench.spec.confirm.loss_tolerance,
        is_same_work=mine == base(reference),
    )
    return judge_long_run(basis, found, steps=steps)


def told_to_dump(spec: StudySpec, settings: FlagSet, folder: Path) -> FlagSet:
    """What makes a process leave the autotuner's results in its folder; nothing where no GPU's kernels are chosen.

    Which kernels those are is not changed by it. Of several nodes the driver may not see the folder.
    """
    is_asked = DUMPED_KERNELS in spec.baseline.merge(settings)
    if spec.device.platform != "cuda" or spec.device.node_count > 1 or is_asked:
        return FlagSet()
    return FlagSet({DUMPED_KERNELS: str(folder.resolve() / DUMP)})


def _kept_kernels(bench: Bench, folder: Path) -> Artefact | None:
    """What was left there, to be handed on with the winner."""
    try:
        content = (folder / DUMP).read_bytes()
        return Artefact.of(KERNELS, content) if content else None
    except FileNotFoundError:  # nothing was autotuned
        return None
    except (OSError, ValueError) as error:
        bench.desk.incident(f"the autotuner's results of the soak are not kept: {error}")
        return None
