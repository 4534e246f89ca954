"""The winner runs for a while under a watchdog: some settings hang or diverge only after hundreds of steps."""

from __future__ import annotations

import statistics
from pathlib import Path

from autotune.model import DUMPED_KERNELS, KERNELS, Artefact, FlagSet, SoakRecord, StudySpec
from autotune.study.bench import Bench
from autotune.study.units import SoakUnit
from autotune.workers import WorkerFailed

DUMP = "autotune.textproto"


def soak_alone(bench: Bench, unit: SoakUnit, folder: Path) -> SoakRecord:
    """Runs a set alone for as long as is asked, or until it fails; a program that ends is started again."""
    least_s, least_steps = unit.least_s, unit.least_steps
    dump = told_to_dump(bench.spec, unit.settings, folder)
    (folder / DUMP).unlink(missing_ok=True)  # of a session that was ended in it
    times: list[float] = []
    starts = 0
    failure = None
    while failure is None and (sum(times) < least_s or len(times) < least_steps):
        try:
            worker = bench.start(unit.settings.merge(dump), folder, alone=True)
        except WorkerFailed as error:
            if dump and not starts:  # the program may not take that, and the winner must not fail by it
                dump = FlagSet()
                continue
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
        settings=unit.settings,
        asked_s=least_s,
        asked_steps=least_steps,
        steps_s=round(sum(times), 3),
        step_count=len(times),
        starts=starts,
        drift=statistics.median(times[-quarter:]) / statistics.median(times[:quarter]) if times else None,
        failure=failure,
        kernels=_kept_kernels(bench, folder) if failure is None else None,
    )


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
