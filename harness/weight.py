"""Weighs `autotune/` as a reader does, and holds it to limits: `python -m harness.weight`.

`harness/weight.json` has the limits, and the counts of each module when they were stored.
``--lower`` lowers each limit to the count of now; no command raises one.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED = Path(__file__).with_suffix(".json")
LIMITED = {
    "nodes": "AST nodes",
    "lines_at_88": "lines at 88 columns",
    "conditional": "conditional expressions",
    "tuple_assignments": "tuple assignments",
    "empty_names": "names without content",
}
EMPTY_WORDS = """
again asked begun beside both chosen done first found given got here judged kept known last least
left less looked made mine more most named new now of old one open opened other own part parts rest
said second seen shown taken then there told under waiting wanted way ways what whole words
"""
EMPTY_NAMES = frozenset(EMPTY_WORDS.split())
IMPORTS = (ast.Import, ast.ImportFrom, ast.alias)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def counts_of(text: str) -> Counter[str]:
    """The counts of one module's text; docstrings and imports are no nodes."""
    counts = Counter(lines=sum(1 for line in text.splitlines() if line.strip()))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    for node in ast.walk(tree):
        if isinstance(node, IMPORTS):
            continue
        counts["nodes"] += 1
        counts["statements"] += isinstance(node, ast.stmt)
        counts["conditional"] += isinstance(node, ast.IfExp)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            counts["tuple_assignments"] += isinstance(node.targets[0], ast.Tuple)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts["names"] += 1
            counts["empty_names"] += node.id in EMPTY_NAMES
    return counts


def weigh(folder: Path) -> dict[str, Counter[str]]:
    """The counts of each module below a folder."""
    modules = {
        file.relative_to(folder).as_posix(): file.read_text()
        for file in sorted(folder.rglob("*.py"))
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in modules.items():
            copy = Path(scratch, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text.replace("# fmt: skip", "").replace("# fmt: off", ""))
        command = ["format", "--quiet", "--isolated", "--line-length", "88", scratch]
        subprocess.run([sys.executable, "-m", "ruff", *command], check=True)
        at_88 = {name: len(Path(scratch, name).read_text().splitlines()) for name in modules}
    return {
        name: counts_of(text) + Counter(lines_at_88=at_88[name]) for name, text in modules.items()
    }


def summary(modules: dict[str, Counter[str]]) -> str:
    """One line with all figures."""
    total = sum(modules.values(), Counter[str]())
    per_thousand = 1000 / max(1, total["statements"])
    return (
        f"{len(modules)} files, {total['nodes']:,} nodes, {total['lines_at_88']:,} lines at 88 "
        "columns, "
        f"{total['nodes'] / max(1, total['lines']):.2f} nodes a line; per 1,000 statements "
        f"{total['conditional'] * per_thousand:.1f} conditional expressions, "
        f"{total['tuple_assignments'] * per_thousand:.1f} tuple assignments; "
        f"{100 * total['empty_names'] / max(1, total['names']):.1f} % of names without content"
    )


def grown(modules: dict[str, Counter[str]], stored: dict[str, dict[str, int]], key: str) -> str:
    """The three modules whose count grew most since it was stored."""
    growth = Counter(
        {name: counts[key] - stored.get(name, {}).get(key, 0) for name, counts in modules.items()}
    )
    return ", ".join(f"{name} by {more}" for name, more in growth.most_common(3) if more > 0)


def main(
    arguments: Sequence[str] | None = None, folder: Path = ROOT / "autotune", file: Path = STORED
) -> int:
    """Prints the figures; status 1 if a count is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--lower", action="store_true", help="lower the limits to the counts of now and store these"
    )
    options = parser.parse_args(arguments)
    modules = weigh(folder)
    print(f"{folder.name}: {summary(modules)}")
    stored = json.loads(file.read_text())
    status = 0
    for key, meaning in LIMITED.items():
        count = sum(counts[key] for counts in modules.values())
        if count > stored["limits"][key]:
            status = 1
            print(
                f"{count:,} {meaning}, over the limit of {stored['limits'][key]:,} in "
                f"{file.name}: remove some."
            )
            print(f"Grew most: {grown(modules, stored['modules'], key)}")
        stored["limits"][key] = min(count, stored["limits"][key])
    if options.lower and status == 0:
        stored["modules"] = {
            name: {key: counts[key] for key in LIMITED} for name, counts in modules.items()
        }
        rows = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in stored["modules"].items()
        )
        file.write_text(
            f'{{"limits": {json.dumps(stored["limits"])},\n "modules": {{\n{rows}\n}}}}\n'
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
