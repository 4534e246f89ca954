"""The command line called in this process: a start of the interpreter with its imports costs two processor seconds."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.app import main

ROOT = Path(__file__).parents[1]


def autotune(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """What `autotune ARGUMENTS` prints in folder `cwd`, and its exit status; any exception but its own is raised."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    words, code = ["autotune", *map(str, arguments)], 0
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(cwd or Path.cwd()):
        for name, value in env.items():
            patch.setenv(name, value)
        with Path(os.devnull).open(encoding="utf-8") as nothing:
            for name, stand_in in {"argv": words, "stdin": nothing, "stdout": out, "stderr": err}.items():
                patch.setattr(sys, name, stand_in)
            try:
                main()
            except SystemExit as end:
                if end.code == os.EX_SOFTWARE and end.__context__:
                    raise end.__context__ from None
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
    out.seek(0), err.seek(0)
    return subprocess.CompletedProcess(words, code, out.read(), err.read())


def autotune_process(
    *arguments: str | Path, cwd: Path | None = None, timeout_s: float = 400, module: str = "autotune", **env: str
) -> subprocess.CompletedProcess[str]:
    """The same of a process of its own, as a user starts it."""
    command, own = [sys.executable, "-m", module, *map(str, arguments)], {"PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=timeout_s
    )


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command and group of commands below one, with its whole name."""
    for name, command in getattr(group, "commands", {}).items():
        yield above + name, command
        yield from commands(command, f"{above}{name} ")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that `exec` would have put in its place, each with its environment."""
    found: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, arguments, environment: found.append((arguments, environment)))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return found
