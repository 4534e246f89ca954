"""What a study has used up: hours of devices, over all sessions, from monotonic clocks alone."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.model import LedgerRecord
from autotune.rundir import Store

WRITE_EVERY_S = 60.0
"""What a driver that is killed may leave uncounted."""

NEWS_EVERY_S = 5.0
"""How soon it is written down that a lane has come or gone."""


class Ledger:
    """Counts while a study runs, from where the last session stopped.

    A device counts while it stands ready, at work or not, for that is what a cluster charges. Time in a queue, a pause
    of the job and a jump of the clock do not count: the study's stopwatch leaves them out.

    Args:
        store: The run directory, locked.

    Attributes:
        device_s: Device-seconds of all sessions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        last = store.last(LedgerRecord)
        self.device_s = last.device_s if last else 0.0
        self._counted_s = self._written_s = store.watch.total_s
        self._lanes: tuple[str, ...] = ()

    def count(self, devices: int) -> None:
        """Adds the time since the last look for so many devices."""
        now_s = self._store.watch.total_s
        self.device_s += (now_s - self._counted_s) * devices
        self._counted_s = now_s

    def write_if_due(self, lanes: Sequence[str]) -> None:
        """Writes it down if that was long ago, or lanes have come or gone since."""
        every_s = WRITE_EVERY_S if tuple(filter(None, lanes)) == self._lanes else NEWS_EVERY_S
        if self._store.watch.total_s - self._written_s >= every_s:
            self.write(lanes)

    def write(self, lanes: Sequence[str]) -> None:
        """Writes it down, with the lanes that are there now."""
        self._lanes = tuple(filter(None, lanes))
        self._store.append(LedgerRecord(device_s=round(self.device_s, 3), lanes=self._lanes))
        self._written_s = self._store.watch.total_s
