"""The memory that a study gives to JAX's client is what its programs are compiled for, and what they must fit in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.compiler import compiler
from autotune.compiler.program import CompiledProgram
from autotune.compiler.screen import open_screener
from autotune.compiler.targets import Topology, load_target
from autotune.model.flags import FlagSet
from autotune.model.spec import StudySpec
from tests.runs import there

H100, EIGHT, HERE = load_target("h100-sxm"), Topology(1, 8), Path(__file__).parent
NEWER, OLDER = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def study(baseline: dict[str, str]) -> StudySpec:
    # 190 MB a GPU
    workload = {"entry": "toy_workload:make", "options": {"batch": 1 << 18}}
    return StudySpec.model_validate({"name": "toy", "workload": workload, "baseline": baseline})


@pytest.fixture
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were installed: what is compiled for is told before anything is compiled."""
    monkeypatch.setattr(compiler, "compiler_problem", lambda versions: None)


@pytest.mark.usefixtures("_plugin")
@pytest.mark.parametrize(
    ("baseline", "share"),
    [
        ({NEWER: "0.92"}, 0.92),
        ({OLDER: "0.92"}, 0.92),
        ({}, None),
        ({NEWER: "much"}, None),
        ({NEWER: "0"}, None),
        ({NEWER: "nan"}, None),
        ({"NCCL_PROTO": "LL"}, None),
    ],
)
def test_share_that_the_client_takes_is_what_is_compiled_for(baseline: dict[str, str], share: float | None) -> None:
    with open_screener(study(baseline), study_dir=HERE, target=H100, topology=EIGHT) as (_, screen):
        assert there(screen.job.target).config_text == replace(H100, memory_share=share).config_text
        assert screen.limit_bytes(screen.baseline) == int(H100.memory_bytes * (share or 0.75))


@pytest.mark.aot
@pytest.mark.slow
def test_program_of_a_study_with_little_memory_is_another_one() -> None:
    """With 120 MB for a step of 190, XLA overlaps less: without the share, a program is screened that no GPU runs."""

    def compiled(baseline: dict[str, str]) -> CompiledProgram:
        with open_screener(study(baseline), study_dir=HERE, target=H100, topology=EIGHT) as (_, screen):
            found = screen.result(FlagSet()).program
        return there(found)

    assert compiled({}).fingerprint != compiled({NEWER: "0.0015"}).fingerprint
