"""Chooses the kind of a process's own folder, which `autotune.child.own_folder` then makes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from autotune.child.own_folder import COPY, OVERLAY, WRITTEN
from autotune.machine.environment import Environment, driver_python
from autotune.machine.files import FOLDERS, Scratch
from autotune.workers.base import reader_command

CHECK_LIMIT_S = 10.0

COPY_BYTES = 1 << 30  # limit of a folder that is copied for each process
COPY_FILES = 20_000  # likewise of its files
SHARED = "shared"

TEMPORARY_VARIABLES = ("TMPDIR", "TMP", "TEMP")


class OwnFolder:
    """The folder of one process, as `workload.folder` says; made when that starts.

    Its `kind` is ``overlay``, ``copy`` or ``shared``. A `warning` says what is not kept apart, and
    why. The process runs in `cwd`; what it writes to its own folder lies in `place`.
    """

    def __init__(self, folder: str, wanted: Literal["own", "shared"]) -> None:
        self._folder = os.path.realpath(folder)
        self.kind, self.warning = kind_for(self._folder) if wanted == "own" else (SHARED, "")
        self._scratch = Scratch(FOLDERS)
        self._temporary = self._scratch.path / "tmp"
        self._temporary.mkdir()
        self.cwd = self._folder
        if self.kind == COPY:
            self.cwd = str(self._scratch.path / COPY)
        self.place = Path(self.cwd)
        if self.kind == OVERLAY:
            self.place = self._scratch.path / f"{WRITTEN}-0"

    def added_to(self, environment: Environment) -> Environment:
        """Returns an environment in which temporary files go into the process's folder, too."""
        if self.kind == SHARED:
            return environment
        return {**environment, **dict.fromkeys(TEMPORARY_VARIABLES, str(self._temporary))}

    def command(self, command: Sequence[str], kept: Sequence[Path]) -> list[str]:
        """Returns the command that makes the folder, `kept` paths apart, and becomes `command`."""
        if self.kind == SHARED:
            return list(command)
        paths = [self._folder, str(self._scratch.path), *map(os.path.realpath, kept)]
        return [*reader_command("own_folder"), self.kind, *paths, "--", *command]

    def written(self) -> list[str]:
        """Returns the files that the process has written, relative to an overlay; else none."""
        if self.kind != OVERLAY:
            return []
        return sorted(
            str(path.relative_to(self.place))
            for path in self.place.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )

    def size(self) -> tuple[int, int] | None:
        """Returns the number of files written in an overlay, and their bytes; None of others."""
        if self.kind != OVERLAY:
            return None
        sizes = []
        for name in self.written():
            with contextlib.suppress(OSError):
                sizes.append((self.place / name).lstat().st_size)
        return len(sizes), sum(sizes)

    def close(self) -> None:
        """Throws away what was written; safe to call twice."""
        self._scratch.close()


@cache
def kind_for(folder: str) -> tuple[str, str]:
    """Returns the kind of folder that stands in for `folder` here, and a warning."""
    problem = overlay_problem(folder)
    if not problem:
        return OVERLAY, ""
    because = f"no overlay can be mounted over {folder} ({problem})"
    if not _is_too_large(folder):
        return COPY, (
            f"{because}, so each process runs in a copy of it: what the program writes by "
            "absolute paths is not caught"
        )
    return SHARED, (
        f"{because}, and it is too large for a copy ({COPY_BYTES >> 30} GiB, {COPY_FILES} files), "
        "so all processes of the study write into it: send what the program writes to {folder} in "
        "its arguments, or start the study in a folder with the program alone"
    )


def overlay_problem(folder: str) -> str:
    """Returns why no overlay can be mounted over a folder and written into; empty if one can."""
    writes = f"open('.autotune-{secrets.token_hex(6)}', 'x').close()"
    try:
        with contextlib.closing(Scratch(FOLDERS)) as scratch:
            prefix = [*reader_command("own_folder"), OVERLAY, folder, str(scratch.path)]
            result = subprocess.run(
                [*prefix, "--", driver_python(), "-I", "-S", "-c", writes],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CHECK_LIMIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"the kernel gave no answer in {CHECK_LIMIT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if result.returncode == 0:
        return ""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].rpartition(": ")[2] if lines else f"status {result.returncode}"


def _is_too_large(folder: str) -> bool:
    """Returns whether a folder is too large to be copied for each process."""
    size = 0
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    for count, file in enumerate(files, start=1):
        size += file.lstat().st_size
        if size > COPY_BYTES or count > COPY_FILES:
            return True
    return False
