"""How far a study is: what `autotune status` shows of a run directory, running or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.model import (
    PREDICTED,
    ConclusionRecord,
    FloorResult,
    ScreenRecord,
    SessionRecord,
    TrialResult,
    format_change,
    format_ratio,
    format_seconds,
)
from autotune.results import describe_screen_record, format_estimate
from autotune.rundir import Store, is_held, list_workers, node_effects
from autotune.study.trial import incumbent


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker of a shared study.

    Attributes:
        state: Whether it runs, has ended or died.
    """

    worker: str
    host: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How fast the reference runs on one worker; see `autotune.rundir.nodes.NodeEffect`."""

    worker: str
    host: str
    ratio: float
    low: float
    high: float
    is_slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStatus:
    """One run in plain figures.

    Attributes:
        run: Its directory.
        trials: How many of how many, in words.
        failed: Trials without a number.
        elapsed_s: Time of the study's last record, in seconds; `time` says it in words.
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
    best: str
    is_predicted: bool
    screen: str | None
    workers: tuple[WorkerStatus, ...]
    nodes: tuple[NodeStatus, ...]
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
    nodes = node_effects(store.of(FloorResult), results)
    return StudyStatus(
        run=str(path),
        name=store.spec.name,
        state=state,
        trials=f"{len(results)} of {session.asked_trials if session else store.spec.search.trials}",
        failed=sum(r.failure is not None for r in results),
        elapsed_s=elapsed_s,
        time=format_seconds(elapsed_s),
        best=_best_predicted(results) if store.spec.is_predicted else _best_measured(results),
        is_predicted=store.spec.is_predicted,
        screen=screened[0] if screened else None,
        workers=tuple(WorkerStatus(worker=w.worker, host=w.host, state=w.state) for w in list_workers(path)),
        nodes=tuple(
            NodeStatus(worker=n.worker, host=n.host, ratio=n.ratio, low=n.low, high=n.high, is_slow=n.is_slow)
            for n in nodes
        ),
        outcome=str(ended.outcome) if ended else None,
        sentence=ended.sentence if ended else "",
    )


def _best_measured(results: list[TrialResult]) -> str:
    best = incumbent(results)
    return format_estimate(best) if best.ratio < 1 else "the default"


def _best_predicted(results: list[TrialResult]) -> str:
    ratios = [r.prediction.ratio for r in results if r.prediction is not None and r.failure is None]
    return f"{format_ratio(min(ratios)) if ratios else 'nothing yet'} {PREDICTED}"


def describe_workers(status: StudyStatus | UnreadableRun) -> list[str]:
    """The screen and the workers of a study in words: who lives, whose node is slow."""
    if isinstance(status, UnreadableRun):
        return []
    nodes = {n.worker: n for n in status.nodes}
    lines = [f"{status.run}: {status.screen}"] if status.screen else []
    for worker in status.workers:
        line = f"{status.run}: worker {worker.worker} on {worker.host}: {worker.state}"
        if (node := nodes.get(worker.worker)) is not None:
            line += f"; a step of its reference takes {format_ratio(node.ratio)} times the median node's"
            line += f", a slow node ({format_change(node.ratio)})" if node.is_slow else ""
        lines.append(line)
    return lines
