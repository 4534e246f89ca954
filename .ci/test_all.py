"""All tests, set by set, and what is known of their last run; called by `make test-all` and `.ci/run`.

test_all.py [SET ...]        run the sets that did not run at this commit yet; `SET` again in any case
test_all.py --told           how many commits ago all of them ran
test_all.py --changed PATH.. whether one of these may have changed since all passed (exit status 0: yes)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks/results/test_all.json"
BUILD = ROOT / "build/test_all"
OTHER = ("VENV=.venv-312",)
SETS = {
    "test": ["test"],
    "gate": ["test-gate"],
    "slow": ["test-slow"],
    "cluster": ["test-cluster"],
    "versions": ["test-versions", *OTHER],
    "screen": ["test-screen"],
    "screen of the other version": ["test-screen", *OTHER],
}


def git(*arguments: str) -> str:
    """What git prints; nothing where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def kept() -> dict[str, object]:
    """The last run of all sets."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def run(name: str) -> dict[str, object]:
    """One set: seconds, counts of pytest's report, and the names of what failed."""
    report, begun = BUILD / f"{name}.xml", time.monotonic()
    report.unlink(missing_ok=True)
    status = subprocess.run(
        ["make", *SETS[name]], cwd=ROOT, check=False, env={**os.environ, "PYTEST_ADDOPTS": f"--junitxml='{report}'"}
    ).returncode
    suite = next(iter(ET.parse(report).getroot()), None) if report.exists() else None
    cases = [] if suite is None else list(suite)
    bad = [f"{c.get('classname')}::{c.get('name')}" for c in cases if {"failure", "error"} & {part.tag for part in c}]
    skipped = sum(part.tag == "skipped" for c in cases for part in c)
    if status and not bad:
        bad = [f"make {' '.join(SETS[name])} ended with status {status}"]
    return {"seconds": round(time.monotonic() - begun), "tests": len(cases), "skipped": skipped, "failed": bad}


def run_all(asked: list[str]) -> int:
    """Runs the sets asked for, or those that are missing at this commit; an exit status."""
    if unknown := [name for name in asked if name not in SETS]:
        print(f"No such set: {', '.join(unknown)}. There are: {', '.join(SETS)}.", file=sys.stderr)
        return 2
    BUILD.mkdir(parents=True, exist_ok=True)
    state = BUILD / "state.json"
    commit = git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", ":!benchmarks") else "")
    done = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
    if done.get("commit") != commit:
        done = {"commit": commit, "sets": {}}
    for name in SETS:
        if name in asked or (not asked and name not in done["sets"]):
            done["sets"][name] = run(name)
            state.write_text(json.dumps(done, indent=1), encoding="utf-8")
    for name, told in done["sets"].items():
        print(f"{name:30} {told['seconds']:5} s  {told['tests']} tests, {told['skipped']} skipped, "
              f"{len(told['failed'])} failed", *told["failed"], sep="\n    ")  # fmt: skip
    if set(done["sets"]) == set(SETS):
        KEPT.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return int(any(told["failed"] for told in done["sets"].values()))


def tell() -> int:
    """Prints how old the last run of all sets is."""
    commit = str(kept().get("commit", "")).split(" ")[0]
    count = git("rev-list", "--count", f"{commit}..HEAD") if commit else ""
    ago = f"ran {count} commits ago" if count else "did not run on an ancestor of this commit"
    print(f"`make test-all` {ago}")
    return 0


def changed(paths: list[str]) -> int:
    """0 if one of the paths may have changed since all tests passed."""
    known = kept()
    commit = str(known.get("commit", ""))
    if not commit or " " in commit or any(told["failed"] for told in known["sets"].values()):  # type: ignore[attr-defined]
        return 0
    same = subprocess.run(["git", "diff", "--quiet", commit, "--", *paths], cwd=ROOT, capture_output=True, check=False)
    return int(same.returncode == 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--told"]:
            sys.exit(tell())
        case ["--changed", *paths]:
            sys.exit(changed(paths))
        case names:
            sys.exit(run_all(names))
