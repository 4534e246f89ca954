"""Draws `docs/architecture.png` from the imports: `python docs/draw_architecture.py`.

It needs the lint group (`make lint` installs it) and Chromium.

Rooms are the packages of `autotune/`, in the layers that `pyproject.toml` allows; an arrow is an
import between two rooms that no other path already implies. `--check` only says whether the picture
is of today's imports.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import html
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.png"
STAMP = PICTURE.with_suffix(".json")
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT, TOP = 1560, 104, 360, 72, 70
STYLE = """
text { font-family: "DejaVu Sans", Helvetica, sans-serif; fill: #1c2733; }
.name { font-size: 17px; font-weight: bold; } .duty { font-size: 12px; fill: #48586a; }
.size { font-size: 11px; fill: #7b8896; } .note { font-size: 13px; fill: #48586a; }
.head { font-size: 22px; font-weight: bold; }
.room { fill: #ffffff; stroke: #48586a; stroke-width: 1.4; } .process { stroke-dasharray: 6 4; }
.arrow { fill: none; stroke: #8294a8; stroke-width: 1.5; marker-end: url(#tip); }
.band { fill: #eef2f6; }
"""


def layers() -> list[list[str]]:
    """Names of the rooms, from the top layer down, as the import contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    found: list[str] = next(
        c["layers"] for c in contracts if c["type"] == "layers" and c.get("containers")
    )
    return [[name.strip() for name in layer.split("|")] for layer in found]


def imports(rooms: Sequence[str]) -> dict[str, set[str]]:
    """Which rooms each room imports."""
    graph = grimp.build_graph("autotune")
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        importer = _room(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if importer in found and _room(imported) in found and importer != _room(imported):
                found[importer].add(_room(imported))
    return found


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def implied_by_none(found: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that are left when those go that a longer path implies."""

    def reached(room: str) -> set[str]:
        return found[room].union(*(reached(other) for other in found[room]))

    return [
        (room, other)
        for room, others in found.items()
        for other in sorted(others)
        if not any(other in reached(between) for between in others - {other})
    ]


def facts(room: str) -> tuple[str, str]:
    """A room's duty, from the first line of its docstring, and its size."""
    folder = ROOT / "autotune" / room
    face = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(face.read_text())) or ""
    duty = " ".join(docstring.partition("\n\n")[0].split()).rstrip(".")
    files = sorted(folder.glob("*.py")) if folder.is_dir() else [face]
    lines = sum(len(f.read_text().splitlines()) for f in files)
    return (
        duty,
        f"{len(files)} file{'s' if len(files) > 1 else ''}, {round(lines, -2) or lines} lines",
    )


def draw(rows: list[list[str]], arrows: list[tuple[str, str]]) -> str:
    """The picture as SVG."""
    places: dict[str, tuple[float, float]] = {}
    bands, boxes = [], []
    for level, row in enumerate(rows):
        y = TOP + level * ROW
        bands.append(
            f'<rect class="band" x="20" y="{y - 12}" width="{WIDTH - 40}" '
            f'height="{BOX_HEIGHT + 24}" rx="10"/>'
        )
        gap = (WIDTH - 60 - len(row) * BOX_WIDTH) / (len(row) + 1)
        for at, room in enumerate(row):
            x = 30 + gap + at * (BOX_WIDTH + gap)
            places[room] = (x, y)
            duty, size = facts(room)
            kind = "room process" if room in ("child", "hook") else "room"
            boxes.append(
                f'<rect class="{kind}" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
                'rx="6"/>'
                f'<text class="name" x="{x + 14}" y="{y + 25}">{room}</text>'
                f'<text class="size" x="{x + BOX_WIDTH - 14}" y="{y + 24}" '
                f'text-anchor="end">{size}</text>'
                + "".join(
                    f'<text class="duty" x="{x + 14}" '
                    f'y="{y + 44 + 16 * i}">{html.escape(line)}</text>'
                    for i, line in enumerate(_wrapped(duty, 50))
                )
            )
    lines = [_arrow(places[one], places[other]) for one, other in arrows]
    height = TOP + len(rows) * ROW + 60
    note = (
        "Arrows are imports, less those that a longer path implies. Dashed: runs inside "
        "users' or workers' processes."
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{height}"><style>{STYLE}</style>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#8294a8"/></marker></defs>'
        '<rect width="100%" height="100%" fill="#fff"/>'
        '<text class="head" x="30" y="38">autotune: its rooms, and who imports whom</text>'
        + "".join(bands + lines + boxes)
        + f'<text class="note" x="30" y="{height - 24}">{note}</text></svg>'
    )


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines[:2]


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve from the foot of one box to the head of another."""
    middle = BOX_WIDTH / 2
    lean = (
        90 if end[1] - start[1] > ROW and abs(end[0] - start[0]) < BOX_WIDTH else 0
    )  # round what stands between
    x1, y1, x2, y2 = (
        start[0] + middle + lean,
        start[1] + BOX_HEIGHT,
        end[0] + middle + lean,
        end[1] - 2,
    )
    side = BOX_WIDTH / 2 + 40 if lean else 0
    curve = f"C{x1 + side} {y1 + ROW * 0.6} {x2 + side} {y2 - ROW * 0.6} {x2} {y2}"
    return f'<path class="arrow" d="M{x1} {y1} {curve}"/>'


def render(svg: str, png: Path) -> None:
    """Turns the picture into a PNG with headless Chromium."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        raise SystemExit(
            "Chromium must be installed to draw the picture but none is on the PATH; apt install "
            "chromium"
        )
    height = svg.split('height="', 1)[1].split('"', 1)[0]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"<!doctype html><style>body{{margin:0}}</style>{svg}")
        subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--hide-scrollbars",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={folder}/profile",
                f"--window-size={WIDTH},{height}",
                f"--screenshot={png}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="draw nothing; status 1 if the imports have changed"
    )
    options = parser.parse_args(arguments)
    rows = [row for row in layers() if row != ["__main__"]]
    found = imports([room for row in rows for room in row])
    shown: dict[str, Any] = {
        "layers": rows,
        "imports": {room: sorted(others) for room, others in found.items()},
        "duties": {room: facts(room)[0] for row in rows for room in row},
    }
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
    if options.check:
        is_current = STAMP.exists() and json.loads(STAMP.read_text())["digest"] == digest
        print(
            "the picture is of today's imports"
            if is_current
            else "run python docs/draw_architecture.py"
        )
        return 0 if is_current else 1
    render(draw(rows, implied_by_none(found)), PICTURE)
    STAMP.write_text(json.dumps({"digest": digest, **shown}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
