"""Power cuts during a study: what ext4 on a disk with a volatile cache then holds.

A simulated study runs by the real command on ext4 on a loop device on `harness.disks.PowerDisk`.
While it runs, what the disk would hold after a power cut at that moment is copied again and again;
nothing is unmounted or flushed for it. Each copy is mounted, as after the reboot, and must hold all
that the driver had told before the cut began.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.errors import AutotuneError
from autotune.model.records import (
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    TrialResult,
    TrialStatus,
)
from autotune.rundir.damage import damages
from autotune.rundir.store import Store
from harness.disks import ROOT, PowerDisk
from harness.kills import SIMULATED
from harness.simulated_machine import write_study
from harness.tally import tally_of

BYTES = 24 << 20
MOUNTS = (
    "data=ordered,commit=5",
    "data=writeback,commit=60",
    "data=writeback,commit=60,noauto_da_alloc",
    "data=journal,commit=60",
)
"""From what most machines have to what loses most."""

NO_SYNC = "import os\nos.fsync = os.fdatasync = lambda descriptor: None\n"
"""A `sitecustomize` that takes from a driver what this is about: with it, told things must be
missing.
"""

NO_RAW_SYNC = """
import os
_fsync = os.fsync
def _fsync_but_trials(descriptor):
    if "/trials/" not in os.readlink(f"/proc/self/fd/{descriptor}"):
        _fsync(descriptor)
os.fsync = _fsync_but_trials
"""
"""Likewise of the raw samples alone."""


@dataclass(frozen=True)
class Told:
    """How many results of each kind a driver has told, as read from its output."""

    trials: int = 0
    proofs: int = 0
    ablations: int = 0
    conclusions: int = 0

    @staticmethod
    def by(output: str) -> Told:
        """Counts the lines of what a driver printed into a pipe; the last may be cut short."""
        whole = output.rpartition("\n")[0]
        return Told(
            trials=len(re.findall(r"^\[.*?\]   -> ", whole, re.MULTILINE)),
            proofs=len(re.findall(r"^\[.*?\] .*fresh pair \d+ of", whole, re.MULTILINE)),
            ablations=len(
                re.findall(r"^\[.*?\]   without .*: (?:kept|dropped)", whole, re.MULTILINE)
            ),
            conclusions=len(re.findall(r"^next:", whole, re.MULTILINE)),
        )


@dataclass(frozen=True)
class Cut:
    """One power cut: the disk's content, and what had been told before."""

    image: Path
    told: Told
    seconds: float


