"""Jobs of small programs, for real compilers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.compile_worker import CompileJob
from autotune.compiler.targets import load_target, parse_topology

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def toy_job() -> Any:
    def make(
        topology: str = "1x8", target: str | None = "h100-sxm", entry: str = "toy_workload:make", **options: Any
    ) -> CompileJob:
        return CompileJob(
            entry=entry,
            options=options,
            target=load_target(target) if target else None,
            topology=parse_topology(topology),
            paths=(str(HERE),),
        )

    return make
