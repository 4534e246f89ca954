"""One driver gives units to lanes and records what comes back: whoever dies, nothing is doubled and nothing is lost.

Which lanes a study gets; what is mistyped is told before anything starts.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.cluster.engine import JOINED, LEFT, Engine, LaneMessage, Message
from autotune.measure.lane import _Progress
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.errors import LaunchError, StoppedError, StudyFileError
from autotune.model.measurement import FailureKind
from autotune.model.records import (
    AaRecord,
    ConfirmRun,
    FailingSetRecord,
    IncidentRecord,
    LedgerRecord,
    Outcome,
    TrialResult,
)
from autotune.model.spec import parse_study
from autotune.results.status import study_status
from autotune.rundir.store import Store
from autotune.study import engines
from autotune.study.driver import run_study
from autotune.study.engines import HIGHEST_STEP, choose_engine, parse_groups
from autotune.study.lanes import SILENT_S, refuse_strangers
from autotune.study.run import StudyRun
from harness import simulated_machine
from harness.driven import Driven
from harness.kills import SIMULATED
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher
from tests.runs import SPACE, Diary, asking, is_whole, replay_study, there

Fate = Callable[[str, Assignment], "list[Mapping[str, Any]] | None"]
"""What a lane says instead of doing a unit; None lets it do it."""


def telling(run: StudyRun, said: list[LaneMessage], lane: str) -> _Progress:
    """What the program of a lane says on its way, gathered."""
    channel: Any = SimpleNamespace(send=lambda kind, **fields: said.append(LaneMessage(lane, {"type": kind, **fields})))
    folders: Any = run.store
    return _Progress(channel, folders)


class Scripted(Engine):
    """Lanes in this process that meet their fate; each `news` lets one of them do its unit."""

    words = "lanes of a test"

    def __init__(self, run: StudyRun, names: list[str], fate: Fate) -> None:
        self._run, self._fate = run, fate
        self.said: deque[LaneMessage] = deque(self._joined(n) for n in names)
        self._runners: dict[str, TaskRunner] = {}
        self._units: deque[tuple[str, Assignment]] = deque()
        self.given_up: list[str] = []
        self.most_at_once = 0

    def _joined(self, name: str) -> LaneMessage:
        return LaneMessage(name, {"type": JOINED, "host": socket.gethostname(), "devices": 2})

    def begin(self, lane: str, message: Message) -> None:
        self._units.append((lane, Assignment.model_validate(message["assignment"])))
        self.most_at_once = max(self.most_at_once, len(self._units))

    def news(self, wait_s: float) -> list[LaneMessage]:
        if not self.said and self._units:
            self._do(*self._units.popleft())
        said = list(self.said)
        self.said.clear()
        return said

    def _do(self, lane: str, assignment: Assignment) -> None:
        if (instead := self._fate(lane, assignment)) is not None:
            for message in instead:
                self.said.append(self._joined(lane) if message["type"] == JOINED else LaneMessage(lane, message))
            return
        spec, said = self._run.spec, list[LaneMessage]()
        if lane not in self._runners:
            launcher = SimulatedLauncher(spec, seed=len(self._runners))
            self._runners[lane] = TaskRunner(spec, self._run.store, launcher, telling(self._run, said, lane))
        self._runners[lane].context.progress = telling(self._run, said, lane)
        try:
            record = self._runners[lane].do(assignment)
            said.append(
                LaneMessage(lane, {"type": "result", "record": record.model_dump(mode="json", exclude_none=True)})
            )
        except LaunchError as error:
            said.append(LaneMessage(lane, {"type": "error", "message": str(error)}))
        self.said.extend(said)

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        self.given_up.append(f"{lane} for good" if for_good else lane)
        self._units = deque(u for u in self._units if u[0] != lane)

    def close(self) -> None:
        """There is nothing to end."""


def study(tmp_path: Path, fate: Fate, *, lanes: list[str], trials: int = 12) -> tuple[StudyRun, Diary]:
    """A simulated study on scripted lanes, ready to run."""
    spec = replay_study(effects={"xla_a=1": 0.9}, noise={"white_sd": 0.002}, study={"search": {"sampler": "random"}})
    diary = Diary()
    run = given_run(asking(spec, trials), tmp_path / "run", GivenSetup(given_space=SPACE), diary)
    run.make_engine = lambda r: Scripted(r, lanes, fate)
    return run, diary


def fair(lane: str, assignment: Assignment) -> None:
    return None


def test_several_lanes_share_a_study_and_each_has_its_own_aa_run(tmp_path: Path) -> None:
    run, _ = study(tmp_path, fair, lanes=["a", "b", "c"])
    assert run_study(run).outcome is Outcome.WINNER
    is_whole(run.store.path, 12)
    assert {f.by for f in run.store.of(AaRecord)} == {"a", "b", "c"}
    assert {r.by for r in run.store.of(TrialResult)} == {r.by for r in run.store.of(ConfirmRun)} == {"a", "b", "c"}
    assert run.lanes.engine.most_at_once == 3  # type: ignore[attr-defined]


def test_the_unit_of_a_lost_lane_goes_to_another_and_its_samples_are_whole(tmp_path: Path) -> None:
    pair = {"index": 0, "first": "reference", "reference_s": [1.0], "candidate_s": [1.0], "at_s": 1.0}
    begun = {"type": "pair", "folder": ["trials", "0001"], "pair": pair}
    told: list[Mapping[str, Any]] = [begun, {"type": LEFT, "why": "killed"}]
    run, diary = study(tmp_path, lambda lane, unit: told if lane + unit.name == "atrial-1" else None, lanes=["a", "b"])
    run_study(run)
    is_whole(run.store.path, 12)
    assert any("killed" in i.what for i in run.store.of(IncidentRecord))
    again = [r for r in run.store.of(TrialResult) if r.directory == "trials/0001.2"]
    assert [r.by for r in again] == ["b"]
    assert any("lost: killed" in n for n in diary.notes)


def test_both_lanes_lost_at_the_tail_lose_nothing(tmp_path: Path) -> None:
    done: list[str] = []

    def fate(lane: str, assignment: Assignment) -> list[Mapping[str, Any]] | None:
        if assignment.name in ("trial-11", "trial-12") and lane in ("a", "b") and len(done) < 2:
            done.append(lane)
            return [{"type": LEFT, "why": "node down"}, {"type": JOINED}]
        return None

    run, _ = study(tmp_path, fate, lanes=["a", "b"])
    run_study(run)
    is_whole(run.store.path, 12)
    assert len(done) == 2


def test_a_unit_that_kills_lane_after_lane_is_recorded_as_lost(tmp_path: Path) -> None:
    killed: list[Mapping[str, Any]] = [{"type": LEFT, "why": "killed"}, {"type": JOINED}]
    run, _ = study(tmp_path, lambda lane, unit: killed if unit.name == "trial-3" else None, lanes=["a", "b"])
    run_study(run)
    is_whole(run.store.path, 12)
    third = next(r for r in run.store.of(TrialResult) if r.number == 3)
    assert there(third.failure).kind is FailureKind.NODE_LOST


def test_what_a_lane_says_after_it_was_given_up_has_no_reader(tmp_path: Path) -> None:
    late: list[LaneMessage] = []
    run, _ = study(tmp_path, fair, lanes=["a", "b"])

    class Frozen(Scripted):
        def _do(self, lane: str, assignment: Assignment) -> None:
            if lane == "a" and assignment.name == "trial-5":
                super()._do(lane, assignment)  # done, and told too late
                late.extend(self.said)
                self.said.clear()
                run.store.watch._session_s += SILENT_S + 1
                self.said.append(LaneMessage("b", {"type": "alive"}))
                return
            super()._do(lane, assignment)
            if lane != "a" and late:
                self.said.extendleft(reversed(late))
                late.clear()

    run.make_engine = lambda r: Frozen(r, ["a", "b"], fair)
    run_study(run)
    is_whole(run.store.path, 12)
    assert run.lanes.engine.given_up == ["a"]  # type: ignore[attr-defined]
    fifth = [r for r in run.store.of(TrialResult) if r.number == 5]
    assert [(r.by, r.directory) for r in fifth] == [("b", "trials/0005.2")]


def test_a_lane_of_another_kind_of_machine_is_dismissed_and_the_others_go_on(tmp_path: Path) -> None:
    error: list[Mapping[str, Any]] = [{"type": "error", "message": "kind of device"}]
    run, diary = study(tmp_path, lambda lane, unit: error if lane == "odd" else None, lanes=["odd", "b"])
    run_study(run)
    is_whole(run.store.path, 12)
    assert {r.by for r in run.store.of(TrialResult)} == {"b"}
    assert any("odd" in n for n in diary.notes)
    assert run.lanes.engine.given_up == ["odd for good"]  # type: ignore[attr-defined]


def test_when_no_lane_is_of_use_the_study_says_why(tmp_path: Path) -> None:
    def fate(lane: str, assignment: Assignment) -> list[Mapping[str, Any]]:
        return [{"type": "error", "message": "no GPU here", "is_stopped": lane == "b"}]

    run, _ = study(tmp_path, fate, lanes=["a", "b"])
    with pytest.raises(StoppedError, match="GPU here"):
        run_study(run)


@pytest.mark.parametrize("folder", [["..", "x"], ["trials", "0002"], ["aa_run", "..", ".."], ["study.json"], []])
def test_a_lane_writes_nowhere_but_into_the_folder_of_its_unit(tmp_path: Path, folder: list[str]) -> None:
    told: list[Mapping[str, Any]] = [{"type": "file", "folder": folder, "name": "x", "text": "mine"}]
    run, _ = study(tmp_path, lambda lane, unit: told if unit.name == "trial-1" else None, lanes=["a"])
    with pytest.raises(Exception, match=r"the folder|plain name"):
        run_study(run)
    assert not list(tmp_path.rglob("x"))


def test_hours_of_devices_are_counted_over_sessions(tmp_path: Path) -> None:
    run, _ = study(tmp_path, fair, lanes=["a", "b"], trials=5)
    run_study(run)
    first = run.store.of(LedgerRecord)[-1]
    assert first.device_s == pytest.approx(4 * run.store.watch.session_s, rel=0.3)  # two lanes of two devices
    assert first.lanes == ("a", "b")
    run, _ = study(tmp_path, fair, lanes=["a", "b"], trials=6)
    run_study(run)
    assert first.device_s < run.store.of(LedgerRecord)[-1].device_s


def test_a_lane_that_was_dismissed_does_not_keep_a_study_waiting_when_the_others_are_lost(tmp_path: Path) -> None:
    """The engine would offer it again and again, and the driver would never hear that there is no lane."""

    class Ending(Scripted):
        def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
            super().give_up(lane, why)
            self.for_good = for_good

        def news(self, wait_s: float) -> list[LaneMessage]:
            said = super().news(wait_s)
            if not said and not self._units:
                raise StoppedError("all lanes are gone")
            return said

    def fate(lane: str, assignment: Assignment) -> list[Mapping[str, Any]] | None:
        if lane == "odd":
            return [{"type": "error", "message": "another kind of device"}, {"type": JOINED}]
        return [{"type": LEFT, "why": "node down"}] if assignment.name == "trial-2" else None

    run, _ = study(tmp_path, fate, lanes=["odd", "b"])
    run.make_engine = lambda r: Ending(r, ["odd", "b"], fate)
    with pytest.raises(StoppedError, match="all lanes"):
        run_study(run)
    assert run.lanes.engine.for_good  # type: ignore[attr-defined]


def at(finished: Store, lane: str, step_s: float, **report: object) -> AaRecord:
    """The A/A run of a finished study as another lane's, with another step time."""
    aa_run = finished.of(AaRecord)[0]
    comparison = aa_run.comparison.model_copy(update={"reference_step_s": step_s})
    reference = aa_run.reference.model_copy(update=report)
    return aa_run.model_copy(update={"by": lane, "comparison": comparison, "reference": reference})


