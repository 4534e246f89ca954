"""A clean stop when a batch system asks for one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class Stopped(KeyboardInterrupt):
    """A signal asks for a clean stop: a time limit comes near, a job is pre-empted."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turns the signals of batch systems into a clean stop.

    Raises:
        Stopped: Inside the block, at the first SIGTERM or SIGUSR1.
    """

    def stop(number: int, frame: object) -> None:
        for other in old:  # the second signal must not interrupt the cleaning up after the first
            signal.signal(other, signal.SIG_IGN)
        raise Stopped

    old = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
