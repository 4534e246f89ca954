from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler import compile_worker
from autotune.compiler import compiler as compiler_module
from autotune.compiler import program as P
from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.program import CompiledProgram, CompileResult
from autotune.compiler.schedule import read_program
from autotune.compiler.screen import Screener
from autotune.machine import environment
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.time_limits import CompileLimits
from tests.runs import there
from tests.tables import toml_beside

pytestmark = [pytest.mark.aot, pytest.mark.gate]

REFERENCE = FlagSet()
NOT_COMBINED = FlagSet({"xla_gpu_all_gather_combine_threshold_bytes": 0})
DOUBLE_BUFFERED = FlagSet({"xla_gpu_enable_while_loop_double_buffering": True})
NO_GRAPHS = FlagSet({"xla_gpu_enable_command_buffer": ""})
NCCL_SET = FlagSet({"NCCL_PROTO": "LL128", "xla_gpu_nccl_collective_max_nchannels": "7"})
UNKNOWN = FlagSet({"xla_gpu_no_such_flag": 3})
REJECTED = FlagSet({"xla_gpu_experimental_autotune_backends": "TRITON"})
BREAKING = FlagSet({"xla_gpu_ptx_compiler_extra_flags": "--no-such"})  # an error on 0.10.2, SIGSEGV on 0.12.0.1


def compile_sets(job: CompileJob, sets: Sequence[FlagSet], **how: Any) -> list[CompileResult]:
    """What becomes of each distinct set, compiled by a worker of their own."""
    with contextlib.closing(Compiler(job, **how)) as compiler:
        return list(compiler.compile(sets))


@pytest.fixture(scope="module")
def results(toy_job: Any) -> dict[FlagSet, CompileResult]:
    sets = (REFERENCE, NOT_COMBINED, UNKNOWN, DOUBLE_BUFFERED, NO_GRAPHS, NCCL_SET, REFERENCE)
    return {r.settings: r for r in compile_sets(toy_job(), sets)}


def program(results: dict[FlagSet, CompileResult], settings: FlagSet) -> CompiledProgram:
    found = results[settings].program
    assert found is not None, results[settings].failure
    return found


def test_kernels_carry_xlas_own_estimates_and_the_program_is_the_same_without(
    results: dict[FlagSet, CompileResult], toy_job: Any
) -> None:
    kernels = [op for op, _, _ in P.walk(program(results, REFERENCE).schedule) if op.kind is P.OpKind.KERNEL]
    estimates = [op.xla_s for op in kernels if op.xla_s is not None]
    assert len(estimates) > len(kernels) / 2
    assert all(0 < s < 1e-3 for s in estimates)
    with contextlib.closing(Compiler(toy_job())) as compiler:
        compiler._has_estimates = False
        (plain,) = compiler.compile([REFERENCE])
    assert there(plain.program).fingerprint == program(results, REFERENCE).fingerprint
    assert not any(op.xla_s for op, _, _ in P.walk(there(plain.program).schedule))


def test_build_that_cannot_estimate_compiles_without(toy_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_worker, "ESTIMATES", "--xla_gpu_estimates_of_another_build=true")
    with contextlib.closing(Compiler(toy_job())) as compiler:
        found = list(compiler.compile([REFERENCE, UNKNOWN]))
    assert found[0].program is not None
    assert "xla_gpu_no_such_flag" in there(found[1].failure).message


def test_weights_of_a_layer_are_gathered_together_and_every_dot_is_found(results: dict[FlagSet, CompileResult]) -> None:
    def gathers(settings: FlagSet) -> int:
        ops = [op for op, _, _ in P.walk(program(results, settings).schedule)]
        return sum(op.collective is not None and op.collective.kind == "all-gather" for op in ops)

    assert gathers(NOT_COMBINED) > gathers(REFERENCE)
    found = program(results, REFERENCE)
    done = sum(op.matrix_flops * times for op, times, _ in P.walk(found.schedule)) * 8
    assert found.flops_per_step is not None
    # Recomputing a layer costs one or two of its forward products again: at most 8 of 6.
    assert found.flops_per_step <= done <= found.flops_per_step * 8 / 6


def test_double_buffering_halves_the_trips_of_the_loops(results: dict[FlagSet, CompileResult]) -> None:
    for settings, trips in ((REFERENCE, 4), (DOUBLE_BUFFERED, 2)):
        ops = P.walk(program(results, settings).schedule)
        assert {op.trip_count for op, _, _ in ops if op.kind is P.OpKind.LOOP} == {trips}


