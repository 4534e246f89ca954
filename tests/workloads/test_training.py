"""Data, learning, number formats, attention, routing, and the command line."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tables import toml_beside
from tests.workloads.conftest import SOON, compile_soon, first_state, train, uniform
from workloads.__main__ import main
from workloads.layers import dropout, layer_seeds, matmul
from workloads.loading import load
from workloads.mesh import make_layout
from workloads.moe import balance_loss
from workloads.noise import Stream
from workloads.recurrent import lambda_returns
from workloads.ring import ring_attention
from workloads.step import TrainConfig, learning_rate

CASES = toml_beside(__file__)

ONE = {"data": 1}


def losses_of(family: str, *, steps: int) -> list[float]:
    return train(load(family, {"size": "tiny", "mesh": {"data": 2}}), steps)[0]


@pytest.mark.parametrize("family", ["llama", *(pytest.param(f, marks=pytest.mark.gate) for f in ("gpt", "moe"))])
def test_training_learns_the_rule_in_the_data(family: str) -> None:
    losses = losses_of(family, steps=40)
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    assert all(np.isfinite(losses))


@pytest.mark.gate
def test_a_world_model_goes_on_learning_after_its_critic_has_settled() -> None:
    losses = losses_of("rssm", steps=120)
    assert np.mean(losses[-10:]) < 0.85 * np.mean(losses[10:20])
    assert all(np.isfinite(losses))


def test_a_schedule_warms_up_and_decays() -> None:
    def moved(**options: int) -> Any:
        workload = load("llama-tiny", {"mesh": {"data": 2}, **options})
        before = first_state(workload, 0)
        old = np.array(before["params"]["embedding"]["embedding"][...])  # the step gives up what goes in
        after, _ = compile_soon(workload)(before, workload.batch(0))
        return np.asarray(after["params"]["embedding"]["embedding"][...]) - old

    np.testing.assert_allclose(4 * moved(warmup=4, decay=9), moved(), rtol=1e-3, atol=1e-6)
    config = TrainConfig(batch=1, seq=1, vocab=1, learning_rate=0.4, warmup=4, decay=9)
    rates = [float(learning_rate(config)(step)) for step in (0, 2, 4, 9, 99)]  # type: ignore[operator]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.04, 0.04])


def test_a_batch_depends_on_seed_and_index_alone() -> None:
    first, other_mesh, other_seed = (
        load("llama-tiny", {"mesh": mesh, "seed": seed}) for mesh, seed in ((ONE, 3), ({"fsdp": 4}, 3), (ONE, 4))
    )
    tokens = np.asarray(first.batch(17)["inputs"])
    np.testing.assert_array_equal(tokens, np.asarray(other_mesh.batch(17)["inputs"]))
    assert (tokens != np.asarray(first.batch(18)["inputs"])).any()
    assert (tokens != np.asarray(other_seed.batch(17)["inputs"])).any()


def test_most_tokens_follow_the_rule_and_some_do_not() -> None:
    batch = load("llama-tiny", {"mesh": ONE, "vocab": 521, "batch": 31, "seq": 101}).batch(0)
    inputs, targets = np.asarray(batch["inputs"]), np.asarray(batch["targets"])
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert 0.75 < np.mean((inputs + 7) % 251 == targets) < 0.87  # 0.9 squared
    assert targets.max() < 251


def test_noise_is_uniform_and_its_streams_differ() -> None:
    stream = Stream(jnp.uint32(5))
    first, second = (np.asarray(uniform(seed, (97, 101))) for seed in (stream(), stream()))
    for draw in (first, second):
        assert abs(draw.mean() - 0.5) < 0.01
        assert abs(draw.var() - 1 / 12) < 0.002
        assert 0 < draw.min() < draw.max() < 1
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(first[:, :-1].ravel(), first[:, 1:].ravel())[0, 1]) < 0.04


def test_dropout_zeroes_its_share_and_keeps_the_mean_by_row_and_layer() -> None:
    seeds = np.asarray(layer_seeds(jnp.arange(3 * 101).reshape(3, 101) % 97, 5))
    assert len(np.unique(seeds)) == 15  # of every layer and row its own
    x = jnp.ones((3, 97, 101), jnp.bfloat16)
    first, second = (np.asarray(dropout(x, jnp.asarray(seeds[layer]), 0.25), np.float32) for layer in range(2))
    for y in (first, second):
        assert abs((y == 0).mean() - 0.25) < 0.01
        assert abs(y.mean() - 1.0) < 0.02
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(first[0].ravel(), first[1].ravel())[0, 1]) < 0.05


@pytest.mark.gate
def test_dropout_changes_the_loss_and_is_the_same_for_the_same_tokens() -> None:
    losses = []
    for rate, times in ((0.0, 1), (0.25, 2)):
        workload = load("gpt-tiny", {"mesh": ONE, "input_dropout": rate})
        step = compile_soon(workload)
        losses += [float(step(first_state(workload, 0), workload.batch(0))[1]["loss"]) for _ in range(times)]
    assert losses[1] == losses[2] != losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=0.2)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.01), ("float8", 0.12)])
def test_a_narrow_matmul_is_close_to_float32_forward_and_backward(dtype: str, tolerance: float) -> None:
    x = uniform(jnp.uint32(1), (7, 11, 13)) - 0.5
    kernel = 3 * uniform(jnp.uint32(2), (13, 5, 3)) - 1.5
    up = uniform(jnp.uint32(3), (7, 11, 5, 3)) - 0.5

    @partial(jax.jit, static_argnums=0, compiler_options=SOON)
    def product_and_gradients(kind: str, x: jax.Array, kernel: jax.Array, up: jax.Array) -> tuple[jax.Array, ...]:
        product = partial(matmul, "btd,dnh->btnh", dtype=kind)
        found, back = jax.vjp(lambda *of: product(*of).astype(jnp.float32), x, kernel)
        return found, *back(up)

    exact, narrow = (product_and_gradients(kind, x, kernel, up) for kind in ("float32", dtype))
    for right, found in zip(exact, narrow, strict=True):
        assert found.dtype == jnp.float32
        assert 1e-5 < jnp.linalg.norm(found - right) / jnp.linalg.norm(right) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_a_step_in_a_narrow_format_stays_near_float32(dtype: str) -> None:
    exact, narrow = (load("llama-tiny", {"mesh": ONE, "dtype": d}) for d in ("float32", dtype))
    losses = []
    for workload in (exact, narrow):
        found, state = train(workload, 1)
        losses += found
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state["params"]))
    assert 0 < abs(losses[1] - losses[0]) < 0.05


@pytest.mark.gate
def test_ring_attention_is_attention() -> None:
    q, k, v = (uniform(jnp.uint32(seed), (2, 4 * 5, heads, 3)) * 4 - 2 for seed, heads in ((1, 6), (2, 2), (3, 2)))
    layout = make_layout({"context": 4})
    ring = jax.jit(lambda q, k, v: ring_attention(q, k, v, layout), compiler_options=SOON)(q, k, v)
    np.testing.assert_allclose(ring, jax.nn.dot_product_attention(q, k, v, is_causal=True), atol=2e-6)


def test_balance_loss_is_one_when_balanced_and_larger_when_not() -> None:
    even = balance_loss(jnp.zeros((1, 4, 2)), jnp.array([[[0], [1], [0], [1]]]))
    skewed = balance_loss(jnp.log(jnp.full((1, 3, 2), 0.25).at[..., 0].set(0.75)), jnp.zeros((1, 3, 1), jnp.int32))
    assert float(even) == pytest.approx(1.0)
    assert float(skewed) == pytest.approx(1.5)


def test_lambda_returns_by_hand() -> None:
    returns = lambda_returns(jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0]), jnp.array([0.5, 0.25]))
    last = 2 + 0.25 * 20
    np.testing.assert_allclose(returns, [1 + 0.5 * (0.05 * 10 + 0.95 * last), last], rtol=1e-6)


@pytest.mark.gate
def test_the_command_runs_and_reports_each_step_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workloads.__main__.jit_step", compile_soon)
    assert main(["llama", "--size", "tiny", "--mesh", "data=2", "--steps", "3", "--warmup", "1", "--json"]) == 0
    *steps, summary = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [(s["step"], s["is_warmup"]) for s in steps] == [(0, True), (1, False), (2, False), (3, False)]
    assert all(s["step_time_s"] > 0 and s["loss"] > 0 and s["grad_norm"] > 0 for s in steps)
    assert summary["median_step_time_s"] == sorted(s["step_time_s"] for s in steps[1:])[1]
    assert summary["tokens_per_s"] == pytest.approx(8 * 16 / summary["median_step_time_s"])
    assert "mfu" not in summary  # no peak is known for a CPU


def test_the_command_describes_a_model_that_fits_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llama3-405b", "--mesh", "fsdp=4,tensor=2", "--describe", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["param_count"] == 405_853_388_800
    norms = 4 * (2 * 126 + 1) * 16_384
    assert found["state_bytes_per_device"] == 3 * ((4 * 405_853_388_800 - norms) // 8 + norms) + 4
    assert found["state_shapes"]["layers.ffw.up.kernel"].startswith("float32[126, 16384, 53248]")


@pytest.mark.parametrize(("arguments", "words"), CASES["wrong_calls"])
def test_the_command_says_what_is_wrong(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
