"""A real worker is told to profile, and goes on."""

from __future__ import annotations

import pytest

from autotune.workers.base import WorkerFailed
from autotune.workers.profile_text import profile_text
from tests.workers.conftest import Start, study


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_profiles_and_goes_on(start: Start, ranks: int) -> None:
    device = {"count": ranks, "process_count": ranks}
    worker = start(study({"entry": "faulty:build"}, device=device))
    assert worker.profile(2) == b""  # on a CPU XLA makes none
    assert len(worker.run_block(3)) == 3


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
