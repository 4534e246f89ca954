"""Studies whose parameters are options of a real program: what is planted is found, proven, and handed on."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import Outcome, TrialResult
from autotune.results.reproduce import by_hand
from autotune.results.winner import winner_of
from tests.console import autotune_process
from tests.tables import toml_beside
from tests.workers.conftest import PRINTED, Start, study, whole_study

MEASURE = {"pairs_cap": 12, "block_s": 0.02, "run_steps": 30}
OPTIONS = {"rounds": [24, 1], "kind": ["a", "b b"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_planted_better_option_of_an_entry_wins_and_is_handed_on(tmp_path: Path) -> None:
    search = {"trials": 3, "options": {"rounds": [24, 12, 1]}}
    workload = {"entry": "optional:build", "tokens_per_step": 1}
    conclusion, store = whole_study(tmp_path, workload, search=search, measure=MEASURE)
    assert conclusion.outcome is Outcome.WINNER, conclusion.sentence
    assert conclusion.settings == FlagSet({"option.rounds": "1"})
    winner = winner_of(store)
    assert winner.options == {"rounds": 1}
    assert winner.workload_options == {"rounds": 24}
    assert winner.environment == {}
    best = next(r for r in store.of(TrialResult) if r.settings.get("option.rounds") == "1")
    assert "--set rounds=1" in by_hand(store, best)[-1]
    placed = [sys.executable, "-c", "import sys; print(sys.argv[1])", "--rounds={rounds}"]
    shown = autotune_process("exec", str(store.path), "--", *placed)
    assert (shown.returncode, shown.stdout) == (0, "--rounds=1\n"), shown.stderr
    lost = autotune_process("exec", str(store.path), "--", sys.executable, "-c", "")
    assert lost.returncode != 0
    assert "must have {rounds}" in lost.stderr


def test_a_command_runs_with_the_options_of_its_set(start: Start, tmp_path: Path) -> None:
    code = toml_beside(__file__, "programs.toml")["shows_its_options"]
    workload = {"tokens_per_step": 1, "read": PRINTED}
    workload["command"] = ["env", "KIND=is {kind}", sys.executable, "-c", code, "--rounds={rounds}"]
    spec = study(workload, search={"options": OPTIONS}, measure={"run_steps": 5})
    worker = start(spec, {"option.rounds": "1", "option.kind": json.dumps("b b")})
    assert len(worker.run_block(5)) == 5
    worker.close()
    assert "['--rounds=1'] kind=is b b" in (tmp_path / "worker.log").read_text()


@pytest.mark.gate
def test_an_entry_is_built_with_the_options_of_its_set(start: Start) -> None:
    spec = study({"entry": "optional:build"}, search={"options": OPTIONS})
    few, many = (start(spec, settings) for settings in ({"option.rounds": "1"}, {}))
    assert few.report.fingerprint != many.report.fingerprint
    assert few.report.losses == pytest.approx(many.report.losses, rel=1e-3)


@pytest.mark.gate
def test_the_number_of_processes_is_an_arm(start: Start) -> None:
    spec = study({"entry": "faulty:build"}, device={"count": 4}, search={"options": {"process_count": [1, 2]}})
    one, two = (start(spec, settings) for settings in ({}, {"option.process_count": "2"}))
    assert (one.report.process_count, two.report.process_count) == (1, 2)
    assert one.report.losses == pytest.approx(two.report.losses, rel=1e-6)
    assert all(map(math.isfinite, one.report.losses))
