"""The power fails in the middle of a study on ext4."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.disks import missing
from harness.snapshots import MOUNTS, NO_RAW_SYNC, NO_SYNC, Told, check_cut, take_cuts

TRIALS = 12

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(missing(loop=True)), reason=missing(loop=True))]


@pytest.mark.parametrize(
    "options", [pytest.param(MOUNTS[0], marks=pytest.mark.gate), pytest.param(MOUNTS[1], marks=pytest.mark.slow)]
)
def test_what_was_told_is_there_after_a_power_cut_and_the_study_goes_on(options: str, tmp_path: Path) -> None:
    cuts = take_cuts(tmp_path, options=options, count=8, trials=TRIALS, seed=5)
    assert len(cuts) >= 5
    assert cuts[-1].told.trials > cuts[0].told.trials
    for i, cut in enumerate(cuts):
        assert check_cut(cut, tmp_path, trials=TRIALS, resume=i in (2, len(cuts) // 2)) == []


@pytest.mark.slow
@pytest.mark.parametrize("without", [NO_SYNC, NO_RAW_SYNC], ids=["no sync at all", "no sync of raw samples"])
def test_a_driver_that_does_not_sync_is_caught(without: str, tmp_path: Path) -> None:
    cuts = take_cuts(tmp_path, options=MOUNTS[0], count=12, trials=TRIALS, seed=6, spoiled_by=without)
    assert any(cut.told != Told() for cut in cuts)
    assert any(check_cut(cut, tmp_path, trials=TRIALS, resume=False) for cut in cuts)
