"""What the scripts run on: this machine, by the public ways of autotune."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.machine.environment import caller_environment
from autotune.machine.gpus import find_gpus
from autotune.machine.host import describe_machine
from autotune.machine.telemetry import open_meter, open_watch
from autotune.model.measurement import HELD_BACK
from autotune.model.spec import StudySpec
from autotune.workers.base import Launcher, Worker
from autotune.workers.local import LocalLauncher
from benchmarks.gpu.hour import Clock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HELD_SHARE = 0.01
"""Share of a block's time for which the clock must have been held back to be told of."""
LAST_WORDS_S = 20.0
"""What a command is given to end by itself when its time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of steps, and what the GPU did meanwhile; None for what nothing told.

    Attributes:
        step_s: Seconds of each step.
        joules: Of the whole GPU.
        sm_clock_mhz: Mean of what was seen during it.
        power_w: Mean of what was seen during it.
        held_back_by: Why the clock was below what it could be, in words.
    """

    step_s: tuple[float, ...]
    joules: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    held_back_by: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Seconds of all steps."""
        return sum(self.step_s)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended: its status, and what it said."""

    status: int
    output: str
    errors: str

    def json(self) -> Any:
        """What it printed as JSON.

        Raises:
            RuntimeError: If it failed.
        """
        if self.status != 0:
            raise RuntimeError(
                f"the command ended with status {self.status}: {self.errors[-1500:]}"
            )
        return json.loads(self.output)


class Machine:
    """This machine: processes run here and are looked at.

    Args:
        platform: ``cuda``, or ``cpu`` in a dry run.
        home: Where commands keep what they learn and compile.
    """

    def __init__(self, platform: str, home: Path) -> None:
        self.platform = platform
        self._home = home
        self._watch = open_watch(caller_environment(), 1)

    def made_by(self) -> dict[str, Any]:
        """What every row says of who made it."""
        gpus = find_gpus() if self.platform == "cuda" else ()
        return {
            "on": gpus[0].name if gpus else "a CPU, as a dry run",
            "dry": self.platform == "cpu",
        }

    def describe(self) -> dict[str, Any]:
        """Devices, software and their versions."""
        return {**describe_machine(), "gpus": [asdict(gpu) for gpu in find_gpus()]}

    def clock(self, path: Path) -> Clock:
        """Counts the time of a part, from what an earlier session wrote to `path`."""
        return Clock(path)

    def launcher(self, spec: StudySpec) -> Launcher:
        """Starts workers of a study."""
        return LocalLauncher(spec, study_dir=str(ROOT), base=caller_environment())

    def block(self, spec: StudySpec, worker: Worker, steps: int, folder: Path) -> Block:
        """Runs a block and looks at the GPU meanwhile; samples go to the folder."""
        return self._observe(spec, folder, lambda: worker.run_block(steps))

    def idle(self, spec: StudySpec, seconds: float, folder: Path) -> Block:
        """Looks at the GPU while nothing of ours runs on it; a block without steps."""

        def rest() -> tuple[float, ...]:
            threading.Event().wait(seconds)
            return (seconds,)

        return self._observe(spec, folder, rest)

    def _observe(
        self, spec: StudySpec, folder: Path, work: Callable[[], tuple[float, ...]]
    ) -> Block:
        meter = open_meter(spec, self._watch)
        with self._watch.block("candidate"):  # there is no other arm here, but a figure needs both
            pass
        with self._watch.block("reference"):
            times, joules = meter.measure(work)
        during = self._watch.take().during
        if during is None:
            return Block(step_s=times, joules=joules)
        seen = during.reference
        held = tuple(
            HELD_BACK[reason]
            for reason, s in seen.held_back.items()
            if s > HELD_SHARE * seen.seconds
        )
        return Block(
            step_s=times,
            joules=joules,
            sm_clock_mhz=seen.clock_mhz,
            power_w=seen.power_w,
            temperature_c=seen.temperature_c,
            held_back_by=held,
        )

    def autotune(self, *arguments: str, limit_s: float, folder: Path) -> Done:
        """Runs a command of autotune; stops it when its time is over, and kills it if need be."""
        command = [sys.executable, "-m", "autotune", *arguments]
        return run_command(command, limit_s=limit_s, folder=folder, home=self._home)


def run_command(command: Sequence[str], *, limit_s: float, folder: Path, home: Path) -> Done:
    """Runs a command in the repository; its words stay in the folder, whatever becomes of us."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {
        "PYTHONPATH": paths,
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    env = {**os.environ, **own}
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "leash.py"), str(os.getpid()), *command],
            stdout=stdout,
            stderr=stderr,
            cwd=ROOT,
            env=env,
            start_new_session=True,
        )
        with _ended_with_us(process):
            try:
                process.wait(max(1.0, limit_s))
            except subprocess.TimeoutExpired:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LAST_WORDS_S)
    return Done(
        process.returncode, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
    )


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the command with all it started if it is still there at the end."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def as_toml(value: object) -> str:
    """Plain data as TOML has it on one line."""
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{json.dumps(name)} = {as_toml(inner)}" for name, inner in value.items())
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)
