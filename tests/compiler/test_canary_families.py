"""A canary dies for every family of workloads: a screen of none of them is refused for want of one."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.compiler.screen import find_canary, open_screener
from autotune.compiler.targets import compiler_problem, compiler_versions, load_target, parse_topology
from autotune.model.spec import parse_study

FAMILIES: dict[str, tuple[str, str, dict[str, int]]] = {
    "one GPU": ("llama-tiny", "1x1", {}),
    "fsdp": ("llama-tiny", "1x8", {"fsdp": 8}),
    "tensor": ("llama-tiny", "1x2", {"tensor": 2}),
    "pipeline": ("llama-small", "1x4", {"pipeline": 2, "fsdp": 2}),
    "experts": ("moe-tiny", "1x8", {"expert": 4, "data": 2}),
    "ring": ("long-tiny", "1x8", {"context": 8}),
    "recurrent": ("rssm-tiny", "1x8", {"data": 8}),
}


@pytest.mark.aot
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(compiler_problem(compiler_versions())), reason="XLA's CUDA plugin is not installed")
@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.gate if f == "fsdp" else pytest.mark.slow) for f in FAMILIES]
)
def test_a_canary_dies_for_every_family(family: str, tmp_path: Any) -> None:
    entry, topology, mesh = FAMILIES[family]
    options: dict[str, Any] = {"mesh": mesh} if mesh else {}
    options |= {} if entry.startswith(("rssm", "long")) else {"attention": "xla"}
    spec = parse_study({"name": "canary", "workload": {"entry": entry, "options": options}})
    gpu = spec.model_copy(update={"device": spec.device.model_copy(update={"platform": "cuda"})})
    target, cluster = load_target("h100-sxm"), parse_topology(topology)
    with open_screener(gpu, study_dir=tmp_path, target=target, topology=cluster) as (_, screener):
        assert find_canary(screener, screener.reference()).changes
