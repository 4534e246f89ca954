"""Programs that call back to the host run wherever they are measured: beside a GPU, JAX has the CPU, too."""

from __future__ import annotations

import pytest

from tests.workers.conftest import Start, study


@pytest.mark.parametrize(
    "platform", [pytest.param("cpu", marks=pytest.mark.gate), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_a_program_that_calls_back_to_the_host_runs(start: Start, platform: str) -> None:
    worker = start(study({"entry": "calls_host:build"}, device={"platform": platform, "count": 1}))
    assert worker.report.losses[0] == pytest.approx(8.0)
    assert not [w for w in worker.report.warnings if "JAX_PLATFORMS" in w]
    assert len(worker.run_block(3)) == 3
