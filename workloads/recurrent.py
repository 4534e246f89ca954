"""A recurrent world model with actor and critic like DreamerV3: scans of small matmuls.

What differs from the published agent: observations are tokens (an embedding and an MLP where it has
convolutions), the previous token is the action, the reward is whether a token is even, and rewards
and (symlog) values are scalars under a squared error instead of two-hot bins. The recurrences,
their sizes and the three scans are the same.

References:
    DreamerV3, https://arxiv.org/abs/2301.04104
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from workloads import noise
from workloads.base import WorkloadError, choice
from workloads.layers import (
    Norm,
    check_dtype,
    compute_dtype,
    cross_entropy,
    embedding,
    matmul,
    remat,
    weight,
)
from workloads.mesh import Layout
from workloads.noise import Stream

_DISCOUNT = 1 - 1 / 333
_LAMBDA = 0.95
_ENTROPY = 3e-4
_UNIFORM_SHARE = 0.01  # of every categorical, so that no probability vanishes


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """The sizes of the world model and how it is computed.

    Attributes:
        deter: Size of the deterministic state, in ``blocks`` independent blocks.
        stoch: Number of categorical variables of the stochastic state, of ``classes`` each.
        units: Width of the MLPs.
        horizon: Steps imagined from every observed state.
        unroll: Steps of the observing and imagining scans per iteration of their loops.
    """

    vocab: int
    seq: int
    deter: int
    hidden: int
    classes: int
    units: int
    stoch: int = 32
    blocks: int = 8
    actions: int = 18
    horizon: int = 15
    unroll: int = 1
    dtype: str = choice("bfloat16", "float32", "float8")
    remat: str = choice("none", "dots", "full")

    def settled(self, layout: Layout) -> RecurrentConfig:
        """The config for these devices: unchanged, as nothing here depends on them."""
        return self

    def check(self, layout: Layout, rows: int) -> None:
        """Raises a WorkloadError where sizes do not fit ``rows`` of the batch at once."""
        for axis, size in layout.mesh.shape.items():
            if size > 1 and axis != "data":
                raise WorkloadError(
                    f"a recurrent workload is split over axis data only but got {axis}={size}"
                )
        check_dtype(self.dtype, layout)
        if self.deter % self.blocks:
            raise WorkloadError(
                f"`deter` must be a multiple of `blocks` but got {self.deter}, {self.blocks}"
            )
        layout.check("batch", rows, "batch")

    @property
    def features(self) -> int:
        """Size of what the heads read: both states."""
        return self.deter + self.stoch * self.classes


class Hidden(nnx.Module):
    """A matrix, RMSNorm, SiLU; with ``blocks`` a block-diagonal matrix."""

    def __init__(
        self, size_in: int, size_out: int, dtype: str, stream: Stream, *, blocks: int = 1
    ) -> None:
        self.dtype, self.blocks = dtype, blocks
        shape = (blocks, size_in // blocks, size_out // blocks)
        self.kernel = weight(stream, shape, (None, None, None))
        self.norm = Norm(size_out, kind="rms")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., I] to [..., O]."""
        return jax.nn.silu(self.norm(block_matmul(x, self.kernel[...], self.dtype)))


def block_matmul(x: jax.Array, kernel: jax.Array, dtype: str) -> jax.Array:
    """Product of [..., G * I] with a block-diagonal matrix [G, I, O], giving [..., G * O]."""
    blocks, size_in, size_out = kernel.shape
    rows = "abc"[: x.ndim - 1]
    y = matmul(f"{rows}gi,gio->{rows}go", x.reshape(*x.shape[:-1], blocks, size_in), kernel, dtype)
    return y.reshape(*x.shape[:-1], blocks * size_out)


