"""Every kind of real worker tells the memory of all its processes, when it is asked to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.conftest import Start, command, study

MB = 1 << 20
PROGRAMS: dict[str, dict[str, Any]] = {
    "hook": command("", program="planted.py", hook=True),
    "hook with jax": command("", program="hooked.py", hook=True),
    "read": command(program="plain.py"),
    "entry": {"entry": "faulty:build"},
}


@pytest.mark.parametrize("kind", ["hook", pytest.param("hook with jax", marks=pytest.mark.slow), "read", "entry"])
def test_memory_is_told_with_a_block_when_it_is_asked_for(start: Start, kind: str) -> None:
    worker = start(study(PROGRAMS[kind]))
    worker.run_block(2)
    told = [worker.last_memory]
    worker.watches_memory = True
    worker.run_block(2)
    told.append(worker.last_memory)
    before, after = told
    assert before is None
    assert after is not None
    assert after.host_bytes is not None
    assert 4 * MB < after.host_bytes < 4096 * MB
    assert after.device_bytes is None  # XLA's CPU does not tell
