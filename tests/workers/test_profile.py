"""A real worker is told to profile, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.model.flags import PROFILE
from autotune.workers.base import WorkerFailed
from autotune.workers.local import profile_text
from tests.workers.conftest import Start, study


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_worker_profiles_and_goes_on(start: Start, ranks: int) -> None:
    device = {"count": ranks, "process_count": ranks}
    worker = start(study({"entry": "faulty:build"}, device=device))
    assert worker.profile(2) == b""  # on a CPU XLA makes none
    assert len(worker.run_block(3)) == 3


@pytest.mark.slow
def test_what_is_no_profile_is_a_failure_of_the_worker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start(study({"entry": "faulty:build"}))
    monkeypatch.setattr(worker, "_gather", lambda *a: [{"packed": "no profile!"}])
    with pytest.raises(WorkerFailed, match="the profile cannot be read"):
        worker.profile(1)
    assert worker.closed


def test_text_of_what_is_none_is_refused() -> None:
    assert profile_text(b"") == ""
    with pytest.raises(ValueError, match="must be a ProfiledInstructionsProto"):
        profile_text(b"\x0a\xff")


@pytest.mark.slow
def test_a_rank_that_does_not_see_the_profile_does_not_compile_without(start: Start, tmp_path: Path) -> None:
    """XLA would go on without a word: with another schedule than its peers, whose collectives then wait for ever."""
    with pytest.raises(WorkerFailed, match="must be on every machine of a trial"):
        start(study({"entry": "faulty:build"}), {PROFILE: str(tmp_path / "gone.pbtxt")})
