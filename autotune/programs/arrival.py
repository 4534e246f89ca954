"""Tells whether settings arrive in a program that takes the place of this process (`autotune exec`)."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.child.processes import xla_processes
from autotune.machine.environment import variables_of
from autotune.model.flags import FlagSet
from autotune.workers.settings_check import check_processes, files_that_name

ASK_EVERY_S = 1.0
LIMIT_S = 3600.0
"""Longest wait for a program to load XLA."""


def watch_arrival(settings: FlagSet, command: Sequence[str], folder: Path) -> Callable[[], None]:
    """Starts a process that tells on standard error whether settings arrived, once this one has become a program.

    It is no child of the program, whose own waiting for children it would disturb, and ends with it.

    Returns:
        A function that calls the watching off, for a program that cannot be started.

    Raises:
        OSError: If no process can be started, or the kernel is older than Linux 5.3.
    """
    pid = os.getpid()
    program = os.pidfd_open(pid)
    begun, is_replaced = os.pipe()  # closed when another program takes the place of this one
    if (between := os.fork()) == 0:
        try:
            if os.fork() == 0:
                os.close(is_replaced)
                _watch(pid, program, begun, settings, command, folder)
        finally:
            os._exit(0)
    os.waitpid(between, 0)
    os.close(program)
    os.close(begun)

    def call_off() -> None:
        os.write(is_replaced, b"-")
        os.close(is_replaced)

    return call_off


def _watch(pid: int, program: int, begun: int, settings: FlagSet, command: Sequence[str], folder: Path) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # a reader of the program's output must not wait for this process
        os.dup2(nothing, stream)
    if os.read(begun, 1):
        return
    lines = _seen(pid, program, settings, command, folder)
    os.write(2, "".join(f"autotune: {line}\n" for line in lines).encode())


def _seen(pid: int, program: int, settings: FlagSet, command: Sequence[str], folder: Path) -> list[str]:
    """Waits until the program has loaded XLA, and says whether the settings arrived in its processes."""
    names, deadline = variables_of(settings), time.monotonic() + LIMIT_S
    processes: list[dict[str, Any]] = []
    while time.monotonic() < deadline and not select.select([program], [], [], ASK_EVERY_S)[0]:
        earlier, processes = processes, xla_processes(pid, names)
        if processes and processes == earlier:
            break
    if not processes:
        return ["not applied, as far as can be seen: no process of the program has loaded XLA"]
    check = check_processes(settings, processes)
    if check.lost:
        return [f"not applied: {line}" for line in check.lost]
    if not any("values" in p for p in processes):
        return [f"not applied, as far as can be seen: {note}" for note in check.notes]
    scripts = [s for s in files_that_name("XLA_FLAGS", command, folder) if s.endswith(".py")]
    if scripts and settings.of_kind("xla"):
        return [f"it cannot be seen whether they are applied: {scripts[0]} names XLA_FLAGS, and may set them itself"]
    where = ", ".join(str(p["pid"]) for p in processes)
    return [f"applied: the program's process {where} was started with them and has loaded XLA"]
