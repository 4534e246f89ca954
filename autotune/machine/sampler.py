"""A thread that looks again and again while something else is waited for."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

LOWEST = 19
"""Niceness of the thread: whatever else the machine has to do goes first."""

PATIENCE_S = 5.0
"""How long a look under way may take once nothing is waited for any more: a driver of a dying GPU may never answer."""


class Stuck(Exception):
    """A look did not come back."""


@contextlib.contextmanager
def looking(look: Callable[[], None], every_s: float, *, after_s: float = 0.0) -> Iterator[None]:
    """Looks again and again, in a thread of the lowest priority, for as long as the block of code takes.

    What it looks at is measured by another process, so neither Python's lock nor a processor is taken from it: this
    process does nothing meanwhile but wait for the other's answer.

    Args:
        look: Takes one look.
        every_s: Seconds between two looks, and before the first.
        after_s: Seconds besides, before the first.

    Raises:
        Stuck: If the last look does not come back; its thread is left behind.
    """
    stop = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)  # on Linux of this thread alone
        ended = stop.wait(after_s)
        while not ended and not stop.wait(every_s):
            look()

    thread = threading.Thread(target=run, daemon=True, name="gpu-looks")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    if thread.is_alive():
        raise Stuck
