"""Published sizes, FLOPs by hand, and what describing costs."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.runs import there
from tests.tables import toml_beside
from workloads.base import Workload
from workloads.flops import attention_flops_per_token, peak_flops_per_s
from workloads.loading import load
from workloads.presets import PRESETS

CASES = toml_beside(__file__)

PUBLISHED, ROUNDED = CASES["published"], CASES["rounded"]


@cache
def described(name: str) -> Workload:
    """A preset; nothing may be placed on a device for it."""
    before = len(jax.live_arrays())
    workload = load(name, {})
    assert len(jax.live_arrays()) == before
    return workload


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_has_its_published_parameters_and_places_no_array(name: str) -> None:
    workload = described(name)
    assert workload.param_count == pytest.approx(ROUNDED.get(name, workload.param_count), rel=5e-3)
    assert workload.param_count == PUBLISHED.get(name, workload.param_count)
    leaves = jax.tree.leaves((workload.abstract_state, workload.abstract_batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves)


def test_every_published_model_is_a_preset_and_every_preset_is_published_or_of_no_model() -> None:
    own = {name for name in PRESETS if name.endswith(("-tiny", "-small", "-80gb", "-141gb")) or "dreamer" in name}
    assert {*PUBLISHED, *ROUNDED} == set(PRESETS) - own


def test_world_models_have_the_published_sizes() -> None:
    for name, label in CASES["world_models"].items():
        count = there(described(name).param_count)
        assert 0.75 * label < count < label, "less the networks of images"


def test_parameters_of_a_recurrent_model_by_hand() -> None:
    sizes = {"vocab": 23, "deter": 14, "hidden": 7, "classes": 3, "units": 11, "stoch": 5, "blocks": 2, "actions": 5}
    workload = load("rssm", {"size": "tiny", "mesh": {"data": 1}, **sizes})
    states, features = 15, 29
    inputs = (14 + states + 5) * 7 + 3 * 7
    mix = 2 * ((7 + 3 * 7) * 7) + 14
    gates = 2 * 7 * 21
    prior = (14 * 7 + 7) + (7 * 7 + 7) + 7 * states
    posterior = ((14 + 11) * 7 + 7) + 7 * states
    core = inputs + mix + gates + prior + posterior
    embedding, encoder = 23 * 11, 2 * (11 * 11 + 11) + 11 * 11
    trunk = (features * 11 + 11) + 2 * (11 * 11 + 11)
    heads = 3 * trunk + 11 * (23 + 5 + 1) + 2 * (features * 11 + 11 + 11)
    assert workload.param_count == core + embedding + encoder + heads
    assert workload.layer_bytes == {"weights": 4 * core, "gradients": 4 * core}


def test_parameters_layer_bytes_and_flops_of_a_decoder_by_hand() -> None:
    sizes = {"vocab": 23, "layers": 3, "d_model": 10, "ffw": 7, "heads": 4, "kv_heads": 2, "head_size": 6}
    workload = load("llama", {"size": "tiny", "mesh": {"data": 1}, **sizes, "seq": 13, "batch": 5, "dtype": "bfloat16"})
    matrices = 2 * 10 * 24 + 2 * 10 * 12 + 3 * 10 * 7
    layer = matrices + 2 * 10
    assert workload.param_count == 3 * layer + 2 * 23 * 10 + 10
    assert workload.layer_bytes == {"weights": 2 * layer, "gradients": 2 * layer}
    assert workload.tokens_per_step == 65
    per_token = 6 * (3 * matrices + 23 * 10) + 3 * (12 * 4 * 6 * 13 / 2)
    assert workload.flops_per_step == 65 * per_token


def test_only_chosen_experts_count_as_flops() -> None:
    one, two = (load("moe", {"size": "tiny", "mesh": {"data": 1}, "top_k": k, "seq": 7, "batch": 3}) for k in (1, 2))
    assert there(two.flops_per_step) - there(one.flops_per_step) == 21 * 6 * 2 * (3 * 32 * 64)  # two layers


def test_a_layer_that_predicts_two_tokens_ahead_has_the_published_parameters() -> None:
    """https://github.com/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md: 685B, with embedding and head a second time."""
    model, deeper, further = (
        load("deepseek3-671b", {"mesh": {"data": 1}, **more}) for more in ({}, {"layers": 62}, {"mtp_layers": 1})
    )
    head = 129_280 * 7168
    assert there(further.param_count) - there(model.param_count) == pytest.approx(11.5e9, rel=0.01)
    assert there(further.param_count) + 2 * head == pytest.approx(685e9, rel=1e-3)
    rest = there(further.flops_per_step) - there(deeper.flops_per_step)
    assert rest / there(model.tokens_per_step) == pytest.approx(6 * (2 * 7168**2 + head))


def test_a_model_of_7b_needs_about_six_flops_per_parameter_and_token() -> None:
    workload = load("llama2-7b", {"mesh": {"data": 1}, "seq": 2048})
    assert workload.flops_per_step is not None
    assert workload.param_count is not None
    assert workload.tokens_per_step == 8 * 2048
    assert workload.flops_per_step / workload.tokens_per_step / workload.param_count == pytest.approx(6.2, abs=0.1)


@pytest.mark.parametrize(("name", "active", "with_embedding"), CASES["active_parameters"])
def test_a_token_goes_through_the_published_active_parameters(name: str, active: float, with_embedding: bool) -> None:
    workload = load(name, {"seq": 1, "batch": 1, "mesh": {"data": 1}})  # attention to one token costs next to nothing
    embedding = workload.config["vocab"] * workload.config["d_model"] if with_embedding else 0
    assert there(workload.flops_per_step) / 6 + embedding == pytest.approx(active, rel=0.03)


def test_attention_in_a_window_counts_what_is_attended_to() -> None:
    """Of 5 tokens with a window of 2: 1, 2, 2, 2, 2 keys; as areas, without the diagonal's other half."""
    plain, local = (
        attention_flops_per_token(heads=3, head_size=7, value_size=5, seq=5, window=window) for window in (0, 2)
    )
    assert plain == pytest.approx(6 * 3 * 12 * 5 / 2)
    assert local == pytest.approx(6 * 3 * 12 * (2 * 2 / 2 + 3 * 2) / 5)


@pytest.mark.parametrize(("kind", "dtype", "peak"), CASES["peaks"])
def test_the_peak_of_a_device_is_found_by_its_kind(kind: str, dtype: str, peak: Any) -> None:
    assert (peak_flops_per_s(kind, dtype) or "") == peak


TARGETS = sorted((Path(__file__).parents[2] / "autotune/data/targets").glob("*.toml"))


def test_peaks_are_those_of_the_described_gpus() -> None:
    """Two packages that may not import each other say how fast a GPU is: they must say the same."""
    for target in (tomllib.loads(file.read_text(encoding="utf-8")) for file in TARGETS):
        for dtype, key in (("bfloat16", "bf16"), ("float32", "tf32"), ("float8", "f8")):
            peak = peak_flops_per_s(target["device"]["name"], dtype)
            assert peak is None or peak == pytest.approx(target["flops_per_s"][key], rel=2e-3)


@pytest.mark.parametrize(("name", "recomputed"), CASES["recomputed"].items())
def test_presets_recompute_what_published_configurations_recompute(name: str, recomputed: str) -> None:
    assert described(name).config["remat"] == recomputed
