"""Truth on the real workload, on this machine, while a second process loads a core in bursts.

    python -m benchmarks.real_truth [--aa] [--planted] [--speed-up] [--effect 0.03] [--runs 3] [--out FILE]

Three questions, each answered by whole studies with real worker processes:

* twelve candidates that are identical to the reference: is a winner named? (None may be.)
* a reference that does a known share of extra work: is the candidate without it named the winner,
  and by how much?
* a candidate that does that extra work: is it proven slower?

The extra work is calibrated by interleaved pairs, so that it is that share on this machine now; see
`planted.py`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.machine.host import describe_machine
from autotune.measure.compare import ComparisonRequest, fixed
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.results.live import LineView
from autotune.rundir.store import Store
from autotune.study import driver
from autotune.study.driver import new_run, prove, run_study
from autotune.study.run import StudyRun
from harness.simulated import runner_of

HERE = Path(__file__).parent
VARIABLE = "JAX_PLANTED_ITERATIONS"
LABEL = "JAX_PLANTED_LABEL"  # read by nobody: makes sets that differ and programs that do not


def study(name: str, *, candidates: list[dict[str, Any]], baseline: dict[str, Any]) -> StudySpec:
    """A study of some given sets on the quickstart's workload."""
    return parse_study(
        {
            "name": name,
            "workload": {"entry": "planted:build", "options": {"size": "small"}},
            "baseline": baseline,
            "search": {
                "trials": len(candidates),
                "first": [{"name": f"c{i}", "settings": c} for i, c in enumerate(candidates)],
            },
        }
    )


@contextmanager
def bursts(seed: int) -> Iterator[None]:
    """A second process that loads one core in bursts of 0.1 to 2 s, with pauses alike."""
    process = multiprocessing.get_context("spawn").Process(target=_burn, args=(seed,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _burn(seed: int) -> None:
    rng, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:  # a benchmark that is killed leaves nothing behind
        end = time.monotonic() + rng.uniform(0.1, 2.0)
        while time.monotonic() < end:
            math.sqrt(end)
        time.sleep(rng.uniform(0.1, 2.0))


def begin(spec: StudySpec, folder: str, console: Console | None = None) -> StudyRun:
    """A session of a study in a folder, made or gone on with."""
    watch = Stopwatch()
    console = console or Console(width=160, no_color=True, stderr=True)
    view = LineView(console, watch, min_effect=spec.measure.min_effect)
    return new_run(spec, Path(folder) / "run", study_dir=HERE, view=view, watch=watch)


def run(spec: StudySpec, slow: FlagSet | None = None) -> dict[str, Any]:
    """Runs one study whole; returns its figures, and the proof of `slow` in its run directory."""
    with tempfile.TemporaryDirectory() as folder:
        study_run = begin(spec, folder)
        conclusion = run_study(study_run)
        found = describe(study_run.store, conclusion)
        if slow is not None:
            with contextlib.closing(begin(spec, folder)) as again:
                driver.begin(again)
                proven = prove(again, slow, trial=1, stage="slowdown")
            found["proof"] = {
                "verdict": str(proven.verdict),
                "estimate": _interval(proven.estimate),
            }
        return found


def describe(store: Store, conclusion: ConclusionRecord) -> dict[str, Any]:
    """The figures of a finished study."""
    aa_run = store.last(AaRecord)
    assert aa_run is not None
    return {
        "outcome": str(conclusion.outcome),
        "sentence": conclusion.sentence,
        "reported": _interval(conclusion.estimate),
        "aa_run": _interval(aa_run.noise.estimate),
        "provable": aa_run.provable,
        "step_s": aa_run.comparison.reference_step_s,
        "trials": [
            {
                "status": str(r.status),
                "finding": r.finding_at(
                    min_effect=store.spec.measure.min_effect, provable=aa_run.provable
                ),
                "estimate": _interval(r.comparison.estimate) if r.comparison else None,
                "pairs": r.comparison.pair_count if r.comparison else 0,
            }
            for r in store.of(TrialResult)
        ],
        "wall_s": round(store.watch.total_s, 1),
    }


def _interval(estimate: Any) -> list[float] | None:
    return (
        None
        if estimate is None
        else [round(x, 4) for x in (estimate.ratio, estimate.low, estimate.high)]
    )


def calibrate(effect: float, *, large: int = 3000) -> int:
    """Iterations that cost `effect` of a step: from the cost of many, measured interleaved."""
    spec = study("calibrate", candidates=[{VARIABLE: str(large)}], baseline={})
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(begin(spec, folder, Console(quiet=True))) as session,
    ):
        driver.begin(session)
        comparer = runner_of(session).comparer
        update = {"folder": ("trials", "large"), "name": "c"}
        comparer.context.assignment = comparer.context.assignment.model_copy(update=update)
        candidate = FlagSet({VARIABLE: str(large)})
        found = comparer.compare(ComparisonRequest(candidate=candidate, rule=fixed(30)))
    ratio = found.comparison.estimate.ratio
    iterations = max(1, round(large * effect / (ratio - 1.0)))
    print(f"{large} iterations cost {ratio - 1.0:.1%} of a step, so {effect:.1%} is {iterations}")
    return iterations


def proof_of_slowdown(iterations: int, *, pairs: int, processes: int) -> dict[str, Any]:
    """Proves only that the extra work is slower, by fresh pairs of some pairs of blocks each."""
    spec = study("proof", candidates=[{VARIABLE: str(iterations)}], baseline={})
    sizes = {"pairs": pairs, "processes": processes}
    spec = spec.model_copy(update={"confirm": spec.confirm.model_copy(update=sizes)})
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(begin(spec, folder)) as session,
    ):
        driver.begin(session)
        found = prove(session, FlagSet({VARIABLE: str(iterations)}), trial=1, stage="slowdown")
        runs = [r.log_ratio for r in session.store.of(ConfirmRun)]
    return {
        "iterations": iterations,
        "pairs": pairs,
        "processes": processes,
        "verdict": str(found.verdict),
        "estimate": _interval(found.estimate),
        "log_ratios": runs,
    }


