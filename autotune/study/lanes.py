"""The driver's side of lanes: gives tasks to free lanes, records their results, and counts
device-hours.

Only the driver decides and writes. The task of a lost lane goes to another lane, and later messages
of the lost one are ignored. So no task is recorded twice and none is left out, whichever process
dies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.cluster.engine import ANSWERS, JOINED, LEFT, Engine, LaneMessage
from autotune.machine.host import measured_versions
from autotune.measure.context import aa_folder
from autotune.measure.durations import power_analysis
from autotune.measure.tasks import AaTask, AnyTask, Assignment, PendingTask, TrialTask
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.flags import FlagSet
from autotune.model.measurement import (
    INTERLEAVED,
    Failure,
    FailureKind,
    Pair,
    WorkPerStep,
    log_ratio,
)
from autotune.model.records import (
    RECORD,
    AaRecord,
    AnyRecord,
    Callbacks,
    IncidentRecord,
    LedgerRecord,
    TrialResult,
    TrialStatus,
)
from autotune.model.stop import check_stop
from autotune.rundir.store import Store

MOST_LOST = 3
"""Lanes that may be lost over one task; after that it is recorded as failed, for it may be what
kills them.
"""

LISTEN_S = 1.0
SILENT_S = 60.0
"""Time without a message after which a busy lane is given up; lanes send signs of life."""

WRITE_EVERY_S = 60.0
"""Time between ledger records: the most that a killed driver leaves uncounted."""

MUST_AGREE = ("jax", "jaxlib")
"""Packages whose versions must be equal on all lanes, and in all sessions."""


@dataclass(slots=True)
class _Lane:
    """One lane that is there now."""

    name: str
    host: str
    devices: int
    heard_s: float
    aa_run: AaRecord | None = None
    pending: PendingTask | None = None


class Ledger:
    """Counts device-seconds of a study over all sessions: a device counts while it is allocated,
    busy or idle.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        last = store.last(LedgerRecord)
        self.device_s = last.device_s if last else 0.0
        self._counted_s = self._written_s = store.watch.total_s
        self._lanes: tuple[str, ...] = ()

    def count(self, lanes: Sequence[str], devices: int, *, is_last: bool = False) -> None:
        """Adds the time since the last call; writes a record if the last one is old, or lanes have
        come or gone.
        """
        now_s, lanes = self._store.watch.total_s, tuple(filter(None, lanes))
        self.device_s += (now_s - self._counted_s) * devices
        self._counted_s = now_s
        if is_last or lanes != self._lanes or now_s - self._written_s >= WRITE_EVERY_S:
            self._store.append(LedgerRecord(device_s=round(self.device_s, 3), lanes=lanes))
            self._lanes, self._written_s = lanes, now_s


