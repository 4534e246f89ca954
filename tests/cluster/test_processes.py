"""Lanes that are processes: however one of them ends, or does not, the others have their say."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cluster import engine as processes
from autotune.cluster.engine import JOINED, LEFT, LaneMessage, Place, Processes
from autotune.model.errors import NodeLostError
from autotune.workers.base import GuardedProcess
from tests.cluster.conftest import ROOT
from tests.tables import toml_beside

FAIR = toml_beside(__file__, "programs.toml")["fair_lane"]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Three lanes that say at once that they are there, and answer each unit."""
    monkeypatch.setattr(processes, "LANE_COMMAND", ("-c", FAIR))
    monkeypatch.setattr(processes, "PAUSE_S", 0.1)
    places = [Place(name=n, host="here", env=ENV, devices=1) for n in "abc"]
    engine = Processes({"type": "study"}, tmp_path, places=places, words="3 lanes")
    yield engine
    engine.close()


def wait_for(engine: Processes, kind: str, *names: str, limit_s: float = 60.0) -> list[LaneMessage]:
    """All news until each of some lanes has said a message of a kind."""
    heard: list[LaneMessage] = []
    end = time.monotonic() + limit_s
    while {t.lane for t in heard if t.message["type"] == kind} < set(names):
        assert time.monotonic() < end, heard
        heard += engine.news(0.2)
    return heard


def test_a_lane_that_does_not_end_keeps_no_other_waiting(lanes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    real, may_end = GuardedProcess.close, threading.Event()

    def end(*lane: Any) -> None:
        assert may_end.wait(60)
        real(*lane)

    monkeypatch.setattr(GuardedProcess, "close", end)
    wait_for(lanes, JOINED, "a", "b", "c")
    lanes.give_up("a", "silent")
    lanes.begin("b", {"type": "unit"})
    heard = wait_for(lanes, "result", "b")
    assert LaneMessage("a", {"type": LEFT, "why": "silent"}) in heard
    assert [t.lane for t in heard if t.message["type"] == JOINED] == []  # not beside what is left of the one before
    may_end.set()
    wait_for(lanes, JOINED, "a")


def test_lanes_are_ended_all_at_once(lanes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    real, together = GuardedProcess.close, threading.Barrier(3)

    def end(*lane: Any) -> None:
        together.wait(60)
        real(*lane)

    monkeypatch.setattr(GuardedProcess, "close", end)
    wait_for(lanes, JOINED, "a", "b", "c")
    lanes.close()
    assert together.n_waiting == 0
    assert not together.broken
    lanes.close()


def test_lanes_that_say_nothing_are_given_up_with_the_reason(lanes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LANE_COMMAND", ("-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(processes, "START_LIMIT_S", 0.05)
    with pytest.raises(NodeLostError, match=r"3 lanes .*a: .* within 0 s; b: "):
        wait_for(lanes, JOINED, "a")


def test_a_lane_given_up_for_good_does_not_pass_for_one_that_is_there(lanes: Processes) -> None:
    """Else a study whose other lanes are gone would wait for ever."""
    wait_for(lanes, JOINED, "a", "b", "c")
    lanes.give_up("a", "of no use", for_good=True)
    heard = wait_for(lanes, LEFT, "a")
    lanes.give_up("b", "silent")
    heard += wait_for(lanes, JOINED, "b")  # this one comes again
    lanes.give_up("b", "of no use", for_good=True)
    lanes.give_up("c", "of no use", for_good=True)
    with pytest.raises(NodeLostError, match=r"3 lanes .*a: .* use; b: .*; c: "):
        wait_for(lanes, JOINED, "a")
    assert [t.lane for t in heard if t.message["type"] == JOINED] == ["b"]


def test_a_lane_whose_program_fails_says_why_in_its_words(lanes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LANE_COMMAND", ("-c", "raise SystemExit('no disk here')"))
    heard = wait_for(lanes, LEFT, "a", "b", "c")
    whys = {t.message["why"] for t in heard if t.message["type"] == LEFT}
    assert whys == {"its process ended (status 1): no disk here"}


def test_a_lane_is_there_once_its_own_program_says_so(
    lanes: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its first minute may go by in reading packages from a busy disk: that is no silence."""
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
    monkeypatch.setattr(processes, "LANE_COMMAND", ("-c", wait + FAIR))
    assert [lanes.news(0.05) for _ in range(3)] == [[], [], []]
    (tmp_path / "go").touch()
    heard = wait_for(lanes, JOINED, "a", "b", "c")
    assert [t.message["type"] for t in heard if t.lane == "a"][:2] == [JOINED, "alive"]
