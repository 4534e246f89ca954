"""A GPU that is made up, from one file of assumed figures: simulated processes, and a clock that goes as they say.

As a program, ``python -m benchmarks.gpu.simulated FIGURES CLOCK UNTIL_S COMMAND ...``, it is the command line of
autotune on that machine: the same code, whose simulated workers and stopwatch go by the simulated clock.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.model import (
    Failure,
    FailureKind,
    FlagSet,
    Stopwatch,
    StudySpec,
    limits_after,
    load_study,
    parse_set,
)
from autotune.settings import load_recipes
from autotune.workers import Launcher, Worker, WorkerFailed
from benchmarks.gpu.hour import read_seconds, write_seconds
from benchmarks.gpu.machine import Block, Done, run_command
from harness.simulated_machine import SimulatedLauncher, Simulation

LONGEST_STEP_S = 5.0
"""Of the clock: a stopwatch takes a longer gap for a pause."""
DEFAULT_FRACTION = 0.75
FRACTION = "XLA_CLIENT_MEM_FRACTION"


class SimulatedClock:
    """Goes on when it is told to, and lies in a file: a later session, or another process, goes on from there.

    Args:
        path: The file.
        until_s: When it comes there, this process is told to stop, as a batch system would.
    """

    def __init__(self, path: Path, until_s: float = math.inf) -> None:
        self._path, self._until_s = path, until_s
        self._lock = threading.RLock()
        self._mine_s = read_seconds(path)
        self.on_step: list[Callable[[], object]] = []

    @property
    def spent_s(self) -> float:
        """Seconds so far, those included that another process spent."""
        with self._lock:
            self._mine_s = max(self._mine_s, read_seconds(self._path))
            return self._mine_s

    def advance(self, seconds: float) -> None:
        """Goes on, in steps that whoever watches it can follow."""
        while seconds > 0:
            with self._lock:
                step = min(seconds, LONGEST_STEP_S)
                self._mine_s += step
                seconds -= step
                write_seconds(self._path, self._mine_s)
            for look in self.on_step:
                look()
            if self._mine_s >= self._until_s:
                self._until_s = math.inf
                os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        """Nothing to write that is not written."""


class Figures:
    """The assumed figures of a file, and what follows from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))

    def workload(self, spec: StudySpec) -> Mapping[str, float]:
        """What is assumed of a study's workload.

        Raises:
            KeyError: If nothing is.
        """
        found: Mapping[str, float] = self.data["workloads"][str(spec.workload.entry)]
        return found

    def simulation(self, spec: StudySpec) -> Simulation:
        """The formula of a study: every setting that no effect is assumed of changes nothing."""
        effects, of = self.data["effects"], self.workload(spec)
        named = {f"{n}={v}" for recipe in load_recipes().values() for n, v in recipe.settings.items()}
        inert = {*named, f"{FRACTION}=0.45"} - set(effects) - set(self.data["failures"])
        return Simulation(
            step_s=of["step_s"], effects=effects, failures=self.data["failures"], noise=self.data["noise"],
            start_s=of["start_s"], inert=tuple(sorted(inert)),
        )  # fmt: skip

    def factor(self, settings: Mapping[str, str], table: str) -> float:
        """By how much a set multiplies the step time, by ``effects`` or ``predicted``."""
        factors: Mapping[str, float] = self.data[table]
        return math.prod(factors.get(f"{n}={v}", 1.0) for n, v in settings.items())

    def fingerprint(self, settings: Mapping[str, str]) -> str:
        """Names the program of a set: settings without an effect are no part of it."""
        acting = sorted(f"{n}={v}" for n, v in settings.items() if f"{n}={v}" in self.data["effects"])
        return hashlib.sha256("\n".join(acting).encode()).hexdigest()[:16]


