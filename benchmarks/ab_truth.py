"""Checks that `autotune ab` is right: ten simulated changes of known truth, and equals.

    python -m benchmarks.ab_truth

The machine is simulated: two processes of one program differ by 0.6 %, blocks by 0.4 %. Nothing of
a real program is in it. Of 200 equals at most one is to be called slower, and one faster. Exit
status 1 if more are than chance allows, or a change that can be found is not. Writes
``benchmarks/results/ab_truth.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.model.flags import FlagSet
from autotune.model.records import AB, ConfirmRun
from autotune.model.spec import parse_study
from autotune.programs.variants import Variant
from autotune.settings.space import SearchSpace
from autotune.study.ab import exit_status, measure_variants, prepare_variants
from harness.simulated import GivenSetup, given_run, silent
from harness.simulated_machine import parse_simulated

RESULTS = Path(__file__).parent / "results" / "ab_truth.json"
NOISE = {"white_sd": 0.004, "process_sd": 0.006}
EQUALS = 200
MOST_CALLED = 4
"""Equals that may be called slower, and faster: where one in 200 is, chance gives more to one
benchmark in 270.
"""

MAX_SLOWDOWN = 0.01

FLAG = "xla_of_b=1"
CHANGES: Mapping[str, tuple[dict[str, Any], int | None]] = {
    "10 % slower": ({"effects": {FLAG: 1.10}}, 1),
    "5 % slower": ({"effects": {FLAG: 1.05}}, 1),
    "3 % slower": ({"effects": {FLAG: 1.03}}, 1),
    "1.5 % slower, near the limit of 1 %": ({"effects": {FLAG: 1.015}}, None),
    "0.5 % slower, within the limit": ({"effects": {FLAG: 1.005}}, None),
    "2 % faster": ({"effects": {FLAG: 0.98}}, 0),
    "5 % faster": ({"effects": {FLAG: 0.95}}, 0),
    "10 % faster": ({"effects": {FLAG: 0.90}}, 0),
    "10 % faster, trains otherwise": (
        {"effects": {FLAG: 0.90}, "failures": {FLAG: "wrong_loss"}},
        2,
    ),
    "does not run": ({"failures": {FLAG: "crash"}}, 2),
}
"""What is simulated of each change, and its true exit status; None where more than one is
honest.
"""


def compared(simulation: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What a comparison says; the changed program is the proof's candidate where it must fail."""
    base = parse_study(
        {
            "name": "base",
            "seed": seed,
            "workload": {"command": ["python", "train.py"], "hook": True},
            "confirm": {"processes": 20},
        }
    )
    plain, changed = (
        Variant(command=("python", "train.py"), settings=FlagSet(s))
        for s in ({}, {"xla_of_b": "1"})
    )
    a, b = (changed, plain) if "failures" in simulation else (plain, changed)
    spec, variants = prepare_variants(base, a, b, Path("ab"))
    study = parse_simulated(
        {**spec.model_dump(mode="json"), "simulation": {**simulation, "noise": NOISE}}
    )
    run = given_run(study, None, GivenSetup(given_space=SearchSpace(())), silent())
    measure_variants(run, variants)
    pairs = sum(record.stage == AB for record in run.store.of(ConfirmRun))
    status = exit_status(run.conclusion, max_slowdown=MAX_SLOWDOWN)
    return {"status": status, "pairs": pairs, "said": run.conclusion.sentence.partition(";")[0]}


def main() -> int:
    """Compares everything, writes the results, and says whether all is as it must be."""
    changes = {
        name: {"true_status": true, **compared(given, 1)} for name, (given, true) in CHANGES.items()
    }
    equals = [compared({}, seed) for seed in range(EQUALS)]
    called = {
        word: sum(f" % {word} than A" in found["said"] for found in equals)
        for word in ("slower", "faster")
    }
    wrong = [
        name
        for name, found in changes.items()
        if found["true_status"] not in (None, found["status"])
    ]
    for name, found in changes.items():
        print(f"{name}: status {found['status']}, {found['pairs']} pairs: {found['said']}")
    print(f"of {EQUALS} equals called: {called}; wrong: {wrong or 'none'}")
    results = {"machine": NOISE, "changes": changes, "equals_called": called, "equals": equals}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 1 if max(called.values()) > MOST_CALLED or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
