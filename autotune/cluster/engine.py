"""The base of engines, whose lanes do one unit of work at a time; and the engine of processes.

An engine keeps no state that a study needs: a lost lane or a killed driver loses only the unit in
hand.

Every message is a flat JSON object with a ``type``. A lane receives ``study`` once, then one
``unit`` after the other. It sends any number of messages for each unit, the last of them one of
`ANSWERS`. The engine itself adds two:

* ``joined``: the lane is there, with ``host`` and ``devices`` (their number, None until known).
* ``left``: the lane is gone, with ``why``; its unit is lost. It may join again.
"""

from __future__ import annotations

import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autotune.machine.environment import (
    Environment,
    caller_environment,
    driver_python,
    with_packages,
)
from autotune.machine.slurm import slurm_client_environment, slurm_step_command
from autotune.model.clock import Stopwatch
from autotune.model.errors import NodeLostError
from autotune.workers.base import SET_BY_NODE, GuardedProcess, WorkerFailed
from autotune.workers.srun import NODES_VARIABLE

JOINED = "joined"
LEFT = "left"
# Types of messages that end a unit: its result, or the error for which the study cannot go on.
ANSWERS = frozenset({"result", "error"})

Message = Mapping[str, Any]

LANE_COMMAND = ("-m", "autotune.measure.lane")
LOG_BYTES = 1_000_000
PATIENCE_S = 15.0
START_LIMIT_S = 300.0  # of a first message, which a busy controller or disk delays
MOST_STARTS = 5
PAUSE_S = 2.0  # before a lane starts again, times the number of its starts


class LaneMessage(NamedTuple):
    """A message and the lane that sent it."""

    lane: str
    message: Message