class ClockedLauncher:
    """A simulated machine whose starts and blocks take simulated time, on a GPU of limited memory.

    Args:
        inner: The simulated machine.
        spec: The study.
        figures: What is assumed.
        clock: Goes on as workers start and run.
    """

    def __init__(self, inner: SimulatedLauncher, spec: StudySpec, figures: Figures, clock: SimulatedClock) -> None:
        self._inner, self._spec, self._figures, self._clock = inner, spec, figures, clock
        self.limits = limits_after(spec.measure)
        self._starting = 0

    def start(self, settings: FlagSet, folder: Path, *, progress: Callable[[str], None]) -> Worker:
        """See `autotune.workers.Launcher`; what does not fit ends as it would there."""
        of, start = self._figures.workload(self._spec), self._figures.data["start"]
        luck = random.Random(str(folder)).gauss(0.0, start["spread"])
        self._starting += 1
        took_s = of["start_s"] * math.exp(luck) * (start["beside"] if self._starting > 1 else 1.0)
        try:
            limit_s = self.limits.start_s
            self._clock.advance(min(took_s, limit_s))
            if took_s > limit_s:
                message = f"not ready after {limit_s:.0f} s"
                raise WorkerFailed(Failure(kind=FailureKind.HANG, message=message, phase="compile"))
            limit = self._figures.data["gpu"]["memory_bytes"] * float(settings.get(FRACTION, DEFAULT_FRACTION))
            if of["peak_bytes"] > limit:
                message = f"RESOURCE_EXHAUSTED: {of['peak_bytes']:.0f} bytes needed, {limit:.0f} may be taken"
                (folder / "worker.log").write_text(message + "\n", encoding="utf-8")
                failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, phase="warm-up")
                raise WorkerFailed(failure)
            worker = self._inner.start(settings, folder, progress=progress)
        finally:
            self._starting -= 1
        worker.report = worker.report.model_copy(
            update={
                "device_kind": self._figures.data["name"], "start_s": took_s, "compile_s": 0.6 * took_s,
                "dtype": str(self._spec.workload.options.get("dtype", "bfloat16")), "attention": "cudnn",
                "tokens_per_step": round(of["tokens"]), "flops_per_step": of["flops"],
                "peak_bytes": round(of["peak_bytes"]), "limit_bytes": round(limit),
                "temp_bytes": round(0.7 * of["peak_bytes"]),
            }
        )  # fmt: skip
        return _clocked(worker, self._clock)

    def close(self) -> None:
        """See `autotune.workers.Launcher`."""
        self._inner.close()


def _clocked(worker: Worker, clock: SimulatedClock) -> Worker:
    """The worker, its blocks taking simulated time."""
    run_block = worker.run_block

    def clocked(steps: int) -> tuple[float, ...]:
        times = run_block(steps)
        clock.advance(sum(times))
        return times

    worker.run_block = clocked  # type: ignore[method-assign]
    return worker


