from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from autotune.compiler.hlo import Instruction, Work, device_groups, kernel_work, parse_module

DUMPS = Path(__file__).parent / "dumps"
Module = dict[str, Instruction]


@pytest.fixture(scope="module")
def module() -> Module:
    return parse_module((DUMPS / "kernels.hlo").read_text(encoding="utf-8"))


def work_of(module: Module, name: str) -> Work:
    return kernel_work(module[name])


def test_kernels_count_what_they_read_and_write_of_slices_updates_and_tuples(module: Module) -> None:
    done = work_of(module, "out")
    assert done.matrix_flops == 2 * 3 * 7 * 11
    assert done.matrix_dtype == "bf16"
    assert done.bytes == 2 * (3 * 7 + 7 * 11 + 3 * 11)
    # the slice read and written, and both scalars
    assert work_of(module, "layer").bytes == 2 * 7 * 11 + 2 * 7 * 11 + 4
    assert work_of(module, "stacked").bytes == 4 * 13 + 4 * 13 + 4
    assert work_of(module, "copy.1").bytes == 2 * 4 * 13


def test_copies_to_and_from_the_host_count_what_crosses_its_link() -> None:
    module = parse_module((DUMPS / "host.hlo").read_text(encoding="utf-8"))
    moved = {name: work_of(module, name).host_bytes for name in ("out", "in", "saved", "layer", "inside")}
    slice_ = 4 * 8 + 2  # with half of the index
    assert moved == {"out": 4 * 6 * 8, "in": 4 * 6 * 8, "saved": slice_, "layer": slice_, "inside": 0}


GROUPS = tomllib.loads((DUMPS / "groups.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "groups"), list(GROUPS.items()))
def test_device_groups_of_every_notation(text: str, groups: list[list[int]]) -> None:
    line = (
        f"ENTRY %m (p: f32[7]) -> f32[7] {{\n  %p = f32[7] parameter(0)\n  ROOT %c = f32[7] all-gather(%p), {text}\n}}"
    )
    instruction = parse_module(line)["c"]
    assert sorted(device_groups(instruction, 8)) == groups


def test_shape_of_a_product_is_read_from_dots_and_library_calls() -> None:
    module = parse_module((DUMPS / "products.hlo").read_text(encoding="utf-8"))
    fused, called = (work_of(module, name) for name in ("triton", "gemm"))
    assert (fused.product, fused.matrix_flops) == ((3, 5, 11, 7), 2 * 3 * 5 * 7 * 11)
    assert (called.product, called.matrix_flops) == ((1, 5, 11, 7), 2 * 5 * 7 * 11)
