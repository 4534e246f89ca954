"""A study by the real command line, within its minutes.

    python -m benchmarks.gpu.search --out DIR [--of dense|moe] [--minutes 9.5] [--dry-run]

`autotune run` is given its share of the minutes as its own budget. When they are over it is told to
stop, as a batch system would: the same command goes on with the same run directory, for which more
minutes must be given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord, Outcome, TrialResult
from autotune.rundir.store import Store
from benchmarks.gpu.hour import Row
from benchmarks.gpu.processes import Part, part

SHARE = 0.9
"""Of the minutes, what the study is given as its budget: it may take a tenth more, and asks the
build before it.
"""
LEAST_S = 30.0
TO_STOP_S = 25.0
"""What a study needs at most from being told to stop to its end."""
STOPPED = 75


def which(parser: argparse.ArgumentParser) -> None:
    """The option that names a study."""
    parser.add_argument(
        "--of", choices=("dense", "moe"), default="dense", help="the study, default %(default)s"
    )


def main() -> int:
    """Runs the study, or goes on with it."""
    with part("search", __doc__ or "", 9.5, which) as found:
        hour = found.hour
        if hour.find("study") is None and hour.left_s > LEAST_S + TO_STOP_S:
            row = run_study(found)
            hour.keep({"unit": "study" if row["status"] == 0 else "study, stopped", **row})
            hour.say(str(row["sentence"] or row["errors"][-600:]))
        elif hour.find("study") is None:
            hour.skipped["study"] = LEAST_S + TO_STOP_S
        return 0 if (hour.find("study") or hour.find("study, stopped")) else 1


def run_study(found: Part) -> Row:
    """One session of `autotune run`, and what its run directory says then."""
    hour, run = found.hour, run_of(found.out, found.args.of)
    arguments = ["run", str(found.study(found.args.of)), "--run-dir", str(run)]
    arguments += ["--time-budget", f"{SHARE * hour.budget_s:.0f}s"]
    hour.say(f"autotune {' '.join(arguments)}")
    done = found.machine.autotune(*arguments, limit_s=hour.left_s - TO_STOP_S, folder=hour.folder)
    row = {"status": done.status, "errors": done.errors[-2000:], "said": done.output[-6000:]}
    if done.status not in (0, STOPPED):
        row["error"] = f"autotune run ended with status {done.status}"
    return {**row, "sentence": sentence_of(run), "trials": len(trials_of(run))}


def run_of(out: Path, study: str) -> Path:
    """The run directory of a study."""
    return out / f"search-{study}" / "run"


def sentence_of(run: Path) -> str | None:
    """What a study concluded; None if it did not."""
    conclusion = Store.open(run).last(ConclusionRecord) if run.exists() else None
    return conclusion.sentence if conclusion is not None else None


def trials_of(run: Path) -> list[TrialResult]:
    """The trials of a run so far."""
    return Store.open(run).of(TrialResult) if run.exists() else []


def best_of(run: Path) -> tuple[str, FlagSet] | None:
    """The winner of a run by name, or else its best-looking trial; None without any."""
    if not run.exists():
        return None
    store = Store.open(run)
    conclusion = store.last(ConclusionRecord)
    if (
        conclusion is not None
        and conclusion.outcome is Outcome.WINNER
        and conclusion.settings is not None
    ):
        return "winner", conclusion.settings
    trials = [
        (t.comparison.estimate.ratio, t) for t in store.of(TrialResult) if t.comparison is not None
    ]
    if not trials:
        return None
    return "best trial, not proven", min(trials, key=lambda pair: pair[0])[1].settings


if __name__ == "__main__":
    sys.exit(main())
