"""Processes that compile let others go first, and keep to the processors that they are told."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.compile_worker import NICENESS, CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.targets import parse_topology
from autotune.model import time_limits
from autotune.model.errors import StoppedError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind

HERE = Path(__file__).parent
ALL = sorted(os.sched_getaffinity(0))


def opened(tmp_path: Path, **how: Any) -> Compiler:
    job = CompileJob(
        entry="polite_workload:make", options={"folder": str(tmp_path)}, target=None, topology=parse_topology("1"),
        paths=(str(HERE),),
    )  # fmt: skip
    return Compiler(job, **how)


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return opened(tmp_path)


def test_every_compilation_is_niced_and_keeps_to_its_processors(compiler: Compiler, tmp_path: Path) -> None:
    """On 2b61fbc they had the niceness and all the processors of what is measured."""
    told = []
    with compiler:
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


@pytest.mark.gate
def test_a_compilation_may_take_many_times_the_processor_time_of_the_default_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a setting makes the compiler take for ever, that is found out once, whatever else the machine does."""
    monkeypatch.setattr(time_limits, "LEAST_COMPILE_S", 2.0)
    endless = FlagSet({"xla_cpu_prefer_vector_width": 64})
    with opened(tmp_path, cache_dir=tmp_path / "cache") as compiler:
        _, result = compiler.compile([FlagSet(), endless])
        assert result.failure is not None
        assert result.failure.kind is FailureKind.COMPILE_ERROR
        told = re.fullmatch(
            r"the compiler did not finish within (\d+) s of processor time, at least 8 times what the default takes",
            result.failure.message,
        )
        assert told is not None
        assert float(told[1]) - 1.0 < result.cpu_s < float(told[1]) + 3.0  # the kernel counts whole seconds, by ticks
    with opened(tmp_path, cache_dir=tmp_path / "cache") as compiler:
        assert [r.from_cache for r in compiler.compile([FlagSet(), endless])] == [True, True]


@pytest.mark.gate
def test_what_is_stopped_ends_at_once(compiler: Compiler) -> None:
    begun = threading.Event()
    compiler._progress = lambda what: begun.set()
    with compiler:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                list(compiler.compile([FlagSet()]))
            except StoppedError as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        compiler.abort()
        thread.join(60)
        assert not thread.is_alive()
        assert [type(e) for e in failed] == [StoppedError]
