"""Lanes that are processes: of this machine, side by side on its devices, or steps on the nodes of a SLURM job.

Each lane program runs behind a guard, which ends everything below it when the driver ends, however that was. SLURM
places a step, kills it and knows which nodes are gone; here is only noticed that a step has ended.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.cluster.engine import JOINED, LEFT, Message, Told
from autotune.machine import (
    caller_environment,
    driver_python,
    let_import_packages,
    slurm_client_environment,
    slurm_step_command,
)
from autotune.model import NodeLostError
from autotune.workers import NODES_VARIABLE, SET_BY_NODE, GuardedProcess, WorkerFailed

LANE_COMMAND = ("-m", "autotune.study.lane")
LOG_BYTES = 1_000_000
PATIENCE_S = 15.0
START_LIMIT_S = 300.0
"""Longest time until a lane's guard has answered; a controller under load makes callers wait."""

MOST_STARTS = 5
PAUSE_S = 2.0
"""Before a lane that ended is started again; longer each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one lane runs.

    Attributes:
        name: Of the lane.
        host: Of its machine.
        study: Its first message.
        env: The driver's own environment, or that of what carries the lane.
        through: What carries its guard to another machine, such as ``srun ...``.
        remote_env: Then the lane's own environment, but for what its node sets.
        devices: How many it has; None if only its reference can tell.
    """

    name: str
    host: str
    study: Message
    env: Mapping[str, str]
    through: Sequence[str] = ()
    remote_env: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None


@dataclass(slots=True)
class _Lane:
    place: Place
    process: GuardedProcess | None = None
    began_s: float = 0.0
    starts: int = 0
    again_s: float = 0.0
    has_joined: bool = False
    is_given_up: bool = False


class Processes:
    """See `autotune.cluster.Engine`.

    Args:
        places: Where lanes run.
        logs: Folder for what the lane programs print.
        words: Where they are, for people.
    """

    def __init__(self, places: Sequence[Place], *, logs: Path, words: str) -> None:
        self.words = words
        self._logs = logs
        logs.mkdir(mode=logs.parent.stat().st_mode & 0o777, exist_ok=True)
        self._lanes = {place.name: _Lane(place) for place in places}
        self._said: list[Told] = []

    def begin(self, lane: str, message: Message) -> None:
        """See `autotune.cluster.Engine`."""
        process = self._lanes[lane].process
        if process is not None:  # one that has just ended says so by itself
            process.send(message)

    def news(self, wait_s: float) -> list[Told]:
        """See `autotune.cluster.Engine`."""
        for name, lane in self._lanes.items():
            self._look_after(name, lane)
        if not self._said:
            waiting = [x.process.descriptor for x in self._lanes.values() if x.process is not None]
            select.select(waiting, [], [], wait_s) if waiting else time.sleep(min(wait_s, 0.1))
            for name, lane in self._lanes.items():
                self._hear(name, lane)
        if not self._said and all(x.is_given_up for x in self._lanes.values()):
            raise NodeLostError(
                f"a study must have at least one lane but all of {self.words} are gone; see {self._logs.name}/*.log in "
                "its run directory; run the same command again, on other nodes if need be, and it goes on"
            )
        said, self._said = self._said, []
        return said

    def give_up(self, lane: str, why: str) -> None:
        """See `autotune.cluster.Engine`: it is started again, for its machine may be well."""
        self._end(lane, self._lanes[lane], why)

    def close(self, *, is_over: bool = False) -> None:
        """See `autotune.cluster.Engine`."""
        ending = [x for x in self._lanes.values() if x.process is not None]
        for lane in ending:
            assert lane.process is not None
            lane.process.abort()  # all at once, then each is waited for
        for lane in ending:
            assert lane.process is not None
            lane.process.close(PATIENCE_S)
            lane.process = None
        for lane in self._lanes.values():
            lane.is_given_up = True

    # ------------------------------------------------------------------ one lane

    def _look_after(self, name: str, lane: _Lane) -> None:
        """Starts a lane that is not there, if it may come back."""
        now_s = time.monotonic()
        if lane.process is not None:
            if not lane.has_joined and now_s - lane.began_s > START_LIMIT_S:
                self._end(name, lane, f"it did not start within {START_LIMIT_S:.0f} s")
            return
        if lane.is_given_up or now_s < lane.again_s:
            return
        lane.starts += 1
        lane.began_s, lane.has_joined = now_s, False
        place = lane.place
        log = self._logs / f"{name}.log"
        try:
            lane.process = GuardedProcess(
                [driver_python(), *LANE_COMMAND], place.env, log, LOG_BYTES, through=place.through
            )
        except WorkerFailed as error:
            self._end(name, lane, str(error))
            return
        if place.through:
            lane.process.send({"environment": place.remote_env, "keep": SET_BY_NODE})
        else:
            self._greet(name, lane)

    def _greet(self, name: str, lane: _Lane) -> None:
        assert lane.process is not None
        lane.process.send(lane.place.study)

    def _hear(self, name: str, lane: _Lane) -> None:
        if lane.process is None:
            return
        for message in lane.process.receive():
            if message["type"] == "hello":
                self._greet(name, lane)
            elif message["type"] == "exit":
                lines = message["last_lines"][-1:] or [*lane.process.said_by_carrier()][-1:]
                status = message["exit_status"]
                self._end(name, lane, f"its process ended ({status}){': ' if lines else ''}{''.join(lines)}")
                return
            else:
                if not lane.has_joined:  # only now: many that start at once on few cores are silent for long
                    lane.has_joined = True
                    place = lane.place
                    self._said.append(Told(name, {"type": JOINED, "host": place.host, "devices": place.devices}))
                lane.starts = 1 if message["type"] == "result" else lane.starts
                self._said.append(Told(name, message))

    def _end(self, name: str, lane: _Lane, why: str) -> None:
        """Ends what is left of a lane, and plans its next start."""
        if lane.process is not None:
            lane.process.close(PATIENCE_S)
            lane.process = None
        lane.is_given_up = lane.starts >= MOST_STARTS
        lane.again_s = time.monotonic() + PAUSE_S * lane.starts
        self._said.append(Told(name, {"type": LEFT, "why": why}))


