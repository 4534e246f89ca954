"""What several tests of the driver need: replayed studies without a file, and a view that remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.evaluate import Bench
from autotune.flags import FlagSet
from autotune.launch.base import Launcher
from autotune.launch.replay import ReplayLauncher
from autotune.pipeline import run_study
from autotune.records import (
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    FloorResult,
    TrialConfig,
    TrialResult,
)
from autotune.search import Proposer
from autotune.space import Parameter, SearchSpace
from autotune.spec import StudySpec, parse_study
from autotune.store import Store


class Diary:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.phases: list[str] = []
        self.started: list[TrialConfig] = []
        self.ended: list[TrialResult] = []
        self.others: list[TrialResult] = []
        self.finalists: list[FinalistResult] = []
        self.ablations: list[AblationResult] = []
        self.floors: list[FloorResult] = []
        self.pair_count = 0
        self.proofs: list[ConfirmRun] = []

    def stage(self, name: str, detail: str) -> None:
        self.stages.append(name)

    def phase(self, what: str) -> None:
        self.phases.append(what)

    def pair(self, ratios: list[float]) -> None:
        self.pair_count += 1

    def proof(self, run: ConfirmRun, asked: int) -> None:
        self.proofs.append(run)

    def floor(self, result: FloorResult) -> None:
        self.floors.append(result)

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        self.started.append(config)

    def trial_ends(self, result: TrialResult) -> None:
        self.ended.append(result)

    def trial_of_other(self, result: TrialResult) -> None:
        self.others.append(result)

    def finalist(self, result: FinalistResult) -> None:
        self.finalists.append(result)

    def ablation(self, result: AblationResult) -> None:
        self.ablations.append(result)

    def note(self, text: str) -> None:
        self.notes.append(text)


SPACE = SearchSpace(
    (
        Parameter(name="xla_a", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_b", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_c", choices=("0", "1"), default="0"),
        Parameter(name="xla_d", choices=("0", "1", "2"), default="0"),
    )
)


def replay_study(**replay: Any) -> StudySpec:
    """A study of `SPACE` on a formula; the rest of the study under the key `study`."""
    more = replay.pop("study", {})
    return parse_study({"name": "replayed", "workload": {"entry": "llama"}, "replay": replay, **more})


@pytest.fixture(autouse=True, scope="session")
def _own_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What studies learn for later ones stays in the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


Run = Callable[..., tuple[ConclusionRecord, Store, Diary]]


@pytest.fixture
def run_replay(tmp_path: Path) -> Run:
    """Runs a replayed study to its end, or goes on with it: `run_replay(spec, trials=..., folder=...)`."""

    def run(
        spec: StudySpec,
        *,
        trials: int = 12,
        folder: str = "run",
        first: tuple[tuple[str, FlagSet], ...] = (),
        storage: str | None = None,
        launcher: Launcher | None = None,
        budget_s: float | None = None,
        space: SearchSpace = SPACE,
    ) -> tuple[ConclusionRecord, Store, Diary]:
        store = Store.create_or_resume(tmp_path / folder, spec, study_dir=tmp_path)
        diary = Diary()
        if launcher is None:
            assert spec.replay is not None
            launcher = ReplayLauncher(spec.replay, seed=spec.seed, platform="cpu")
        bench = Bench(store, launcher, runtime_settings=lambda s: s.of_kind("env"), watcher=diary)
        try:
            conclusion = run_study(
                store,
                bench,
                lambda report: Proposer(spec, space, first=first, storage=storage),
                trials=trials,
                time_budget_s=budget_s,
                view=diary,
            )
        finally:
            store.close()
        return conclusion, store, diary

    return run
