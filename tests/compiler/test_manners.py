"""Processes that compile let others go first, and keep to the processors that they are told."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from autotune.compiler.compile_worker import NICENESS
from autotune.compiler.compiler import Compiler
from autotune.compiler.job import CompileJob
from autotune.compiler.targets import parse_topology
from autotune.model import FlagSet, LaunchError

HERE = Path(__file__).parent
ALL = sorted(os.sched_getaffinity(0))


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    job = CompileJob(
        entry="polite_workload:make", options={"folder": str(tmp_path)}, target=None, topology=parse_topology("1"),
        paths=(str(HERE),),
    )  # fmt: skip
    return Compiler(job)


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
    assert sorted(os.sched_getaffinity(0)) == ALL  # of the driver nothing has changed


def test_what_was_stopped_compiles_again_when_it_is_resumed(compiler: Compiler) -> None:
    begun = threading.Event()
    compiler._progress = lambda what: begun.set()
    with compiler:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                list(compiler.compile([FlagSet()]))
            except LaunchError as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        compiler.abort()
        thread.join(60)
        assert not thread.is_alive()
        assert [str(e) for e in failed] == ["compiling was stopped"]
        compiler.resume()
        assert [r.failure for r in compiler.compile([FlagSet()])] == [None]
