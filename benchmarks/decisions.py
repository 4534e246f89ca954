"""Decisions of 200 simulated studies: sets tried, left out, proven, soaked, named, in order.

`python -m benchmarks.decisions` writes `benchmarks/results/decisions.json`; with `--compare` it
names each study whose decisions differ from that file. Seeds are the studies' numbers, so a change
of the driver that should change nothing is shown to change nothing. The studies are those of
`harness/numbered_studies.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.numbered_studies import decisions_of
from harness.process_pool import process_pool

RESULTS = Path(__file__).parent / "results" / "decisions.json"
STUDIES = 200


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the parts of two studies' decisions that differ, each as one line."""
    return [
        f"{now['study']}: {part}: {before[part]} -> {now[part]}"
        for part in now
        if before[part] != now[part]
    ]


def main() -> int:
    """Runs all studies; returns 1 if `--compare` finds one that decides otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compare", action="store_true", help="compare with the file instead of writing it"
    )
    parser.add_argument("--studies", type=int, default=STUDIES)
    arguments = parser.parse_args()
    with process_pool() as pool:
        studies = list(pool.map(decisions_of, range(arguments.studies), chunksize=4))
    print(
        *(
            f"{count:4d} {outcome}"
            for outcome, count in Counter(s["outcome"] for s in studies).items()
        ),
        sep="\n",
    )
    if not arguments.compare:
        RESULTS.write_text(
            json.dumps(studies, separators=(",", ":")).replace("},{", "},\n{") + "\n",
            encoding="utf-8",
        )
        return 0
    before = json.loads(RESULTS.read_text(encoding="utf-8"))[: len(studies)]
    lines = [line for old, new in zip(before, studies, strict=True) for line in differing(old, new)]
    print(*lines, f"{len(lines)} differences in {len(studies)} studies", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