class Lanes:
    """All lanes of one session; `runtime` selects the settings that are read when a program
    runs.
    """

    engine: Engine
    """Set before the first use."""

    def __init__(
        self, store: Store, view: Callbacks, runtime: Callable[[FlagSet], FlagSet]
    ) -> None:
        self._store = store
        self._view = view
        self._runtime = runtime
        self._lanes: dict[str, _Lane] = {}
        self._dismissed: set[str] = set()
        self._pending: list[PendingTask] = []
        self._writers: dict[Path, tuple[Callable[[Pair], None], list[float]]] = {}
        self._shown: set[str] = set()
        self.ledger = Ledger(store)

    # ------------------------------------------------------------------ for stages

    def first_aa_run(self) -> AaRecord:
        """Returns the first A/A run of a lane while others go on; LaunchError if the reference runs
        on none of them.
        """
        while True:
            for lane in self._lanes.values():
                if lane.aa_run is not None:
                    return lane.aa_run
            self._begin_aa_runs()
            self._listen()

    def work(self, source: Callable[[], PendingTask | None]) -> None:
        """Gives tasks to free lanes until there is none left and all results are recorded.

        Args:
            source: Returns the next task, or None if there is none now; called again after each
                result.
        """
        while True:
            self._begin_aa_runs()
            while (lane := self._free()) is not None and (
                pending := self._next(source)
            ) is not None:
                self._begin(lane, pending)
            if not self.in_hand:
                if (pending := self._next(source)) is None:  # nothing to do, even if a lane joins
                    return
                self._pending.insert(0, pending)
            self._listen()

    def _next(self, source: Callable[[], PendingTask | None]) -> PendingTask | None:
        return self._pending.pop(0) if self._pending else source()

    def do(self, pending: PendingTask) -> None:
        """Runs one task."""
        todo = [pending]
        self.work(lambda: todo.pop() if todo else None)

    def close(self) -> None:
        """Ends every lane and writes the ledger."""
        try:
            self._count(is_last=True)
        finally:  # the disk may be full, or gone
            self.engine.close()
            self._lanes.clear()

    @property
    def names(self) -> Sequence[str]:
        """Names of the present lanes, sorted."""
        return sorted(self._lanes)

    @property
    def in_hand(self) -> list[AnyTask]:
        """Tasks that were given to lanes and have no result yet; A/A runs do not count."""
        pending = [
            *self._pending,
            *(x.pending for x in self._lanes.values() if x.pending is not None),
        ]
        return [p.task for p in pending if not isinstance(p.task, AaTask)]

    @property
    def is_measuring(self) -> bool:
        """Whether a lane is busy."""
        return any(x.pending is not None for x in self._lanes.values())

    def _count(self, *, is_last: bool = False) -> None:
        self.ledger.count(self.names, sum(x.devices for x in self._lanes.values()), is_last=is_last)

    # ------------------------------------------------------------------ giving

    def _free(self) -> _Lane | None:
        return next(
            (x for x in self._lanes.values() if x.pending is None and x.aa_run is not None), None
        )

    def _begin_aa_runs(self) -> None:
        for lane in [x for x in self._lanes.values() if x.aa_run is None and x.pending is None]:
            done = functools.partial(self._first_result, lane)
            self._begin(lane, PendingTask(AaTask(), aa_folder(lane.name), "aa_run", done))

    def _begin(self, lane: _Lane, pending: PendingTask) -> None:
        lane.pending, lane.heard_s = pending, self._store.watch.total_s
        assignment = Assignment(
            task=pending.task,
            lane=lane.name,
            folder=pending.own_folder,
            name=pending.name,
            aa_run=lane.aa_run,
            runtime=tuple(self._runtime(self._settings_of(pending.task))),
            programs=self._measured_programs() if isinstance(pending.task, TrialTask) else {},
            at_s=lane.heard_s,
        )
        self.engine.begin(
            lane.name, {"type": "task", "assignment": assignment.model_dump(mode="json")}
        )

    def _settings_of(self, task: AnyTask) -> FlagSet:
        """Returns the settings under which a task runs, baseline included."""
        own = (
            task.config.settings
            if isinstance(task, TrialTask)
            else getattr(task, "settings", FlagSet())
        )
        return self._store.spec.baseline.merge(own)

    def _measured_programs(self) -> dict[str, int]:
        results = self._store.of(TrialResult)
        return {
            r.program_key: r.number
            for r in results
            if r.program_key and r.status is TrialStatus.MEASURED
        }

    # ------------------------------------------------------------------ hearing

    def _listen(self) -> None:
        """Waits up to `LISTEN_S` for messages of lanes, and handles them."""
        check_stop()
        for told in self.engine.news(LISTEN_S):
            self._take(told)
        watch = self._store.watch
        watch.hold(not self._lanes)  # time without a lane is time in a queue
        self._count()
        for lane in list(self._lanes.values()):
            if lane.pending is not None and lane.name and watch.total_s - lane.heard_s > SILENT_S:
                self.engine.give_up(lane.name, "silent")
                self._lose(lane.name, f"silent for {SILENT_S:.0f} s")

    def _take(self, told: LaneMessage) -> None:
        name, message = told
        kind = message["type"]
        if kind == JOINED:
            self._join(name, message)
            return
        lane = self._lanes.get(name)
        if lane is None:
            return  # given up
        lane.heard_s = self._store.watch.total_s
        if kind == LEFT:
            self._lose(name, str(message["why"]))
        elif lane.pending is None:
            return  # of a task that was given up
        elif kind == "phase":
            self.phase(str(message["what"]), name)
        elif kind == "pair":
            folder = self._inside(lane.pending, message["folder"])
            work = WorkPerStep.model_validate(message["work"]) if message.get("work") else None
            self.pair(folder, Pair.model_validate(message["pair"]), work, name)
        elif kind == "incident":
            self.incident(str(message["what"]), name)
        elif kind == "file":
            folder = self._inside(lane.pending, message["folder"])
            self._store.write_beside(folder, str(message["name"]), str(message["text"]))
        elif kind in ANSWERS:
            self._answer(lane, lane.pending, message)

    def _inside(self, pending: PendingTask, parts: Sequence[str]) -> Path:
        """Returns the folder that a lane asks for; raises LaunchError if it is not its task's."""
        allowed = (pending.own_folder, aa_folder(""))
        if not any(tuple(parts[: len(a)]) == a for a in allowed):
            raise LaunchError(
                f"a lane must keep to the folder of its task but asks for {'/'.join(parts)!r}"
            )
        return self._store.folder(*parts)

    def _join(self, name: str, message: Any) -> None:
        if name in self._dismissed:
            return
        lane = _Lane(
            name, str(message["host"]), int(message["devices"] or 0), self._store.watch.total_s
        )
        aa_runs = {f.by: f for f in self._store.of(AaRecord)}
        aa_run = aa_runs.get(name or None)
        if aa_run is not None and (not name or aa_run.provenance.get("host") == lane.host):
            refuse_upgraded(aa_run, measured_versions())
            self._adopt(lane, aa_run)
        self._lanes[name] = lane
        if name:
            self._view.note(f"lane {name} on {lane.host} joins")

    def _adopt(self, lane: _Lane, aa_run: AaRecord) -> None:
        lane.aa_run = aa_run
        lane.devices = lane.devices or aa_run.reference.device_count
        if lane.name in self._shown:
            return
        self._shown.add(lane.name)
        spec = self._store.spec
        if (
            aa_run.comparison.mode != INTERLEAVED
            and spec.measure.mode == "auto"
            and spec.workload.can_wait
        ):
            self._view.note(
                "two processes do not fit into the device's memory: they run one at a time, in "
                "ABA runs"
            )
        self._view.result(aa_run)

    def _lose(self, name: str, why: str) -> None:
        """Removes a lost lane; its task goes to another, or is recorded as failed after `MOST_LOST`
        losses.
        """
        lane = self._lanes.pop(name, None)
        if lane is None:
            return
        self._view.note(f"lane {name} is lost: {why}")
        pending = lane.pending
        if pending is None or isinstance(pending.task, AaTask):
            return
        self._store.append(
            IncidentRecord(what=f"lane lost at {pending.name}: {why}", by=name or None)
        )
        pending.lost += 1
        if pending.lost < MOST_LOST:
            self._pending.insert(0, pending)
        else:
            said = (
                f"{pending.lost} lanes were lost over this, one after the other; it is not "
                "given to another"
            )
            failure = Failure(kind=FailureKind.NODE_LOST, message=said, phase="step")
            pending.done(pending.task.failed(failure))

    def _answer(self, lane: _Lane, pending: PendingTask, message: Any) -> None:
        if message["type"] == "error":
            self._dismiss(lane, str(message["message"]), is_stopped=bool(message.get("is_stopped")))
            return
        try:
            record: AnyRecord = RECORD.validate_python(message["record"])
            record = record.model_copy(update={"by": lane.name or None})
        except (ValidationError, KeyError) as error:
            self._dismiss(lane, f"what it says cannot be read: {error}")
            return
        lane.pending = None
        pending.done(record)

    def _first_result(self, lane: _Lane, aa_run: AnyRecord) -> None:
        """Records a lane's A/A run and admits the lane, unless it is another kind of machine."""
        assert isinstance(aa_run, AaRecord)
        try:
            refuse_strangers(aa_run, self._store.of(AaRecord))
        except LaunchError as error:
            self._dismiss(lane, str(error))
            return
        # `_join` finds it by the engine's name of the host, from which the machine's own may
        # differ.
        aa_run = aa_run.model_copy(update={"provenance": {**aa_run.provenance, "host": lane.host}})
        if not self._store.of(AaRecord):
            aa_run = aa_run.model_copy(update={"power": power_analysis(self._store.spec, aa_run)})
        self._store.append(aa_run)
        self._adopt(lane, aa_run)
        for warning in (*aa_run.reference.warnings, *aa_run.comparison.warnings):
            self._view.note(warning)

    def _dismiss(self, lane: _Lane, why: str, *, is_stopped: bool = False) -> None:
        """Excludes a lane from the study; raises LaunchError if there is no other."""
        self._dismissed.add(lane.name)
        self.engine.give_up(lane.name, "of no use", for_good=True)
        self._lose(lane.name, why)
        if not self._lanes:
            raise StoppedError(why) if is_stopped else LaunchError(why)

    # ------------------------------------------------------------------ progress of a lane

    def phase(self, what: str, lane: str = "") -> None:
        """Shows what a lane is doing."""
        self._view.phase(what, lane)

    def pair(
        self, folder: Path, pair: Pair, work: WorkPerStep | None = None, lane: str = ""
    ) -> None:
        """Writes and shows one raw pair."""
        if pair.index == 0:
            self._writers[folder] = (self._store.pair_writer(folder), [])
        write, ratios = self._writers[folder]
        write(pair)
        ratios.append(log_ratio(pair, work))
        self._view.pair(ratios, lane)

    def incident(self, what: str, lane: str = "") -> None:
        """Records an incident."""
        self._store.append(IncidentRecord(what=what[:500], by=lane or None))


