"""A driver started by the real command, and all processes below it, on whatever node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from autotune.rundir.store import RECORDS

ROOT = Path(__file__).parents[1]
MARK = "AUTOTUNE_STARTED_BY"
LANE, MEASURE = "autotune.measure.lane", "autotune.child.measure"


class Driven:
    """One session of a study: ``autotune run``.

    Args:
        folder: The study file lies there (``study.toml``), the run directory is made there
            (``run``). Its path marks all processes of the study, of this session and of others.
        arguments: More of the command line.
        env: In place of this process's environment.
        program: What runs ``autotune``; default: on the simulated machine that is described beside
            the study, if any.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str] = (),
        *,
        env: Mapping[str, str] = os.environ,
        program: Sequence[str] = ("-m", "harness.simulated_machine"),
    ) -> None:
        self.mark = str(folder)
        self.run = folder / "run"
        self._log = folder / "driver.log"
        self._written = _size(self.run / RECORDS)
        own = marking(folder, env)
        command = [
            sys.executable,
            *program,
            "run",
            "study.toml",
            "--run-dir",
            str(self.run),
            *arguments,
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=own, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    @property
    def said(self) -> str:
        """What all drivers of this folder have printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    @property
    def recorded(self) -> int:
        """Bytes of records so far, of all sessions."""
        return _size(self.run / RECORDS)

    @property
    def has_written(self) -> bool:
        """Whether this session has recorded anything."""
        return self.recorded > self._written

    def wait(self, limit_s: float = 300.0) -> int:
        """Waits for its end; gives its exit status."""
        return self.process.wait(timeout=limit_s)

    def tell(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def lanes(self) -> dict[str, psutil.Process]:
        """Lane programs that are alive, by the lanes' names."""
        found = {}
        for process in _running(self.mark, LANE):
            guard = process.parent()
            with contextlib.suppress(psutil.Error):
                logs = (
                    [a for a in guard.cmdline() if a.endswith(".log")] if guard is not None else []
                )
                found[Path(logs[0]).stem if logs else f"process {process.pid}"] = process
        return found

    def measuring(self) -> list[psutil.Process]:
        """Processes that measure: reference or candidate, in the midst of a unit."""
        return _running(self.mark, MEASURE)

    def left(self, patience_s: float = 15.0) -> list[psutil.Process]:
        """Processes of this folder that are still there after some seconds; none should be."""
        end = time.monotonic() + patience_s
        while (alive := marked(self.mark)) and time.monotonic() < end:
            time.sleep(0.05)
        return alive


def marking(folder: Path, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment for the study of a folder, which also keeps files of the user's folders.

    Devices are held in the folder for temporary files, so no other study of this machine is in the
    way.
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    own = {
        MARK: str(folder),
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(folder / "data"),
        "TMPDIR": str(temporary),
    }
    return {**env, **own}


def marked(mark: str) -> list[psutil.Process]:
    """Living processes, this one excepted, whose environment or command line holds some text."""
    found = []
    for process in psutil.process_iter():
        try:
            text = f"{process.environ()} {process.cmdline()}"
            if (
                mark in text
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _running(mark: str, module: str) -> list[psutil.Process]:
    """Those that run a module of ours, their guards and carriers left out."""
    found = []
    for process in marked(mark):
        try:
            if process.cmdline()[1:3] == ["-m", module]:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
