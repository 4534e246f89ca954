"""Checks on a GPU the tool's own ways once, and what a study must know of the machine.

    python -m benchmarks.gpu.accept --out DIR [--minutes 9] [--dry-run]

1. `autotune doctor`, and the installed build asked for its settings;
2. A/A: two processes of one program in interleaved blocks of 0.06, 0.5 and 3 s: spread and order
   effect of each length; one of them beside the idle other, then alone: the residency effect;
3. process spread: those two were started in a row, two more are started at once;
4. out of memory, forced: a study whose two processes do not fit beside each other measures them one
   at a time;
5. one compilation of the screen beside the real driver;
6. every reference workload once: step time, memory, MFU, power, and energy against power and time;
7. more pairs of processes, in a row and at once, as long as the minutes last.

What does not fit into the minutes is left out, and said. The same command goes on after a kill.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.model.flags import FlagSet
from autotune.rundir.store import Store
from benchmarks.gpu.hour import Row
from benchmarks.gpu.machine import HERE
from benchmarks.gpu.processes import (
    SHARED,
    Part,
    interleaved,
    part,
    run_alone,
    start,
    start_at_once,
    steps_in,
)

BLOCKS_S = {0.06: 30, 0.5: 12, 3.0: 5}
"""Length of a block, in seconds, to pairs of it."""

WORKLOAD_S, LARGE_S = 30.0, 50.0
"""What a workload is planned with: start, compilation, some seconds of steps; and one as large as a
GPU.
"""

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
OUT_OF_MEMORY_S = 80.0
"""For a start that runs out of memory, then two fresh processes alone, which are the first pair."""

DRY: Mapping[str, Mapping[str, Any]] = {"llama-tiny": {"layers": 1}}
SETTLED = ("gpt2-124m", {"batch": 8, "remat": "none"})
"""What processes are compared on: compiled soon, and busy enough for the GPU's clocks to matter."""


def main() -> int:
    """Goes through all units as far as the minutes go."""
    with part("accept", __doc__ or "", 9.0) as found:
        machine, hour = found.machine, found.hour
        hour.do("machine", 1, lambda: {"found": machine.describe()})
        hour.do("doctor", 8, lambda: {"found": ask(found, "doctor", "--json")})
        probed = ("flags", "check", "--xla_gpu_autotune_level=4", "--json")
        hour.do("probe", 8, lambda: {"found": ask(found, *probed)})
        dry = found.args.dry_run
        hour.do(
            "idle", 4, lambda: {"block": machine.idle(settled(found), 3.0, hour.folder).to_json()}
        )
        hour.do(
            "interleaved",
            20 if dry else 2 * 26 + 90,
            lambda: block_lengths(found, 0.05 if dry else 1.0),
        )
        pair_s = 20 if dry else 2 * 26 + 10
        hour.do("at once 0", pair_s, lambda: started(found, "at once 0"), kind="pair")
        if not dry:
            hour.do("out of memory", OUT_OF_MEMORY_S + 10, lambda: out_of_memory(found))
            hour.do(
                "screen",
                40,
                lambda: {"found": ask(found, "predict", str(found.study("dense")), "--json")},
            )
        for entry in DRY if dry else WORKLOADS:
            cost_s = 10.0 if dry else LARGE_S if entry.endswith("-80gb") else WORKLOAD_S
            hour.do(f"workload {entry}", cost_s, functools.partial(workload, found, entry))
        for name in () if dry else more_pairs():
            work, cost_s = functools.partial(started, found, name), hour.cost_of("pair", pair_s)
            if hour.do(name, cost_s, work, kind="pair") is None:
                break
        return 0 if hour.find("interleaved") else 1


def ask(found: Part, *arguments: str) -> Any:
    """What a command of autotune answers."""
    folder = found.hour.folder / arguments[0]
    return found.machine.autotune(
        *arguments, limit_s=max(5.0, found.hour.left_s), folder=folder
    ).json()


