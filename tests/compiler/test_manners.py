"""Processes that compile let others go first, keep to the processors that they are told, and end when they are told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.compile_worker import NICENESS
from autotune.compiler.compiler import Compiler
from autotune.model import time_limits
from autotune.model.errors import StoppedError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind

ALL = sorted(os.sched_getaffinity(0))


@pytest.fixture
def polite(tmp_path: Path, toy_job: Any) -> Any:
    return toy_job("1", None, "polite_workload:make", folder=str(tmp_path))


def test_every_compilation_is_niced_and_keeps_to_its_processors(polite: Any, tmp_path: Path) -> None:
    told = []
    with contextlib.closing(Compiler(polite)) as compiler:
        for processors, value in ((ALL[-1:], "1"), ([], "2"), (ALL[:1], "3")):
            compiler.kept_to = frozenset(processors)
            sets = [FlagSet({"xla_cpu_prefer_vector_width": value * 3})]
            assert [r.failure for r in compiler.compile(sets)] == [None]
            newest = max(tmp_path.glob("*.json"), key=lambda p: p.stat().st_mtime_ns)
            told.append(json.loads(newest.read_text()))
    assert [t["processors"] for t in told] == [ALL[-1:], ALL, ALL[:1]]  # all of them again, after a few
    assert {t["niceness"] for t in told} == {max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))}
    assert {t["goes_first"] for t in told} == {"1000"}  # if memory ends, before anybody else
    assert sorted(os.sched_getaffinity(0)) == ALL  # of the driver nothing has changed


def test_compiling_that_is_stopped_ends_at_once_and_leaves_nothing(toy_job: Any) -> None:
    compiler, stopped = Compiler(toy_job(topology="1", target=None)), list[StoppedError]()

    def compile_many() -> None:
        try:
            for level in range(1000):
                list(compiler.compile([FlagSet({"xla_cpu_parallel_codegen_split_count": str(level + 1)})]))
        except StoppedError as error:
            stopped.append(error)

    thread = threading.Thread(target=compile_many)
    thread.start()
    while not (workers := compiler.workers) or not hasattr(workers[0], "broken"):
        time.sleep(0.05)
    folder = workers[0]._folder
    compiler.abort()
    thread.join(timeout=60)
    compiler.close()
    assert not thread.is_alive()
    assert len(stopped) == 1
    assert not folder.exists()


@pytest.mark.gate
def test_a_compilation_may_take_many_times_the_processor_time_of_the_default_s(
    polite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a setting makes the compiler take for ever, that is found out once, whatever else the machine does."""
    monkeypatch.setattr(time_limits, "LEAST_COMPILE_S", 2.0)
    endless = FlagSet({"xla_cpu_prefer_vector_width": 64})
    with contextlib.closing(Compiler(polite, cache_dir=tmp_path / "cache")) as compiler:
        _, result = compiler.compile([FlagSet(), endless])
        assert result.failure is not None
        assert result.failure.kind is FailureKind.COMPILE_ERROR
        told = re.fullmatch(
            r"the compiler did not finish within (\d+) s of processor time, at least 8 times what the default takes",
            result.failure.message,
        )
        assert told is not None
        assert float(told[1]) - 1.0 < result.cpu_s < float(told[1]) + 3.0  # the kernel counts whole seconds, by ticks
    with contextlib.closing(Compiler(polite, cache_dir=tmp_path / "cache")) as compiler:
        assert [r.from_cache for r in compiler.compile([FlagSet(), endless])] == [True, True]