def test_command_buffers_change_the_thunks_and_what_is_read_at_run_time_nothing(
    results: dict[FlagSet, CompileResult],
) -> None:
    with_graphs, without = program(results, REFERENCE), program(results, NO_GRAPHS)
    assert P.figures(with_graphs)["kernels in command buffers"] > 0
    assert P.figures(without)["command buffers"] == 0
    assert with_graphs.opcodes == without.opcodes
    assert program(results, NCCL_SET).fingerprint == with_graphs.fingerprint != without.fingerprint


def test_sets_that_fail_are_told_in_the_compilers_words_and_the_next_one_compiles(
    results: dict[FlagSet, CompileResult], toy_job: Any
) -> None:
    rejected, broken, after = compile_sets(toy_job(), [REJECTED, BREAKING, REFERENCE])
    assert after.program is not None
    assert there(broken.failure).kind in (FailureKind.COMPILE_ERROR, FailureKind.CRASH)
    for result, kind, said in (
        (rejected, FailureKind.COMPILE_ERROR, "config"),
        (results[UNKNOWN], FailureKind.UNKNOWN_FLAG, "xla_gpu_no_such_flag"),
    ):
        failure = there(result.failure)
        assert failure.kind is kind
        assert said in failure.message


def test_second_call_takes_everything_from_the_cache(toy_job: Any, tmp_path: Path) -> None:
    sets = [REFERENCE, UNKNOWN]
    first = compile_sets(toy_job(), sets, cache_dir=tmp_path)
    told: list[str] = []
    second = compile_sets(toy_job(), sets, cache_dir=tmp_path, progress=told.append)
    assert told == []
    assert all(r.from_cache for r in second)
    assert [r.program for r in second] == [r.program for r in first]


def test_other_versions_or_sizes_do_not_share_a_cache(toy_job: Any) -> None:
    job = toy_job()
    other = dataclasses.replace(job, versions={**job.versions, "jaxlib": "0.0.7"})
    assert len({job.digest, other.digest, toy_job(batch=1536).digest, toy_job("2x8").digest}) == 4


def test_broken_workload_is_an_error_that_quotes_it(toy_job: Any) -> None:
    with pytest.raises(LaunchError, match="seven is"):
        compile_sets(toy_job(entry="toy_workload:broken"), [REFERENCE])


def test_workload_without_shapes_compiles_for_one_device_and_asks_for_them_for_more(toy_job: Any) -> None:
    (result,) = compile_sets(toy_job("1x1", entry="workloads.example:build"), [REFERENCE])
    assert result.program is not None, result.failure
    with pytest.raises(LaunchError, match="abstract_state"):
        compile_sets(toy_job("1x2", entry="workloads.example:build"), [REFERENCE])


def test_batch_that_is_too_large_is_found_without_a_gpu(toy_job: Any) -> None:
    verdicts = {}
    for batch in (2048, 8 << 22):
        with contextlib.closing(Compiler(toy_job(target="l4", batch=batch))) as compiler:
            screen = Screener(compiler, baseline=FlagSet())
            verdicts[batch] = screen.run({}).reference.fits
    assert verdicts == {2048: True, 8 << 22: False}


def test_compiler_options_in_another_process_give_the_same_fingerprint(
    results: dict[FlagSet, CompileResult], toy_job: Any, tmp_path: Path
) -> None:
    job = toy_job()
    order = {
        "entry": job.entry,
        "options": {},
        "paths": list(job.paths),
        "platform": "cuda",
        "lowers_first": True,
        "target_config": job.target.config_text,
        "topology": "1x1x8",
    }
    env = environment.child_environment(environment.caller_environment(), FlagSet(), platform_name="cpu")
    env |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "PYTHONPATH": str(Path.cwd())}
    by_options = toml_beside(__file__)["programs"]["by_compiler_options"]
    command = [sys.executable, "-c", by_options, json.dumps(order), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    other = read_program(tmp_path, json.loads(done.stdout.splitlines()[-1]), job.topology, is_gpu=True)
    assert other.fingerprint == program(results, DOUBLE_BUFFERED).fingerprint


def test_hanging_compiler_is_ended_at_the_limit(toy_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "compile_limits", lambda first_s: CompileLimits(0.05))
    (result,) = compile_sets(toy_job(), [REFERENCE])
    assert there(result.failure).kind is FailureKind.HANG
