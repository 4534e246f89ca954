"""How many of 40 planted faults the tests find; it changes files, so run it in a clone.

    # Run `pytest ARGS`, noting which tests run a mutant's line.
    python -m benchmarks.mutants record NAME -- ARGS
    # Run each mutant against those tests, cheapest first, to a failure.
    python -m benchmarks.mutants judge NAME [FIRST STEP]

`mutants.json` was drawn at commit 4861a01, before any test was cut: a change of an operator,
condition or number each.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = ROOT / "benchmarks/mutants.json"
WORK = ROOT / "build/mutants"
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


def is_there(mutant: dict[str, Any]) -> bool:
    """Whether the code that a mutant changes is still there."""
    path = ROOT / mutant["file"]
    return path.exists() and mutant["old"] in map(
        str.strip, path.read_text(encoding="utf-8").splitlines()
    )


def changed(mutant: dict[str, Any], *, probe: int | None = None) -> tuple[Path, str]:
    """A mutant's file and its changed text: the mutant, or a probe before its line."""
    path = ROOT / mutant["file"]
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if line.strip() == mutant["old"]]
    at = min(found, key=lambda i: abs(i + 1 - mutant["line"]))
    blank = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    probed = f"{blank}__import__('builtins')._probe({probe})\n{lines[at]}"
    lines[at] = blank + mutant["new"] if probe is None else probed
    return path, "\n".join(lines) + "\n"


def record(name: str, arguments: list[str]) -> None:
    """Runs tests in which each mutant's line notes who runs it."""
    hits, costs = WORK / name, WORK / f"{name}.costs.json"
    shutil.rmtree(hits, ignore_errors=True)
    hits.mkdir(parents=True)
    for number, mutant in enumerate(json.loads(LIST.read_text(encoding="utf-8"))):
        if is_there(mutant):
            path, text = changed(mutant, probe=number)
            path.write_text(text, encoding="utf-8")
    package = ROOT / "autotune/__init__.py"
    head, future, rest = package.read_text(encoding="utf-8").partition(
        "from __future__ import annotations\n"
    )
    package.write_text(head + future + PROBE.replace("{HITS}", str(hits)) + rest, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "pytest", f"--costs={costs}", *arguments], cwd=ROOT, check=False
    )
    subprocess.run(["git", "checkout", "--", "autotune", "harness"], cwd=ROOT, check=True)


def judge(name: str, first: int, step: int) -> None:
    """Runs each mutant's tests, cheapest first; rows `{mutant, tests, caught_by, seconds}`."""
    costs = json.loads((WORK / f"{name}.costs.json").read_text(encoding="utf-8"))
    for number, mutant in list(enumerate(json.loads(LIST.read_text(encoding="utf-8"))))[
        first::step
    ]:
        if not is_there(mutant):
            continue
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
            "-xq",
            "-p",
            "no:cacheprovider",
            f"@{WORK}/tests{first}",
        ]
        done = (
            subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
            if chosen
            else None
        )
        path.write_bytes(honest)
        failed = done.stdout if done and done.returncode else ""
        caught = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", failed, re.MULTILINE)
        took = round(time.monotonic() - begun)
        row = {
            "mutant": number,
            "tests": len(chosen),
            "caught_by": caught[1] if caught else "",
            "seconds": took,
        }
        with (WORK / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", name, "--", *arguments]:
            record(name, arguments)
        case ["judge", name, *part]:
            judge(name, *map(int, part or ["0", "1"]))
        case _:
            sys.exit(__doc__)
