"""Several sets are compiled at once: as many as there are processors and memory for, what matters most first."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler import compiler as module
from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.program import CompiledProgram, CompileResult
from autotune.compiler.screen import Screener
from autotune.compiler.targets import parse_topology
from autotune.machine.host import available_memory_bytes
from autotune.model.flags import FlagSet
from autotune.model.time_limits import CompileLimits
from tests.tables import toml_beside

CASES = toml_beside(__file__)

GIB = 1 << 30
PATIENCE_S = 20.0


class Machine:
    """What fake workers do together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now, self.most, self.started = 0, 0, 0
        self.order: list[FlagSet] = []
        self.limits: list[CompileLimits] = []
        self.barrier: threading.Barrier | None = None

    def worker(self, job: CompileJob, shared: FlagSet, progress: Any, **_: Any) -> FakeWorker:
        self.started += 1
        return FakeWorker(self, shared)


class FakeWorker:
    is_touched, broken = False, None

    def __init__(self, machine: Machine, shared: FlagSet) -> None:
        self.machine, self.shared = machine, shared

    def compile(self, settings: FlagSet, *, limits: CompileLimits, has_estimates: bool) -> CompileResult | None:
        machine = self.machine
        with machine.lock:
            machine.now += 1
            machine.most = max(machine.most, machine.now)
            machine.order.append(settings)
            machine.limits.append(limits)
        if machine.barrier is not None:
            machine.barrier.wait(PATIENCE_S)
        with machine.lock:
            machine.now -= 1
        program = CompiledProgram(fingerprint=str(settings), versions={}, device_count=1, memory=None)
        return CompileResult(settings=settings, program=program, cpu_s=40.0, host_bytes=2 * GIB)

    def close(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine()
    monkeypatch.setattr(module, "CompileWorker", found.worker)
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 64 * GIB)
    yield found
    assert found.now == 0  # nothing goes on


def compiler(processors: int, **more: Any) -> Compiler:
    one = parse_topology("1")
    job = CompileJob(entry="llama", options={}, target=None, topology=one, versions={"jaxlib": "0"}, base={})
    return Compiler(job, processors=lambda: processors, **more)


def sets(count: int) -> list[FlagSet]:
    return [FlagSet({"xla_n": n}) for n in range(count)]


def test_the_first_is_alone_and_then_as_many_as_there_are_processors(machine: Machine) -> None:
    with contextlib.closing(compiler(4)) as opened:
        list(opened.compile([FlagSet()]))
        assert machine.most == 1
        machine.barrier = threading.Barrier(4)  # who does not run four at once waits in vain
        results = list(opened.compile(sets(8)))
    assert machine.most == 4
    assert {r.settings for r in results} == set(sets(8))
    assert machine.started == 4


def test_memory_bounds_how_many(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 9 * GIB)  # half of it is enough for two
    with contextlib.closing(compiler(16)) as opened:
        list(opened.compile([FlagSet()]))
        list(opened.compile(sets(12)))
        assert machine.most <= 2
        monkeypatch.setattr(module, "available_memory_bytes", lambda: GIB)  # not even for one: one it is
        machine.most = 0
        list(opened.compile([FlagSet({"xla_m": n}) for n in range(3)]))
    assert machine.most == 1


def test_what_matters_most_is_begun_first_and_results_are_kept(machine: Machine, tmp_path: Path) -> None:
    with contextlib.closing(compiler(3, cache_dir=tmp_path)) as opened:
        list(opened.compile([FlagSet()]))
        machine.order.clear()
        results = opened.compile(sets(9))
        next(results)
        results.close()  # the time is up: no more are begun, those under way are kept
        begun = len(machine.order)
        assert begun < 9
        assert set(machine.order) == set(sets(begun))
    with contextlib.closing(compiler(1, cache_dir=tmp_path)) as again:
        assert sum(r.from_cache for r in again.compile(sets(9))) == begun


def test_a_worker_serves_those_sets_that_it_lowered_for(machine: Machine) -> None:
    mixed = [FlagSet({"jax_a": n % 2, "xla_n": n}) for n in range(8)]
    with contextlib.closing(compiler(2)) as opened:
        list(opened.compile([mixed[0]]))
        list(opened.compile(mixed[1:]))
    assert machine.started <= 4  # eight if each took turns


def test_limits_follow_from_the_first(machine: Machine) -> None:
    with contextlib.closing(compiler(1)) as opened:
        list(opened.compile([FlagSet(), *sets(1)]))
    # Eight times the first one's 40 s of processor time, and by the clock four times that, however long that took.
    assert machine.limits == [CompileLimits(900.0), CompileLimits(1280.0, 320.0)]


@pytest.mark.parametrize(("files", "left"), CASES["memory_limits"])
def test_a_container_has_no_more_memory_than_its_limit_leaves(tmp_path: Path, files: dict[str, str], left: Any) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = available_memory_bytes(tmp_path)
    assert found == left if left != "" else found > 1000


@pytest.mark.aot
@pytest.mark.slow
def test_real_compilations_at_once_give_the_verdicts_of_those_in_a_row(toy_job: Any) -> None:
    def report(processors: int) -> tuple[Any, set[int]]:
        with contextlib.closing(Compiler(toy_job(), processors=lambda: processors)) as opened:
            found = Screener(opened, baseline=FlagSet()).run(CASES["compiled_at_once"])
            return found, set(opened.workers)

    (alone, one), (beside, several) = report(1), report(max(2, len(os.sched_getaffinity(0))))
    assert len(one) == 1 < len(several)
    assert [(s.name, s.effect, [(v.value, v.fingerprint) for v in s.values]) for s in alone.settings] == [
        (s.name, s.effect, [(v.value, v.fingerprint) for v in s.values]) for s in beside.settings
    ]
    assert alone.reference.fingerprint == beside.reference.fingerprint
