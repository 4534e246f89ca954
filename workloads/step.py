"""The one train step: any model and mesh, AdamW, accumulation, ZeRO; makes the `Workload`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from flax import nnx

from workloads.base import Batch, State, Workload, choice
from workloads.batch import abstract_batch, make_batch
from workloads.float8 import Scaling
from workloads.layers import compute_dtype, param_count
from workloads.mesh import PINNED, Layout, on_host
from workloads.noise import Stream


class Model(Protocol):
    """What the step needs of a model: an nnx module with a loss, its layers under ``layers``."""

    layers: Any

    def loss(self, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        """The loss of [B, T] tokens, f32[]."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained.

    Attributes:
        batch: Sequences per optimiser update, over all devices.
        accumulate: Parts of the batch whose gradients are summed before the update.
        zero: ``optimizer`` splits the optimiser's state over the data axis as well (ZeRO stage 1).
        offload: ``optimizer`` keeps the optimiser's state in the host's memory between updates;
            ``remat`` has values that put activations there.
        weight_dtype: Of weights between steps, and so of their gradients and the optimiser's
            moments.
        learning_rate: Of AdamW with betas 0.9 and 0.95, weight decay 0.1, gradients clipped to norm
            1. Constant, or reached in ``warmup`` steps, and left for a tenth of it by a cosine that
            ends at step ``decay``.
    """

    batch: int
    seq: int
    vocab: int
    accumulate: int = 1
    zero: str = choice("none", "optimizer")
    offload: str = choice("none", "optimizer")
    weight_dtype: str = choice("float32", "bfloat16")
    learning_rate: float = 3e-4
    warmup: int = field(default=0, metadata={"minimum": 0})
    decay: int = field(default=0, metadata={"minimum": 0})
    seed: int = field(default=0, metadata={"minimum": 0})
    mesh: Mapping[str, int] = field(default_factory=dict)


def make_workload(
    name: str,
    make_model: Callable[[Stream], Model],
    *,
    layout: Layout,
    train: TrainConfig,
    dtype: str,
    layers: int,
    flops_per_token: float,
    config: Mapping[str, Any],
) -> Workload:
    """Builds the workload of a model; places nothing on a device.

    Args:
        name: What reports call it.
        make_model: Makes the model from a stream of seeds; traced only.
        layout: The mesh and its rules.
        train: Batch, optimiser, seed.
        dtype: The option, for the size of what collectives carry.
        layers: How many layers ``model.layers`` holds.
        flops_per_token: Model FLOPs of one token, forward and backward.
        config: The model's part of the workload's config.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(learning_rate(train), b1=0.9, b2=0.95, weight_decay=0.1),
    )
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    kept = jnp.dtype(train.weight_dtype)

    def cast(w: nnx.Variable[Any]) -> nnx.Variable[Any]:
        return w if isinstance(w, Scaling) else w.replace(w.get_value().astype(kept))

    def weights(seed: jax.Array) -> Any:
        return jax.tree.map(cast, nnx.state(make_model(Stream(seed))), is_leaf=_is_variable)

    graphdef, drawn = nnx.split(nnx.eval_shape(lambda seed: make_model(Stream(seed)), seed))
    shapes = jax.eval_shape(lambda state: jax.tree.map(cast, state, is_leaf=_is_variable), drawn)
    moments = jax.eval_shape(optimizer.init, shapes)
    zero = train.zero == "optimizer"
    state = {
        "params": _with_shardings(layout, shapes, zero=False),
        "optimizer": _with_shardings(
            layout, moments, zero=zero, is_on_host=train.offload == "optimizer"
        ),
    }
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)

    def init(seed: jax.Array) -> State:
        params = weights(seed)
        return {"params": params, "optimizer": optimizer.init(params)}

    jitted_init = jax.jit(init, out_shardings=shardings)
    loss = _loss_and_gradients(graphdef, shardings["params"], layout, train.accumulate)
    carried = param_count(shapes["layers"]) // layers * compute_dtype(dtype).itemsize
    tokens = train.batch * train.seq
    return Workload(
        name=name,
        step=_make_step(loss, optimizer, layout, shapes, shardings, zero=zero),
        init=lambda seed: jitted_init(jnp.uint32(seed)),
        batch=make_batch(
            layout, batch=train.batch, seq=train.seq, vocab=train.vocab, seed=train.seed
        ),
        abstract_state=state,
        abstract_batch=abstract_batch(layout, batch=train.batch, seq=train.seq),
        mesh=layout.mesh,
        tokens_per_step=tokens,
        flops_per_step=flops_per_token * tokens,
        param_count=param_count(shapes),
        layer_bytes={"weights": carried, "gradients": carried},
        config={"name": name, **config, **asdict(train), "mesh": dict(layout.mesh.shape)},
    )