def settled(found: Part) -> Any:
    """The study of the workload that processes are compared on."""
    (dry,) = DRY.items()
    return found.workload(*(dry if found.args.dry_run else SETTLED))


def block_lengths(found: Part, scale: float) -> Row:
    """Blocks of several lengths of two processes started in turn, then of one of them alone."""
    machine, spec, folder = found.machine, settled(found), found.hour.folder / "interleaved"
    launcher = machine.launcher(spec)
    try:
        workers = [start(launcher, spec, SHARED, folder / name) for name in ("one", "two")]
        for worker in workers:
            machine.block(spec, worker, steps_in(worker, 4.0 * scale), folder)
        blocks = {
            str(block_s): interleaved(
                machine,
                spec,
                workers,
                folder,
                block_s=block_s * scale,
                pairs=pairs,
                seed=f"interleaved/{block_s}",
            )
            for block_s, pairs in BLOCKS_S.items()
        }
        beside = [
            machine.block(spec, workers[0], steps_in(workers[0], 2.0 * scale), folder)
            for _ in range(5)
        ]
        workers[1].close()
        alone = [
            machine.block(spec, workers[0], steps_in(workers[0], 2.0 * scale), folder)
            for _ in range(5)
        ]
        return {
            "blocks": blocks,
            "beside_s": [statistics.mean(b.step_s) for b in beside],
            "alone_s": [statistics.mean(b.step_s) for b in alone],
            "fingerprints": [w.report.fingerprint for w in workers],
            "start_s": [w.report.start_s for w in workers],
        }
    finally:
        launcher.close()


def workload(found: Part, entry: str) -> Row:
    """One reference workload alone: the power that it draws against the energy counted."""
    options = dict((DRY if found.args.dry_run else WORKLOADS)[entry])
    seconds = 0.1 if found.args.dry_run else 3.0
    row = run_alone(
        found.machine,
        found.workload(entry, options, 2.0 * seconds),
        FlagSet(),
        found.hour.folder / entry,
        warm_s=seconds / 2,
        steady_s=seconds,
    )
    return {**row, "entry": entry, "options": options}


def out_of_memory(found: Part) -> Row:
    """A study whose step fits alone but not beside another process, as far as it comes."""
    folder, study = found.hour.folder / "out_of_memory", HERE / "large.toml"
    limit_s = min(OUT_OF_MEMORY_S, found.hour.left_s - 10)
    done = found.machine.autotune(
        "run", str(study), "--run-dir", str(folder / "run"), limit_s=limit_s, folder=folder
    )
    pairs = list(Store.open(folder / "run").pairs("aa_run"))
    return {
        "status": done.status,
        "pairs": len(pairs),
        "is_isolated": len(pairs) > 1
        and pairs[0].candidate_s == pairs[1].candidate_s,  # ABA: both share that run
        "errors": done.errors[-1500:],
    }


def more_pairs() -> Iterator[str]:
    """Names of further pairs of fresh processes, as many as there may be time for."""
    for number in range(1, 9):
        yield from (f"in a row {number}", f"at once {number}")


def started(found: Part, name: str) -> Row:
    """Two fresh processes of a program, started at once or in turn; interleaved when warm."""
    machine, spec, folder = (
        found.machine,
        settled(found),
        found.hour.folder / name.replace(" ", "-"),
    )
    launcher, places = machine.launcher(spec), [folder / "one", folder / "two"]
    try:
        if name.startswith("at once"):
            workers = start_at_once(launcher, spec, SHARED, places)
        else:
            workers = [start(launcher, spec, SHARED, place) for place in places]
        block_s = 0.025 if found.args.dry_run else 0.5
        pairs = interleaved(machine, spec, workers, folder, block_s=block_s, pairs=6, seed=name)
        return {
            "log_ratio": statistics.mean(p["log_ratio"] for p in pairs),
            "pairs": pairs,
            "start_s": [w.report.start_s for w in workers],
            "fingerprints": [w.report.fingerprint for w in workers],
        }
    finally:
        launcher.close()


if __name__ == "__main__":
    sys.exit(main())
