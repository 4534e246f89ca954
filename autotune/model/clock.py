"""A stopwatch that goes on over sessions, and stands still while the process does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

LOOK_EVERY_S = 2.0
LONGEST_GAP_S = 30.0  # a longer one between two looks means a suspended driver


class Stopwatch:
    """Seconds of a study over all sessions; `ticking` leaves out times of a suspended driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.earlier_s = 0.0
        """Seconds of earlier sessions; this one began with the stopwatch."""
        self._clock = clock
        self._last = clock()
        self._session_s = 0.0
        self._is_held = False
        self._lock = threading.Lock()

    def hold(self, is_held: bool) -> None:
        """Stops or continues counting: time without any lane does not count."""
        self._look()
        self._is_held = is_held

    def _look(self) -> None:
        with self._lock:
            previous = self._last
            self._last = self._clock()
            gap = self._last - previous
            if not self._is_held and gap <= LONGEST_GAP_S:
                self._session_s += gap

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Looks for gaps every few seconds while inside."""
        ended = threading.Event()

        def look_on() -> None:
            while not ended.wait(LOOK_EVERY_S):
                self._look()

        ticker = threading.Thread(target=look_on, name="stopwatch", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()

    @property
    def session_s(self) -> float:
        """Seconds of this session."""
        self._look()
        return self._session_s

    @property
    def total_s(self) -> float:
        """Seconds of all sessions."""
        return self.earlier_s + self.session_s
