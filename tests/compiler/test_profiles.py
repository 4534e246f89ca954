"""A recorded profile, read by the real compiler for described GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.compiler import Compiler
from autotune.compiler.program import CompiledProgram, CompileResult, Op, OpKind
from autotune.model.flags import KERNELS, PROFILE, FlagSet
from tests.runs import there

pytestmark = pytest.mark.aot

NO_GRAPHS = FlagSet({"xla_gpu_enable_command_buffer": ""})
"""Kernels inside a CUDA graph are one event to a profiler."""


@pytest.fixture(scope="module")
def compile_one(toy_job: Any) -> Iterator[Any]:
    """What becomes of a set; all are compiled by one worker."""
    with Compiler(toy_job()) as compiler:

        def one(settings: FlagSet) -> CompileResult:
            (result,) = compiler.compile([settings])
            return result

        yield one


def program(result: CompileResult) -> CompiledProgram:
    assert result.program is not None, result.failure
    return result.program


def all_ops(schedule: Iterable[Op]) -> Iterator[Op]:
    for op in schedule:
        yield op
        yield from all_ops(op.content)


def order(found: CompiledProgram) -> list[tuple[str, str]]:
    """Kinds and names in the order in which the host issues them."""
    return [(op.kind, op.name) for op in all_ops(found.schedule)]


def recorded(found: CompiledProgram, *, collective_us: float, kernel_us: float) -> bytes:
    """A profile as a run would leave it, of a program's own instructions."""
    lines = []
    for op in all_ops(found.schedule):
        cost = {OpKind.KERNEL: kernel_us}.get(op.kind, collective_us)
        lines.append(f'costs {{ name: "{op.name}" cost_us: {cost} }}\n')
    return "".join(dict.fromkeys(lines)).encode()


def with_profile(content: bytes, folder: Path, base: FlagSet = NO_GRAPHS) -> FlagSet:
    """The set as a worker is started under it."""
    path = folder / "recorded.pbtxt"
    path.write_bytes(content)
    return base.merge({PROFILE: str(path)})


def test_a_profile_makes_another_schedule_of_the_same_work(compile_one: Any, tmp_path: Path) -> None:
    bare = program(compile_one(NO_GRAPHS))
    slow = recorded(bare, collective_us=2000.0, kernel_us=1.0)
    guided = program(compile_one(with_profile(slow, tmp_path)))
    assert guided.fingerprint != bare.fingerprint
    assert order(guided) != order(bare)
    kinds = [sorted(kind for kind, _ in order(p) if kind in ("kernel", "collective")) for p in (guided, bare)]
    assert kinds[0] == kinds[1]


def test_what_is_profiled_without_graphs_fits_the_program_with_graphs(compile_one: Any, tmp_path: Path) -> None:
    bare, graphs = program(compile_one(NO_GRAPHS)), program(compile_one(FlagSet()))
    work = (OpKind.KERNEL, OpKind.COLLECTIVE)
    named = [{op.name for op in all_ops(p.schedule) if op.kind in work} for p in (bare, graphs)]
    assert named[0] <= named[1]
    profile = recorded(bare, collective_us=2000.0, kernel_us=1.0)
    assert program(compile_one(with_profile(profile, tmp_path, FlagSet()))).fingerprint != graphs.fingerprint


@pytest.mark.parametrize("content", [None, b"not a profile {{"])
def test_the_compiler_goes_on_without_a_word_where_a_profile_is_none(
    compile_one: Any, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "profile.pbtxt"
    if content is not None:
        path.write_bytes(content)
    found = program(compile_one(NO_GRAPHS.merge({PROFILE: str(path)})))
    assert found.fingerprint == program(compile_one(NO_GRAPHS)).fingerprint  # which is why files are looked at before


@pytest.mark.parametrize(("content", "said"), [(None, "does not exist"), ("no results {{", "parse autotune results")])
def test_the_compiler_refuses_results_that_are_none(
    compile_one: Any, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "results.textproto"
    if content is not None:
        path.write_text(content)
    result = compile_one(FlagSet({KERNELS: str(path)}))
    assert said in there(result.failure).message
