"""Reads the status of a study, running or not, from its run directory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotune.model.files import Table
from autotune.model.records import AaRecord, LedgerRecord, SessionRecord, TrialResult
from autotune.model.units import format_seconds
from autotune.results.format import RUNNING, incumbent, run_state
from autotune.results.screen_words import screen_lines
from autotune.rundir.lock import read_stage
from autotune.rundir.store import RECORDS, Store
from autotune.stats.estimates import Estimate

SLOW = 0.03  # excess of a lane's reference step time over the median from which it is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane of a study with several; it `is_here` if the study runs and has it now."""

    lane: str
    host: str
    is_here: bool
    is_slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    """The figures of one run.

    Attributes:
        stage: The current one; None before the first begins, and if the study does not run.
        since: When that stage began, UTC, ISO 8601.
        left_s: Seconds left of the time budget; None without one, or if the study does not run.
        elapsed_s: Time of the study's last record.
        best: Ratio of the best set so far, not yet proven; None while it is the default.
    """

    run: str
    name: str
    state: str
    stage: str | None = None
    since: str | None = None
    left_s: float | None = None
    trials: int
    asked_trials: int
    failed: int
    elapsed_s: float
    device_hours: float
    best: Estimate | None = None
    screen: str | None
    lanes: tuple[LaneStatus, ...]
    outcome: str | None = None
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRun:
    """A run directory that cannot be read; `state` says why."""

    run: str
    state: str


def study_status(path: Path) -> StudyStatus:
    """Reads the status of a study; raises RunDirectoryError if the path is no run directory."""
    store = Store.open(path)
    spec = store.spec
    results = store.of(TrialResult)
    session = store.last(SessionRecord)
    state, ended = run_state(store)
    elapsed_s = store.recorded_s
    ledger = store.last(LedgerRecord) or LedgerRecord(device_s=0.0)
    stage = read_stage(store.path)
    fields: Table = {}
    present = ledger.lanes if state == RUNNING else ()
    if stage:
        fields = {"stage": stage.name, "since": stage.since}
        if spec.search.time_budget is not None:
            since_last_s = time.time() - (store.path / RECORDS).stat().st_mtime
            used_s = elapsed_s + max(0.0, since_last_s)
            fields["left_s"] = round(max(0.0, spec.search.time_budget - used_s), 1)
    if ended:
        fields |= {"outcome": str(ended.outcome), "sentence": ended.sentence}
    best = incumbent(results)
    if best.ratio < 1:
        fields["best"] = best
    return StudyStatus(
        run=str(path),
        name=spec.name,
        state=state,
        trials=len(results),
        asked_trials=session.asked_trials if session else spec.search.trials,
        failed=sum(r.failure is not None for r in results),
        elapsed_s=elapsed_s,
        device_hours=round(ledger.device_s / 3600, 4),
        screen=next(iter(screen_lines(store)), None),
        lanes=_lanes(store, present),
        **fields,
    )


def _lanes(store: Store, present: Sequence[str]) -> tuple[LaneStatus, ...]:
    aa_runs = {r.by: r for r in store.of(AaRecord) if r.by is not None}
    steps_s = [r.comparison.reference_step_s for r in aa_runs.values()]
    limit_s = (1 + SLOW) * statistics.median(steps_s or [0.0])
    return tuple(
        LaneStatus(
            lane=name,
            host=str(aa_run.provenance.get("host", "")),
            is_here=name in present,
            is_slow=aa_run.comparison.reference_step_s > limit_s,
        )
        for name, aa_run in sorted(aa_runs.items())
    )


def format_stage(status: StudyStatus) -> str:
    """Formats the stage of a study and what is left of its budget; empty unless it runs."""
    if status.state != RUNNING:
        return ""
    if status.stage is None or status.since is None:
        return "starting"
    remaining = ""
    if status.left_s is not None:
        remaining = f", at most about {format_seconds(status.left_s)} left"
    since = datetime.fromisoformat(status.since).astimezone()
    stage_s = max(0.0, (datetime.now(UTC) - since).total_seconds())
    return f"{status.stage} since {since:%H:%M} ({format_seconds(stage_s)}){remaining}"
