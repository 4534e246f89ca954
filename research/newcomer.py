"""A newcomer's clock: from a clone to a verdict on a program that autotune has never seen, by the README's commands.

    python -m research.newcomer [--time-budget 10m] [--out FILE]

Clones this repository into a temporary folder with a clean HOME, types what README says, and says what each command
took, how it ended, and whether the program's folder is what it was. Run it on a machine that does nothing else.
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

from autotune.machine.host import describe_machine

ROOT = Path(__file__).parents[1]

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
    if step % 100 == 0:
        jnp.save("checkpoint.npy", params[0])
"""

KEPT = ("PIP_", "SSL_", "REQUESTS_", "UV_")
"""Beginnings of the variables that say where packages come from."""

LIMIT_S = 3600.0


def typed(command: str, *, at: Path, variables: dict[str, str]) -> dict[str, Any]:
    """How a command ended that a person types into a shell, its seconds and its last lines."""
    print(f"$ {command}", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], cwd=at, env=variables, text=True, timeout=LIMIT_S, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    took = round(time.monotonic() - began, 1)
    return {"command": command, "status": done.returncode, "took_s": took, "last": done.stdout.splitlines()[-6:]}


def clocked(folder: Path, budget: str) -> list[dict[str, Any]]:
    """What each command of the README took and said, until the first that fails."""
    home, own, clone = folder / "home", folder / "own", folder / "autotune"
    home.mkdir()
    own.mkdir()
    (own / "train.py").write_text(PROGRAM, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    variables = {**kept, "HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    with_path = {**variables, "PATH": f"{clone}/.venv/bin:{variables['PATH']}"}
    rows = [
        typed(f"git clone -q {ROOT} {clone}", at=home, variables=variables),
        typed("make quickstart", at=clone, variables=variables),
    ]
    for line in (
        "autotune doctor",
        f"autotune tune --yes --time-budget {budget} -- python train.py",
        "autotune show runs/train",
        "autotune report runs",
        "autotune export runs/train --format env -o exported.env",
        "timeout 20 autotune exec runs/train -- python train.py",
    ):
        rows.append(typed(line, at=own, variables=with_path))
    rows.append(typed("ls", at=own, variables=variables))
    return rows


def main() -> int:
    """Runs it once and writes what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-budget", default="10m", help="of the study of the own program")
    parser.add_argument("--out", type=Path, default=ROOT / "research/results/newcomer.json")
    given = parser.parse_args()
    machine, load = describe_machine(), os.getloadavg()[0]  # before this loads it
    with tempfile.TemporaryDirectory() as folder:
        rows = clocked(Path(folder), given.time_budget)
        text = json.dumps({"cpu": machine.get("cpu"), "load_before": load, "commands": rows}, indent=1)
        given.out.write_text(text.replace(folder, "FOLDER") + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
