"""Breaks one thing of each kind that a user runs, in a copy, and runs the gate's tests on it.

    python -m benchmarks.planted_breaks    # about four minutes; writes results/planted_breaks.json

Where nothing is broken (the first row), no test may fail; else the tests that fail say what is
broken.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/planted_breaks.json"
IN_GATE = "not (slow or cluster or aot or gpu)"


class Break(NamedTuple):
    """A text of a file, what takes its place, and which tests look at such files."""

    file: str
    old: str
    new: str
    tests: str


BREAKS = {
    "notebook": Break(
        "studies/compare_studies.ipynb",
        "table.settings.query",
        "table.changes",
        "results/test_notebooks.py",
    ),
    "study file": Break("studies/moe.toml", "batch = 16", "batch = 12", "results/test_studies.py"),
    "sampler": Break(
        "autotune/study/samplers.py",
        "n_ei_candidates=24",
        "n_ei_candidate=24",
        "study/test_samplers.py",
    ),
    "export format": Break(
        "autotune/results/export.py",
        "EXPORTS + 'exec srun",
        "COMMENTS + 'exec srun",
        "results/test_export.py",
    ),
    "command line of a page, an option": Break(
        "docs/results.md", "--format FORMAT", "--form FORMAT", "cli/test_documented_commands.py"
    ),
    "command line of a page, a value": Break(
        "docs/results.md", "--by jaxlib`", "--by jax`", "cli/test_documented_commands.py"
    ),
    "console script": Break(
        "pyproject.toml", "autotune.cli.app:main", "autotune.cli:main", "test_wheelhouse.py"
    ),
}


def failures(copy: Path, tests: set[str]) -> list[str]:
    """The tests of these files, of those in the gate, that fail in a copy of the project."""
    files = [f"tests/{name}" for name in sorted(tests)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        IN_GATE,
        *files,
    ]
    done = subprocess.run(
        command, cwd=copy, capture_output=True, text=True, check=False, timeout=600
    )
    found = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1) != (len(found) > 0):
        raise RuntimeError(done.stdout + done.stderr)
    return found


def main() -> None:
    """Plants each break and writes down which tests failed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), folder], check=True)
        rows: dict[str, Any] = {
            "nothing": {"failed": failures(copy, {b.tests for b in BREAKS.values()})}
        }
        for kind, planted in BREAKS.items():
            path = copy / planted.file
            honest = path.read_text(encoding="utf-8")
            if planted.old not in honest:
                raise LookupError(f"{planted.file} has no {planted.old!r}")
            path.write_text(honest.replace(planted.old, planted.new), encoding="utf-8")
            rows[kind] = {**planted._asdict(), "failed": failures(copy, {planted.tests})}
            path.write_text(honest, encoding="utf-8")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
