from __future__ import annotations

from pathlib import Path

import pytest

from autotune.compiler import program as P
from autotune.compiler.hlo import parse_module
from autotune.compiler.predict import predict_step
from autotune.compiler.program import CompiledProgram, Memory, OpKind, changes
from autotune.compiler.schedule import Reader, Thunk, fingerprint, parse_thunks
from autotune.compiler.targets import Topology, load_target, parse_topology

DUMPS = Path(__file__).parent / "dumps"
# As XLA writes it: the marks of loops are not indented with the loop they belong to.
THUNKS = (DUMPS / "schedule.thunks").read_text(encoding="utf-8")
HLO = (DUMPS / "schedule.hlo").read_text(encoding="utf-8")

NAMES = {
    1: "convert",
    2: "all-gather-start",
    3: "all-gather",
    4: "all-gather-done",
    5: "while.1",
    6: "compare",
    7: "copy.3",
    8: "while.2",
    9: "compare",
    10: "reduce-scatter",
    11: "multiply",
    12: "piece",
    15: "multiply",
    16: "multiply",
    17: "multiply",
}


def read() -> CompiledProgram:
    reader = Reader(parse_module(HLO), NAMES, Topology(2, 4))
    return CompiledProgram(
        fingerprint="one",
        versions={},
        device_count=8,
        memory=Memory(argument_bytes=700, output_bytes=500, alias_bytes=300, temp_bytes=1100),
        schedule=reader.schedule(parse_thunks(THUNKS)),
        flops_per_step=1e9,
    )


def numbers(thunks: list[Thunk]) -> list[int]:
    return [t.number for t in thunks]


def test_marks_of_nested_loops_belong_to_the_innermost_open_loop() -> None:
    top = parse_thunks(THUNKS)
    assert numbers(top) == [1, 2, 4, 5, 14]
    outer = top[3]
    assert numbers(outer.condition) == [6]
    assert numbers(outer.nested) == [7, 8, 0]
    inner = outer.nested[1]
    assert numbers(inner.condition) == [9]
    assert numbers(inner.nested) == [10]


def test_loops_collectives_and_graphs_are_read_and_counted() -> None:
    found = [(op.name, op.trip_count) for op, _, _ in P.walk(read().schedule) if op.kind is OpKind.LOOP]
    assert found == [("while.1", 5), ("while.2", None)]
    figures = P.figures(read())
    assert (figures["all-gather runs a step"], figures["all-gather bytes a step"]) == (1, 4 * 8 * 7)
    assert (figures["reduce-scatter runs a step"], figures["reduce-scatter bytes a step"]) == (5, 5 * 4 * 8 * 7)
    assert (figures["all-gather (async)"], figures["reduce-scatter (sync)"]) == (1, 1)
    assert [figures[f"loops{more}"] for more in ("", " of unknown length, counted once")] == [2, 1]
    assert (figures["command buffers"], figures["kernels in command buffers"]) == (1, 2)
    sliced = next(op for op, _, _ in P.walk(read().schedule) if op.name == "piece")
    assert sliced.kind is OpKind.COPY
    assert sliced.bytes == 2 * 4 * 7


def test_fingerprint_ignores_notes_on_neighbours_and_sees_streams() -> None:
    same = fingerprint("h", THUNKS)
    assert fingerprint("h", THUNKS.replace("[prev=001 (1) | next=003 (3)]", "[prev=001 (2) | next=003 (5)]")) == same
    assert fingerprint("h", THUNKS.replace("communication_stream[0]", "communication_stream[1]")) != same
    assert fingerprint("other", THUNKS) != same


def test_equal_programs_have_no_differences_and_different_ones_always_one() -> None:
    one = read()
    assert changes(one, one) == []
    assert changes(one, one.model_copy(update={"fingerprint": "two"})) == [
        "same figures, but other machine code, buffers or order"
    ]
    fewer = one.model_copy(update={"fingerprint": "two", "schedule": one.schedule[:3]})
    told = changes(one, fewer)
    assert "reduce-scatter (sync): 1 -> 0" in told
    assert "loops: 2 -> 0" in told
    lost = [op.model_copy(update={"trip_count": None}) if op.kind is OpKind.LOOP else op for op in one.schedule]
    uncounted = one.model_copy(update={"fingerprint": "two", "schedule": tuple(lost)})
    assert any("counted once: 1 -> 2" in c for c in changes(one, uncounted))


@pytest.mark.parametrize("colon", [":", ": "], ids=["as XLA writes it", "as JAX does, and XLA leaves it"])
@pytest.mark.parametrize(("mask", "share"), [("CAUSAL", 0.5), ("PADDING_CAUSAL", 0.5), ("NO_MASK", 1.0)])
def test_cudnns_attention_is_a_kernel_that_takes_time(colon: str, mask: str, share: float) -> None:
    text = (DUMPS / "attention.hlo").read_text(encoding="utf-8")
    module = parse_module(text.replace('"mask_type":"CAUSAL"', f'"mask_type"{colon}"{mask}"'))
    reader = Reader(module, {1: "attend"}, Topology(1, 1))
    (op,) = reader.schedule(parse_thunks("001: kCuDnn [source | sink] cuDnn"))
    assert (op.kind, op.detail, op.matrix_flops) == (
        OpKind.KERNEL,
        "__cudnn$fmhaSoftmax",
        2 * 2 * 2 * 8 * 128 * 4096**2 * share,
    )
    one = read().model_copy(update={"schedule": (op,)})
    assert predict_step(one, load_target("h100-sxm"), parse_topology("1x1")).compute_s > 1e-4


@pytest.mark.parametrize(
    ("kind", "takes_time"), [("Fft", True), ("Unheard", True), ("PartitionId", False), ("UnheardDone", False)]
)
def test_a_kind_of_operation_that_nobody_named_moves_its_arrays(kind: str, takes_time: bool) -> None:
    text = (DUMPS / "odd.hlo").read_text(encoding="utf-8")
    reader = Reader(parse_module(text), {1: "odd"}, Topology(1, 1))
    (op,) = reader.schedule(parse_thunks(f"001: k{kind} [source | sink] odd"))
    assert op.bytes == (2 * 4 * 1048576 if takes_time else 0)
    assert (op.kind is OpKind.KERNEL) is takes_time
