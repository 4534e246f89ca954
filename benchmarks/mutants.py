"""Plants each of 40 faults in a copy of the project, and runs the test that is to find it.

    python -m benchmarks.mutants           # all, about five minutes
    python -m benchmarks.mutants 3 17      # some, by their place in mutants.json, from 0

Each changes an operator, a condition or a number. What no test finds, and what is no longer in the
code, is named, and the exit status is 1: mend the test, or choose another fault of that room.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "benchmarks/mutants.json"


def fate_of(copy: Path, mutant: dict[str, str]) -> str:
    """What becomes of a fault in a copy of the project: found, not found, or not to be planted."""
    path = copy / mutant["file"]
    honest = path.read_text(encoding="utf-8") if path.exists() else ""
    if honest.count(mutant["old"]) != 1:
        return "its line is gone"
    path.write_text(honest.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    run = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", mutant["test"]]
    done = subprocess.run(run, cwd=copy, capture_output=True, text=True, check=False, timeout=600)
    path.write_text(honest, encoding="utf-8")
    fates = {0: "NOT FOUND", 1: "found"}
    return fates.get(done.returncode, f"the test did not run: {done.stdout[-300:]}")


def main(numbers: list[int]) -> int:
    """Judges some faults, or all, and prints a line for each."""
    mutants = json.loads(LIST.read_text(encoding="utf-8"))
    fates = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        for number in numbers or range(len(mutants)):
            fates.append(fate_of(Path(folder), mutants[number]))
            print(f"{number:2d} {mutants[number]['file']}: {fates[-1]}", flush=True)
    return int(set(fates) != {"found"})


if __name__ == "__main__":
    sys.exit(main(list(map(int, sys.argv[1:]))))
