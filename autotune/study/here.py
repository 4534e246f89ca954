"""The engine of a study with one lane: this very process."""

from __future__ import annotations

import socket

from autotune.cluster import JOINED, Message, Told
from autotune.study.runner import Runner
from autotune.study.units import Assignment

ONLY = ""
"""Name of the only lane: its records need none."""


class Here:
    """See `autotune.cluster.Engine`.

    Args:
        runner: Does the work; its desk is the driver's own.
    """

    words = "this process"

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._has_joined = False
        self._next: Assignment | None = None

    def begin(self, lane: str, message: Message) -> None:
        """Takes a unit; it is done when news are asked for."""
        self._next = Assignment.model_validate(message["assignment"])

    def news(self, wait_s: float) -> list[Told]:
        """Does what there is to do, however long it takes."""
        if not self._has_joined:
            self._has_joined = True
            return [Told(ONLY, {"type": JOINED, "host": socket.gethostname(), "devices": None})]
        if self._next is None:
            return []
        assignment, self._next = self._next, None
        return [Told(ONLY, {"type": "result", "record": self.runner.do(assignment)})]

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Ends what runs."""
        self.runner.close()

    def close(self) -> None:
        """Ends every process that was started."""
        self.runner.close()
