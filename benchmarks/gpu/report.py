"""Turns the raw results of the hour into a page with plots.

    python -m benchmarks.gpu.report --out DIR [--docs]

Writes ``gpu.md`` and its plots below ``--out``. ``--docs`` writes docs/gpu.md of the repository,
from results of a real GPU alone: what ran dry on a CPU says so in every headline and is refused
there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu import report_parts
from benchmarks.gpu.machine import ROOT

DOCS = ROOT / "docs"


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--docs", action="store_true", help="write docs/gpu.md, of a real GPU only")
    args = parser.parse_args()
    mark = args.out / "made_by.json"
    if not mark.exists():
        print(
            "report: --out must hold results of `benchmarks.gpu.accept` and the others but "
            f"{args.out} has none; "
            "run them first",
            file=sys.stderr,
        )
        return 2
    made_by = json.loads(mark.read_text(encoding="utf-8"))
    if args.docs and (why := doubt(made_by)):
        print(
            f"report: docs/gpu.md must be of a real GPU but these results are {why}; they stay "
            f"in {args.out}",
            file=sys.stderr,
        )
        return 2
    write(args.out, DOCS if args.docs else args.out, made_by)
    return 0


def doubt(made_by: dict[str, Any]) -> str:
    """Why figures are no measurements of a GPU, for headlines; "" for those that are."""
    return "A DRY RUN ON A CPU" if made_by["dry"] else ""


def write(out: Path, to: Path, made_by: dict[str, Any]) -> None:
    """Writes the page and its plots into a folder."""
    mark = f" ({why})" if (why := doubt(made_by)) else ""
    sections, plots = report_parts.sections(out, mark)
    lines = [f"# What was found on {made_by['on']}{mark}", "", *intro(out, why)]
    for title, body in sections:
        lines += ["", f"## {title}{mark}", "", *body]
    (to / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, chart in plots.items():
        chart.save(to / f"{name}.svg")
    print(f"written to {to / 'gpu.md'}, with {len(plots)} plots")


def intro(out: Path, why: str) -> list[str]:
    """What the page is made from, and what is missing."""
    made = (
        "Every figure here is made up: it shows that the scripts work, and nothing of any GPU. "
        if why
        else ""
    )
    lines = [
        f"{made}Made by `python -m benchmarks.gpu.report` from raw results; "
        "`research/gpu-hour.md` says how."
    ]
    missing = report_parts.missing(out)
    return lines + (["", "Missing: " + "; ".join(missing) + "."] if missing else [])


if __name__ == "__main__":
    sys.exit(main())
