"""The memory that a study gives to JAX's client is what its programs are compiled for, and what they must fit in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.compiler import compiler
from autotune.compiler.program import CompiledProgram
from autotune.compiler.screen import open_screener
from autotune.compiler.targets import Target, Topology, load_target
from autotune.model.flags import FlagSet
from autotune.model.spec import StudySpec
from tests.runs import there

H100, EIGHT, HERE = load_target("h100-sxm"), Topology(1, 8), Path(__file__).parent
NEWER, OLDER = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def study(baseline: dict[str, str]) -> StudySpec:
    # 190 MB a GPU
    workload = {"entry": "toy_workload:make", "options": {"batch": 1 << 18}}
    return StudySpec.model_validate({"name": "toy", "workload": workload, "baseline": baseline})


def opened(baseline: dict[str, str], target: Target = H100) -> tuple[Target, int | None]:
    with open_screener(study(baseline), study_dir=HERE, target=target, topology=EIGHT) as (_, screen):
        return there(screen.job.target), screen.limit_bytes(screen.baseline)


@pytest.fixture
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were installed: what is compiled for is told before anything is compiled."""
    monkeypatch.setattr(compiler, "compiler_problem", lambda versions: "")


@pytest.mark.usefixtures("_plugin")
@pytest.mark.parametrize("name", [NEWER, OLDER])
def test_share_of_the_baseline_is_what_is_compiled_for(name: str) -> None:
    target, limit = opened({name: "0.92"})
    assert target.config_text == replace(H100, memory_share=0.92).config_text != H100.config_text
    assert limit == int(H100.memory_bytes * 0.92)


@pytest.mark.usefixtures("_plugin")
@pytest.mark.parametrize("baseline", [{}, {NEWER: "much"}, {NEWER: "0"}, {NEWER: "nan"}, {"NCCL_PROTO": "LL"}])
def test_without_a_share_that_the_client_takes_the_description_is_left_alone(baseline: dict[str, str]) -> None:
    target, limit = opened(baseline)
    assert target.config_text == H100.config_text
    assert limit == int(H100.memory_bytes * 0.75)


@pytest.mark.aot
@pytest.mark.slow
def test_program_of_a_study_with_little_memory_is_another_one() -> None:
    """With 120 MB for a step of 190, XLA overlaps less: without the share, a program is screened that no GPU runs."""

    def compiled(baseline: dict[str, str]) -> CompiledProgram:
        with open_screener(study(baseline), study_dir=HERE, target=H100, topology=EIGHT) as (_, screen):
            found = screen.result(FlagSet()).program
        return there(found)

    assert compiled({}).fingerprint != compiled({NEWER: "0.0015"}).fingerprint
