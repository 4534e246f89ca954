"""Cuts the power in the middle of studies and counts what was told and is lost.

    python -m benchmarks.power_cut [--cuts 120] [--resumed 24] [--seed 0] [--out benchmarks/results/power_cut.json]

Each study runs by the real command on ext4 on a disk with a volatile cache (`harness/snapshots.py`), under four sets of
mount options. A cut keeps what the file system had flushed, and of the rest none, all or a random half of the sectors.
After each cut everything that had been told must be there and no reading command may die; some of the studies then go
on by the same command and must end with exact counts. The same is done to drivers from which syncing is taken away,
whole or for raw samples only: there the check must find losses, or it proves nothing. Needs root, FUSE, loop devices.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from autotune.machine import describe_machine
from harness.disks import missing
from harness.snapshots import MOUNTS, NO_RAW_SYNC, NO_SYNC, check_cut, take_cuts

TRIALS = 24
SPOILED = {"no_sync_at_all": NO_SYNC, "no_sync_of_raw_samples": NO_RAW_SYNC}


def cut_studies(options: str, *, cuts: int, resumed: int, seed: int, spoiled_by: str = "") -> dict[str, Any]:
    """Cuts under some mount options, over as many studies as it takes; `resumed` of them go on to the end."""
    found: dict[str, Any] = {"cuts": 0, "studies": 0, "resumed": 0, "with_loss": 0, "losses": []}
    while found["cuts"] < cuts:
        with tempfile.TemporaryDirectory() as name:
            folder, own = Path(name), seed + found["studies"]
            taken = take_cuts(
                folder, options=options, count=cuts - found["cuts"], trials=TRIALS, seed=own, spoiled_by=spoiled_by
            )
            found["studies"] += 1
            for cut in taken:
                # Evenly over all cuts.
                due = (found["cuts"] + 1) * resumed // cuts > found["resumed"]
                wrong = check_cut(cut, folder, trials=TRIALS, resume=due)
                found["cuts"] += 1
                found["resumed"] += due
                found["with_loss"] += bool(wrong)
                found["losses"] += wrong
                cut.image.unlink()
    return found


def main() -> int:
    """Entry point; prints the tally and writes it as JSON; exit status 1 if the tally is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=120)
    parser.add_argument("--resumed", type=int, default=24)
    parser.add_argument("--spoiled-cuts", type=int, default=12, help="of each driver that does not sync")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if lacking := missing(loop=True):
        print(lacking, file=sys.stderr)
        return 2
    result: dict[str, Any] = {"provenance": describe_machine(), "trials": TRIALS, "mounts": {}, "spoiled": {}}
    share = len(MOUNTS)
    for i, options in enumerate(MOUNTS):
        result["mounts"][options] = cut_studies(
            options, cuts=-(-arguments.cuts // share), resumed=-(-arguments.resumed // share),
            seed=arguments.seed + 100 * i,
        )  # fmt: skip
        print(options, json.dumps(result["mounts"][options]), flush=True)
    for name, text in SPOILED.items():
        spoiled = cut_studies(
            MOUNTS[0], cuts=arguments.spoiled_cuts, resumed=0, seed=arguments.seed + 1000, spoiled_by=text
        )
        result["spoiled"][name] = {**spoiled, "losses": spoiled["losses"][-2:]}
    every = result["mounts"].values()
    result["total"] = {key: sum(one[key] for one in every) for key in ("cuts", "studies", "resumed", "with_loss")}
    print(json.dumps({key: result[key] for key in ("total", "spoiled")}, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    bites = all(one["with_loss"] for one in result["spoiled"].values())
    return 0 if bites and not result["total"]["with_loss"] else 1


if __name__ == "__main__":
    sys.exit(main())
