"""A clean stop: a signal sets a flag, and the places at which the driver waits raise for it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 0.5  # longest wait, in seconds, between two looks at the flag

_requested: list[type[KeyboardInterrupt]] = []


class Stopped(KeyboardInterrupt):
    """A batch system requests a clean stop, before a time limit or at pre-emption."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Lets `check_stop` raise once after SIGTERM, SIGUSR1 or Ctrl-C, at the latest at the end.

    Later signals must not interrupt the clean-up; a second Ctrl-C is raised at once.
    """
    if not _is_main():
        yield
        return
    requests = {signal.SIGTERM: Stopped, signal.SIGUSR1: Stopped, signal.SIGINT: KeyboardInterrupt}
    handlers = {number: signal.getsignal(number) for number in requests}
    is_first = True

    def request(number: int, frame: object) -> None:
        nonlocal is_first
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, handlers[signal.SIGINT])
        if is_first:
            _requested.append(requests[signal.Signals(number)])
        is_first = False

    for number in requests:
        signal.signal(number, request)
    try:
        yield
        check_stop()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _requested.clear()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def check_stop() -> None:
    """Raises Stopped, or KeyboardInterrupt after Ctrl-C, in the main thread once a signal came."""
    if _requested and _is_main():
        raise _requested.pop()


def result_of(future: Future[T]) -> T:
    """Waits for the result of a future; raises what its work raised, and as `check_stop`."""
    while True:
        check_stop()
        try:
            return future.result(timeout=LOOK_EVERY_S)
        except TimeoutError:
            if future.done():  # raised by its work
                raise
