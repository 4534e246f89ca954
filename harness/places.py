"""Where the lanes of a study are that is struck: how its driver is started there."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol, Self

from harness.driven import Driven, marking
from harness.sandbox import Slurm


class Place(Protocol):
    """Lanes of one kind.

    Attributes:
        name: For the tally.
        has_lanes: Whether lanes are processes of their own.
        longest_s: Longest wait before a strike, once the stage in question is reached.
    """

    name: str
    has_lanes: bool
    longest_s: float

    def __enter__(self) -> Self:
        """Makes what is needed beside the driver."""

    def __exit__(self, *_: object) -> None:
        """Ends it."""

    def start(self, folder: Path, arguments: Sequence[str]) -> Driven:
        """Starts a driver, or starts it again; `folder` as `Driven` has it."""

    def kill_member(self, rng: random.Random) -> bool:
        """Kills one of those that bring lanes from outside, and starts it again; False where there is none."""


class _WithoutMembers:
    """Lanes that the driver starts itself."""

    def kill_member(self, rng: random.Random) -> bool:
        """See `Place`."""
        return False


class Here(_WithoutMembers):
    """The driver's own machine; with several lanes, processes on some of its devices."""

    longest_s = 1.5

    def __init__(self, lanes: int = 1) -> None:
        self.name = f"local, {lanes} lanes" if lanes > 1 else "local, one lane"
        self.has_lanes = lanes > 1
        self._devices = ["--devices", ",".join(map(str, range(lanes)))] if lanes > 1 else []

    def __enter__(self) -> Self:
        """See `Place`."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `Place`."""

    def start(self, folder: Path, arguments: Sequence[str]) -> Driven:
        """See `Place`."""
        return Driven(folder, [*self._devices, *arguments])


class InSlurmJob(_WithoutMembers):
    """A lane on each node of a SLURM job, whose driver runs where the job was asked for.

    Args:
        slurm: The cluster.
        nodes: Of the job.
    """

    name = "slurm"
    has_lanes = True
    longest_s = 1.5
    LIMIT: ClassVar[str] = "--time=60"

    def __init__(self, slurm: Slurm, nodes: int = 2) -> None:
        self._slurm = slurm
        self._nodes = nodes
        self._job = ""

    def __enter__(self) -> Self:
        """Asks for the job."""
        command = ["salloc", "--no-shell", f"--nodes={self._nodes}", "--gres=gpu:8", "--no-kill", self.LIMIT]
        done = subprocess.run(command, env=self._slurm.env, capture_output=True, text=True, check=True, timeout=60)
        self._job = next(w for w in done.stderr.split() if w.isdigit())
        return self

    def __exit__(self, *_: object) -> None:
        """Gives it back."""
        self._slurm.call("scancel", self._job)

    def start(self, folder: Path, arguments: Sequence[str]) -> Driven:
        """See `Place`."""
        listed = self._slurm.call("squeue", "-h", "-j", self._job, "-o", "%N").strip()
        job = {"SLURM_JOB_ID": self._job, "SLURM_JOB_NODELIST": listed, "SLURM_JOB_NUM_NODES": str(self._nodes)}
        return Driven(folder, arguments, env={**self._slurm.env, **job})


class OnDask:
    """A Dask cluster on loopback, whose scheduler and workers outlive the driver."""

    name = "dask"
    has_lanes = True
    longest_s = 1.5

    def __init__(self, workers: int = 3) -> None:
        self._names = [f"w{i}" for i in range(workers)]
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path()

    def __enter__(self) -> Self:
        """See `Place`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends workers and scheduler."""
        for member in self._members.values():
            member.kill()
            member.wait()

    def start(self, folder: Path, arguments: Sequence[str]) -> Driven:
        """See `Place`: what is gone of the cluster is started again, too."""
        self._folder = folder
        if "scheduler" not in self._members:
            self._begin("scheduler", "scheduler", "--port", "0", "--host", "127.0.0.1")
        for name in self._names:
            if name not in self._members or self._members[name].poll() is not None:
                self._join(name)
        return Driven(
            folder, ["--scheduler-file", str(self._file), *arguments],
            outlive=lambda: [m.pid for m in self._members.values()],
        )  # fmt: skip

    @property
    def _file(self) -> Path:
        return self._folder / "scheduler.json"

    def _join(self, name: str) -> None:
        self._begin(name, "worker", "--no-nanny", "--nthreads", "1", "--name", name)

    def _begin(self, name: str, what: str, *options: str) -> None:
        command = [sys.executable, "-m", "dask", what, "--scheduler-file", str(self._file), "--no-dashboard", *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._members[name] = subprocess.Popen(
                command, cwd=self._folder, env=marking(self._folder), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill_member(self, rng: random.Random) -> bool:
        """See `Place`."""
        name = rng.choice(self._names)
        self._members[name].kill()
        self._members[name].wait()
        self._join(name)
        return True
