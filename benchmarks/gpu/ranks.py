"""How well the hour was predicted; needs no GPU, only the results.

    python -m benchmarks.gpu.ranks --out DIR [--dry-run]

For each table: predicted against measured step times of all sets, their rank correlation with an
interval, the factor by which predictions are off, and predicted against measured memory. For each
study's run directory the same by `benchmarks.rank_correlation`, where XLA's CUDA plugin is
installed.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from autotune.compiler.targets import compiler_problem, compiler_versions
from autotune.rundir.store import Store
from benchmarks.gpu.estimates import estimate_ratios
from benchmarks.gpu.hour import Row, read_rows
from benchmarks.gpu.prepare import prepared
from benchmarks.gpu.processes import Part, part
from benchmarks.gpu.search import run_of
from benchmarks.gpu.table import AGAIN
from benchmarks.rank_correlation import agreement, check_predictions, factor

STUDIES = ("dense", "moe")


def main() -> int:
    """Compares whatever there is."""
    with part("ranks", __doc__ or "", 30.0, measures=False) as found:
        for study in STUDIES:
            if (found.out / f"table-{study}.jsonl").exists():
                found.hour.keep({"unit": f"table {study}", **of_table(found.out, study)})
            if (run := run_of(found.out, study)).exists():
                found.hour.keep({"unit": f"run {study}", **of_run(found, run)})
        for row in found.hour.rows[-2 * len(STUDIES) :]:
            found.hour.say(f"{row['unit']}: {row.get('agreement') or row.get('cannot')}")
        return 0


def of_table(out: Path, study: str) -> Row:
    """Predicted against measured steps of one table."""
    predicted = {
        r["name"]: r for r in prepared(out, study).get("predictions", {}).get("predicted", [])
    }
    runs = runs_of(out, study)
    known = [
        name for name in dict.fromkeys(n for n, _, _ in runs) if "step_s" in predicted.get(name, {})
    ]
    if "default" not in known:
        return {
            "cannot": "the default must be both predicted (benchmarks.gpu.prepare) and measured, "
            "and is not"
        }
    ratios = estimate_ratios(runs, default="default").ratios
    default_s = math.exp(statistics.mean(math.log(s) for n, _, s in runs if n == "default"))
    measured = [default_s * (ratios[name].ratio if name in ratios else 1.0) for name in known]
    told = [predicted[name]["step_s"] for name in known]
    peak = [
        r["report"].get("peak_bytes")
        for r in steady_rows(out, study)
        if r["unit"].endswith(" default")
    ]
    return {
        "agreement": asdict(agreement(told, measured)),
        "factor": factor(told, measured),
        "sets": [
            {"name": n, "predicted_s": t, "measured_s": m}
            for n, t, m in zip(known, told, measured, strict=True)
        ],
        "predicted_peak_bytes": predicted["default"].get("peak_bytes"),
        "measured_peak_bytes": max(filter(None, peak), default=None),
    }


def of_run(found: Part, run: Path) -> Row:
    """Predicted against measured steps of a study's trials."""
    if found.args.dry_run:
        return {"cannot": "nothing of it was measured on a GPU"}
    if (problem := compiler_problem(compiler_versions())) is not None:
        return {"cannot": str(problem)}
    check = check_predictions(
        Store.open(run), cache_dir=found.out / "home" / "cache" / "autotune" / "screen"
    )
    return {"agreement": asdict(check.agreement), "factor": check.factor, "target": check.target}


def steady_rows(out: Path, study: str) -> list[Row]:
    """The processes of a table that ran."""
    return [r for r in read_rows(out / f"table-{study}.jsonl") if "steady" in r]


def runs_of(out: Path, study: str) -> list[tuple[str, int, float]]:
    """Name of the set, number of the round and mean step of every process of a table."""
    found = []
    for row in steady_rows(out, study):
        _, number, name = row["unit"].split(" ", 2)
        found.append(
            (
                "default" if name == AGAIN else name,
                int(number),
                statistics.mean(row["steady"]["step_s"]),
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