class Engine(ABC):
    """Lanes of this machine, of a SLURM job's nodes, or of a Dask cluster; called from one thread.

    An engine of your own is named by its class: ``autotune run STUDY --scheduler my_engine:Pair``.
    Most are a subclass of `Processes` that places lanes elsewhere.

    Example:
        class Pair(Processes):
            def __init__(self, study, run):
                places = lanes_here([["0"], ["1"]], host="here")
                super().__init__(study, run, places=places, words="two lanes")

    Args:
        study: The first message to each lane.
        run: The run directory.

    Attributes:
        words: Where the lanes are, as text for messages: ``4 lanes of this machine``.

    Raises:
        LaunchError: If there can be no lane.
    """

    words: str

    @abstractmethod
    def __init__(self, study: Message, run: Path) -> None: ...

    @abstractmethod
    def begin(self, lane: str, message: Message) -> None:
        """Gives a free lane a unit, without waiting; a lane that is gone answers with ``left``."""

    @abstractmethod
    def news(self, wait_s: float) -> list[LaneMessage]:
        """Returns the lanes' messages, each lane's in order; waits up to `wait_s` for the first.

        Raises:
            LaunchError: If there is no lane and none can come any more, with what to do.
        """

    @abstractmethod
    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Ends a lane, which then sends ``left``; it may join again unless `for_good`."""

    @abstractmethod
    def close(self) -> None:
        """Ends every lane and all of its processes, within seconds; safe to call twice."""


class Place(NamedTuple):
    """Where one lane runs."""

    # Name of the lane, the same in every session, so that its A/A run is not repeated.
    name: str
    host: str
    env: Environment  # of the lane program, or of `through`
    # Command that starts the lane's guard on another machine, such as ``srun ...``.
    through: Sequence[str] = ()
    # Environment of a lane program started through `through`; its node adds its own variables.
    remote_env: Environment | None = None
    devices: int | None = None  # None if only the reference can tell
    ids: Sequence[str] = ()  # of its devices; empty for all of its machine


@dataclass
class _Lane:
    place: Place
    process: GuardedProcess | None = None
    ending: threading.Thread | None = None
    began_s: float = 0.0
    starts: int = 0
    again_s: float = 0.0
    has_joined: bool = False
    is_given_up: bool = False
    last_why: str = ""


class Processes(Engine):
    """Lanes side by side on this machine's devices, or steps on nodes of a job; see `Engine`.

    Each lane program runs behind a guard, which ends everything below it when the driver ends,
    however that was. Its log lies in the folder ``lanes`` of the run directory.

    Args:
        places: Where the lanes run: `lanes_here`, `lanes_on_nodes`, or a `Place` for each.
    """

    def __init__(self, study: Message, run: Path, *, places: Sequence[Place], words: str) -> None:
        self.words = words
        self._study = study
        self._logs = run / "lanes"
        self._logs.mkdir(mode=run.stat().st_mode & 0o777, exist_ok=True)
        self._lanes = {place.name: _Lane(place) for place in places}
        self._watch = Stopwatch()  # does not count while a job is suspended
        self._messages: list[LaneMessage] = []

    def begin(self, lane: str, message: Message) -> None:
        """See `Engine`."""
        process = self._lanes[lane].process
        if process is not None:  # otherwise its `left` is on the way
            process.send(message)

    def news(self, wait_s: float) -> list[LaneMessage]:
        """See `Engine`."""
        for lane in self._lanes.values():
            self._look_after(lane)
        if not self._messages:
            running = [x.process.descriptor for x in self._lanes.values() if x.process is not None]
            if not running:
                wait_s = min(wait_s, 0.1)
            select.select(running, [], [], wait_s)
            for lane in self._lanes.values():
                self._hear(lane)
        if not self._messages and all(x.is_given_up for x in self._lanes.values()):
            reasons = "; ".join(f"{name}: {lane.last_why}" for name, lane in self._lanes.items())
            raise NodeLostError(
                f"a study must have at least one lane but all of {self.words} are gone "
                f"({reasons[:1000]}); see {self._logs.name}/*.log in its run directory; run the "
                "same command again, on other nodes if need be, and it continues"
            )
        messages = self._messages
        self._messages = []
        return messages

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """See `Engine`; unless `for_good` the lane starts again, for its machine may be well."""
        self._end(self._lanes[lane], why, for_good=for_good)

    def close(self) -> None:
        """See `Engine`."""
        for lane in self._lanes.values():
            self._end(lane, "the study has ended", for_good=True)
        for lane in self._lanes.values():  # they end side by side
            if lane.ending is not None:
                lane.ending.join()

    def _look_after(self, lane: _Lane) -> None:
        """Starts a lane that has no process, if it may join again."""
        now_s = self._watch.session_s
        if lane.process is not None:
            if not lane.has_joined and now_s - lane.began_s > START_LIMIT_S:
                self._end(lane, f"it did not start within {START_LIMIT_S:.0f} s")
            return
        is_ending = lane.ending is not None and lane.ending.is_alive()
        if is_ending or lane.is_given_up or now_s < lane.again_s:
            return
        lane.starts += 1
        lane.began_s = now_s
        lane.has_joined = False
        place = lane.place
        try:
            lane.process = GuardedProcess(
                [driver_python(), *LANE_COMMAND],
                place.env,
                self._logs / f"{place.name}.log",
                LOG_BYTES,
                through=place.through,
                remote_env=place.remote_env,
            )
        except WorkerFailed as error:
            self._end(lane, str(error))
            return
        lane.process.send({**self._study, "devices": [*place.ids]})

    def _hear(self, lane: _Lane) -> None:
        """Passes on what a lane's program sends; its first message means that it has joined."""
        place = lane.place
        process = lane.process
        if process is None:
            return
        for message in process.receive():
            if message["type"] == "exit":
                self._end(lane, process.why_ended())
                return
            if message["type"] == "hello":
                continue
            if not lane.has_joined:
                lane.has_joined = True
                joined = {"type": JOINED, "host": place.host, "devices": place.devices}
                self._messages.append(LaneMessage(place.name, joined))
            if message["type"] == "result":
                lane.starts = 1
            self._messages.append(LaneMessage(place.name, message))

    def _end(self, lane: _Lane, why: str, *, for_good: bool = False) -> None:
        """Ends a lane's process in a thread (a lost node takes long), and plans its next start."""
        if lane.process is not None:
            close = lane.process.close
            lane.ending = threading.Thread(target=close, args=(PATIENCE_S,), name="ending")
            lane.ending.start()
            lane.process = None
        lane.is_given_up = for_good or lane.starts >= MOST_STARTS
        lane.again_s = self._watch.session_s + PAUSE_S * lane.starts
        lane.last_why = why
        self._messages.append(LaneMessage(lane.place.name, {"type": LEFT, "why": why}))


def lanes_here(groups: Sequence[Sequence[str]], host: str) -> list[Place]:
    """Places a lane on each group of device ids of this machine."""
    env = with_packages(caller_environment())
    return [
        Place(
            name=f"{group[0]}-{group[-1]}" if len(group) > 1 else f"device-{group[0]}",
            host=host,
            env=env,
            devices=len(group),
            ids=group,
        )
        for group in groups
    ]


def lanes_on_nodes(
    nodes: Sequence[str], *, devices: int | None, extra: Sequence[str]
) -> list[Place]:
    """Places a lane on each of some nodes of this SLURM job; `extra` are options of ``srun``."""
    client = slurm_client_environment(caller_environment())
    env = {n: v for n, v in with_packages(caller_environment()).items() if n not in SET_BY_NODE}
    return [
        Place(
            name=node,
            host=node,
            env=client,
            remote_env=env,
            devices=devices,
            through=slurm_step_command(node, client, f"--job-name=lane-{node}", *extra),
        )
        for node in nodes
    ]


def lanes_of_groups(groups: Sequence[Sequence[str]], *, devices: int | None) -> list[Place]:
    """Places a lane on each group of nodes of this SLURM job; the first node names the lane.

    Its program runs here, its trials' ranks on the nodes. `devices` are the GPUs of each group.
    """
    env = with_packages(caller_environment())
    return [
        Place(name=g[0], host=g[0], env={**env, NODES_VARIABLE: ",".join(g)}, devices=devices)
        for g in groups
    ]
