"""Lanes that are processes of this machine, by the real command: whoever dies or freezes, the count stays exact."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autotune.model.records import AaRecord, FailingSetRecord, IncidentRecord, TrialResult
from autotune.rundir.store import Store
from harness import simulated_machine
from harness.driven import Driven
from harness.kills import SIMULATED
from tests.runs import is_whole

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
    assert number is signal.SIGKILL or "everything so far is in" in driver.said
    again = Driven(tmp_path, THREE)
    assert again.wait() == 0, again.said
    store = assert_whole(again, trials=23)
    assert len(store.of(AaRecord)) == 3  # a lane's name lasts, and so does its A/A run
