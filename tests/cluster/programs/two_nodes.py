"""A training loop over two nodes by `jax.distributed`, with a sum over both in each step; `--work` matrix products."""

import argparse
import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--work", type=int, default=8)
parser.add_argument("--steps", type=int, default=1_000_000)
arguments = parser.parse_args()

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()  # by the variables of the job step
mesh = Mesh(jax.devices(), ("data",))
split = NamedSharding(mesh, PartitionSpec("data"))
data = jax.make_array_from_callback((2 * 256, 256), split, lambda index: jnp.ones((512, 256))[index])


@jax.jit
def step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden = batch
    for _ in range(arguments.work):
        hidden = jnp.tanh(hidden @ weights)
    loss = jnp.mean((batch @ weights) ** 2)  # over both nodes, and the same whatever the work
    return weights * 0.999, loss + 0.0 * jnp.mean(hidden)


weights = jnp.eye(256) * 0.5
for number in range(arguments.steps):
    begin = time.perf_counter()
    weights, loss = step(weights, data)
    value = float(loss)
    if jax.process_index() == 0:
        print(f"step {number} loss {value:.6f} {1e3 * (time.perf_counter() - begin):.2f} ms", flush=True)
