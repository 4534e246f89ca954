"""Each kind of model has the loss and the gradients of its equations, and learns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.tables import toml_beside
from tests.workloads import plain_models as plain
from tests.workloads.conftest import SOON, train
from workloads.base import parse_options
from workloads.config import DecoderConfig
from workloads.dense import Decoder
from workloads.loading import load
from workloads.mesh import make_layout
from workloads.noise import Stream
from workloads.presets import FAMILIES, PRESETS

CASES = toml_beside(__file__)
VARIANTS = CASES["variants"]
MODELS: dict[str, tuple[str, dict[str, Any], Callable[..., jax.Array]]] = {
    "llama3.1": (
        "llama",
        VARIANTS["llama3.1"],
        partial(plain.llama, frequency=plain.llama31_frequencies(8, 1e4, factor=8, original=16), has_bias=False),
    ),
    "qwen2.5": (
        "llama",
        {"qkv_bias": True},
        partial(plain.llama, frequency=plain.frequencies(8, 1e4), has_bias=True),
    ),
    "qwen3": ("qwen", {}, plain.qwen3),
    "qwen3-moe": ("qwen-moe", {}, partial(plain.qwen3, top_k=3)),
    "mixtral": ("moe", {}, partial(plain.qwen3, top_k=2, theta=1e4, eps=1e-5)),
    "gemma2": ("gemma", VARIANTS["gemma2"], partial(plain.gemma, is_third=False)),
    "gemma3": ("gemma", {}, partial(plain.gemma, is_third=True)),
    "olmo3": ("olmo", {"scan": False}, plain.olmo3),
    "gpt-oss": ("gpt-oss", {}, plain.gpt_oss),
    "deepseek2": ("deepseek", VARIANTS["deepseek2"], partial(plain.deepseek, is_third=False)),
    "deepseek3": ("deepseek", {}, partial(plain.deepseek, is_third=True)),
    "deepseek3-mtp": ("deepseek", VARIANTS["deepseek3-mtp"], partial(plain.deepseek, is_third=True)),
}


def random_like(params: Any) -> Any:
    """Weights like a model's, but none at a value that hides what it does, such as a bias of 0."""
    rng = np.random.default_rng(7)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        fan_in = leaf.shape[0] if len(leaf.shape) > 1 else 4
        centre = 1.0 if "'scale'" in jax.tree_util.keystr(path) else 0.0
        return np.asarray(centre + rng.normal(size=leaf.shape) * fan_in**-0.5, np.float32)

    return jax.tree_util.tree_map_with_path(draw, params)


def stacked(weights: Any, config: DecoderConfig) -> Any:
    """Weights of a model whose layers are unrolled, as a config has them that may scan layers."""
    if not config.scan:
        return weights
    layers = list(weights["layers"].values())
    stacks = [
        jax.tree.map(lambda *parts: np.stack(parts), *layers[stack.layers]) for run in config.runs() for stack in run
    ]
    return {**weights, "layers": stacks[0] if len(stacks) == 1 else dict(enumerate(stacks))}


def described(config: DecoderConfig) -> tuple[Any, Any]:
    """A model on one device without its weights, and their shapes."""
    layout = make_layout({"data": 1})
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: Decoder(config, layout, Stream(jnp.uint32(0)))))
    return graphdef, shapes


