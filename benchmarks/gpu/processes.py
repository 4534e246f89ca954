"""Common to all parts: fresh processes of a workload, alone or in pairs, and their blocks."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.spec import StudySpec, load_study, parse_study
from autotune.workers.base import Launcher, Worker, WorkerFailed
from benchmarks.gpu.hour import Hour, Row
from benchmarks.gpu.machine import HERE, Block, Machine

SHARED = FlagSet({"XLA_CLIENT_MEM_FRACTION": "0.45"})
"""What each of two processes on one GPU takes of its memory."""

LONGEST_START_S = 170.0


@contextlib.contextmanager
def part(
    name: str,
    words: str,
    minutes: float,
    *more: Callable[[argparse.ArgumentParser], object],
    measures: bool = True,
) -> Iterator[Part]:
    """One part of the hour, from its command line to its last row.

    Args:
        measures: Whether it runs anything here; if not, it may read the folder of another machine.
    """
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder of all results; nothing is written elsewhere",
    )
    parser.add_argument(
        "--minutes", type=float, default=minutes, help="all sessions together, default %(default)s"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="on the CPU, with tiny workloads: no figure is of worth",
    )
    for add in more:
        add(parser)
    args = parser.parse_args()
    found = Part(name, args, measures=measures)
    try:
        yield found
    finally:
        found.hour.close()


class Part:
    """A part at work: its arguments, its machine, its hour."""

    def __init__(self, name: str, args: argparse.Namespace, *, measures: bool) -> None:
        self.args = args
        self.out: Path = args.out.resolve()
        name = f"{name}-{args.of}" if getattr(args, "of", None) else name
        (self.out / name).mkdir(parents=True, exist_ok=True)
        self.machine = Machine("cpu" if args.dry_run else "cuda", self.out / "home")
        made_by = self._machine_of_folder(self.machine.made_by(), measures=measures)
        clock = self.machine.clock(self.out / name / "spent.txt")
        self.hour = Hour(self.out, name, minutes=args.minutes, made_by=made_by, clock=clock)

    def _machine_of_folder(self, here: Row, *, measures: bool) -> Row:
        """Names the machine of the folder's figures; dry runs and measured ones do not mix."""
        mark = self.out / "made_by.json"
        before = json.loads(mark.read_text(encoding="utf-8")) if mark.exists() else here
        if measures and before != here:
            raise SystemExit(
                f"--out must hold results of one machine but {self.out} is of {before['on']}, "
                "and this is "
                f"{here['on']}; name another folder"
            )
        mark.write_text(json.dumps(before), encoding="utf-8")
        return dict(before)

    def study(self, name: str) -> Path:
        """The study file of a name; in a dry run the tiny one."""
        return HERE / f"{'dry' if self.args.dry_run else name}.toml"

    def spec(self, name: str, after_s: float = 0.0) -> StudySpec:
        """Reads that study; its processes must start within the time left for them."""
        return within(load_study(self.study(name)), self.hour, after_s)

    def workload(self, entry: str, options: dict[str, Any], after_s: float = 0.0) -> StudySpec:
        """A study of one workload, likewise."""
        device = {"platform": self.machine.platform, "count": 1}
        found = parse_study(
            {"name": "workload", "workload": {"entry": entry, "options": options}, "device": device}
        )
        return within(found, self.hour, after_s)


def within(spec: StudySpec, hour: Hour, after_s: float) -> StudySpec:
    """The study with limits by which a process that hangs ends before the time does.

    Args:
        spec: The study.
        hour: What is left of it is the limit.
        after_s: Seconds of blocks that follow a start: one that leaves them no time is ended, for
            nothing would come of it.
    """
    left_s = hour.left_s
    start_s, block_s = (max(5.0, min(LONGEST_START_S, s)) for s in (left_s - after_s, left_s))
    measure = spec.measure.model_copy(update={"start_limit_s": start_s, "block_limit_s": block_s})
    return spec.model_copy(update={"measure": measure})


def run_alone(
    machine: Machine,
    spec: StudySpec,
    settings: FlagSet,
    folder: Path,
    *,
    warm_s: float,
    steady_s: float,
) -> Row:
    """A fresh process alone: runs until it is warm, then a block at steady state."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = machine.launcher(spec)
    with contextlib.closing(launcher):
        try:
            worker = start(launcher, spec, settings, folder)
            warm = machine.block(spec, worker, steps_in(worker, warm_s), folder)
            steady = machine.block(spec, worker, steps_in(worker, steady_s), folder)
        except WorkerFailed as error:
            if (
                error.failure.kind is FailureKind.HANG
                and (spec.measure.start_limit_s or LONGEST_START_S) < LONGEST_START_S
            ):
                raise TimeoutError("the minutes were over before its process was done") from error
            return {
                "settings": dict(settings),
                "failure": json.loads(error.failure.model_dump_json()),
            }
        report = json.loads(worker.report.model_dump_json())
        worker.close()
    return {
        "settings": dict(settings),
        "report": report,
        "warm": warm.to_json(),
        "steady": steady.to_json(),
    }


def start(launcher: Launcher, spec: StudySpec, settings: FlagSet, folder: Path) -> Worker:
    """Starts a worker under the study's baseline plus a set."""
    folder.mkdir(parents=True, exist_ok=True)
    return launcher.start(spec.baseline.merge(settings), folder, progress=lambda phase: None)


def start_at_once(
    launcher: Launcher, spec: StudySpec, settings: FlagSet, folders: Sequence[Path]
) -> list[Worker]:
    """Starts several workers at the same time."""
    with ThreadPoolExecutor(max_workers=len(folders)) as pool:
        return list(pool.map(lambda folder: start(launcher, spec, settings, folder), folders))


def steps_in(worker: Worker, seconds: float) -> int:
    """Steps that take about so long."""
    step_s = statistics.median(worker.report.warmup_step_times_s)
    return max(2, math.ceil(seconds / step_s)) if step_s > 0 else 2


def interleaved(
    machine: Machine,
    spec: StudySpec,
    workers: Sequence[Worker],
    folder: Path,
    *,
    block_s: float,
    pairs: int,
    seed: str,
) -> list[Row]:
    """Interleaved blocks of two processes in random order; who came first is index 0 or 1."""
    rng, rows = random.Random(seed), []
    for _ in range(pairs):
        order = [0, 1] if rng.random() < 0.5 else [1, 0]
        blocks: dict[int, Block] = {}
        for i in order:
            blocks[i] = machine.block(spec, workers[i], steps_in(workers[i], block_s), folder)
        mean_s = [statistics.mean(blocks[i].step_s) for i in (0, 1)]
        rows.append(
            {"first": order[0], "mean_s": mean_s, "log_ratio": math.log(mean_s[1] / mean_s[0])}
        )
    return rows