# ---------------------------------------------------------------------- which lanes may measure one
# study


def refuse_strangers(own: AaRecord, others: Iterable[AaRecord]) -> None:
    """Refuses a lane whose device or versions differ from those of the lanes before it, by a
    LaunchError.
    """
    mine = _facts(own)
    for other in others:
        differing = "; ".join(
            f"{w}: {x} there, {mine[w]} here" for w, x in _facts(other).items() if x != mine[w]
        )
        if differing:
            raise LaunchError(
                "the lanes of one study must be alike but this one differs from "
                f"{other.by or 'the one before'} "
                f"({differing}); make a study of its own for this kind, with another --run-dir"
            )


def _facts(aa_run: AaRecord) -> dict[str, object]:
    told = aa_run.reference
    versions = {f"version of {n}": told.versions.get(n) for n in MUST_AGREE}
    return {"kind of device": told.device_kind, "number of devices": told.device_count, **versions}


def refuse_upgraded(known: AaRecord, versions: Mapping[str, str]) -> None:
    """Refuses to resume after an upgrade of JAX, jaxlib or a CUDA plugin, by a LaunchError: nothing
    is comparable.
    """
    before = known.provenance.get("versions", {})
    changed = [
        f"{name} was {version} and is {versions.get(name, 'not there')} now"
        for name, version in before.items()
        if (name in MUST_AGREE or name.startswith("jax-cuda")) and version != versions.get(name)
    ]
    if changed:
        raise LaunchError(
            f"a study must go on with the versions with which it began but {'; '.join(changed)}; "
            "begin a new one with "
            "another --run-dir, and see what changed with autotune compare OLD NEW --by jaxlib"
        )
