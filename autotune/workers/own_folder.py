"""Gives each process of a user's command a folder of its own, so that the user's folder stays as it
was.

`autotune.child.own_folder` makes the folder, beside the process. Here is decided how, and it is
removed.
"""

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
COPY_BYTES, COPY_FILES = 1 << 30, 20_000
"""Limits of a folder that is copied for each process where no overlay can be mounted."""

SHARED = "shared"

TEMPORARY = "tmp"
"""Folder of temporary files in the scratch folder of a process."""

TEMPORARY_VARIABLES = ("TMPDIR", "TMP", "TEMP")


class OwnFolder:
    """The folder in which one process runs, as `workload.folder` says; made when it starts, removed
    by `close`.

    Attributes:
        kind: ``overlay``, ``copy`` or ``shared``.
        warning: What is not kept apart, and why; empty if all is or nothing is to be.

    Raises:
        OSError: If the temporary folder cannot be written.
    """

    def __init__(self, folder: str, wanted: Literal["own", "shared"]) -> None:
        self._folder = os.path.realpath(folder)
        self.kind, self.warning = kind_for(self._folder) if wanted == "own" else (SHARED, "")
        self._scratch = Scratch(FOLDERS)
        (self._scratch.path / TEMPORARY).mkdir()

    @property
    def cwd(self) -> str:
        """Absolute path in which the process runs."""
        return str(self._scratch.path / COPY) if self.kind == COPY else self._folder

    @property
    def place(self) -> Path:
        """Folder in which the files lie that the process writes to its own."""
        return self._scratch.path / f"{WRITTEN}-0" if self.kind == OVERLAY else Path(self.cwd)

    def added_to(self, environment: Environment) -> dict[str, str]:
        """Returns an environment in which temporary files go into a folder of the process's own,
        too.
        """
        if self.kind == SHARED:
            return dict(environment)
        return {
            **environment,
            **dict.fromkeys(TEMPORARY_VARIABLES, str(self._scratch.path / TEMPORARY)),
        }

    def command(self, command: Sequence[str], kept: Sequence[Path]) -> list[str]:
        """Returns the command that makes the folder and becomes `command`; the content of `kept`
        paths is kept.
        """
        if self.kind == SHARED:
            return list(command)
        paths = [self._folder, str(self._scratch.path), *map(os.path.realpath, kept)]
        return [*reader_command("own_folder"), self.kind, *map(str, paths), "--", *command]

    def written(self) -> list[str]:
        """Returns the files that the process has written in the folder, if it is an overlay,
        relative to it.
        """
        found = self.place.rglob("*") if self.kind == OVERLAY else ()
        return sorted(
            str(p.relative_to(self.place))
            for p in found
            if p.is_file() and "__pycache__" not in p.parts
        )

    def size(self) -> tuple[int, int] | None:
        """Returns how many files the process has written in the folder, and their bytes, if it is
        an overlay.
        """
        if self.kind != OVERLAY:
            return None
        sizes = []
        for name in self.written():
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(self.place / name).st_size)
        return len(sizes), sum(sizes)

    def close(self) -> None:
        """Throws away what was written; safe to call twice."""
        self._scratch.close()


@cache
def kind_for(folder: str) -> tuple[str, str]:
    """Returns the kind of folder that a process can be given here in place of `folder`, and a
    warning.
    """
    if not (problem := overlay_problem(folder)):
        return OVERLAY, ""
    because = f"no overlay can be mounted over {folder} ({problem})"
    if not _is_too_large(folder):
        return COPY, (
            f"{because}, so each process runs in a copy of it: what the program writes by "
            "absolute paths is not caught"
        )
    return SHARED, (
        f"{because}, and it is too large for a copy ({COPY_BYTES >> 30} GiB, {COPY_FILES} "
        "files), so all processes of "
        "the study write into it: send what the program writes to {folder} in its arguments, or "
        "start the study in a "
        "folder with the program alone"
    )


def overlay_problem(folder: str) -> str:
    """Tries to mount an overlay over a folder, and to write into it; returns why not, empty if it
    can.
    """
    name = f".autotune-{secrets.token_hex(6)}"
    try:
        with contextlib.closing(Scratch(FOLDERS)) as scratch:
            command = [
                *reader_command("own_folder"),
                OVERLAY,
                folder,
                str(scratch.path),
                "--",
                driver_python(),
            ]
            done = subprocess.run(
                [*command, "-I", "-S", "-c", f"open({name!r}, 'x').close()"],
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
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return (
        ""
        if done.returncode == 0
        else said[-1].rpartition(": ")[2]
        if said
        else f"status {done.returncode}"
    )


def _is_too_large(folder: str) -> bool:
    """Returns whether a folder is too large to be copied for each process."""
    total = 0
    files = (Path(here, name) for here, _, names in os.walk(folder) for name in names)
    for count, file in enumerate(files, start=1):
        total += file.lstat().st_size
        if total > COPY_BYTES or count > COPY_FILES:
            return True
    return False
