"""Where the lanes of a study are that is struck: how its driver is started there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol, Self

from harness.driven import Driven
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


class Here:
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


class InSlurmJob:
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
        command = [
            "salloc",
            "--no-shell",
            f"--nodes={self._nodes}",
            "--gres=gpu:8",
            "--no-kill",
            self.LIMIT,
        ]
        done = subprocess.run(
            command, env=self._slurm.env, capture_output=True, text=True, check=True, timeout=60
        )
        self._job = next(w for w in done.stderr.split() if w.isdigit())
        return self

    def __exit__(self, *_: object) -> None:
        """Gives it back."""
        self._slurm.call("scancel", self._job)

    def start(self, folder: Path, arguments: Sequence[str]) -> Driven:
        """See `Place`."""
        listed = self._slurm.call("squeue", "-h", "-j", self._job, "-o", "%N").strip()
        job = {
            "SLURM_JOB_ID": self._job,
            "SLURM_JOB_NODELIST": listed,
            "SLURM_JOB_NUM_NODES": str(self._nodes),
        }
        return Driven(folder, arguments, env={**self._slurm.env, **job})