class Mlp(nnx.Module):
    """Hidden layers and a matrix."""

    def __init__(self, sizes: tuple[int, ...], dtype: str, stream: Stream) -> None:
        self.dtype = dtype
        pairs = itertools.pairwise(sizes[:-1])
        self.hidden = nnx.List([Hidden(i, o, dtype, stream) for i, o in pairs])
        self.out = weight(stream, sizes[-2:], (None, None))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., I] to float32 [..., O]."""
        for layer in self.hidden:
            x = layer(x)
        return block_matmul(x, self.out[...][None], self.dtype).astype(jnp.float32)


class Cell(nnx.Module):
    """The recurrent core: the next deterministic state and two beliefs of the stochastic one."""

    def __init__(self, config: RecurrentConfig, stream: Stream) -> None:
        c, dtype = config, config.dtype
        self.config = config
        inputs = (c.deter, c.stoch * c.classes, c.actions)
        self.inputs = nnx.List([Hidden(size, c.hidden, dtype, stream) for size in inputs])
        self.mix = Hidden(
            c.deter + c.blocks * 3 * c.hidden, c.deter, dtype, stream, blocks=c.blocks
        )
        block = c.deter // c.blocks
        self.gates = weight(stream, (c.blocks, block, 3 * block), (None, None, None))
        self.prior = Mlp((c.deter, c.hidden, c.hidden, c.stoch * c.classes), dtype, stream)
        self.posterior = Mlp((c.deter + c.units, c.hidden, c.stoch * c.classes), dtype, stream)

    def __call__(self, deter: jax.Array, stoch: jax.Array, action: jax.Array) -> jax.Array:
        """The next deterministic state, from [B, deter], [B, stoch * classes] and actions."""
        c = self.config
        parts = [layer(x) for layer, x in zip(self.inputs, (deter, stoch, action), strict=True)]
        shared = jnp.concatenate(parts, -1)[:, None, :]
        grouped = deter.reshape(len(deter), c.blocks, -1)
        shared = jnp.broadcast_to(shared, (len(deter), c.blocks, shared.shape[-1]))
        x = self.mix(jnp.concatenate([grouped, shared], -1).reshape(len(deter), -1))
        gates = block_matmul(x, self.gates[...], c.dtype).reshape(len(deter), c.blocks, 3, -1)
        reset, candidate, update = (gates[:, :, i].reshape(deter.shape) for i in range(3))
        update = jax.nn.sigmoid(update - 1)
        return update * jnp.tanh(jax.nn.sigmoid(reset) * candidate) + (1 - update) * deter

    def log_probs(self, logits: jax.Array) -> jax.Array:
        """Log probabilities [..., stoch, classes] of flat logits."""
        c = self.config
        probs = jax.nn.softmax(logits.reshape(*logits.shape[:-1], c.stoch, c.classes))
        return jnp.log((1 - _UNIFORM_SHARE) * probs + _UNIFORM_SHARE / c.classes)


def sample(log_probs: jax.Array, seeds: jax.Array) -> jax.Array:
    """One-hot samples of [B, ..., C] with gradients passed straight through; one seed per row."""
    draws = jax.vmap(lambda seed: noise.uniform(seed, log_probs.shape[1:]))(seeds)
    picked = jax.nn.one_hot(
        jnp.argmax(log_probs - jnp.log(-jnp.log(draws)), -1), log_probs.shape[-1]
    )
    probs = jnp.exp(log_probs)
    return picked + probs - jax.lax.stop_gradient(probs)


class WorldModel(nnx.Module):
    """The cell, its encoder and decoder, and the heads that act in imagination."""

    def __init__(self, config: RecurrentConfig, layout: Layout, stream: Stream) -> None:
        c = config
        self.config, self.layout = config, layout
        three = (c.units,) * 3
        self.embedding = embedding(c.dtype, c.vocab, c.units, (None, None), stream)
        self.encoder = Mlp((c.units, *three), c.dtype, stream)
        self.layers = Cell(c, stream)
        self.decoder = Mlp((c.features, *three, c.vocab), c.dtype, stream)
        self.reward = Mlp((c.features, c.units, 1), c.dtype, stream)
        self.proceed = Mlp((c.features, c.units, 1), c.dtype, stream)
        self.policy = Mlp((c.features, *three, c.actions), c.dtype, stream)
        self.value = Mlp((c.features, *three, 1), c.dtype, stream)

    def loss(self, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """World model and actor-critic losses of [B, T] tokens, f32[]."""
        seeds = jax.vmap(
            lambda row: jnp.sum(noise.scramble(row.astype(jnp.uint32)), dtype=jnp.uint32)
        )(inputs)
        seeds = noise.scramble(seeds)
        deter, stoch, posterior = self._observe(inputs, targets, seeds)
        features = self.layout.constrain(jnp.concatenate([deter, stoch], -1), "batch", None, None)
        prior = self.layers.log_probs(self.layers.prior(deter))
        stop = jax.lax.stop_gradient
        belief = divergence(stop(posterior), prior) + 0.1 * divergence(posterior, stop(prior))
        reward = (targets % 2 == 0).astype(jnp.float32)
        world = cross_entropy(self.decoder(features), targets) + belief
        world += jnp.mean((self.reward(features)[..., 0] - reward) ** 2)
        world += jnp.mean(jax.nn.softplus(-self.proceed(features)))  # no episode ends here
        return world + self._imagine(stop(deter), stop(stoch), seeds)

    def _observe(
        self, inputs: jax.Array, targets: jax.Array, seeds: jax.Array
    ) -> tuple[jax.Array, ...]:
        """Both states and the posterior's log probabilities, [B, T, ...], by a scan."""
        c, dtype = self.config, compute_dtype(self.config.dtype)
        seen = self.encoder(self.embedding(targets)).astype(dtype)
        action = jax.nn.one_hot(inputs % c.actions, c.actions, dtype=dtype)

        def observe(carry: Any, step: Any) -> tuple[Any, Any]:
            (deter, stoch), (seen_now, action_now, time) = carry, step
            deter = self.layers(deter, stoch, action_now)
            log_probs = self.layers.log_probs(
                self.layers.posterior(jnp.concatenate([deter, seen_now], -1))
            )
            stoch = sample(log_probs, seeds + time).reshape(stoch.shape).astype(dtype)
            return (deter, stoch), (deter, stoch, log_probs)

        start = self._start(len(inputs))
        steps = (seen.swapaxes(0, 1), action.swapaxes(0, 1), jnp.arange(c.seq, dtype=jnp.uint32))
        _, found = jax.lax.scan(remat(observe, c.remat), start, steps, unroll=c.unroll)
        return tuple(jax.tree.map(lambda y: y.swapaxes(0, 1), found))

    def _start(self, rows: int) -> tuple[jax.Array, jax.Array]:
        c, dtype = self.config, compute_dtype(self.config.dtype)
        sizes = (c.deter, c.stoch * c.classes)
        deter, stoch = (
            self.layout.constrain(jnp.zeros((rows, s), dtype), "batch", None) for s in sizes
        )
        return deter, stoch

    def _imagine(self, deter: jax.Array, stoch: jax.Array, seeds: jax.Array) -> jax.Array:
        """Actor and critic losses on rollouts of the policy from every observed state."""
        c, stop = self.config, jax.lax.stop_gradient
        times = jnp.arange(c.seq, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
        row_seeds = noise.scramble((seeds[:, None] + times[None, :]).reshape(-1))

        def imagine(carry: Any, time: jax.Array) -> tuple[Any, Any]:
            deter, stoch = carry
            features = jnp.concatenate([deter, stoch], -1)
            action = sample(jax.nn.log_softmax(self.policy(features)), row_seeds + time)
            deter = self.layers(deter, stoch, action.astype(deter.dtype))
            log_probs = self.layers.log_probs(self.layers.prior(deter))
            stoch = sample(log_probs, row_seeds + time + 1).reshape(stoch.shape).astype(deter.dtype)
            return (stop(deter), stop(stoch)), (stop(features), stop(action))

        flat = deter.reshape(-1, c.deter), stoch.reshape(-1, c.stoch * c.classes)
        steps = 2 * jnp.arange(c.horizon, dtype=jnp.uint32)
        _, (features, actions) = jax.lax.scan(imagine, flat, steps, unroll=c.unroll)
        values = self.value(features)[
            ..., 0
        ]  # [H, B * T], squashed: so is the advantage, which bounds both losses
        rewards = stop(self.reward(features)[..., 0])
        going = stop(jax.nn.sigmoid(self.proceed(features)[..., 0]))
        returns = squash(
            lambda_returns(rewards[1:], unsquash(stop(values))[1:], _DISCOUNT * going[1:])
        )
        log_policy = jax.nn.log_softmax(self.policy(features))[:-1]
        advantage = returns - stop(values)[:-1]
        taken = jnp.sum(log_policy * actions[:-1], -1)
        entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, -1)
        return jnp.mean((values[:-1] - returns) ** 2) - jnp.mean(
            taken * advantage + _ENTROPY * entropy
        )


