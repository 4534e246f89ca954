"""Does XLA's dump of a command say all that its executable says? Each value of each flag, held against serialization.

    python research/command_programs.py [--python INTERPRETER] [--cost]

For every flag of `SHOWN_BY_DUMP` one process for each of its values compiles a few functions of different kinds. The
name that `ProgramWatch` makes of the dump must tell apart whatever the fingerprint of the serialized executables tells
apart: thunks, buffers, object files (`autotune.child.fingerprint`). Exit status 1 if it does not. ``--cost`` compares
the CPU seconds in which a larger program is compiled, with the dump and without, interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from autotune.settings.probe import probe_build
from autotune.workers.programs import SHOWN_BY_DUMP, NotKnown, ProgramWatch

ROOT = Path(__file__).parents[1]

NUMBERS = {"xla_cpu_max_isa": ("SSE4_2", "AVX", "AVX2"), "xla_cpu_prefer_vector_width": ("128", "256", "512")}

FUNCTIONS = """
import sys, json
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp
from autotune.child.fingerprint import fingerprint
def loss(w, x): return jnp.mean((jnp.tanh(x @ w) - 1) ** 2)
def attend(q, k): return jax.nn.softmax(q @ k.T / 8) @ k
def scanned(w, x): return jax.lax.scan(lambda c, _: (jnp.sin(c @ w), c.sum()), x, None, length=8)
def convolved(x, k): return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")
def odd(x): return jnp.sort(x, axis=0), jnp.argmax(x, 1), x.at[jnp.arange(8)].add(1.0), jnp.cumsum(x, 1)
def counted(x): return jax.lax.while_loop(lambda s: s[1] < 9, lambda s: (jnp.exp(-s[0]) + s[0], s[1] + 1), (x, 0))
w, x = jnp.ones((128, 128)) / 128, jnp.ones((64, 128))
cases = [(jax.grad(loss), (w, x)), (attend, (x, x)), (scanned, (w, x)), (odd, (x,)), (counted, (x,)),
         (convolved, (jnp.ones((2, 8, 16, 16)), jnp.ones((4, 8, 3, 3)))),
         (lambda x: (x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16)).astype(jnp.float32), (x,)),
         (lambda x: jax.random.normal(jax.random.key(0), x.shape) * x, (x,)),
         (lambda x: jnp.linalg.norm(jnp.fft.fft(x)), (x,))]
names = [fingerprint(jax.jit(f).lower(*a).compile()) for f, a in cases]
print(json.dumps({"names": names}), flush=True)
sys.stdin.readline()
"""

LARGE = """
import sys, time, jax, jax.numpy as jnp
def loss(ws, x):
    for w in ws:
        x = x + jax.nn.gelu(jax.nn.softmax(x @ w[0], -1) @ w[1]) * jnp.mean(x * x, -1, keepdims=True)
    return jnp.mean(x * x)
ws = [(jnp.full((256, 256), 1e-3 + i), jnp.full((256, 256), 1e-3)) for i in range(24)]
x = jnp.ones((64, 256))
jax.block_until_ready((ws, x))
began = time.process_time()
jax.block_until_ready(jax.jit(jax.grad(loss))(ws, x))
print(time.process_time() - began)
"""


def both_names(python: str, flags: str) -> tuple[str, tuple[str, ...]] | str:
    """The name of the dump and those of the executables; or why there is none."""
    base = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": flags}
    watch = ProgramWatch(base)
    try:
        command = [python, "-c", FUNCTIONS, str(ROOT)]
        with subprocess.Popen(
            command, env=watch.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                return "it does not run"
            told = json.loads(line)
            found = watch.read_programs(1)
            process.kill()
        return found["fingerprint"], tuple(told["names"])
    except NotKnown as error:
        return str(error)
    finally:
        watch.close()


def compile_s(python: str, *, is_watched: bool) -> float:
    """CPU seconds of compiling and running a larger program once: what else runs here does not count."""
    base = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": ""}
    watch = ProgramWatch(base)
    try:
        env = watch.environment if is_watched else base
        done = subprocess.run([python, "-c", LARGE], env=env, capture_output=True, text=True, check=True)
    finally:
        watch.close()
    return float(done.stdout)


def main() -> int:
    """Prints a line for each flag; the status says whether the dump missed anything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if given.cost:
        pairs = [
            (compile_s(given.python, is_watched=False), compile_s(given.python, is_watched=True)) for _ in range(5)
        ]
        ratios = [b / a for a, b in pairs]
        plain = statistics.median(a for a, _ in pairs)
        print(f"CPU time of compiling, with the dump over without: {[round(r, 3) for r in ratios]}; median "
              f"{statistics.median(ratios):.3f} of {plain:.2f} s")  # fmt: skip
        return 0
    report = probe_build(given.python)
    print(report.build)
    default = both_names(given.python, "")
    missed = 0
    for name in sorted(SHOWN_BY_DUMP):
        if given.only not in name or (flag := report.flags.get(name)) is None:
            continue
        values = flag.values or (("true", "false") if flag.type == "bool" else ())
        if not values:
            values = {
                "xla_cpu_max_isa": ("SSE4_2", "AVX", "AVX2"),
                "xla_cpu_prefer_vector_width": ("128", "256", "512"),
            }[name]
        found = {value: both_names(given.python, f"--{name}={value}") for value in values}
        known = {v: f for v, f in {"default": default, **found}.items() if not isinstance(f, str)}
        wrong = [(a, b) for a in known for b in known if known[a][0] == known[b][0] and known[a][1] != known[b][1]]
        equal = sum(known[v][0] == default[0] for v in found if v in known)
        same = sum(known[v][1] == default[1] for v in found if v in known)
        missed += len(wrong)
        lost = {v: f for v, f in found.items() if isinstance(f, str)}
        print(f"{name}: {len(found)} values, of {len(known) - 1} the default's program by the dump {equal}, by the "
              f"executable {same}; missed {wrong or 'nothing'}; {lost or ''}", flush=True)  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
