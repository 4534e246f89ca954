"""Do predicted step times order programs as measurements do? Spearman and Kendall for whatever was measured on GPUs.

Run as ``python -m benchmarks.rank_correlation [RUN ...]``: run directories of studies on GPUs, such as those that
`benchmarks.gpu.search` leaves. Each measured set is compiled for the GPUs it ran on, without them, and predicted.
Writes ``benchmarks/results/rank_correlation.json``. Where there is no measurement on a GPU the file says so: XLA:CPU
shows no schedule, so nothing is predicted for CPUs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.compiler.calibrate import check_predictions
from autotune.compiler.plugin import compiler_versions
from autotune.model.errors import AutotuneError
from autotune.rundir.store import Store

RESULTS = Path(__file__).parent / "results"


def of_run(store: Store) -> dict[str, Any]:
    """One run: the figures of every program, and how well the orders agree."""
    try:
        found = check_predictions(store, progress=lambda what: print(what[:120], flush=True))
    except AutotuneError as error:
        return {"cannot": str(error)}
    rows = [
        {"settings": dict(m.settings), "predicted_s": predicted_s, "measured_s": m.step_s}
        for m, predicted_s in zip(found.measured, found.predicted_s, strict=True)
    ]
    return {
        "target": found.target,
        "topology": found.topology,
        "agreement": asdict(found.agreement),
        "calibration": asdict(found.calibration),
        "programs": rows,
    }


def main() -> None:
    """Holds everything there is against the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    args = parser.parse_args()
    found = {str(run): of_run(Store.open(run)) for run in args.runs}
    data = {
        "versions": compiler_versions(),
        "runs": found,
        "note": "" if found else "no measurement on a GPU lies here: no rank correlation can be given",
    }
    path = RESULTS / "rank_correlation.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
