from __future__ import annotations

import pytest

from autotune.compiler.hlo import Module, Work, device_groups, kernel_work, parse_module

MODULE = """HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused_slice (p0: bf16[5,7,11], p1: s32[]) -> bf16[7,11] {
  %p0 = bf16[5,7,11]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %piece = bf16[1,7,11]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,7,11}
  ROOT %flat = bf16[7,11]{1,0} bitcast(%piece)
}

%fused_update (p0: f32[5,13], p1: f32[1,13], p2: s32[]) -> f32[5,13] {
  %p0 = f32[5,13]{1,0} parameter(0)
  %p1 = f32[1,13]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %new = f32[5,13]{1,0} dynamic-update-slice(%p0, %p1, %p2, %zero.1)
}

%fused_gemm (p0: bf16[3,7], p1: bf16[7,11]) -> bf16[3,11] {
  %p0 = bf16[3,7]{1,0} parameter(0)
  %p1 = bf16[7,11]{1,0} parameter(1)
  ROOT %dot = bf16[3,11]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main.7 (x: bf16[3,7], w: bf16[5,7,11], i: s32[], s: (f32[5,13], f32[1,13])) -> bf16[3,11] {
  %x = bf16[3,7]{1,0} parameter(0)
  %w = bf16[5,7,11]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %s = (f32[5,13]{1,0}, /*index=1*/f32[1,13]{1,0}) parameter(3)
  %layer = bf16[7,11]{1,0:T(8,128)} fusion(%w, %i), kind=kLoop, calls=%fused_slice, metadata={op_name="a(b)"}
  %stacked = f32[5,13]{1,0} fusion(%s#0, %s#1, %i), kind=kLoop, calls=%fused_update
  %copy.1 = f32[1,13]{1,0} copy(%s#1)
  ROOT %out = bf16[3,11]{1,0} fusion(%x, %layer), kind=kCustom, calls=%fused_gemm
}
"""


@pytest.fixture(scope="module")
def module() -> Module:
    return parse_module(MODULE)


def work_of(module: Module, name: str) -> Work:
    return kernel_work(module, *module.index()[name])


def test_kernels_count_what_they_read_and_write_of_slices_updates_and_tuples(module: Module) -> None:
    done = work_of(module, "out")
    assert done.matrix_flops == 2 * 3 * 7 * 11
    assert done.matrix_dtype == "bf16"
    assert done.bytes == 2 * (3 * 7 + 7 * 11 + 3 * 11)
    # the slice read and written, and both scalars
    assert work_of(module, "layer").bytes == 2 * 7 * 11 + 2 * 7 * 11 + 4
    assert work_of(module, "stacked").bytes == 4 * 13 + 4 * 13 + 4
    assert work_of(module, "copy.1").bytes == 2 * 4 * 13


GROUPS = [
    ("replica_groups={{0,2},{1,3}}", [[0, 2], [1, 3]]),
    ("replica_groups={}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
    ("replica_groups=[2,4]<=[8], dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ("replica_groups=[2,4]<=[4,2]T(1,0), channel_id=3", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ("replica_groups=mesh['x'=4,'y'=2] {'y'}, dimensions={1}", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("replica_groups=mesh['x'=4,'y'=2] {'x'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ("replica_groups=mesh['x'=4,'y'=2] {'x':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("replica_groups=mesh['x'=4,'y'=2] {'x':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ("source_target_pairs={{0,1},{1,0}}, channel_id=1", [[0, 1], [1, 0]]),
]


@pytest.mark.parametrize(("text", "groups"), GROUPS)
def test_device_groups_of_every_notation(text: str, groups: list[list[int]]) -> None:
    line = (
        f"ENTRY %m (p: f32[7]) -> f32[7] {{\n  %p = f32[7] parameter(0)\n  ROOT %c = f32[7] all-gather(%p), {text}\n}}"
    )
    instruction = parse_module(line).computations["m"].instructions["c"]
    assert sorted(device_groups(instruction, 8)) == groups


def test_shape_of_a_product_is_read_from_dots_and_library_calls() -> None:
    module = parse_module("""HloModule jit_step

%fused (a: bf16[3,5,7], b: bf16[3,7,11]) -> bf16[3,5,11] {
  %a = bf16[3,5,7] parameter(0)
  %b = bf16[3,7,11] parameter(1)
  ROOT %dot = bf16[3,5,11] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}
}

ENTRY %main (x: bf16[7,5], y: bf16[7,11], a: bf16[3,5,7], b: bf16[3,7,11]) -> bf16[5,11] {
  %x = bf16[7,5] parameter(0)
  %y = bf16[7,11] parameter(1)
  %a.1 = bf16[3,5,7] parameter(2)
  %b.1 = bf16[3,7,11] parameter(3)
  %triton = bf16[3,5,11] fusion(%a.1, %b.1), kind=kCustom, calls=%fused
  ROOT %gemm = (bf16[5,11], s8[64]) custom-call(%x, %y), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}
}
""")  # noqa: E501 - as XLA writes it
    fused, called = (kernel_work(module, *module.index()[name]) for name in ("triton", "gemm"))
    assert (fused.product, fused.matrix_flops) == ((3, 5, 11, 7), 2 * 3 * 5 * 7 * 11)
    assert (called.product, called.matrix_flops) == ((1, 5, 11, 7), 2 * 5 * 7 * 11)
