"""Training steps of a few kernels, one for each kind of parallelism, quick to compile.

Each is what `autotune.child.compile` takes as a workload of the user's own. Sizes matter little: a
pass acts on a loop with a permute in it whether that permute moves a megabyte or a kilobyte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, ROWS, LAYERS = 128, 256, 4


def _shaped(mesh: Mesh, shape: tuple[int, ...], *spec: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec))
    )


def _workload(loss: Callable[[Any, Any], Any], weights: Any, batch: Any) -> SimpleNamespace:
    """A step of gradient descent on a loss, over arrays that are only described."""

    def step(weights: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(weights, x)
        new = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient)
        return new, {"loss": value, "grad_norm": value}

    return SimpleNamespace(
        step=step,
        init=lambda seed: None,
        batch=lambda index: None,
        abstract_state=weights,
        abstract_batch=batch,
    )


def _mean_square(out: Any) -> Any:
    return jnp.mean(jnp.square(out.astype(jnp.float32)))


def pipeline(devices: Sequence[Any]) -> SimpleNamespace:
    """Microbatches handed from stage to stage by a permute in a loop."""
    mesh = Mesh(np.array(devices), ("stage",))
    count = len(devices)

    def stages(w: Any, x: Any) -> Any:
        def tick(h: Any, part: Any) -> Any:
            h = jnp.where(jax.lax.axis_index("stage") == 0, part, h)
            out = jnp.tanh(h @ w[0])
            return jax.lax.ppermute(out, "stage", [(i, i + 1) for i in range(count - 1)]), out

        start = jax.lax.pcast(jnp.zeros_like(x[0]), "stage", to="varying")
        return jax.lax.scan(tick, start, x)[1][None]

    spread = jax.shard_map(
        stages,
        mesh=mesh,
        in_specs=(PartitionSpec("stage"), PartitionSpec()),
        out_specs=PartitionSpec("stage"),
    )
    weights = _shaped(mesh, (count, WIDTH, WIDTH), "stage")
    return _workload(
        lambda w, x: _mean_square(spread(w, x)), weights, _shaped(mesh, (8, 32, WIDTH))
    )


def tensor(devices: Sequence[Any]) -> SimpleNamespace:
    """A layer split over devices: rows are gathered into a product, and scattered out of one."""
    mesh = Mesh(np.array(devices), ("tensor",))
    rows, columns = (
        NamedSharding(mesh, PartitionSpec(None, *spec)) for spec in (("tensor",), (None, "tensor"))
    )

    def loss(weights: Any, x: Any) -> Any:
        hidden = jax.lax.with_sharding_constraint(
            jnp.einsum("bsd,df->bsf", x, weights["up"]), columns
        )
        out = jnp.einsum("bsf,fd->bsd", jnp.tanh(hidden), weights["down"])
        return _mean_square(jax.lax.with_sharding_constraint(out, rows))

    weights = {
        "up": _shaped(mesh, (WIDTH, 4 * WIDTH), None, "tensor"),
        "down": _shaped(mesh, (4 * WIDTH, WIDTH), "tensor", None),
    }
    return _workload(loss, weights, _shaped(mesh, (2, ROWS, WIDTH), None, "tensor"))


def fsdp(devices: Sequence[Any], rows: int = ROWS, width: int = WIDTH) -> SimpleNamespace:
    """Scanned layers whose weights are gathered one layer at a time."""
    mesh = Mesh(np.array(devices), ("fsdp",))
    spread = NamedSharding(mesh, PartitionSpec("fsdp"))

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jax.lax.with_sharding_constraint(
                x + jnp.tanh(x @ w["up"]) @ w["down"], spread
            ), None

        return _mean_square(jax.lax.scan(jax.checkpoint(layer), x, weights)[0])

    weights = {
        "up": _shaped(mesh, (LAYERS, width, 2 * width), None, "fsdp", None),
        "down": _shaped(mesh, (LAYERS, 2 * width, width), None, "fsdp", None),
    }
    return _workload(loss, weights, _shaped(mesh, (rows, width), "fsdp"))


def one_gpu(devices: Sequence[Any]) -> SimpleNamespace:
    """Scanned layers on one device, with products that share an operand and a normalisation."""
    mesh = Mesh(np.array(devices), ("only",))

    def loss(weights: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            normed = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
            return x + jnp.tanh(normed @ w["gate"]) * (normed @ w["up"]), None

        return _mean_square(jax.lax.scan(layer, x, weights)[0])

    weights = {name: _shaped(mesh, (LAYERS, WIDTH, WIDTH)) for name in ("gate", "up")}
    return _workload(loss, weights, _shaped(mesh, (ROWS, WIDTH)))
