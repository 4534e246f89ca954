"""Published sizes, FLOPs by hand, and what describing costs."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import jax
import pytest

from workloads.base import Workload
from workloads.flops import peak_flops_per_s
from workloads.loading import load
from workloads.presets import PRESETS

PUBLISHED = {
    # exact counts of the released weights
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3-8b-128k": 8_030_261_248,
    "gpt2-124m": 124_439_808,
    "gpt2-1.5b": 1_557_611_200,
    "mixtral-8x7b": 46_702_792_704,
}


@cache
def described(name: str) -> Workload:
    """A preset; nothing may be placed on a device for it."""
    before = len(jax.live_arrays())
    workload = load(name, {})
    assert len(jax.live_arrays()) == before
    return workload


def test_published_models_have_their_published_parameter_counts() -> None:
    assert {name: described(name).param_count for name in PUBLISHED} == PUBLISHED
    for name, label in {"dreamerv3-12m": 12e6, "dreamerv3-50m": 50e6, "dreamerv3-200m": 200e6}.items():
        count = described(name).param_count
        assert count is not None
        assert 0.75 * label < count < label, "less the networks of images"


def test_parameters_of_a_recurrent_model_by_hand() -> None:
    sizes = {
        "vocab": 23,
        "deter": 14,
        "hidden": 7,
        "classes": 3,
        "units": 11,
        "stoch": 5,
        "blocks": 2,
        "actions": 5,
    }
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
    assert one.flops_per_step is not None
    assert two.flops_per_step is not None
    assert two.flops_per_step - one.flops_per_step == 21 * 6 * 2 * (3 * 32 * 64)  # two layers


def test_a_model_of_7b_needs_about_six_flops_per_parameter_and_token() -> None:
    workload = load("llama2-7b", {"mesh": {"data": 1}, "seq": 2048})
    assert workload.flops_per_step is not None
    assert workload.param_count is not None
    assert workload.tokens_per_step == 8 * 2048
    assert workload.flops_per_step / workload.tokens_per_step / workload.param_count == pytest.approx(6.2, abs=0.1)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_describing_a_preset_places_no_array(name: str) -> None:
    workload = described(name)
    leaves = jax.tree.leaves((workload.abstract_state, workload.abstract_batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is not None for leaf in leaves)


@pytest.mark.parametrize(
    ("kind", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H200", "float8", 1978.9e12),
        ("NVIDIA A100-SXM4-80GB", "float8", None),
        ("NVIDIA L4", "bfloat16", 121e12),
        ("cpu", "float32", None),
    ],
)
def test_the_peak_of_a_device_is_found_by_its_kind(kind: str, dtype: str, peak: float | None) -> None:
    assert peak_flops_per_s(kind, dtype) == peak


TARGETS = sorted((Path(__file__).parents[2] / "autotune/data/targets").glob("*.toml"))


def test_peaks_are_those_of_the_described_gpus() -> None:
    """Two packages that may not import each other say how fast a GPU is: they must say the same."""
    for target in (tomllib.loads(file.read_text(encoding="utf-8")) for file in TARGETS):
        for dtype, key in (("bfloat16", "bf16"), ("float32", "tf32"), ("float8", "f8")):
            peak = peak_flops_per_s(target["device"]["name"], dtype)
            assert peak is None or peak == pytest.approx(target["flops_per_s"][key], rel=2e-3)


CONFIGURATIONS = tomllib.loads(
    (Path(__file__).parents[2] / "benchmarks/published_fit.toml").read_text(encoding="utf-8")
)
AS_PUBLISHED = {n: c for n, c in CONFIGURATIONS.items() if "layers" not in c["options"] and c["entry"] in PUBLISHED}


def test_presets_recompute_what_published_configurations_recompute() -> None:
    for config in AS_PUBLISHED.values():
        assert described(config["entry"]).config["remat"] == config["options"]["remat"]