def lanes_here(groups: Sequence[Sequence[str]], study: Mapping[str, Message], host: str) -> list[Place]:
    """A lane of this machine for each group of its devices.

    Args:
        groups: Ids of devices.
        study: First message of each lane, by its name; see `lane_name`.
        host: This machine's name.
    """
    env = dict(caller_environment())
    let_import_packages(env)
    return [
        Place(name=name, host=host, study=study[name], env=env, devices=len(group))
        for group in groups
        for name in [lane_name(group)]
    ]


def lanes_on_nodes(
    nodes: Sequence[str], study: Mapping[str, Message], *, devices: int | None, extra: Sequence[str] = ()
) -> list[Place]:
    """A lane on each of some nodes of this SLURM job.

    Args:
        nodes: Their names, which are the lanes'.
        study: First message of each lane, by its name.
        devices: GPUs of each; None if that is not known.
        extra: More arguments for each ``srun``.
    """
    own = caller_environment()
    client = slurm_client_environment(own)
    env = {n: v for n, v in own.items() if n not in SET_BY_NODE}
    let_import_packages(env)
    return [
        Place(
            name=node, host=node, study=study[node], env=client, remote_env=env, devices=devices,
            through=slurm_step_command(node, client, f"--job-name=lane-{node}", *extra),
        )
        for node in nodes
    ]  # fmt: skip


def lanes_of_groups(
    groups: Sequence[Sequence[str]], study: Mapping[str, Message], *, devices: int | None
) -> list[Place]:
    """A lane for each group of nodes of this SLURM job: its program runs here, its trials' ranks on the nodes.

    Args:
        groups: Names of nodes; the first of each is the lane's.
        study: First message of each lane, by its name.
        devices: GPUs of each group; None if that is not known.
    """
    env = dict(caller_environment())
    let_import_packages(env)
    return [
        Place(name=g[0], host=g[0], study=study[g[0]], env={**env, NODES_VARIABLE: ",".join(g)}, devices=devices)
        for g in groups
    ]


def lane_name(group: Sequence[str]) -> str:
    """What a lane of some devices is called; the name lasts, so that its noise floor is not measured again."""
    return f"{group[0]}-{group[-1]}" if len(group) > 1 else f"device-{group[0]}"
