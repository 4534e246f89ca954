"""A stopwatch that goes on over sessions, and stands still while the process does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

LOOK_EVERY_S = 2.0
LONGEST_GAP_S = 30.0
"""Between two looks of a driver that is at work. A longer gap is a pause: the job or machine was
suspended.
"""


class Stopwatch:
    """Seconds since the study began over all sessions.

    Inside `ticking`, time in which the driver stood still (SLURM's ``scontrol suspend``, a closed
    lid, a debugger) is seen as a gap and not counted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._before_s = self._session_s = 0.0
        self._is_held = False
        self._lock = threading.Lock()

    def go_on_from(self, before_s: float) -> None:
        """Continues from the seconds of earlier sessions; this one began with the stopwatch."""
        self._before_s = before_s

    def hold(self, is_held: bool) -> None:
        """Stops or continues counting: time without any lane does not count."""
        self._look()
        self._is_held = is_held

    def _look(self) -> None:
        with self._lock:
            now = self._clock()
            gap = now - self._last
            self._last = now
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
        return self._before_s + self.session_s
