"""Winners and finished runs for the tests of what is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.evaluate import Bench
from autotune.flags import FlagSet
from autotune.launch.replay import ReplayLauncher
from autotune.pipeline import run_study
from autotune.search import Proposer
from autotune.space import SearchSpace
from autotune.spec import StudySpec
from autotune.stats import Estimate
from autotune.store import Store
from autotune.winner import Conditions, Winner
from tests.autotune.conftest import SPACE, Diary, replay_study

EFFECTS = {"xla_a=1": 0.95, "xla_b=1": 1.04, "xla_d=2": 0.97}


def make_winner(settings: Mapping[str, str], **conditions: Any) -> Winner:
    """A winner with given settings, as one proven on eight H200 would be."""
    proven = {
        "platform": "cuda",
        "device_kind": "NVIDIA H200",
        "device_count": 8,
        "jax": "0.11.1",
        "jaxlib": "0.11.1",
        "plugin": "jax-cuda12-plugin 0.11.1",
        "driver_major": "580",
        "workload": "0123456789ab",
        **conditions,
    }
    return Winner(
        study="eight",
        ended="2026-11-21T03:00:00+00:00",
        settings=FlagSet(settings),
        baseline=FlagSet(),
        estimate=Estimate(ratio=0.95, low=0.94, high=0.96, level=0.95, pair_count=5),
        sentence="5 % faster",
        workload_entry="llama3-8b",
        workload_options={"seq": 4096, "note": "two\nlines"},
        process_count=8,
        soaked_s=None,
        conditions=Conditions(**proven),
        versions={"jax": "0.11.1", "jaxlib": "0.11.1"},
        machine="a CPU",
    )


def record(path: Path, spec: StudySpec, *, trials: int, space: SearchSpace = SPACE) -> Store:
    """Runs a replayed study to its end; for runs that several tests only read."""
    assert spec.replay is not None
    store = Store.create_or_resume(path, spec, study_dir=path)
    launcher = ReplayLauncher(spec.replay, seed=spec.seed, platform="cpu")
    bench = Bench(store, launcher, runtime_settings=lambda s: s.of_kind("env"), watcher=Diary())
    try:
        run_study(
            store,
            bench,
            lambda report: Proposer(spec, space, first=(), storage=None),
            trials=trials,
            time_budget_s=None,
            view=Diary(),
        )
    finally:
        store.close()
    return store


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run with a proven winner, failures and an inert setting; nearly without noise. To be read only."""
    spec = replay_study(
        effects=EFFECTS,
        inert=["xla_c=1"],
        failures={"xla_b=2": "out_of_memory"},
        noise={"white_sd": 1e-6},
        study={"baseline": {"NCCL_DEBUG": "WARN"}, "description": "a <b>study</b>"},
    )
    return record(tmp_path_factory.mktemp("runs") / "finished", spec, trials=40)


@pytest.fixture
def altered(tmp_path: Path) -> Callable[..., Path]:
    """Copies a run directory with facts of its machine changed: `altered(store, name, device_kind=...)`."""

    def copy(store: Store, name: str, *, versions: Mapping[str, str] | None = None, **reference: Any) -> Path:
        target = tmp_path / name
        target.mkdir()
        study = json.loads((store.path / "study.json").read_text())
        study["study"].update(reference.pop("study", {}), name=name)
        (target / "study.json").write_text(json.dumps(study))
        with (target / "records.jsonl").open("w") as out:
            for line in (store.path / "records.jsonl").read_text().splitlines():
                record = json.loads(line)
                if record["kind"] == "floor":
                    record["reference"].update(reference)
                if "provenance" in record:
                    record["provenance"]["versions"].update(versions or {})
                out.write(json.dumps(record) + "\n")
        return target

    return copy
