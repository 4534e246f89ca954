"""How far a study is: what `autotune status` shows of a run directory, running or not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.model import (
    ConclusionRecord,
    FloorResult,
    LedgerRecord,
    ScreenRecord,
    SessionRecord,
    TrialResult,
    format_change,
    format_ratio,
    format_seconds,
)
from autotune.results import describe_screen_record, format_estimate
from autotune.rundir import Store, is_held, node_effects, read_stage
from autotune.study.prefilter import incumbent
from autotune.study.still_to_go import seconds_to_go

RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatus:
    """One lane of a study that has several.

    Attributes:
        is_here: Whether it was there when the study last wrote down what it uses, and the study runs.
        ratio: Median step time of its reference over the median of all lanes; None before that is known.
        low: Lower decile of the ratios seen.
        high: Upper decile of them.
        is_slow: Whether it is clearly slower than the others. It plays no part in a finding.
    """

    lane: str
    host: str
    is_here: bool
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    is_slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    """One run in plain figures.

    Attributes:
        run: Its directory.
        stage: That it is in, while it runs; None before the first begins.
        since: When that stage began, UTC, ISO 8601.
        stage_s: Seconds since then.
        left_s: Seconds until it ends at the latest, about; None where that is not known, or it does not run.
        trials: How many it has.
        asked_trials: Of how many.
        failed: Trials without a number.
        elapsed_s: Time of the study's last record, in seconds; `time` says it in words.
        device_hours: Hours of devices that stood ready for it, summed over them.
        best: Ratio of the best set so far with its interval, in words.
        best_ratio: The same as a number; None while nothing is better than the default.
        best_low: Lower end of its interval.
        best_high: Upper end.
        screen: What the screen found, in a line; None without one.
        outcome: How the study ended; None while there is more to do.
        sentence: What it concluded; empty while there is more to do.
    """

    run: str
    name: str
    state: str
    stage: str | None
    since: str | None
    stage_s: float | None
    left_s: float | None
    trials: int
    asked_trials: int
    failed: int
    elapsed_s: float
    time: str
    device_hours: float
    best: str
    best_ratio: float | None
    best_low: float | None
    best_high: float | None
    screen: str | None
    lanes: tuple[LaneStatus, ...]
    outcome: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRun:
    """A run directory that cannot be read; `state` says why."""

    run: str
    state: str


def study_status(path: Path) -> StudyStatus:
    """How far the study of a run directory is.

    Raises:
        RunDirectoryError: If it is none.
    """
    store = Store.open(path)
    results, session, conclusion = store.of(TrialResult), store.last(SessionRecord), store.last(ConclusionRecord)
    elapsed_s = max((r.at_s for r in store.records()), default=0.0)
    went_on = conclusion is not None and any(r.at_s > conclusion.at_s for r in results)
    ended = conclusion if not went_on else None
    state = RUNNING if is_held(store.path) else "finished" if ended else "stopped; run it again to go on"
    screened = [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)[:1]]
    ledger = store.last(LedgerRecord)
    return StudyStatus(
        run=str(path),
        name=store.spec.name,
        state=state,
        **_current_stage(store, elapsed_s),
        trials=len(results),
        asked_trials=session.asked_trials if session else store.spec.search.trials,
        failed=sum(r.failure is not None for r in results),
        elapsed_s=elapsed_s,
        time=format_seconds(elapsed_s),
        device_hours=round(ledger.device_s / 3600, 4) if ledger else 0.0,
        **_best(results),
        screen=screened[0] if screened else None,
        lanes=_lanes(store, is_running=state == RUNNING),
        outcome=str(ended.outcome) if ended else None,
        sentence=ended.sentence if ended else "",
    )


def _lanes(store: Store, *, is_running: bool) -> tuple[LaneStatus, ...]:
    """Every lane that has a noise floor, by name."""
    floors = {f.by: f for f in store.of(FloorResult) if f.by is not None}
    effects = {n.lane: n for n in node_effects(floors.values(), store.of(TrialResult))}
    ledger = store.last(LedgerRecord)
    here = ledger.lanes if ledger and is_running else ()
    found = []
    for name, floor in sorted(floors.items()):
        more = {}
        if (effect := effects.get(name)) is not None:
            more = {n: getattr(effect, n) for n in ("ratio", "low", "high", "is_slow")}
        host = str(floor.provenance.get("host", ""))
        found.append(LaneStatus(lane=name, host=host, is_here=name in here, **more))
    return tuple(found)


def _current_stage(store: Store, elapsed_s: float) -> dict[str, Any]:
    """Where a study that runs is, and how long it goes on."""
    stage = read_stage(store.path)
    if stage is None:
        return {"stage": None, "since": None, "stage_s": None, "left_s": None}
    stage_s = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(stage.since)).total_seconds())
    used_s = elapsed_s + min(stage_s, _since_last_record_s(store.path))
    left_s = seconds_to_go(store, stage.name, used_s=used_s, stage_s=stage_s)
    found = {"stage_s": round(stage_s, 1), "left_s": None if left_s is None else round(left_s, 1)}
    return {"stage": stage.name, "since": stage.since, **found}


def _since_last_record_s(path: Path) -> float:
    """Seconds by the calendar since something was recorded: a record says the study's time when it is written."""
    try:
        return max(0.0, time.time() - max(f.stat().st_mtime for f in path.glob("records.jsonl")))
    except (OSError, ValueError):
        return 0.0


def _best(results: list[TrialResult]) -> dict[str, Any]:
    best = incumbent(results)
    if best.ratio >= 1:
        return {"best": "the default", "best_ratio": None, "best_low": None, "best_high": None}
    return {"best": format_estimate(best), "best_ratio": best.ratio, "best_low": best.low, "best_high": best.high}


def describe_stage(status: StudyStatus) -> str:
    """Where a study is, since when and for how long still, in words; empty unless it runs."""
    if status.state != RUNNING:
        return ""
    if status.stage is None or status.since is None or status.stage_s is None:
        return "starting"
    left = "time left not known" if status.left_s is None else f"at most about {format_seconds(status.left_s)} left"
    since = datetime.fromisoformat(status.since).astimezone()
    return f"{status.stage} since {since:%H:%M} ({format_seconds(status.stage_s)}), {left}"


def describe_lanes(status: StudyStatus | UnreadableRun) -> list[str]:
    """The screen, the hours used up, and the lanes of a study in words: which of them is slow?"""
    if isinstance(status, UnreadableRun):
        return []
    lines = [f"{status.run}: {status.screen}"] if status.screen else []
    if status.device_hours >= 0.01:
        lines.append(f"{status.run}: {status.device_hours:.2f} hours of devices used")
    for lane in status.lanes:
        line = f"{status.run}: lane {lane.lane} on {lane.host}{'' if lane.is_here else ' (not here now)'}"
        if lane.ratio is not None:
            line += f"; a step of its reference takes {format_ratio(lane.ratio)} times the median lane's"
            line += f", a slow machine ({format_change(lane.ratio)})" if lane.is_slow else ""
        lines.append(line)
    return lines
