"""Whether a screen ever loses a program: small interacting spaces, every point compiled.

Two parts, run as ``python -m benchmarks.soundness [spaces | orders] [--space NAME ...]``:

* *spaces*: pipeline, tensor parallel, fsdp, one GPU, and one GPU whose products are cuBLAS's: steps
  of a few kernels (`harness.tiny_steps`) for four described H100s. Each space is screened as in a
  study, then all of its points are compiled under every kernel choice. A point is lost if the space
  without the no-ops has no point of that program; there must be none, and the exit status says so.
* *orders*: random compilers whose effects hinge on a known number of settings: how often does the
  interaction test lose a program? Up to the order that it guarantees, never.

Writes ``benchmarks/results/soundness_JAXLIB.json``, and
``benchmarks/results/soundness_orders.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from autotune.compiler.interaction import PAIRS_ALONE
from autotune.compiler.targets import compiler_versions
from harness.interacting import SPACES, brute_force
from harness.known_programs import points, random_compiler

RESULTS = Path(__file__).parent / "results"
COMPILERS = 300
"""Random compilers of each order."""


def orders() -> dict[str, Any]:
    """Of how many random compilers a program is lost, by how much an effect hinges on.

    Compilers whose every point can be tried are small. In a study of many settings pairs are not
    tried alone, so `as_in_large_spaces` leaves that out.
    """
    found: dict[str, dict[str, Any]] = {}
    for needs, unless in ((1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0), (3, 1), (4, 0)):
        words = (
            f"up to {needs} values, none of {unless} others set"
            if unless
            else f"up to {needs} values"
        )
        found[words] = {"guaranteed": needs <= 2 and unless <= 1}
        for name, pairs_alone in (("small_spaces", PAIRS_ALONE), ("as_in_large_spaces", 0)):
            lost = compiled = size = 0
            for seed in range(COMPILERS):
                most = 1 if unless else 3
                compiler = random_compiler(
                    random.Random(seed), needs=needs, unless=unless, most_values=most
                )
                no_ops, _ = compiler.screened(seed, pairs_alone=pairs_alone)
                compiled += len(compiler.compiled)
                size += sum(1 for _ in points(compiler.domains))
                lost += bool(compiler.lost(no_ops))
            found[words][name] = {
                "compilers": COMPILERS,
                "with_a_lost_program": lost,
                "mean_compilations": round(compiled / COMPILERS, 1),
                "mean_points": round(size / COMPILERS, 1),
            }
        print(words, found[words], flush=True)
    return found


def spaces(names: list[str]) -> bool:
    """Compiles the spaces, keeps others as they stand in the file; whether no point was lost."""
    versions = compiler_versions()
    path = RESULTS / f"soundness_{versions['jaxlib']}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names:
        found[name] = {"versions": versions, **brute_force(SPACES[name])}
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(
            name, json.dumps({k: v for k, v in found[name].items() if k != "versions"}), flush=True
        )
    return not any(found[name]["points_lost"] for name in names)


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["spaces", "orders"])
    parser.add_argument("--space", action="append", choices=list(SPACES))
    args = parser.parse_args()
    is_sound = True
    if "orders" in args.parts:
        result = orders()
        (RESULTS / "soundness_orders.json").write_text(
            json.dumps(result, indent=1) + "\n", encoding="utf-8"
        )
        certain = [
            r[name]
            for r in result.values()
            if r["guaranteed"]
            for name in r
            if name != "guaranteed"
        ]
        is_sound = not any(r["with_a_lost_program"] for r in certain)
    if "spaces" in args.parts:
        is_sound = spaces(args.space or list(SPACES)) and is_sound
    sys.exit(0 if is_sound else "a program was lost")


if __name__ == "__main__":
    main()
