"""The driver's side of lanes: gives them tasks, records their results, and counts device-hours.

The task of a lost lane goes to another, and later messages of the lost one are ignored: so no task
is recorded twice and none is left out, whichever process dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from autotune.cluster.engine import ANSWERS, JOINED, LEFT, Engine, Message
from autotune.machine.host import measured_versions
from autotune.measure.context import aa_folder
from autotune.measure.durations import power_analysis
from autotune.measure.tasks import AaTask, AnyTask, Assignment, PendingTask, TrialTask
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.files import Table
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, Pair, WorkPerStep, log_ratio
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

MOST_LOST = 3  # lanes lost over one task, which may kill them, before it has failed
LISTEN_S = 1.0
SILENT_S = 60.0  # after this time without a sign of life a busy lane is given up
WRITE_EVERY_S = 60.0  # between ledger records: the most that a killed driver leaves uncounted
MUST_AGREE = ("jax", "jaxlib")  # packages of equal versions on all lanes and in all sessions


@dataclass(slots=True)
class _Lane:
    """One lane that is there now."""

    name: str
    host: str
    devices: int
    heard_s: float
    aa_run: AaRecord | None = None
    pending: PendingTask | None = None


Tasks = Iterator[PendingTask | None]  # None if there is none now: asked again after each result


class Lanes:
    """All lanes of one session; `runtime` selects the settings that are read at run time."""

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
        self._device_s = self._ledger.device_s
        self._counted_s = store.watch.total_s
        self.phase = view.phase

    def first_aa_run(self) -> AaRecord:
        """Returns the first A/A run of a lane; LaunchError if the reference runs on none."""
        while True:
            for lane in self._lanes.values():
                if lane.aa_run:
                    return lane.aa_run
            self._listen()

    def work(self, tasks: Tasks) -> None:
        """Gives tasks to free lanes until there is none left and all results are recorded."""
        while True:
            for lane in self._lanes.values():
                if lane.pending is None and lane.aa_run:
                    pending = self._next(tasks)
                    if pending is None:
                        break
                    self._begin(lane, pending)
            if not self.in_hand:
                pending = self._next(tasks)
                if pending is None:  # nothing to do, even if a lane joins
                    return
                self._pending.append(pending)
            self._listen()

    def _next(self, tasks: Tasks) -> PendingTask | None:
        return self._pending.pop(0) if self._pending else next(tasks)

    def do(self, pending: PendingTask) -> None:
        """Runs one task."""
        self.work(itertools.chain([pending], itertools.repeat(None)))

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
        pending = [*self._pending, *(x.pending for x in self._lanes.values())]
        return [p.task for p in pending if p and not isinstance(p.task, AaTask)]

    @property
    def is_measuring(self) -> bool:
        """Whether a lane is busy."""
        return any(x.pending for x in self._lanes.values())

    @property
    def _ledger(self) -> LedgerRecord:
        return self._store.last(LedgerRecord) or LedgerRecord(device_s=0.0)

    def _count(self, *, is_last: bool = False) -> None:
        """Adds the time of all devices; records it if the last record is old, or lanes changed."""
        now_s = self._store.watch.total_s
        lanes = tuple(filter(None, self.names))
        devices = sum(x.devices for x in self._lanes.values())
        self._device_s += (now_s - self._counted_s) * devices
        self._counted_s = now_s
        ledger = self._ledger
        if is_last or lanes != ledger.lanes or now_s - ledger.at_s >= WRITE_EVERY_S:
            self._store.append(LedgerRecord(device_s=round(self._device_s, 3), lanes=lanes))

    def _begin(self, lane: _Lane, pending: PendingTask) -> None:
        lane.pending = pending
        lane.heard_s = self._store.watch.total_s
        task = pending.task
        settings = getattr(task, "settings", FlagSet())
        programs: dict[str, int] = {}
        if isinstance(task, TrialTask):
            settings = task.config.settings
            programs = {
                r.program_key: r.number
                for r in self._store.of(TrialResult)
                if r.program_key and r.status is TrialStatus.MEASURED
            }
        assignment = Assignment(
            task=task,
            lane=lane.name,
            folder=pending.own_folder,
            name=pending.name,
            aa_run=lane.aa_run,
            runtime=tuple(self._runtime(FlagSet({**self._store.spec.baseline, **settings}))),
            programs=programs,
            at_s=lane.heard_s,
        )
        self.engine.begin(
            lane.name, {"type": "task", "assignment": assignment.model_dump(mode="json")}
        )

    def _listen(self) -> None:
        """Begins A/A runs, waits up to `LISTEN_S` for messages of lanes, and handles them."""
        for lane in self._lanes.values():
            if not (lane.aa_run or lane.pending):
                self._begin(lane, PendingTask(AaTask(), aa_folder(lane.name), "aa_run"))
        check_stop()
        for name, message in self.engine.news(LISTEN_S):
            self._take(name, message)
        watch = self._store.watch
        watch.hold(not self._lanes)  # time without a lane is time in a queue
        self._count()
        for lane in list(self._lanes.values()):
            if lane.pending and lane.name and watch.total_s - lane.heard_s > SILENT_S:
                self.engine.give_up(lane.name, "silent")
                self._lose(lane, f"silent for {SILENT_S:.0f} s")

    def _take(self, name: str, message: Message) -> None:
        kind = message["type"]
        if kind == JOINED:
            self._join(name, message)
            return
        lane = self._lanes.get(name)
        if lane is None:
            return  # given up
        lane.heard_s = self._store.watch.total_s
        if kind == LEFT:
            self._lose(lane, message["why"])
        elif lane.pending is None:
            return  # of a task that was given up
        elif kind == "phase":
            self.phase(message["what"], name)
        elif kind == "pair":
            folder = self._inside(lane.pending, message["folder"])
            work = WorkPerStep.model_validate(message["work"]) if message.get("work") else None
            self.pair(folder, Pair.model_validate(message["pair"]), work, name)
        elif kind == "incident":
            self.incident(message["what"], name)
        elif kind == "file":
            folder = self._inside(lane.pending, message["folder"])
            self._store.write_beside(folder, message["name"], message["text"])
        elif kind in ANSWERS:
            self._answer(lane, message)

    def _inside(self, pending: PendingTask, parts: Sequence[str]) -> Path:
        """Returns the folder that a lane asks for; raises LaunchError if it is not its task's."""
        allowed = (pending.own_folder, aa_folder(""))
        if not any(tuple(parts[: len(a)]) == a for a in allowed):
            raise LaunchError(
                f"a lane must keep to the folder of its task but asks for {'/'.join(parts)!r}"
            )
        return self._store.folder(*parts)

    def _join(self, name: str, message: Message) -> None:
        if name in self._dismissed:
            return
        lane = _Lane(name, message["host"], message["devices"] or 0, self._store.watch.total_s)
        aa_run = {record.by: record for record in self._store.of(AaRecord)}.get(name or None)
        if aa_run and (not name or aa_run.provenance.get("host") == lane.host):
            _refuse_upgraded(aa_run)
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
        self._view.result(aa_run)

    def _lose(self, lane: _Lane, why: str) -> None:
        """Removes a lost lane; its task goes to another, or fails after `MOST_LOST` losses."""
        del self._lanes[lane.name]
        self._view.note(f"lane {lane.name} is lost: {why}")
        pending = lane.pending
        if pending is None or isinstance(pending.task, AaTask):
            return
        self.incident(f"lane lost at {pending.name}: {why}", lane.name)
        pending.lost += 1
        if pending.lost < MOST_LOST:
            self._pending.insert(0, pending)
            return
        message = (
            f"{pending.lost} lanes were lost over this, one after the other; it is not given to "
            "another"
        )
        failure = Failure(kind=FailureKind.NODE_LOST, message=message, phase="step")
        self.record(pending.task.failed(failure))

    def _answer(self, lane: _Lane, message: Message) -> None:
        if message["type"] == "error":
            self._dismiss(lane, message["message"], is_stopped=bool(message.get("is_stopped")))
            return
        try:
            record: AnyRecord = RECORD.validate_python(message["record"])
        except (ValidationError, KeyError) as error:
            self._dismiss(lane, f"what it says cannot be read: {error}")
            return
        lane.pending = None
        record = record.model_copy(update={"by": lane.name or None})
        if isinstance(record, AaRecord):
            self._first_result(lane, record)
        else:
            self.record(record)

    def _first_result(self, lane: _Lane, aa_run: AaRecord) -> None:
        """Records a lane's A/A run and admits the lane, unless it is another kind of machine."""
        earlier = self._store.of(AaRecord)
        try:
            refuse_strangers(aa_run, earlier)
        except LaunchError as error:
            self._dismiss(lane, str(error))
            return
        # `_join` finds it by the engine's name of the host; the machine's own may differ.
        update: Table = {"provenance": {**aa_run.provenance, "host": lane.host}}
        if not earlier:
            update["power"] = power_analysis(self._store.spec, aa_run)
        aa_run = aa_run.model_copy(update=update)
        self._store.append(aa_run)
        self._adopt(lane, aa_run)
        for warning in (*aa_run.reference.warnings, *aa_run.comparison.warnings):
            self._view.note(warning)

    def _dismiss(self, lane: _Lane, why: str, *, is_stopped: bool = False) -> None:
        """Excludes a lane from the study; raises LaunchError if there is no other."""
        self._dismissed.add(lane.name)
        self.engine.give_up(lane.name, "of no use", for_good=True)
        self._lose(lane, why)
        if not self._lanes:
            raise StoppedError(why) if is_stopped else LaunchError(why)

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

    def record(self, record: AnyRecord) -> None:
        """Appends a record and shows it; a duplicate gets the figures of its trial."""
        if isinstance(record, TrialResult) and record.same_as:
            for trial in self._store.of(TrialResult):
                if trial.number == record.same_as:
                    figures = {"comparison": trial.comparison, "failure": trial.failure}
                    record = record.model_copy(update=figures)
        self._store.append(record)
        self._view.result(record)

    def incident(self, what: str, lane: str = "") -> None:
        """Records an incident."""
        self._store.append(IncidentRecord(what=what[:500], by=lane or None))


