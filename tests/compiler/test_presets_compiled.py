"""Presets compiled for GPUs that are not here: fused attention, and pairs of settings that act only together."""

from __future__ import annotations

import contextlib
import importlib.util
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.compiler import Compiler
from autotune.compiler.program import CompiledProgram, OpKind, walk
from autotune.compiler.targets import load_target, parse_topology
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from tests.runs import there

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.aot, pytest.mark.slow, pytest.mark.timeout(900)]
with_cudnn = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None or importlib.util.find_spec("nvidia.cudnn") is None,
    reason="cuDNN's wheel is not installed",
)

SMALL = {"layers": 4, "d_model": 256, "ffw": 512, "heads": 8, "kv_heads": 8, "head_size": 64, "vocab": 512, "seq": 128}


def job(options: dict[str, Any], target: str = "h100-sxm") -> CompileJob:
    """A small preset on eight GPUs."""
    return CompileJob(
        entry="llama-small", options=SMALL | options, target=load_target(target), topology=parse_topology("1x8")
    )


def compiled(job: CompileJob, sets: Sequence[FlagSet] = (FlagSet(),)) -> list[CompiledProgram]:
    with contextlib.closing(Compiler(job)) as compiler:
        return [there(result.program) for result in compiler.compile(sets)]


def moves(program: CompiledProgram) -> dict[str, int]:
    """Number of collectives by kind."""
    names = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "send", "recv")
    return {name: program.opcodes.get(name, 0) + program.opcodes.get(f"{name}-start", 0) for name in names}


@with_cudnn
@pytest.mark.parametrize("mesh", [{"fsdp": 2, "tensor": 4}, {"pipeline": 2, "data": 2, "tensor": 2}], ids=str)
def test_presets_compile_fused_attention_without_a_gpu_and_it_moves_no_data(mesh: dict[str, int]) -> None:
    options = {"dtype": "bfloat16", "batch": 16, "mesh": mesh}
    (fused,), (plain,) = (compiled(job(options | more)) for more in ({}, {"attention": "xla"}))
    assert {n for n in fused.custom_calls if "cudnn" in n} == {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}
    assert not any("cudnn" in n for n in plain.custom_calls)
    assert moves(fused) == moves(plain)


@with_cudnn
@pytest.mark.parametrize(
    ("target", "head_size", "is_taken"), [("h100-sxm", 64, 1), ("h100-sxm", 256, 1), ("a100-sxm-80", 256, 0)]
)
def test_fused_attention_asks_the_described_gpu_and_no_backend_is_started_for_it(
    target: str, head_size: int, is_taken: int
) -> None:
    fused = {"head_size": head_size, "dtype": "bfloat16", "batch": 16, "mesh": {"fsdp": 8}, "attention": "cudnn"}
    with contextlib.closing(Compiler(job(fused, target))) as compiler:
        if not is_taken:  # the largest head before Hopper is 128
            with pytest.raises(LaunchError, match=r"head dim .*<= 128"):
                list(compiler.compile([FlagSet()]))
            return
        (result,) = compiler.compile([FlagSet()])
        assert not compiler.workers[0].is_touched
    assert result.program is not None
    assert sum(count for name, count in result.program.custom_calls.items() if name.startswith("__cudnn")) >= 2
    # Two products forward and five backward, of two sequences, under the causal mask: half of the pairs.
    forward = 2 * 2 * 2 * 8 * head_size * 128**2 / 2
    found = {op.matrix_flops for op, _, _ in walk(result.program.schedule) if op.detail.startswith("__cudnn$fmha")}
    assert found == {forward, 2.5 * forward}


@pytest.mark.parametrize("scales", ["current", "delayed"])
def test_products_of_float8_are_calls_that_take_it_and_gradients_are_summed_in_bfloat16(scales: str) -> None:
    options = {"batch": 16, "mesh": {"fsdp": 8}, "attention": "xla", "dtype": "float8", "float8_scales": scales}
    (program,) = compiled(job(options), [FlagSet({"xla_gpu_enable_triton_gemm": False})])
    assert program.custom_calls["__cublas$lt$matmul$f8"] == 3 * 7  # forward and two gradients, seven matrices
    moved = [op.collective for op, _, _ in walk(program.schedule) if op.collective is not None]
    # Weights of layers travel as float8; their gradients, like all others, are summed in bfloat16.
    assert sum(c.bytes for c in moved if (c.kind, c.dtype) == ("all-gather", "f8e4m3fn")) > 0
    assert {c.dtype for c in moved if c.kind == "reduce-scatter"} == {"bf16"}


def test_what_is_offloaded_is_copied_to_the_host_and_leaves_the_memory_of_the_gpu() -> None:
    options = {"dtype": "bfloat16", "batch": 64, "mesh": {"fsdp": 8}, "attention": "xla", "remat": "dots"}
    variants: tuple[dict[str, Any], ...] = ({}, {"offload": "optimizer"}, {"remat": "minimal_offloaded"})
    programs = [compiled(job(options | more))[0] for more in variants]
    plain, optimizer, activations = (there(program.memory) for program in programs)
    assert 3 * optimizer.argument_bytes == pytest.approx(plain.argument_bytes, rel=0.01)
    assert optimizer.peak_bytes < plain.peak_bytes
    assert activations.argument_bytes == plain.argument_bytes
    assert activations.temp_bytes < plain.temp_bytes
    copies = [program.opcodes.get("copy-start", 0) for program in programs]
    assert copies[1] >= copies[0] + 2 * 2 * 9  # two moments of nine matrices, there and back


def test_a_loop_that_xla_no_longer_counts_after_pipelining_is_counted() -> None:
    piped = {"batch": 32, "microbatches": 8, "remat": "full", "mesh": {"pipeline": 2, "fsdp": 4}, "attention": "xla"}
    sets = [FlagSet({"xla_gpu_enable_pipelined_all_gather": value}) for value in (False, True)]
    programs, products = compiled(job(piped), sets), []
    for program in programs:
        assert all(op.trip_count is not None for op, _, _ in walk(program.schedule) if op.kind is OpKind.LOOP)
        products.append(sum(times * op.matrix_flops for op, times, _ in walk(program.schedule)))
    assert programs[0] != programs[1]
    assert products[1] == pytest.approx(products[0], rel=0.1)


def test_the_pair_of_the_pipeline_study_makes_another_program_and_neither_does_alone() -> None:
    study = tomllib.loads((ROOT / "studies/pipeline-parallel.toml").read_text(encoding="utf-8"))
    (pair,) = (named["settings"] for named in study["search"]["first"])
    # In its own width: XLA 0.12.0.1 cannot compile the pair for a narrow one ("cannot remove instruction").
    options = {**study["workload"]["options"], "layers": 8, "vocab": 32_000, "attention": "xla"}
    pipelined = CompileJob(
        entry=study["workload"]["entry"], options=options, target=load_target("h100-sxm"), topology=parse_topology("8")
    )
    sets = [FlagSet(), *(FlagSet({name: value}) for name, value in pair.items()), FlagSet(pair)]
    reference, *alone, both = map(moves, compiled(pipelined, sets))
    assert alone == [reference, reference]
    assert reference["send"] == 0 < both["send"] == both["recv"]
    assert both["collective-permute"] < reference["collective-permute"]