def learning_rate(train: TrainConfig) -> float | optax.Schedule:
    """The rate of each step: a number, or a schedule whose first rate is not 0."""
    rate = train.learning_rate
    first = rate / max(1, train.warmup)
    if train.decay:
        return optax.warmup_cosine_decay_schedule(
            first, rate, train.warmup, train.decay, 0.1 * rate
        )
    return optax.linear_schedule(first, rate, train.warmup) if train.warmup else rate


def _with_shardings(layout: Layout, shapes: Any, *, zero: bool, is_on_host: bool = False) -> Any:
    """Shapes with the sharding of their variables' logical axes; without axes, replicated."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout.sharding(()))
        value, sharding = leaf.get_value(), layout.sharding(leaf.get_metadata("out_sharding"))
        if zero:
            sharding = layout.zero(sharding, value.shape)
        if is_on_host:
            sharding = on_host(sharding)
        return leaf.replace(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding))

    return jax.tree.map(place, shapes, is_leaf=_is_variable)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


def _loss_and_gradients(
    graphdef: Any, shardings: Any, layout: Layout, accumulate: int
) -> Callable[[Any, Batch], tuple[jax.Array, Any]]:
    """The function from weights and a batch to the mean loss and its float32 gradients."""

    def once(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        return jax.value_and_grad(
            lambda p: nnx.merge(graphdef, p).loss(batch["inputs"], batch["targets"])
        )(params)

    def accumulated(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        def part(
            x: jax.Array,
        ) -> jax.Array:  # every part takes rows of every device, so that none moves
            x = x.reshape(x.shape[0] // accumulate, accumulate, *x.shape[1:]).swapaxes(0, 1)
            return layout.constrain(x, None, "batch", "sequence")

        def add(total: Any, rows: Batch) -> tuple[Any, None]:
            total = jax.tree.map(jnp.add, total, once(params, rows))
            return (total[0], jax.lax.with_sharding_constraint(total[1], shardings)), None

        zeros = jax.lax.with_sharding_constraint(jax.tree.map(jnp.zeros_like, params), shardings)
        total, _ = jax.lax.scan(add, (jnp.float32(0), zeros), jax.tree.map(part, batch))
        return jax.tree.map(lambda x: x / accumulate, total)

    return once if accumulate == 1 else accumulated


def _make_step(
    loss: Callable[[Any, Batch], tuple[jax.Array, Any]],
    optimizer: optax.GradientTransformation,
    layout: Layout,
    shapes: Any,
    shardings: Any,
    *,
    zero: bool,
) -> Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]:
    """The train step; with ``zero`` each device updates its part of the weights."""
    parts = jax.tree.map(lambda leaf: leaf.sharding, _with_shardings(layout, shapes, zero=zero))
    offloads = any(
        sharding.memory_kind == PINNED for sharding in jax.tree.leaves(shardings["optimizer"])
    )

    def step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        value, found = loss(state["params"], batch)
        gradients = jax.tree.map(_trained, found, is_leaf=_is_variable)
        gradients = jax.lax.with_sharding_constraint(gradients, parts)
        params = jax.lax.with_sharding_constraint(state["params"], parts)
        moments = state["optimizer"]
        if offloads:  # fetched only when all gradients are there, for memory is full until then
            gradients, moments = jax.lax.optimization_barrier((gradients, moments))
            moments = jax.device_put(moments, jax.memory.Space.Device)
        updates, moments = optimizer.update(gradients, moments, params)
        params = jax.tree.map(
            _next_value, optax.apply_updates(params, updates), found, is_leaf=_is_variable
        )
        params = jax.lax.with_sharding_constraint(params, shardings["params"])
        if offloads:
            moments = jax.device_put(moments, shardings["optimizer"])
        metrics = {"loss": value, "grad_norm": optax.tree.norm(gradients)}
        return {"params": params, "optimizer": moments}, metrics

    return step


def _trained(gradient: nnx.Variable[Any]) -> nnx.Variable[Any]:
    """A gradient as the optimiser sees it: none of what is not trained."""
    return (
        gradient.replace(jnp.zeros_like(gradient.get_value()))
        if isinstance(gradient, Scaling)
        else gradient
    )


def _next_value(updated: nnx.Variable[Any], gradient: nnx.Variable[Any]) -> nnx.Variable[Any]:
    """A weight after its update; of what is not trained, the gradient is the next value."""
    return gradient if isinstance(gradient, Scaling) else updated


def bytes_per_device(tree: Any) -> int:
    """Bytes of a tree of abstract arrays on one device; unsharded ones count whole."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape)
        * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if not leaf.sharding or leaf.sharding.memory_kind != PINNED
    )
