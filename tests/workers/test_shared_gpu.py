"""Real processes that share a pretended GPU: shares are read by jaxlib's own function, memory is gone when it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.compare import ComparisonRequest, Interleaved, fixed
from autotune.measure.context import MeasurementContext
from autotune.measure.tasks import Assignment
from autotune.model.block_sizes import BlockSizes
from autotune.model.flags import FlagSet
from autotune.rundir.store import Folders
from autotune.workers.command import CommandLauncher
from tests.runs import Told, there
from tests.workers.conftest import PROGRAMS, command, study

# The seconds that clocks of a real GPU take to settle are not what this is about.
AT_ONCE = BlockSizes(block_s=0.01, in_order=True)

OLDER = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a context for the program with some arguments: `benches(needed, "NAME=VALUE")`."""
    made: list[MeasurementContext] = []
    ledger = tmp_path / "ledger"
    ledger.touch()
    monkeypatch.setattr("autotune.model.spec.GPU_SIZES", AT_ONCE)
    monkeypatch.setattr("autotune.machine.gpus.has_device_file", lambda: True)

    def make(needed: int, *variables: str) -> tuple[MeasurementContext, Told]:
        workload = command(str(ledger), str(needed), *variables, program="shared_gpu.py", hook=True)
        spec = study(workload, device={"platform": "cuda"})
        launcher = CommandLauncher(spec, study_dir=str(PROGRAMS), base=os.environ)
        made.append(MeasurementContext(spec, Folders(tmp_path / "run"), launcher, sink := Told()))
        return made[-1], sink

    yield make
    for context in made:
        context.close()


@pytest.mark.parametrize(
    ("needed", "variables", "mode", "told"),
    [
        (30 * 10**9, (), "interleaved", 0),
        (58 * 10**9, (), "aba", 1),  # what `one-gpu` needed: ended the study on 2b61fbc
        (30 * 10**9, (f"{OLDER}=0.45",), "interleaved", 1),  # jaxlib refuses both variables, in its own words
        pytest.param(30 * 10**9, ("XLA_CLIENT_MEM_FRACTION=0.9",), "aba", 1, marks=pytest.mark.slow),
    ],
)
def test_processes_on_one_gpu_take_turns_where_they_fit(
    benches: Any, needed: int, variables: tuple[str, ...], mode: str, told: int
) -> None:
    context, sink = benches(needed, *variables)
    context.assignment = Assignment(folder=("pair",), name="pair")
    request = ComparisonRequest(candidate=FlagSet({"NCCL_PROTO": "LL"}), rule=fixed(2), is_proof=True)
    found = Interleaved(context).compare(request)
    assert there(found.comparison).mode == mode
    assert len(sink.incidents) == told, sink.incidents
    assert all("memory" in what for what in sink.incidents)


def test_what_a_program_sets_beside_our_share_is_told(benches: Any) -> None:
    context, sink = benches(30 * 10**9, "XLA_PYTHON_CLIENT_PREALLOCATE=false")
    worker = context.start(FlagSet(), context.folders.folder("one"))
    assert sink.incidents == []
    assert [w for w in worker.report.warnings if "XLA_PYTHON_CLIENT_PREALLOCATE=false" in w]
