"""A newcomer's clock: from a clone to a verdict on a program of her own, by the README's commands.

    python -m benchmarks.newcomer [--time-budget 8m]

Clones this repository into a temporary folder, with a HOME of its own and nothing of this environment but where
packages come from, types what README says, and tunes a small training program that autotune has never seen. What each
step took goes into ``benchmarks/results/newcomer.json``. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.machine import describe_machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/newcomer.json"

PROGRAM = """
import jax, jax.numpy as jnp, optax

keys = jax.random.split(jax.random.key(0), 5)
params = [jax.random.normal(k, (512, 512)) / 23 for k in keys[:4]]
tx = optax.adamw(1e-3)
state = tx.init(params)
batch = jax.random.normal(keys[4], (256, 512))

def loss_of(params):
    x = batch
    for w in params:
        x = jax.nn.gelu(x @ w)
    return jnp.mean((x - batch) ** 2)

@jax.jit
def train_step(params, state):
    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

for step in range(1_000_000):
    params, state, loss = train_step(params, state)
    print(f"step {step} loss {float(loss):.5f}", flush=True)
"""

KEPT = ("PIP_", "SSL_", "REQUESTS_", "UV_")
"""Beginnings of variables that say where packages come from."""

LIMIT_S = 3600.0


def typed(command: str, *, at: Path, variables: dict[str, str]) -> tuple[float, str]:
    """How long a command took that a person types into a shell, and what it printed.

    Raises:
        SystemExit: If it failed.
    """
    print(f"$ {command}", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], cwd=at, env=variables, text=True, timeout=LIMIT_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{command!r} must end well but ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return round(time.monotonic() - began, 1), done.stdout


def main() -> None:
    """Runs it once and writes what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-budget", default="8m", help="of the study of the own program")
    budget = parser.parse_args().time_budget
    machine = describe_machine()  # before this loads it
    with tempfile.TemporaryDirectory() as folder:
        home, own, clone = Path(folder) / "home", Path(folder) / "own", Path(folder) / "autotune"
        home.mkdir()
        own.mkdir()
        (own / "train.py").write_text(PROGRAM)
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        variables = {**kept, "HOME": str(home), "PATH": os.environ["PATH"]}
        took: dict[str, float] = {}
        took["clone"], _ = typed(f"git clone -q {ROOT} {clone}", at=home, variables=variables)
        took["make quickstart"], _ = typed("make quickstart", at=clone, variables=variables)
        line = f"autotune tune --yes --time-budget {budget} -- python train.py"
        took["autotune tune"], printed = typed(f". {clone}/.venv/bin/activate && {line}", at=own, variables=variables)
        (run,) = (own / "runs").iterdir()
        _, text = typed(f". {clone}/.venv/bin/activate && autotune show {run} --json", at=own, variables=variables)
    conclusion: dict[str, Any] = [r for r in json.loads(text) if r["kind"] == "conclusion"][-1]
    row = {
        "provenance": machine, "command": line, "seconds": took, "whole_s": round(sum(took.values()), 1),
        "outcome": conclusion["outcome"], "sentence": conclusion["sentence"], "last_lines": printed.splitlines()[-4:],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
