"""A clean stop: a signal sets a flag, and the places at which the driver waits raise for it.

A handler that raised would do so inside whatever runs then, such as a serializer, which makes
another error of it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 0.5
"""Longest wait, in seconds, between two looks at the flag."""

_requested: list[type[KeyboardInterrupt]] = []


class Stopped(KeyboardInterrupt):
    """A signal requests a clean stop, as a batch system sends it before a time limit or at
    pre-emption.
    """


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Lets `check_stop` raise once inside the block after SIGTERM, SIGUSR1 or Ctrl-C, and at the
    latest at its end.

    Only the main thread can receive signals. Later ones are ignored, for they must not interrupt
    the clean-up, but a second Ctrl-C is raised at once: a person is in a hurry.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before: dict[signal.Signals, Any] = {}
    signals = 0

    def request(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        if signals == 1:
            _requested.append(KeyboardInterrupt if number == signal.SIGINT else Stopped)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT) if is_main else ():
        before[number] = signal.getsignal(number)
        signal.signal(number, request)
    try:
        yield
        check_stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if is_main:
            _requested.clear()


def check_stop() -> None:
    """Raises Stopped, or KeyboardInterrupt after Ctrl-C, in the main thread if a signal has
    requested it.
    """
    if _requested and threading.current_thread() is threading.main_thread():
        raise _requested.pop()


def result_of(future: Future[T]) -> T:
    """Returns the result of a future, waiting for it; raises what its work raised, and as
    `check_stop`.
    """
    while True:
        check_stop()
        try:
            return future.result(timeout=LOOK_EVERY_S)
        except TimeoutError:
            if future.done():  # raised by its work
                raise