@contextlib.contextmanager
def mounted(image: Path, point: Path, options: str = "rw") -> Iterator[Path]:
    """An ext4 image on a loop device, mounted; its journal is replayed, as after a reboot."""
    point.mkdir(exist_ok=True)
    find = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount", "-t", "ext4", "-o", options, device, str(point)], check=True)
        try:
            yield point
        finally:
            subprocess.run(["umount", str(point)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def take_cuts(
    folder: Path, *, options: str, count: int, trials: int, seed: int, spoiled_by: str = ""
) -> list[Cut]:
    """Runs one study to its end on a disk whose power is cut so often.

    Args:
        folder: An empty folder, for the study file, the disk and its copies.
        options: Of the mount.
        count: Copies; fewer if the study is faster.
        trials: Of the study.
        seed: Of the moments, and of what of the cache survives.
        spoiled_by: Text of a `sitecustomize` of the driver.

    Raises:
        RuntimeError: If the study failed.
    """
    rng = random.Random(seed)
    cuts: list[Cut] = []
    blank, log, study = folder / "blank", folder / "told", folder / "study.toml"
    with blank.open("wb") as stream:
        stream.truncate(BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-J", "size=4", str(blank)], check=True)
    write_study(study, SIMULATED.format(trials=trials, delay_s=0.008))
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(spoiled_by)
    with (
        PowerDisk(folder / "fuse", blank) as disk,
        mounted(disk.image, folder / "disk", options) as root,
    ):
        begun = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(study, root / "run"),
                env=_environment(folder),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            while not (root / "run").exists() and process.poll() is None:
                time.sleep(0.005)
            while process.poll() is None and len(cuts) < count:
                told, image = Told.by(log.read_text()), folder / f"cut-{len(cuts):03d}"
                at_s = time.monotonic() - begun
                disk.cut(rng.getrandbits(32), image)
                cuts.append(Cut(image, told, at_s))
                # The first ones while the run directory is being made, the others some time after
                # something more was told.
                while len(cuts) >= 4 and process.poll() is None:
                    if Told.by(log.read_text()) != told:
                        break
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 0.02 if len(cuts) < 4 else 0.3))
            if process.wait(timeout=300) != 0:
                raise RuntimeError(log.read_text())
        finally:
            process.kill()
            process.wait()
    return cuts


def command(study: Path, run_dir: Path) -> list[str]:
    """The command that starts the study, and goes on with it."""
    return [
        sys.executable,
        "-m",
        "harness.simulated_machine",
        "run",
        str(study),
        "--run-dir",
        str(run_dir),
    ]


def _environment(folder: Path) -> dict[str, str]:
    path = [str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "XDG_DATA_HOME": str(folder)}


def check_cut(cut: Cut, folder: Path, *, trials: int, resume: bool) -> list[str]:
    """What is wrong with what a cut has left, in words; empty if it holds all that was told.

    Args:
        cut: The cut.
        folder: Where the study file lies and the copy is mounted.
        trials: Of the study.
        resume: Whether the study shall go on there to its end, by the same command.
    """
    with mounted(cut.image, folder / "copy") as root:
        run_dir = root / "run"
        wrong = [*_missing(cut.told, run_dir), *_tracebacks(run_dir)]
        if resume:
            wrong += _go_on(folder, run_dir, trials)
        return wrong


def _missing(told: Told, run_dir: Path) -> Iterator[str]:
    """What was told and is not there, or is not whole."""
    if not (run_dir / "study.json").exists():
        if told != Told():
            yield f"{told} but there is no study.json"
        return
    try:
        store = Store.open(run_dir)
        results = store.of(TrialResult)
        there = Told(
            *(
                len(store.of(kind))
                for kind in (TrialResult, ConfirmRun, AblationResult, ConclusionRecord)
            )
        )
        for name in ("trials", "proofs", "ablations", "conclusions"):
            if getattr(there, name) < getattr(told, name):
                yield f"{getattr(told, name)} {name} were told but {getattr(there, name)} are there"
        for result in results:
            pairs = list(store.pairs(result.directory)) if result.directory else []
            if (
                result.status is TrialStatus.MEASURED
                and result.comparison
                and len(pairs) != result.comparison.pair_count
            ):
                yield (
                    f"trial {result.number} has {len(pairs)} of its "
                    f"{result.comparison.pair_count} pairs"
                )
        yield from damages(store)
    except AutotuneError as error:
        yield str(error).replace(f"{run_dir}/", "")


def _tracebacks(run_dir: Path) -> Iterator[str]:
    """Commands that read and die of what they read."""
    for name in ("show", "status", "report"):
        error = CliRunner().invoke(app, [name, str(run_dir)]).exception
        if not isinstance(error, SystemExit | AutotuneError | None):
            yield f"{name}: {error!r}"


def _go_on(folder: Path, run_dir: Path, trials: int) -> Iterator[str]:
    done = subprocess.run(
        command(folder / "study.toml", run_dir),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**_environment(folder), "PYTHONPATH": str(ROOT)},
    )
    if done.returncode != 0:
        yield f"does not go on: {(done.stdout + done.stderr)[-600:]}"
        return
    found: dict[str, Any] = tally_of(run_dir)
    exact = {
        "trials": trials,
        "lost": 0,
        "doubled": 0,
        "trials_with_wrong_samples": 0,
        "conclusions": 1,
    }
    yield from (
        f"{name} is {found[name]}, not {value}"
        for name, value in exact.items()
        if found[name] != value
    )