def squash(x: jax.Array) -> jax.Array:
    """Signed logarithm (symlog in the paper), so that returns of any size are learned alike."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def unsquash(x: jax.Array) -> jax.Array:
    """The inverse of `squash`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def divergence(first: jax.Array, second: jax.Array) -> jax.Array:
    """KL of categoricals [B, T, stoch, classes] in nats, at least 1 per state, averaged."""
    each = jnp.sum(jnp.exp(first) * (first - second), (-2, -1))
    return jnp.mean(jnp.maximum(each, 1.0))


def lambda_returns(rewards: jax.Array, values: jax.Array, discounts: jax.Array) -> jax.Array:
    """Returns [H, N] by a scan from the end; ``values`` are of the states after the rewards.

    References:
        Sutton and Barto, Reinforcement Learning, section 12.1
    """

    def back(later: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward, value, discount = now
        result = reward + discount * ((1 - _LAMBDA) * value + _LAMBDA * later)
        return result, result

    return jax.lax.scan(back, values[-1], (rewards, values, discounts), reverse=True)[1]


def flops_per_token(config: RecurrentConfig) -> float:
    """Model FLOPs of one token: everything once forward and backward, and what one token imagines.

    A rollout has no gradient (2 FLOPs per weight); policy and value are trained on what it visited
    (6); reward and continuation are read there (2).

    References:
        2 and 6 per weight: Kaplan et al. 2020, section 2.1, https://arxiv.org/abs/2001.08361
    """
    c, states = config, config.stoch * config.classes
    block = c.deter // c.blocks
    core = (
        c.hidden * (c.deter + states + c.actions)
        + c.deter * (block + 3 * c.hidden)
        + 3 * c.deter * block
    )
    prior = c.hidden * (c.deter + c.hidden + states)
    posterior = c.hidden * (c.deter + c.units + states)
    trunk = c.features * c.units + 2 * c.units**2  # three hidden layers on the features
    small = c.features * c.units + c.units
    observed = core + prior + posterior + 3 * c.units**2 + trunk + c.units * c.vocab + 2 * small
    policy, value = trunk + c.units * c.actions, trunk + c.units
    return 6.0 * observed + c.horizon * (
        2.0 * (core + prior + policy + 2 * small) + 6.0 * (policy + value)
    )
