"""Published sizes, FLOPs by hand, and what describing costs."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import jax
import pytest

from workloads.base import Workload
from workloads.flops import attention_flops_per_token, peak_flops_per_s
from workloads.loading import load
from workloads.presets import PRESETS

PUBLISHED = {
    # exact counts of the released weights, as https://huggingface.co shows them (safetensors)
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3-8b-128k": 8_030_261_248,
    "gpt2-124m": 124_439_808,
    "gpt2-1.5b": 1_557_611_200,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "llama2-13b": 13_015_864_320,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-480b-a35b": 480_154_875_392,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    # less what sees: a tower of 416,866,032 and its projection to the model
    "gemma3-4b": 4_300_079_472 - 416_866_032 - 1152 * (2560 + 1),
    "gemma3-12b": 12_187_325_040 - 416_866_032 - 1152 * (3840 + 1),
    "gemma3-27b": 27_432_406_640 - 416_866_032 - 1152 * (5376 + 1),
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "olmo3-7b": 7_298_011_136,
    "olmo3-32b": 32_233_522_176,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek2-16b": 15_706_484_224,
    "deepseek2-236b": 235_741_434_880,
    "deepseek3-671b": 671_026_419_200,
}
# Of these a paper or a name says it, rounded.
ROUNDED = {"gpt3-175b": 175e9, "tinyllama-1.1b": 1.1e9, "kimi-k2-1t": 1.03e12}


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


@pytest.mark.parametrize(
    ("name", "active", "with_embedding"),
    [
        ("gpt-oss-20b", 3.61e9, False),
        ("qwen3-30b-a3b", 3.3e9, True),
        ("deepseek2-16b", 2.4e9, False),
        ("deepseek3-671b", 37e9, True),
    ],
)
def test_a_token_goes_through_the_published_active_parameters(name: str, active: float, with_embedding: bool) -> None:
    workload = load(name, {"seq": 1, "batch": 1, "mesh": {"data": 1}})  # attention to one token costs next to nothing
    assert workload.flops_per_step is not None
    embedding = workload.config["vocab"] * workload.config["d_model"] if with_embedding else 0
    assert workload.flops_per_step / 6 + embedding == pytest.approx(active, rel=0.03)


def test_attention_in_a_window_counts_what_is_attended_to() -> None:
    """Of 5 tokens with a window of 2: 1, 2, 2, 2, 2 keys; as areas, without the diagonal's other half."""
    plain, local = (
        attention_flops_per_token(heads=3, head_size=7, value_size=5, seq=5, window=window) for window in (0, 2)
    )
    assert plain == pytest.approx(6 * 3 * 12 * 5 / 2)
    assert local == pytest.approx(6 * 3 * 12 * (2 * 2 / 2 + 3 * 2) / 5)


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
