from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from autotune.screen.compiler import CompileJob
from autotune.screen.targets import load_target, parse_topology

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    if not installed & {"jax-cuda12-plugin", "jax-cuda13-plugin"}:
        for item in items:
            if item.get_closest_marker("aot"):
                item.add_marker(pytest.mark.skip(reason="XLA's CUDA plugin is not installed"))


@pytest.fixture(scope="session")
def toy_job() -> Any:
    def make(topology: str = "1x8", target: str | None = "h100-sxm", **options: Any) -> CompileJob:
        return CompileJob(
            entry="toy_workload:make",
            options=options,
            target=load_target(target) if target else None,
            topology=parse_topology(topology),
            paths=(str(HERE),),
        )

    return make
