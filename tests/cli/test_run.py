"""What `autotune run` says when it has ended."""

from __future__ import annotations

from autotune.cli.run import _more_for
from tests.runs import replay_study


def test_a_proof_that_lacks_time_is_not_told_to_raise_a_cap_that_it_never_reached() -> None:
    spec = replay_study(study={"confirm": {"processes": 6}})
    assert _more_for(14, spec) == "set `[confirm] processes = 14`"
    assert "--time-budget" in _more_for(6, spec)