def test_a_slow_machine_is_named_and_other_devices_or_versions_are_refused(
    finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.rundir.store.lost_pairs", lambda store, record: "")  # they lie in another run
    with contextlib.closing(Store.create_or_resume(tmp_path / "run", finished.spec, study_dir=tmp_path)) as store:
        for lane, step_s in (("a", 0.100), ("b", 0.110), ("c", 0.101)):
            store.append(at(finished, lane, step_s))
    assert [x.lane for x in study_status(tmp_path / "run").lanes if x.is_slow] == ["b"]
    first = at(finished, "a", 0.1, device_kind="H100", versions={"jaxlib": "0.10.2"})
    refuse_strangers(at(finished, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"H100 .*A100 .*--run-dir"):
        refuse_strangers(at(finished, "b", 0.2, device_kind="A100", versions={"jaxlib": "0.10.2"}), [first])
    with pytest.raises(LaunchError, match=r"jaxlib: 0\.10\.2 .*0\.12\.0"):
        refuse_strangers(at(finished, "b", 0.2, device_kind="H100", versions={"jaxlib": "0.12.0"}), [first])


def test_each_part_between_commas_is_a_lane() -> None:
    assert parse_groups("0-3,4-7") == (("0", "1", "2", "3"), ("4", "5", "6", "7"))
    assert parse_groups("0,1") == (("0",), ("1",))
    assert parse_groups(None) == ()


@pytest.mark.parametrize("text", ["", "0,,1", "x,,", "0,", "+", "0-3,2-5", "0,0", "3-1", "a b"])
def test_what_is_no_group_of_devices_is_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match="must be"):
        parse_groups(text)


def test_a_dask_cluster_excludes_other_lanes_and_trials_over_several_nodes() -> None:
    with pytest.raises(StudyFileError, match=r"--scheduler .*--devices"):
        choose_engine(replay_study(), (("0",), ("1",)), scheduler="tcp://127.0.0.1:1")
    spec = parse_study({"name": "s", "workload": {"entry": "llama"}, "device": {"node_count": 2}})
    with pytest.raises(StudyFileError, match="are SLURM's"):
        choose_engine(spec, (), scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("address", ["nonsense", "tcp://host", "tcp://host:port", "tcp://:8786", "", "nowhere/s.json"])
def test_what_is_no_address_of_a_scheduler_is_refused_before_anything_is_made(address: str) -> None:
    with pytest.raises(StudyFileError, match=r"--scheduler .*tcp://HOST:8786"):
        choose_engine(replay_study(), (), scheduler=address)


@pytest.mark.parametrize(
    ("step", "nodes"), [(None, ("n1", "n2")), ("0", ()), ("17", ()), (str(HIGHEST_STEP), ("n1", "n2"))]
)
def test_nodes_of_a_job_are_lanes_but_not_within_one_of_its_steps(
    step: str | None, nodes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **({"SLURM_STEP_ID": step} if step else {})}
    monkeypatch.setattr(engines, "caller_environment", lambda: env)
    monkeypatch.setattr(engines, "has_slurm", lambda: True)
    monkeypatch.setattr(engines, "slurm_hosts", lambda listed, own: ("n1", "n2") if listed == "n[1-2]" else ())
    assert engines._nodes_of_job() == nodes


THREE = ("--devices", "0,1,2")


def write_study(folder: Path, *, trials: int, delay_s: float = 0.005, text: str = SIMULATED) -> None:
    simulated_machine.write_study(folder / "study.toml", text.format(trials=trials, delay_s=delay_s))


def wait_until(condition: Callable[[], object], driver: Driven, limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited in vain: {driver.said}"
        assert driver.is_running, driver.said
        time.sleep(0.02)


def trials_of(driver: Driven) -> list[TrialResult]:
    return Store.open(driver.run).of(TrialResult) if (driver.run / "study.json").exists() else []


def assert_whole(driver: Driven, *, trials: int) -> Store:
    is_whole(driver.run, trials)
    assert driver.left() == []
    return Store.open(driver.run)


def freeze_at_work(driver: Driven) -> tuple[str, psutil.Process]:
    """Freezes a lane, and waits until it surely holds a unit that it will not answer; gives its name and process."""
    wait_until(lambda: len(driver.lanes()) == 3 and len(trials_of(driver)) >= 3, driver)
    name, victim = sorted(driver.lanes().items())[0]
    victim.suspend()
    seen = len(trials_of(driver))
    wait_until(lambda: len(trials_of(driver)) >= seen + 4, driver)  # the others go on
    return name, victim


def given_again(store: Store) -> list[str]:
    """Names of the units that were begun twice and done: a lane may hold a trial, or the search for a culprit."""
    trials = [(f"trial-{r.number}", r.directory) for r in store.of(TrialResult)]
    searches = [(f"failing-{r.trial:04d}", r.directory) for r in store.of(FailingSetRecord)]
    return [name for name, folder in (*trials, *searches) if (folder or "").endswith(".2")]


@pytest.mark.gate
def test_the_unit_of_a_killed_lane_is_given_to_another_and_the_lane_comes_back(tmp_path: Path) -> None:
    write_study(tmp_path, trials=31, delay_s=0.03)
    driver = Driven(tmp_path, THREE)
    name, victim = freeze_at_work(driver)  # so that it holds a unit when it dies
    victim.kill()
    assert driver.wait() == 0, driver.said
    store = assert_whole(driver, trials=31)
    assert driver.said.count(f"lane {name} on ") >= 2, driver.said  # it joined again
    lost = [i for i in store.of(IncidentRecord) if "lane lost at" in i.what]
    assert [i.by for i in lost] == [name]
    assert lost[0].what.startswith(tuple(f"lane lost at {unit}:" for unit in given_again(store)))
    assert len(store.of(AaRecord)) == 3  # a lane that comes back has its A/A run already


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.gate),
        *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGUSR1)),
    ],
)
def test_nothing_outlives_the_driver_and_the_same_command_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    write_study(tmp_path, trials=23, delay_s=0.03)
    driver = Driven(tmp_path, THREE)
    wait_until(lambda: len(trials_of(driver)) >= 3, driver)
    assert len(driver.lanes()) == 3
    driver.tell(number)
    assert driver.wait(30) == (-9 if number is signal.SIGKILL else 75)
    assert driver.left(patience_s=10) == []
    assert number is signal.SIGKILL or "so far" in driver.said
    again = Driven(tmp_path, THREE)
    assert again.wait() == 0, again.said
    store = assert_whole(again, trials=23)
    assert len(store.of(AaRecord)) == 3  # a lane's name lasts, and so does its A/A run
