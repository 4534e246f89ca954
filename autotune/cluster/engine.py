"""Where the work of a study is done: lanes, and the engines that offer them.

A lane is a place that does one unit of work at a time, whole, reference and candidate on the same hardware. The driver
gives it a message and gets messages back; what they say is between `autotune.study` and its lane program. An engine
carries them, tells which lanes come and go, and ends what runs on them. It knows nothing of trials and keeps no state
that a study needs: a lane that is lost, or a driver that dies, loses the unit in hand and nothing else. What a lane
says after it was given up has no reader.

Every message is a flat JSON object with a ``type``. To a lane: first ``study`` (once), then one ``unit`` after the
other. From it: any number of messages on the way, and at last one of `ANSWERS`. The engine itself adds two:

* ``joined``: there is a lane, with ``name``, ``host`` and ``devices`` (how many; None if it is not known yet); it is
  free, and knows nothing of earlier lanes of that name.
* ``left``: it is gone, with ``why``; a unit in hand is lost. It may join again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

JOINED, LEFT = "joined", "left"
ANSWERS = frozenset({"result", "error"})
"""What ends a unit: its result, or why the study cannot go on."""

Message = Mapping[str, Any]


class Told(NamedTuple):
    """One message and the lane that it comes from."""

    lane: str
    message: Message


class Engine(Protocol):
    """Lanes of one kind: of this machine, of a SLURM job's nodes, or of a Dask cluster.

    Not thread-safe: one driver calls it from one thread.
    """

    @property
    def words(self) -> str:
        """Where the lanes are, for people: ``4 lanes of this machine``."""

    def begin(self, lane: str, message: Message) -> None:
        """Gives a free lane a unit; returns at once. A lane that is gone answers with ``left``."""

    def news(self, wait_s: float) -> list[Told]:
        """What lanes have said, in the order of each; waits at most so many seconds for the first message.

        Raises:
            LaunchError: If there is no lane and none can come any more, with what to do.
        """

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Ends a lane that is silent, and may join again, or is of no use, and may not; its ``left`` follows.

        Args:
            lane: Its name.
            why: In words.
            for_good: Whether it is of no use: the engine does not offer it again.
        """

    def close(self) -> None:
        """Ends every lane and everything below it, within seconds; safe to call twice."""


def open_dask(study: Message, **options: Any) -> Engine:
    """The workers of a Dask cluster; see `dask_engine.DaskEngine`. No other study needs Dask to be installed."""
    from autotune.cluster.dask_engine import DaskEngine

    return DaskEngine(study, **options)
