"""What the profiler gives of a step that was compiled ahead of time, as far as a CPU tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine import environment
from autotune.model.flags import FlagSet
from autotune.workers.local import profile_text

pytestmark = pytest.mark.slow

COLLECT = """
import sys, jax, jax.numpy as jnp
from jax._src.lib import _profiler
from autotune.child.measure import take_profile
from jax._src import profiler

class Seen:  # what a GPU's trace would give: one instruction that took 5, 6, 7 us
    traces = []
    def __getattr__(self, name):
        return getattr(_profiler, name)
    def get_fdo_profile(self, xspace):
        self.traces.append(bytes(xspace))
        cost = bytes([0x0A, 1]) + b"f" + bytes([0x11]) + __import__("struct").pack("<d", 4.0 + len(self.traces))
        return bytes([0x0A, len(cost)]) + cost

def named_step(x):
    return jnp.tanh(x @ x)

x = jnp.ones((64, 64))
step = jax.jit(named_step).lower(x).compile()
real = take_profile(lambda: step(x).block_until_ready(), 2)
seen = profiler._profiler = Seen()
told = take_profile(lambda: step(x).block_until_ready(), 3)
print(len(real), len(seen.traces), all(b"jit_named_step" in t for t in seen.traces), told.hex())
"""


def test_a_step_that_was_compiled_ahead_of_time_is_profiled() -> None:
    env = environment.child_environment(environment.caller_environment(), FlagSet(), platform_name="cpu")
    env["PYTHONPATH"] = str(Path.cwd())
    command = [sys.executable, "-c", COLLECT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    on_cpu, traces, are_of_the_step, told = done.stdout.split()
    assert on_cpu == "0"  # XLA makes a profile of a GPU's trace only
    assert (traces, are_of_the_step) == ("3", "True")
    text = profile_text(bytes.fromhex(told))
    assert text.splitlines()[1] == '  name: "f"'
    assert 5.0 <= float(text.split("cost_us: ")[1].split()[0]) <= 7.0