class SimulatedMachine:
    """See `benchmarks.gpu.machine.Machine`.

    Args:
        figures: The file of assumed figures.
        home: Where commands keep what they learn.
    """

    platform = "cuda"
    is_simulated = True

    def __init__(self, figures: Path, home: Path) -> None:
        self._figures = Figures(figures)
        self._home = home
        self._clock: SimulatedClock | None = None
        self._path = figures

    def made_by(self) -> dict[str, Any]:
        """Says that nothing was measured."""
        return {"on": self._figures.data["name"], "simulated": True, "dry": False}

    def describe(self) -> dict[str, Any]:
        """The assumed figures themselves."""
        return {"assumed": self._figures.data}

    def clock(self, path: Path) -> SimulatedClock:
        """The simulated clock of a part."""
        self._clock, self._path = SimulatedClock(path), path
        return self._clock

    def launcher(self, spec: StudySpec) -> Launcher:
        """Simulated workers, on the simulated clock."""
        assert self._clock is not None
        moment = round(1000 * self._clock.spent_s)  # the machine goes on: it does not begin anew with each process
        inner = SimulatedLauncher(spec, self._figures.simulation(spec), seed=spec.seed + moment)
        return ClockedLauncher(inner, spec, self._figures, self._clock)

    def block(self, spec: StudySpec, worker: Worker, steps: int, folder: Path) -> Block:
        """A block, with what the GPU would have drawn: a faster program draws more, up to the cap."""
        gpu, of = self._figures.data["gpu"], self._figures.workload(spec)
        times = worker.run_block(steps)
        wanted_w = of["power_w"] * of["step_s"] * len(times) / sum(times)
        power_w = min(wanted_w, gpu["cap_w"])
        return Block(
            step_s=times, joules=power_w * sum(times), power_w=power_w, temperature_c=gpu["temperature_c"],
            sm_clock_mhz=gpu["sm_clock_mhz"] * (power_w / wanted_w) ** (1 / 3),
            held_back_by=("its power limit",) if wanted_w > gpu["cap_w"] else (),
        )  # fmt: skip

    def idle(self, spec: StudySpec, seconds: float, folder: Path) -> Block:
        """Nothing runs: the clock goes on."""
        assert self._clock is not None
        self._clock.advance(seconds)
        idle_w = self._figures.data["gpu"]["idle_w"]
        return Block(step_s=(seconds,), joules=idle_w * seconds, power_w=idle_w)

    def autotune(self, *arguments: str, limit_s: float, folder: Path) -> Done:
        """A measuring command really runs, on the simulated clock; what compiles is made up."""
        assert self._clock is not None
        if arguments[0] == "run":
            folder.mkdir(parents=True, exist_ok=True)
            arguments = (*arguments, "--no-screen")
        if arguments[0] in ("run", "doctor", "flags"):
            until_s = self._clock.spent_s + limit_s
            command = [sys.executable, "-m", "benchmarks.gpu.simulated", str(self._figures.path), str(self._path)]
            return run_command([*command, str(until_s), *arguments], limit_s=600.0, folder=folder, home=self._home)
        self._clock.advance(self._figures.data["commands"][arguments[0]])
        spec = load_study(Path(arguments[1]))
        answer = self._screen() if arguments[0] == "screen" else self._predict(spec, arguments)
        return Done(0, json.dumps(answer), "")

    def _screen(self) -> dict[str, Any]:
        """What a screen of all recipes would say, as far as `prepare` reads it."""
        first: dict[str, str] = {self._figures.fingerprint({}): "reference"}
        sets = []
        for name, recipe in load_recipes().items():
            program = self._figures.fingerprint(recipe.settings)
            row = {"name": f"recipe {name}", "settings": dict(recipe.settings), "fingerprint": program}
            sets.append({**row, "same_as": first.get(program), "message": ""})
            first.setdefault(program, f"recipe {name}")
        return {"target": "h200", "versions": {}, "sets": sets}

    def _predict(self, spec: StudySpec, arguments: tuple[str, ...]) -> list[dict[str, Any]]:
        texts = ["", *(text for option, text in itertools.pairwise(arguments) if option == "--set")]
        of, rows = self._figures.workload(spec), []
        for settings in map(parse_set, texts):
            step_s = 0.8 * of["step_s"] * self._figures.factor(settings, "predicted")
            rows.append({"settings": dict(settings), "step_s": step_s, "peak_bytes": round(0.97 * of["peak_bytes"])})
        return rows


def main() -> None:
    """The command line of autotune, on a simulated clock."""
    import autotune.model
    from autotune.cli import main as autotune_main
    from autotune.study import preflight

    figures, path, until_s = Figures(Path(sys.argv[1])), Path(sys.argv[2]), float(sys.argv[3])
    sys.argv = ["autotune", *sys.argv[4:]]
    clock = SimulatedClock(path, until_s)
    if sys.argv[1] != "run":
        clock.advance(figures.data["commands"][sys.argv[1]])
        autotune_main()
        return

    class Watch(Stopwatch):
        def __init__(self, before_s: float = 0.0) -> None:
            super().__init__(before_s, clock=lambda: clock.spent_s)
            clock.on_step.append(lambda: self.session_s)

    def launcher(spec: StudySpec, study_dir: str, devices: Sequence[str] = ()) -> Launcher:
        return ClockedLauncher(SimulatedLauncher(spec, figures.simulation(spec)), spec, figures, clock)

    autotune.model.Stopwatch = Watch  # type: ignore[misc, assignment]
    preflight.make_launcher = launcher
    autotune_main()


if __name__ == "__main__":
    main()
