"""A set that names a file to read is not started where the file is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.model.flags import PROFILE
from autotune.workers.base import WorkerFailed
from tests.workers.conftest import Start, study


@pytest.mark.slow
def test_a_rank_that_does_not_see_the_profile_does_not_compile_without(start: Start, tmp_path: Path) -> None:
    """XLA would go on without a word: with another schedule than its peers, whose collectives then wait for ever."""
    with pytest.raises(WorkerFailed, match="must be on every machine of a trial"):
        start(study({"entry": "faulty:build"}), {PROFILE: str(tmp_path / "gone.pbtxt")})
