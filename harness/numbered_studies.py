"""Simulated studies of known truth, each named by a number, and what they decide.

Of each five studies one has settings that gain, one has none, one has settings that fail, one runs
on three lanes and one is stopped over and over again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from autotune.cluster.engine import JOINED, Engine, LaneMessage, Message
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import Assignment
from autotune.model.measurement import Stamped
from autotune.model.records import (
    AblationResult,
    ConclusionRecord,
    FailingSetRecord,
    FinalistResult,
    SearchEnd,
    SoakRecord,
    TrialResult,
)
from autotune.model.spec import StudySpec
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.driver import run_study
from autotune.study.run import StudyRun
from harness.simulated import GivenSetup, MemoryStore, UnloggedLauncher, given_run, silent
from harness.simulated_machine import parse_simulated

KINDS = ("planted", "null", "failing", "lanes", "stopped")
SPACE = SearchSpace(
    tuple(Parameter(name=f"xla_{n}", choices=("0", "1", "2"), default="0") for n in "abcd")
    + tuple(Parameter(name=f"xla_{n}", choices=("0", "1"), default="0") for n in "efg")
)
EFFECTS = {"xla_a=1": 0.95, "xla_b=1": 1.04, "xla_d=2": 0.97, "xla_e=1": 0.99}
FAILURES = {"xla_b=2": "crash", "xla_c=1 xla_f=1": "hang", "xla_g=1": "wrong_loss"}
NOISE = ("quiet", {"white_sd": 0.01, "process_sd": 0.003}, {"white_sd": 0.02, "process_sd": 0.01})
LATE = {"white_sd": 0.01, "process_sd": 0.003, "late_cost": 0.18, "late_steps": 1500.0}


class InTurn(Engine):
    """Three lanes in this process; each does its task when the driver next listens."""

    words = "three lanes of a simulation"

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._news = deque(
            LaneMessage(f"lane{i}", {"type": JOINED, "host": "here", "devices": 1})
            for i in range(3)
        )
        self._tasks: deque[tuple[str, Assignment]] = deque()
        self._runners: dict[str, TaskRunner] = {}

    def begin(self, lane: str, message: Message) -> None:
        """Keeps the task until the driver listens."""
        self._tasks.append((lane, Assignment.model_validate(message["assignment"])))

    def news(self, wait_s: float) -> list[LaneMessage]:
        """Does one task, unless there is news."""
        if not self._news and self._tasks:
            lane, assignment = self._tasks.popleft()
            record = self._runner(lane).do(assignment).model_dump(mode="json", exclude_none=True)
            self._news.append(LaneMessage(lane, {"type": "result", "record": record}))
        news = list(self._news)
        self._news.clear()
        return news

    def _runner(self, lane: str) -> TaskRunner:
        if lane not in self._runners:
            launcher = UnloggedLauncher(self._run.spec, seed=len(self._runners))
            self._runners[lane] = TaskRunner(
                self._run.spec, self._run.store, launcher, self._run.lanes
            )
        return self._runners[lane]

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Never happens here."""

    def close(self) -> None:
        """There is nothing to end."""


class StoppingStore(MemoryStore):
    """A run directory whose driver is stopped after every `patience` records."""

    def __init__(self, spec: StudySpec, patience: int) -> None:
        super().__init__(spec)
        self._patience = patience
        self._left = patience

    def append(self, record: Stamped) -> None:
        """Keeps a record; KeyboardInterrupt if it was the last that this session may write."""
        super().append(record)
        if isinstance(record, SearchEnd):
            return  # the driver that made the stored decisions had no such records
        self._left -= 1
        if self._left == 0:
            self._left = self._patience + 1
            raise KeyboardInterrupt

    def go_on(self, spec: StudySpec) -> None:
        """Another session takes it up, and gets further than the one before."""
        super().go_on(spec)
        self._patience += 1
        self._left = self._patience


def study_of(number: int) -> tuple[StudySpec, GivenSetup]:
    """Returns the study of a number, and its space."""
    kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
    simulation: dict[str, Any] = {"noise": NOISE[turn % len(NOISE)], "start_s": 20.0}
    if kind != "null":
        simulation["effects"] = EFFECTS
    if kind == "failing":
        simulation["failures"] = FAILURES
        if turn % 4 == 0:
            simulation["noise"] = LATE
    study = {
        "name": f"{kind}-{turn}",
        "seed": number,
        "workload": {"entry": "llama"},
        "device": {"platform": "cpu"},
        "search": {"trials": 8 + turn % 9, "sampler": "additive" if turn % 2 else "random"},
        "confirm": {
            "soak": 60 if turn % 4 < 2 else 0,
            "minimise": turn % 3 != 1,
            "finalists": 1 + turn % 4,
        },
        "simulation": simulation,
    }
    return parse_simulated(study), GivenSetup(given_space=SPACE)


def decisions_of(number: int) -> dict[str, Any]:
    """Runs the study of a number; returns its decisions."""
    spec, setup = study_of(number)
    run = given_run(spec, None, setup, silent())
    kind = KINDS[number % len(KINDS)]
    if kind == "lanes":
        run.make_engine = InTurn
    if kind != "stopped":
        run_study(run)
        return _decisions(run)
    store = StoppingStore(spec, patience=2 + number % 7)
    for _ in range(1000):
        store.go_on(spec)
        run = replace(given_run(spec, None, setup, silent()), open_store=lambda: store)
        try:
            run_study(run)
        except KeyboardInterrupt:
            continue
        return _decisions(run)
    raise RuntimeError(f"study {number} did not end in 1000 sessions")


def _decisions(run: StudyRun) -> dict[str, Any]:
    store = run.store
    proofs = {(f.stage, f.settings): f for f in store.of(FinalistResult)}
    conclusion = store.of(ConclusionRecord)[-1]
    return {
        "study": run.spec.name,
        "outcome": str(conclusion.outcome),
        "winner": str(conclusion.settings) if conclusion.settings is not None else None,
        "tried": [f"{t.number} {t.settings}: {t.status}" for t in store.of(TrialResult)],
        "failing": [str(f.smallest) for f in store.of(FailingSetRecord)],
        "ablations": [
            f"{a.settings} without {a.left_out}: {a.kept}" for a in store.of(AblationResult)
        ],
        "proofs": [
            f"{f.stage} {f.settings}: {f.verdict} {f.process_count}" for f in proofs.values()
        ],
        "soaks": [
            f"{s.settings}: {s.failure.kind if s.failure else 'ok'}" for s in store.of(SoakRecord)
        ],
    }