def refuse_strangers(aa_run: AaRecord, others: Iterable[AaRecord]) -> None:
    """Refuses a lane whose device or versions differ from other lanes', by a LaunchError."""
    facts = _facts(aa_run)
    for earlier in others:
        differing = "; ".join(
            f"{name}: {value} there, {facts[name]} here"
            for name, value in _facts(earlier).items()
            if value != facts[name]
        )
        if differing:
            raise LaunchError(
                "the lanes of one study must be alike but this one differs from "
                f"{earlier.by or 'the one before'} ({differing}); make a study of its own for this "
                "kind, with another --run-dir"
            )


def _facts(aa_run: AaRecord) -> Table:
    reference = aa_run.reference
    return {
        "kind of device": reference.device_kind,
        "number of devices": reference.device_count,
        **{f"version of {name}": reference.versions.get(name) for name in MUST_AGREE},
    }


def _refuse_upgraded(aa_run: AaRecord) -> None:
    """Refuses to resume after an upgrade, when nothing is comparable, by a LaunchError."""
    versions = measured_versions()
    changed = [
        f"{name} was {version} and is {versions.get(name, 'not there')} now"
        for name, version in aa_run.provenance.get("versions", {}).items()
        if (name in MUST_AGREE or name.startswith("jax-cuda")) and version != versions.get(name)
    ]
    if changed:
        raise LaunchError(
            f"a study must go on with the versions with which it began but {'; '.join(changed)}; "
            "begin a new one with another --run-dir, and see what changed with autotune compare "
            "OLD NEW --by jaxlib"
        )
