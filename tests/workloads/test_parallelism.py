"""Every way to split a program gives the loss and the gradients of one device, and talks as it should."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest

from autotune.compiler.hlo import parse_module
from tests.runs import there
from tests.tables import toml_beside
from tests.workloads.conftest import compile_soon, first_state
from workloads.base import Workload, jit_step
from workloads.loading import load
from workloads.step import bytes_per_device

CASES = toml_beside(__file__)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SHAPES = {family: CASES["shapes"]["dense"] | own for family, own in CASES["shapes"]["families"].items()}
SHAPES["rssm"] = CASES["shapes"]["rssm"]


def build(family: str, mesh: dict[str, int], **options: Any) -> Workload:
    return load(family, {"size": "tiny", **SHAPES[family], "mesh": mesh, **options})


def first_step(workload: Workload) -> tuple[float, dict[str, np.ndarray], str]:
    """Loss, gradients (a tenth of them: Adam's first moment) by name, and the compiled program.

    Of every program: the state that goes in is given up, and comes back with the shardings it went in with.
    """
    compiled, before = compile_soon(workload), first_state(workload, 3)
    state, metrics = compiled(before, workload.batch(5))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    for expected, leaf in zip(jax.tree.leaves(workload.abstract_state), jax.tree.leaves(state), strict=True):
        assert leaf.sharding.is_equivalent_to(expected.sharding, leaf.ndim)
        assert (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)
    leaves = jax.tree_util.tree_leaves_with_path(optax.tree.get(state["optimizer"], "mu"))
    gradients = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return float(metrics["loss"]), gradients, compiled.as_text()


@cache
def single_device(family: str, options: tuple[tuple[str, Any], ...]) -> tuple[float, dict[str, np.ndarray]]:
    return first_step(build(family, {"data": 1}, **dict(options)))[:2]


SPLITS = [pytest.param(*split, marks=getattr(pytest.mark, mark) if mark else ()) for mark, *split in CASES["splits"]]


@pytest.mark.parametrize(("family", "mesh", "options", "collectives"), SPLITS, ids=str)
def test_a_split_program_equals_one_on_one_device(
    family: str, mesh: dict[str, int], options: dict[str, Any], collectives: list[str]
) -> None:
    model_options = {k: v for k, v in options.items() if k in ("routing", "scan", "input_dropout", "mtp_layers")}
    loss, gradients = single_device(family, tuple(model_options.items()))
    split_loss, split_gradients, text = first_step(build(family, mesh, **options))
    np.testing.assert_allclose(split_loss, loss, rtol=1e-5)
    assert gradients.keys() == split_gradients.keys()
    # relative to the largest gradient of all: that of a key's bias is zero but for rounding
    largest = max(np.abs(g).max() for g in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(split_gradients[name], gradient, rtol=1e-4, atol=2e-6 * largest, err_msg=name)
    assert set(collectives) <= {c for c in COLLECTIVES if re.search(rf" {c}(-start)?\(", text)}


@pytest.mark.gate
def test_a_policy_that_saves_more_computes_less_again() -> None:
    def products(remat: str) -> int:
        workload = build("llama", {"data": 1}, remat=remat)
        lowered = jit_step(workload).lower(workload.abstract_state, workload.abstract_batch)
        return int(lowered.as_text().count("stablehlo.dot_general"))

    policies = ("full", "save_qkv_proj", "save_dot_except_mlp", "save_dot_except_mlpwi", "minimal")
    counts = [products(remat) for remat in policies]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[1] == 3  # query, key, value
    # With XLA's attention the weights of the values are computed again; with cuDNN's nothing is.
    assert counts[-1] - 1 == products("minimal_with_context") == products("none") + 1


def test_weights_and_moments_are_kept_in_the_dtype_that_is_asked_for() -> None:
    state = there(build("llama", {"data": 1}, weight_dtype="bfloat16").abstract_state)
    kept = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.shape}
    assert kept == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(build("llama", {"data": 1}).abstract_state) if leaf.shape} == {
        "float32"
    }


@pytest.mark.gate
def test_unrolled_layers_give_the_gradients_of_scanned_ones() -> None:
    loss, scanned = single_device("llama", ())
    unrolled_loss, unrolled, text = first_step(build("llama", {"data": 1}, scan=False))
    np.testing.assert_allclose(unrolled_loss, loss, rtol=1e-6)
    for name, gradient in scanned.items():
        if "layers" in name:
            parts = [unrolled[name.replace("['layers']", f"['layers'][{i}]")] for i in range(2)]
            np.testing.assert_allclose(np.stack(parts), gradient, rtol=1e-4, atol=1e-7, err_msg=name)
    assert "while/body" not in text  # as the layers' loop is called; XLA makes others of its own


@pytest.mark.slow
@pytest.mark.parametrize("family", ["moe", "gpt-oss", "deepseek"])
def test_experts_with_room_for_all_give_what_dropless_ones_give(family: str) -> None:
    loss, gradients = single_device(family, ())
    roomy = first_step(build(family, {"data": 1}, routing="capacity", capacity_factor=8.0))
    np.testing.assert_allclose(roomy[0], loss, rtol=1e-6)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(roomy[1][name], gradient, rtol=1e-4, atol=1e-7, err_msg=name)


def gathered_bytes(workload: Workload) -> int:
    """What all-gathers of a compiled step leave on one device; loops count once."""
    instructions = parse_module(compile_soon(workload).as_text()).values()
    return sum(i.bytes for i in instructions if i.opcode == "all-gather")


@pytest.mark.gate
def test_tokens_go_to_their_experts_and_not_to_everybody() -> None:
    # More devices with as many sequences each: what one of them gathers is that of fewer devices.
    few, many = (
        gathered_bytes(build("moe", {"data": count, "expert": 2}, routing="capacity", batch=2 * 2 * count))
        for count in (1, 4)
    )
    assert many <= few


def held(family: str, part: str, mesh: dict[str, int], **options: Any) -> int:
    """Bytes of a part of the state that one device holds."""
    state = there(build(family, mesh, **options).abstract_state)
    return bytes_per_device(state[part])


def test_weights_are_split() -> None:
    whole, part = held("llama", "params", {"data": 1}), held("llama", "params", {"fsdp": 4})
    norms = 4 * (2 * 2 + 1) * 20  # replicated
    assert part - norms == (whole - norms) / 4


def test_zero_splits_the_optimiser_over_the_data_axis_and_not_the_weights() -> None:
    weights, zero_weights = (held("llama", "params", {"data": 4}, zero=z) for z in ("none", "optimizer"))
    moments, zero_moments = (held("llama", "optimizer", {"data": 4}, zero=z) for z in ("none", "optimizer"))
    assert zero_weights == weights
    assert zero_moments - 4 == (moments - 4) / 4  # 4: a count


def test_an_offloaded_optimiser_is_not_in_the_memory_of_devices() -> None:
    assert held("llama", "optimizer", {"data": 4}, offload="optimizer") == 4  # a count
    assert held("llama", "params", {"data": 4}, offload="optimizer") == held("llama", "params", {"data": 4})
