"""What `autotune run` says before it starts, and when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli.run import _more_for
from autotune.model import AutotuneError
from autotune.results.carried import read_winner
from tests.runs import replay_study

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.toml"


def test_a_proof_that_lacks_time_is_not_told_to_raise_a_cap_that_it_never_reached() -> None:
    spec = replay_study(study={"confirm": {"processes": 6}})
    assert _more_for(14, spec) == "set `[confirm] processes = 14`"
    assert "--time-budget" in _more_for(6, spec)


def test_a_winner_that_is_not_there_is_told_without_an_errno(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match=r"there is nothing of that name; `autotune status` lists") as told:
        read_winner(tmp_path / "nosuch.env")
    assert "Errno" not in str(told.value)
