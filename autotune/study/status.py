"""How far a study is: what `autotune status` shows of a run directory, running or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.model import (
    PREDICTED,
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
from autotune.rundir import Store, is_held, node_effects
from autotune.study.trial import incumbent


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
        trials: How many of how many, in words.
        failed: Trials without a number.
        elapsed_s: Time of the study's last record, in seconds; `time` says it in words.
        device_hours: Hours of devices that stood ready for it, summed over them.
        best: Ratio of the best set so far with its interval, in words.
        screen: What the screen found, in a line; None without one.
        outcome: How the study ended; None while there is more to do.
        sentence: What it concluded; empty while there is more to do.
    """

    run: str
    name: str
    state: str
    trials: str
    failed: int
    elapsed_s: float
    time: str
    device_hours: float
    best: str
    is_predicted: bool
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
    state = "running" if is_held(store.path) else "finished" if ended else "stopped; run it again to go on"
    screened = [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)[:1]]
    ledger = store.last(LedgerRecord)
    return StudyStatus(
        run=str(path),
        name=store.spec.name,
        state=state,
        trials=f"{len(results)} of {session.asked_trials if session else store.spec.search.trials}",
        failed=sum(r.failure is not None for r in results),
        elapsed_s=elapsed_s,
        time=format_seconds(elapsed_s),
        device_hours=round(ledger.device_s / 3600, 4) if ledger else 0.0,
        best=_best_predicted(results) if store.spec.is_predicted else _best_measured(results),
        is_predicted=store.spec.is_predicted,
        screen=screened[0] if screened else None,
        lanes=_lanes(store, is_running=state == "running"),
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


def _best_measured(results: list[TrialResult]) -> str:
    best = incumbent(results)
    return format_estimate(best) if best.ratio < 1 else "the default"


def _best_predicted(results: list[TrialResult]) -> str:
    ratios = [r.prediction.ratio for r in results if r.prediction is not None and r.failure is None]
    return f"{format_ratio(min(ratios)) if ratios else 'nothing yet'} {PREDICTED}"


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
