"""Predicted over published step times.

Run as ``python -m benchmarks.published [NAME ...]``; it needs the extra ``screen`` and no GPU.
Compiles each row of `rows.toml` in a process of its own, with a time limit, or takes its program
from the cache of `autotune screen`, and predicts it. Writes
``benchmarks/results/published_JAXLIB.json`` after each row, and goes on there; then the page
``docs/predictions.md`` with its picture, and ``autotune/data/published.json``, from which
predictions have their interval. ``--again`` predicts all of them anew (seconds, of programs in the
cache), ``--report`` compiles nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.published.report import page, picture, told_with_predictions
from benchmarks.published.rows import compiled, is_held_out, predicted, published

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Predicts what is not yet in the results, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="only these rows")
    parser.add_argument("--again", action="store_true", help="predict what is in the results, too")
    parser.add_argument(
        "--report", action="store_true", help="compile nothing: write the page from the results"
    )
    args = parser.parse_args()
    jaxlib, folder = version("jaxlib"), ROOT / "benchmarks/results"

    known = published()
    asked = [] if args.report else [name for name in known if not args.names or name in args.names]
    rows = results(known, folder / f"published_{jaxlib}.json", asked, again=args.again)
    if left := len(known) - len(rows):
        print(f"{left} rows are left: no page is written")
        return
    data = json.dumps(told_with_predictions(rows, jaxlib), indent=1)
    (ROOT / "autotune/data/published.json").write_text(data + "\n", encoding="utf-8")
    (ROOT / "docs/predictions.svg").write_text(picture(rows), encoding="utf-8")
    (ROOT / "docs/predictions.md").write_text(page(rows, jaxlib), encoding="utf-8")


def results(
    known: Mapping[str, Any], path: Path, names: list[str], *, again: bool
) -> dict[str, Any]:
    """Predictions next to what is published; those that the file lacks are made and kept there."""
    found: dict[str, dict[str, Any]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    found = {name: found[name] for name in known if name in found}
    for name in names:
        if name in found and "failure" not in found[name] and not again:
            continue
        found[name] = one(name, known[name])
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, next(iter(found[name].values())), flush=True)
    return {name: {**known[name], **found[name]} for name in known if name in found}


def one(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """What is predicted for one row, or why nothing is."""
    started = time.perf_counter()
    try:
        program = compiled(name, row)
    except RuntimeError as error:
        return {"failure": str(error)[:400]}
    step = predicted(row, program)
    return {
        "ratio": step.step_s / row["measured_s"],
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "exposed_s": step.exposed_s,
        "idle_s": step.idle_s,
        "mfu": step.mfu,
        "held_out": is_held_out(name),
        "fingerprint": program.fingerprint,
        "peak_gib": round(program.memory.peak_bytes / 2**30, 1) if program.memory else None,
        "wall_s": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    main()