def loss_of(config: DecoderConfig) -> Callable[..., jax.Array]:
    """The loss of a model, a function of its weights and of a batch."""
    graphdef, shapes = described(config)
    leaves, structure = jax.tree.flatten(shapes)

    def loss(weights: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        own = jax.tree.leaves(weights)
        assert [leaf.shape for leaf in own] == [leaf.shape for leaf in leaves]
        model: Decoder = nnx.merge(graphdef, jax.tree.unflatten(structure, own))
        return model.loss(inputs, targets)

    return loss


def both(kind: str, make: Callable[..., Any]) -> tuple[Any, Any, DecoderConfig]:
    """What is made of the loss of a model and of its equations, on the same weights and tokens; and its config."""
    family, options, equations = MODELS[kind]
    config = parse_options(DecoderConfig, {**FAMILIES[family].sizes["tiny"], **options, "attention": "xla"})
    weights = random_like(nnx.to_pure_dict(described(replace(config, scan=False))[1]))
    tokens = np.random.default_rng(3).integers(0, config.vocab, (3, config.seq + 1), np.int32)
    found, right = (
        jax.jit(make(loss), compiler_options=SOON)(own, tokens[:, :-1], tokens[:, 1:])
        for loss, own in ((loss_of(config), stacked(weights, config)), (equations, weights))
    )
    return found, right, config


def sampled(names: Iterable[str], sample: set[str]) -> list[Any]:
    """The sample for the gate, all others for `make test-all`."""
    return [pytest.param(name, marks=pytest.mark.gate if name in sample else pytest.mark.slow) for name in names]


WITH_GRADIENTS = {"gemma3", "gpt-oss", "deepseek3-mtp"}
"""Of these the gate looks at loss and gradients, `make test` at the others' loss, and `make test-all` at everything."""


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in WITH_GRADIENTS])
def test_a_model_has_the_loss_of_its_equations(kind: str) -> None:
    found, right, _ = both(kind, lambda loss: loss)
    np.testing.assert_allclose(found, right, rtol=1e-5)


@pytest.mark.parametrize("kind", sampled(MODELS, WITH_GRADIENTS))
def test_a_model_has_the_loss_and_the_gradients_of_its_equations(kind: str) -> None:
    (loss, found), (right_loss, right), config = both(kind, jax.value_and_grad)
    np.testing.assert_allclose(loss, right_loss, rtol=1e-5)
    right = stacked(right, config)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(right))
    for (path, gradient), expected in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(right), strict=True
    ):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("family", sampled(["qwen", "qwen-moe", "gemma", "olmo", "gpt-oss", "deepseek"], {"gemma"}))
def test_each_kind_learns_the_rule_in_the_data(family: str) -> None:
    losses = train(load(f"{family}-tiny", {"mesh": {"data": 2}}), 30)[0]
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    assert all(np.isfinite(losses))


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
RESIZED = CASES["resized"]
SAME = CASES["maxtext"]["same"]


def model_names(text: str) -> set[str]:
    return set(re.findall(r"[a-z][\w.]*(?:-[\w.]+)+", text))


def test_the_page_counts_the_models_of_maxtext_and_names_presets() -> None:
    here, missing = (
        [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| ")]
        for table in PAGE.split("| MaxText's, not here")
    )
    can, cannot = ({name for row in rows for name in model_names(row[0])} for rows in (here, missing))
    can |= set(SAME)
    counts = [str(len(names)) for names in (can | cannot, can, SAME)]
    assert counts == re.findall(r"\b\d\d\b", PAGE.split("Of the ")[1])[:3]
    assert not can & cannot
    assert {*SAME, *(name for _, how in here for name in model_names(how))} <= set(PRESETS)
    assert set(RESIZED) <= can


def test_models_that_are_recorded_as_compiled_are_presets_that_fit_and_whose_canary_acts() -> None:
    recorded = json.loads((ROOT / "benchmarks/results/models_8xh100.json").read_text(encoding="utf-8"))
    assert len(recorded) == 13  # as the page says
    assert set(recorded) <= set(PRESETS)
    assert all(row["fits"] and row["canary"] and not row["unknown_loops"] for row in recorded.values())
    of_xla = {"gemma2-9b", "gpt-oss-20b", "llama3-8b-128k", "dreamerv3-200m"}
    assert {name for name, row in recorded.items() if row["attention"] == "xla"} == of_xla


@pytest.mark.parametrize("name", RESIZED)
def test_other_models_are_presets_with_options(name: str) -> None:
    preset, options = RESIZED[name]
    assert load(preset, {**options, "mesh": {"data": 1}}).param_count
