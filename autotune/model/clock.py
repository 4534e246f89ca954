"""A stopwatch that goes on over sessions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class Stopwatch:
    """Seconds since the study began over all sessions, and how many of them the driver only waited.

    Args:
        before_s: Wall seconds of earlier sessions.
        clock: A monotonic clock; clock jumps do not reach it.
    """

    def __init__(self, before_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._before_s = before_s
        self._lock = threading.Lock()
        self._waiters = 0
        self._since = 0.0
        self.waited_s = 0.0

    def go_on_from(self, before_s: float) -> None:
        """Counts from what earlier sessions took; this one begins now."""
        self._before_s, self._start, self.waited_s = before_s, self._clock(), 0.0

    @property
    def session_s(self) -> float:
        """Wall seconds of this session."""
        return self._clock() - self._start

    @property
    def total_s(self) -> float:
        """Wall seconds of the study so far, all sessions together."""
        return self._before_s + self.session_s

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for workers, not as the driver's own; once, if threads wait together."""
        with self._lock:
            if self._waiters == 0:
                self._since = self._clock()
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1
                if self._waiters == 0:
                    self.waited_s += self._clock() - self._since
