"""Runs all tests, set by set, and keeps their last runs, for `make test-all` and `.ci/run`.

test_all.py [SET ...]         runs the sets that did not run at this commit yet; a SET always
test_all.py --age             how many commits ago each set passed last; status 1 if too many
test_all.py --changed PATH..  whether one of these may have changed since (status 0: yes)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks/results/test_all.json"
BUILD = ROOT / "build/test_all"
OLDEST = 200
"""Commits after which all tests must have passed again."""

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
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def kept() -> dict[str, Any]:
    """Each set's last run to record, and as `passed` the last commit at which it passed.

    While some set never did, `counted_from` is the commit with which the count of commits without
    that began.
    """
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def run(name: str) -> dict[str, object]:
    """One set: seconds, counts of pytest's report, and the names of what failed."""
    report, begun = BUILD / f"{name}.xml", time.monotonic()
    report.unlink(missing_ok=True)
    status = subprocess.run(
        ["make", *SETS[name]],
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTEST_ADDOPTS": f"--junitxml='{report}'"},
    ).returncode
    suite = next(iter(ET.parse(report).getroot()), None) if report.exists() else None
    cases = [] if suite is None else list(suite)
    bad = [
        f"{c.get('classname')}::{c.get('name')}"
        for c in cases
        if {"failure", "error"} & {part.tag for part in c}
    ]
    skipped = sum(part.tag == "skipped" for c in cases for part in c)
    if status and not bad:
        bad = [f"make {' '.join(SETS[name])} ended with status {status}"]
    return {
        "seconds": round(time.monotonic() - begun),
        "tests": len(cases),
        "skipped": skipped,
        "failed": bad,
    }


def run_all(asked: list[str]) -> int:
    """Runs the sets asked for, or those that are missing at this commit; an exit status."""
    if unknown := [name for name in asked if name not in SETS]:
        print(f"No such set: {', '.join(unknown)}. There are: {', '.join(SETS)}.", file=sys.stderr)
        return 2
    BUILD.mkdir(parents=True, exist_ok=True)
    commit = git("rev-parse", "HEAD") + (
        " with changes" if git("status", "--porcelain", "--", ":!benchmarks") else ""
    )
    record = {"sets": {}, **kept()}
    for name in SETS:
        before = record["sets"].get(name, {})
        if name not in asked and (asked or before.get("commit") == commit):
            continue
        result = run(name)
        is_passed = not result["failed"] and " " not in commit
        passed = commit if is_passed else before.get("passed", "")
        record["sets"][name] = {"commit": commit, "passed": passed, **result}
        KEPT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    here = {name: result for name, result in record["sets"].items() if result["commit"] == commit}
    for name, result in here.items():
        print(
            f"{name:30} {result['seconds']:5} s  {result['tests']} tests, {result['skipped']} "
            "skipped, "
            f"{len(result['failed'])} failed",
            *result["failed"],
            sep="\n    ",
        )
    return int(any(result["failed"] for result in here.values()))


def is_before(commit: str) -> bool:
    """Whether a commit is this one, or before it."""
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def commits_since(commit: str) -> int:
    """How many commits ago a commit was."""
    return int(git("rev-list", "--count", f"{commit}..HEAD"))


def green_commit() -> str:
    """The commit at which, or after which, each set passed; empty if one never did."""
    sets = kept().get("sets", {})
    passed = [str(sets.get(name, {}).get("passed", "")) for name in SETS]
    if not all(passed):
        return ""
    strangers = [commit for commit in passed if not is_before(commit)]
    return strangers[0] if strangers else max(passed, key=commits_since)


def check_age() -> int:
    """Prints how many commits ago all tests passed; 1 if that is too long ago or not known."""
    green = green_commit()
    commit = green or str(kept().get("counted_from", ""))
    passed = "passed" if green else "has not passed since this is counted; that began"
    what_to_do = (
        "run `make test-all` on a commit without changes and commit "
        "benchmarks/results/test_all.json"
    )
    if not commit:
        print(f"It is not recorded that `make test-all` ever passed: {what_to_do}.")
        return 1
    if not is_before(commit):
        print(
            f"`make test-all` {passed} at {commit[:8]}, which is not before this commit: "
            f"{what_to_do}."
        )
        return 1
    count = commits_since(commit)
    if count > OLDEST:
        print(
            f"`make test-all` {passed} {count} commits ago, and at most {OLDEST} are allowed: "
            f"{what_to_do}."
        )
        return 1
    print(f"`make test-all` {passed} {count} commits ago")
    return 0


def changed(paths: list[str]) -> int:
    """0 if one of the paths may have changed since all tests passed."""
    commit = green_commit()
    if not commit:
        return 0
    same = subprocess.run(
        ["git", "diff", "--quiet", commit, "--", *paths], cwd=ROOT, capture_output=True, check=False
    )
    return int(same.returncode == 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--age"]:
            sys.exit(check_age())
        case ["--changed", *paths]:
            sys.exit(changed(paths))
        case names:
            sys.exit(run_all(names))
