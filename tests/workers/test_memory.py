"""Every kind of real worker tells the memory of all its processes, when it is asked to."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.records import MemoryUse
from tests.runs import there
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
    assert worker.last_memory is None
    worker.watches_memory = True
    worker.run_block(2)
    told: MemoryUse = there(worker.last_memory)
    assert 4 * MB < there(told.host_bytes) < 4096 * MB
    assert told.device_bytes is None  # XLA's CPU does not tell
