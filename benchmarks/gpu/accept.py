"""Is everything right on this GPU? The tool's own ways once, and what a study must know of the machine.

    python -m benchmarks.gpu.accept --out DIR [--minutes 9] [--dry-run | --simulate]

1. `autotune doctor`, and the installed build asked for its settings;
2. A/A: two processes of one program in blocks of 0.06, 0.5 and 3 s in turns: spread and order effect of each length;
   one of them beside the idle other, then alone: the residency effect;
3. every reference workload once: step time, memory, MFU, power and energy against clock time;
4. out of memory, forced: a study whose two processes do not fit beside each other measures them one at a time;
5. one compilation of the screen beside the real driver;
6. process spread: fresh starts in a row against starts at once.

What does not fit into the minutes is left out, and said. The same command goes on after a kill.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.model import FlagSet
from autotune.rundir import Store
from autotune.workers import WorkerFailed
from benchmarks.gpu.hour import Row
from benchmarks.gpu.machine import HERE
from benchmarks.gpu.processes import SHARED, Part, in_turns, part, run_alone, start, start_at_once, steps_in

BLOCKS_S = {0.06: 30, 0.5: 12, 3.0: 5}
"""Length of a block, in seconds, to pairs of it."""

WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "llama-small": {},
    "moe-small": {},
    "rssm-small": {},
    "long-small": {"mesh": {"context": 1}},
    "gpt2-124m": {"batch": 8, "remat": "none"},
    "dreamerv3-12m": {},
    "llama-80gb": {"layers": 7, "batch": 4},
    "moe-80gb": {"layers": 4, "batch": 2},
}
OUT_OF_MEMORY_S = 125.0
"""For a start that runs out of memory, then two fresh processes alone, which are the first pair."""

DRY: Mapping[str, Mapping[str, Any]] = {"llama-tiny": {}}
SETTLED = ("gpt2-124m", {"batch": 8, "remat": "none"})
"""What processes are compared on: compiled soon, and busy enough for the GPU's clocks to matter."""


def main() -> int:
    """Goes through all units as far as the minutes go."""
    with part("accept", __doc__ or "", 9.0) as found:
        machine, hour = found.machine, found.hour
        hour.do("machine", 1, lambda: {"found": machine.describe()})
        hour.do("doctor", 8, lambda: {"found": ask(found, "doctor", "--json")})
        dry = found.args.dry_run
        hour.do("turns", 20 if dry else 2 * 26 + 90, lambda: turns(found, 0.05 if dry else 1.0))
        workloads = DRY if dry else WORKLOADS
        for entry, options in list(workloads.items()):
            hour.do(f"workload {entry}", 10 if dry else 30, lambda e=entry, o=options: workload(found, e, dict(o)))
        if not dry:
            hour.do("out of memory", OUT_OF_MEMORY_S + 10, lambda: out_of_memory(found))
            hour.do("screen", 40, lambda: {"found": ask(found, "predict", str(found.study("dense")), "--json")})
        for number in range(1 if dry else 6):
            cost_s = hour.cost_of("starts", 20 if dry else 4 * 26 + 16)
            if hour.do(f"starts {number}", cost_s, lambda n=number: starts(found, n), kind="starts") is None:
                break
        return 0 if hour.find("turns") else 1


def ask(found: Part, *arguments: str) -> Any:
    """What a command of autotune answers."""
    folder = found.hour.folder / arguments[0]
    return found.machine.autotune(*arguments, limit_s=max(5.0, found.hour.left_s), folder=folder).json()


def settled(found: Part) -> Any:
    """The study of the workload that processes are compared on."""
    return found.workload("llama-tiny", {}) if found.args.dry_run else found.workload(*SETTLED)


def turns(found: Part, scale: float) -> Row:
    """Two processes of one program, started one after the other: blocks of several lengths, then one of them alone."""
    machine, spec, folder = found.machine, settled(found), found.hour.folder / "turns"
    launcher = machine.launcher(spec)
    try:
        workers = [start(launcher, spec, SHARED, folder / name) for name in ("one", "two")]
        for worker in workers:
            machine.block(spec, worker, steps_in(worker, 4.0 * scale), folder)
        blocks = {
            str(block_s): in_turns(
                machine, spec, workers, folder, block_s=block_s * scale, pairs=pairs, seed=f"turns/{block_s}"
            )
            for block_s, pairs in BLOCKS_S.items()
        }
        beside = [machine.block(spec, workers[0], steps_in(workers[0], 2.0 * scale), folder) for _ in range(5)]
        workers[1].close()
        alone = [machine.block(spec, workers[0], steps_in(workers[0], 2.0 * scale), folder) for _ in range(5)]
        return {
            "blocks": blocks,
            "beside_s": [statistics.mean(b.step_s) for b in beside],
            "alone_s": [statistics.mean(b.step_s) for b in alone],
            "fingerprints": [w.report.fingerprint for w in workers],
            "start_s": [w.report.start_s for w in workers],
        }
    finally:
        launcher.close()


def workload(found: Part, entry: str, options: dict[str, Any]) -> Row:
    """One reference workload alone: with the power that it draws against the energy that is counted."""
    spec = found.workload(entry, options)
    folder = found.hour.folder / entry
    seconds = 0.1 if found.args.dry_run else 3.0
    row = run_alone(found.machine, spec, FlagSet(), folder, warm_s=seconds / 2, steady_s=seconds)
    return {**row, "entry": entry, "options": options}


def out_of_memory(found: Part) -> Row:
    """A study whose step needs more than the share of each of two processes, and fits alone; as far as it comes."""
    folder, study = found.hour.folder / "out_of_memory", HERE / "large.toml"
    limit_s = min(OUT_OF_MEMORY_S, found.hour.left_s - 10)
    done = found.machine.autotune("run", str(study), "--run-dir", str(folder / "run"), limit_s=limit_s, folder=folder)
    run = Store.open(folder / "run")
    pairs = list(run.pairs("floor"))
    run_steps = run.spec.measure.run_steps
    return {
        "status": done.status,
        "pairs": len(pairs),
        "is_alone": bool(pairs) and all(len(p.candidate_s) == run_steps for p in pairs),
        "errors": done.errors[-1500:],
    }


def starts(found: Part, number: int) -> Row:
    """Four fresh processes: two started in a row, two at once; each pair in turns when both are warm."""
    machine, spec = found.machine, settled(found)
    scale = 0.05 if found.args.dry_run else 1.0
    folder, rows = found.hour.folder / f"starts-{number}", {}
    for way in ("in a row", "at once"):
        launcher = machine.launcher(spec)
        try:
            places = [folder / way.replace(" ", "-") / name for name in ("one", "two")]
            if way == "at once":
                workers = start_at_once(launcher, spec, SHARED, places)
            else:
                workers = [start(launcher, spec, SHARED, place) for place in places]
            pairs = in_turns(machine, spec, workers, folder, block_s=0.5 * scale, pairs=6, seed=f"{number}/{way}")
            ratio = statistics.mean(p["log_ratio"] for p in pairs)
            rows[way] = {"log_ratio": ratio, "start_s": [w.report.start_s for w in workers], "pairs": pairs}
        except WorkerFailed as error:
            rows[way] = {"failure": str(error)}
        finally:
            launcher.close()
    return {"ways": rows}


def run_folder(out: Path) -> Path:
    """Where the study that was forced out of memory lies."""
    return out / "accept" / "out_of_memory" / "run"


if __name__ == "__main__":
    sys.exit(main())
