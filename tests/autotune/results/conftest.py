"""Winners and finished runs for the tests of what is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.flags import FlagSet
from autotune.stats import Estimate
from autotune.store import Store
from autotune.winner import Conditions, Winner
from tests.autotune.conftest import Run, replay_study

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


@pytest.fixture
def finished(run_replay: Run) -> Store:
    """A run with a proven winner, two failures and an inert setting."""
    spec = replay_study(
        effects=EFFECTS,
        inert=["xla_c=1"],
        failures={"xla_b=2": "out_of_memory"},
        study={"baseline": {"NCCL_DEBUG": "WARN"}},
    )
    return run_replay(spec, trials=24)[1]


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