def main() -> None:
    """Entry point; prints the tally and writes it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--aa", action="store_true", help="only the twelve identical candidates")
    parser.add_argument("--planted", action="store_true", help="only the planted effects")
    parser.add_argument("--speed-up", action="store_true", help="only the planted gain")
    parser.add_argument(
        "--runs", type=int, default=1, help="how often each study is run; all are reported"
    )
    parser.add_argument("--effect", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "real_truth.json")
    parser.add_argument("--proof", type=int, metavar="PAIRS", help="only the proof of a slow-down")
    parser.add_argument(
        "--processes", type=int, default=5, help="fresh pairs of processes in that proof"
    )
    parser.add_argument("--iterations", type=int, help="extra work, instead of calibrating it")
    arguments = parser.parse_args()
    if arguments.proof:
        with bursts(arguments.seed):
            iterations = arguments.iterations or calibrate(arguments.effect)
            found = proof_of_slowdown(
                iterations, pairs=arguments.proof, processes=arguments.processes
            )
        proof = {"provenance": describe_machine(), "effect": arguments.effect, **found}
        arguments.out.write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
        print(proof)
        return
    everything = not (arguments.aa or arguments.planted or arguments.speed_up)
    result: dict[str, Any] = {
        "provenance": describe_machine(),
        "effect": arguments.effect,
        "runs": [],
    }

    def keep(name: str, found: dict[str, Any]) -> None:
        result["runs"].append({"study": name, **found})
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(
            f"{name}: {found['outcome']} in {found['wall_s']:.0f} s; {found['sentence']}; "
            f"{found.get('proof', '')}"
        )

    with bursts(arguments.seed):
        for _ in range(arguments.runs):
            if arguments.aa or everything:
                identical = [{LABEL: str(i)} for i in range(12)]
                keep("identical", run(study("identical", candidates=identical, baseline={})))
            if arguments.speed_up or arguments.planted or everything:
                extra = str(calibrate(arguments.effect))
                candidates = [{VARIABLE: "0"}, {LABEL: "1"}]
                keep(
                    "speed-up",
                    run(study("speed-up", candidates=candidates, baseline={VARIABLE: extra})),
                )
            if arguments.planted or everything:
                slow = FlagSet({VARIABLE: extra})
                keep(
                    "slow-down", run(study("slow-down", candidates=[dict(slow)], baseline={}), slow)
                )


if __name__ == "__main__":
    main()
