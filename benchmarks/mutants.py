"""How many of 40 planted faults (mutants) the tests find. To be run in a clone of its own: files are changed and put back.

    python -m benchmarks.mutants draw                    # the list, mutants.json: drawn once, before tests were cut
    python -m benchmarks.mutants record NAME -- ARGS     # `pytest ARGS`, noting which tests run a mutant's line
    python -m benchmarks.mutants judge NAME [FIRST STEP] # each mutant against those tests, cheapest first, to a failure

A mutant is one change of an operator, condition or number in a function of `autotune/`; rooms have as many as they have
such places. Left out is what design page 11 says will go. A mutant is found by its line's text, so lines may move.
"""

from __future__ import annotations

import ast
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = ROOT / "benchmarks/mutants.json"
WORK = ROOT / "build/mutants"
GOES = re.compile(r"/(kubernetes|certificates|membership|holder|carr\w+|mirror|front|objectives|predicted|replay|t4|audit\w*"
                  r"|trace|canonical|retelling|expressions|xplane|calibrate|profile\w*|ptxas|process_env|known_failures|watch)\.py")  # fmt: skip
SWAPS = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
         ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}  # fmt: skip
PROBE = """
import builtins as _b, os as _o
_seen = set()
def _probe(number):
    test = _o.environ.get("PYTEST_CURRENT_TEST", "?").rsplit(" (", 1)[0]
    if (number, test) not in _seen:
        _seen.add((number, test))
        with open(f"{HITS}/" + str(number), "a") as file:
            file.write(test + "\\n")
_b._probe = _probe
"""


def candidates(path: Path) -> Iterator[tuple[int, str, str]]:
    """Changes of one line each: line number, what stands there, what takes its place."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for function in (n for n in ast.walk(ast.parse("\n".join(lines))) if isinstance(n, ast.FunctionDef)):
        for statement in (s for b in function.body for s in ast.walk(b) if isinstance(s, ast.stmt)):
            raw = lines[statement.lineno - 1].encode()
            if raw.lstrip().startswith(b"elif"):
                continue  # no probe can stand before it
            for node in ast.walk(statement):
                if isinstance(node, ast.expr) and node.lineno == node.end_lineno == statement.lineno:
                    begin, end = node.col_offset, node.end_col_offset
                    if is_same(raw[begin:end].decode(errors="replace"), node):  # inside an f-string places are wrong
                        yield from (
                            (node.lineno, raw.decode(), (raw[:begin] + w.encode() + raw[end:]).decode())
                            for w in changes(node)
                        )


def is_same(text: str, node: ast.expr) -> bool:
    """Whether a piece of source is this expression."""
    try:
        return ast.dump(ast.parse(text, mode="eval").body) == ast.dump(node)
    except SyntaxError:
        return False


def changes(node: ast.expr) -> Iterator[str]:
    """What may take the place of an expression."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield f"({ast.unparse(node.left)} {SWAPS[type(node.ops[0])]} {ast.unparse(node.comparators[0])})"
    elif isinstance(node, ast.BoolOp):
        other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield f"({ast.unparse(ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right))})"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield str(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse))})"


def draw(count: int = 40, seed: int = 30) -> None:
    """Draws the list: as many of each room as it has lines (one at least), each room's evenly over its candidates."""
    rng, rooms = random.Random(seed), {}
    for path in sorted((ROOT / "autotune").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not GOES.search(name):
            rooms.setdefault(name.split("/")[1], []).extend((name, *c) for c in sorted(set(candidates(path))))
    rooms = {room: found for room, found in rooms.items() if found}
    total = sum(map(len, rooms.values()))
    wanted = {room: max(1, round(count * len(found) / total)) for room, found in rooms.items()}
    while sum(wanted.values()) != count:
        wanted[max(wanted, key=wanted.__getitem__)] += 1 if sum(wanted.values()) < count else -1
    drawn = [m for room, found in rooms.items() for m in rng.sample(found, wanted[room])]
    rows = [{"file": f, "line": n, "old": o.strip(), "new": w.strip()} for f, n, o, w in drawn]
    LIST.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def changed(mutant: dict[str, Any], *, probe: int | None = None) -> tuple[Path, str]:
    """A mutant's file and its changed text: the mutant, or a probe before its line."""
    path = ROOT / mutant["file"]
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if line.strip() == mutant["old"]]
    if not found:
        raise LookupError(f"{mutant['file']} has no line {mutant['old']!r}")
    at = min(found, key=lambda i: abs(i + 1 - mutant["line"]))
    blank = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines[at] = (
        blank + mutant["new"] if probe is None else f"{blank}__import__('builtins')._probe({probe})\n{lines[at]}"
    )
    return path, "\n".join(lines) + "\n"


def record(name: str, arguments: list[str]) -> None:
    """Runs tests in which each mutant's line notes who runs it."""
    hits, costs = WORK / name, WORK / f"{name}.costs.json"
    shutil.rmtree(hits, ignore_errors=True)
    hits.mkdir(parents=True)
    for number, mutant in enumerate(json.loads(LIST.read_text(encoding="utf-8"))):
        path, text = changed(mutant, probe=number)
        path.write_text(text, encoding="utf-8")
    package = ROOT / "autotune/__init__.py"
    head, future, rest = package.read_text(encoding="utf-8").partition("from __future__ import annotations\n")
    package.write_text(head + future + PROBE.replace("{HITS}", str(hits)) + rest, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "pytest", f"--costs={costs}", *arguments], cwd=ROOT, check=False)
    subprocess.run(["git", "checkout", "--", "autotune"], cwd=ROOT, check=True)


def judge(name: str, first: int, step: int) -> None:
    """Runs each mutant's tests, cheapest first; a row `{mutant, tests, caught_by, seconds}` each."""
    costs = json.loads((WORK / f"{name}.costs.json").read_text(encoding="utf-8"))
    for number, mutant in list(enumerate(json.loads(LIST.read_text(encoding="utf-8"))))[first::step]:
        hits = WORK / name / str(number)
        tests = set(hits.read_text(encoding="utf-8").splitlines()) if hits.exists() else set()
        chosen, begun = sorted(tests & set(costs), key=costs.__getitem__), time.monotonic()
        path, text = changed(mutant)
        honest = path.read_bytes()
        path.write_text(text, encoding="utf-8")
        (WORK / f"tests{first}").write_text("\n".join(chosen), encoding="utf-8")
        run = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            f"@{WORK}/tests{first}",
        ]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False) if chosen else None
        path.write_bytes(honest)
        caught = (
            re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.M) if done and done.returncode else None
        )
        row = {"mutant": number, "tests": len(chosen), "caught_by": caught[1] if caught else "", "seconds": round(time.monotonic() - begun)}  # fmt: skip
        with (WORK / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw"]:
            draw()
        case ["record", name, "--", *arguments]:
            record(name, arguments)
        case ["judge", name, *part]:
            judge(name, *map(int, part or ["0", "1"]))
        case _:
            sys.exit(__doc__)
