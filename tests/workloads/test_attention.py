"""Which attention a preset trains with: fused on GPUs that have it, and the record says so."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tables import toml_beside
from tests.workloads.conftest import SOON, uniform
from workloads.attention import capped_attention, causal_attention
from workloads.base import WorkloadError
from workloads.config import DecoderConfig
from workloads.loading import load
from workloads.mesh import AXES
from workloads.presets import FAMILIES, PRESETS

CASES = toml_beside(__file__)

SIZES: dict[str, Any] = {"vocab": 23, "layers": 2, "d_model": 10, "ffw": 7, "heads": 4, "kv_heads": 2, "seq": 13}


def layout(capability: Any, **axes: int) -> Any:
    """A mesh of described devices: what `DecoderConfig.settled` reads of one, and no more."""
    device = SimpleNamespace(device_kind="a device", **({} if not capability else {"compute_capability": capability}))
    shape = dict.fromkeys(AXES, 1) | axes
    return SimpleNamespace(
        mesh=SimpleNamespace(devices=np.array([device], dtype=object), shape=shape), size=lambda axis: shape["context"]
    )


@pytest.mark.parametrize(
    ("capability", "options", "axes", "chosen"),
    CASES["attention"],
    ids=str,
)
def test_auto_is_fused_attention_wherever_cudnn_has_it(
    capability: str, options: dict[str, Any], axes: dict[str, int], chosen: str
) -> None:
    config = DecoderConfig(**{**SIZES, "head_size": 64, **options})
    assert config.settled(layout(capability, **axes)).attention == chosen


def test_no_preset_asks_for_attention_without_fusion() -> None:
    asked = {name: FAMILIES[family].sizes[size].get("attention", "auto") for name, (family, size) in PRESETS.items()}
    assert {name for name, attention in asked.items() if attention != "auto"} == {
        "long-tiny",
        "long-small",
        "llama3-8b-128k",
    }
    assert set(asked.values()) == {"auto", "ring"}


def test_the_record_says_what_was_chosen_not_what_was_asked() -> None:
    config = load("llama-tiny", {"mesh": {"data": 1}, "dtype": "bfloat16", "head_size": 64}).config
    assert config["attention"] == "xla"  # these are CPUs


def test_without_cudnn_another_program_is_not_compiled_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_jax_does(*args: Any, **options: Any) -> jax.Array:
        raise RuntimeError("cuDNN not found.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", as_jax_does)
    x = jnp.zeros((1, 2, 1, 8), jnp.bfloat16)
    with pytest.raises(WorkloadError, match=r"cuDNN.*nvidia-cudnn-cu12.*`attention` = xla"):
        causal_attention(x, x, x, "cudnn")
    with pytest.raises(RuntimeError):  # of XLA's own attention nothing is said about cuDNN
        causal_attention(x, x, x, "xla")


@pytest.mark.parametrize("window", [0, 4])
def test_a_mask_with_lengths_is_causal_where_all_are_full(window: int) -> None:
    q, k, v = (uniform(jnp.uint32(seed), (2, 15, heads, 3)) * 4 - 2 for seed, heads in ((1, 4), (2, 2), (3, 2)))
    attend = jax.jit(partial(causal_attention, implementation="xla", window=window), compiler_options=SOON)
    plain = attend(q, k, v)
    full, shorter = (attend(q, k, v, lengths=jnp.array(lengths)) for lengths in ((15, 15), (15, 9)))
    np.testing.assert_array_equal(full, plain)
    np.testing.assert_array_equal(shorter[:, :9], plain[:, :9])
    assert not np.allclose(shorter[1, 9:], plain[1, 9:])


@pytest.mark.parametrize("window", [0, 4, 14])
def test_attention_of_a_part_of_the_queries_at_once_is_attention(window: int) -> None:
    config = DecoderConfig(**{**SIZES, "head_size": 3}, attention_cap=0.7, window=window)
    q, k, v = (uniform(jnp.uint32(seed), (2, 15, heads, 3)) * 4 - 2 for seed, heads in ((1, 4), (2, 2), (3, 2)))
    sinks = jnp.array([0.5, -1.0, 2.0, 0.0])

    @partial(jax.jit, static_argnums=0, compiler_options=SOON)
    def value_and_gradients(at_once: int) -> Any:
        def total(*of: jax.Array) -> jax.Array:
            return jnp.sum(capped_attention(*of[:3], config=config, sinks=of[3], at_once=at_once) ** 2)

        return jax.value_and_grad(total, argnums=(0, 1, 2, 3))(q, k, v, sinks)

    for whole, parts in zip(*map(jax.tree.leaves, map(value_and_gradients, (15, 5))), strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-5, atol=1e-5)
