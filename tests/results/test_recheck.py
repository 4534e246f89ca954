"""Whether a winner still holds, and files that hold none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.model.spec import StudySpec
from autotune.results.export import read_winner
from autotune.results.report import build
from autotune.results.winner import Winner, winner_of
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from autotune.study.recheck import recheck_winner
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher
from tests.runs import EFFECTS, Diary, replay_study


def test_files_that_hold_no_winner_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "deep.json").write_text('{"winner": ' + "[" * 3000)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    for file in tmp_path.iterdir():
        with pytest.raises(AutotuneError, match=f"{file.name} must be"):
            read_winner(file)


def again(spec: StudySpec, folder: Path, winner: Winner) -> tuple[ConclusionRecord, Store]:
    launcher = SimulatedLauncher(spec, seed=spec.seed + 1)
    setup = GivenSetup(given_space=SearchSpace(()), given_launcher=launcher, read_at_run_time=lambda s: s)
    run = given_run(spec, folder, setup, Diary())
    return recheck_winner(run, winner), run.store


def test_a_winner_that_still_holds_is_proven_anew(finished: Store, tmp_path: Path) -> None:
    winner = winner_of(finished)
    conclusion, store = again(replay_study(effects=EFFECTS), tmp_path, winner)
    assert conclusion.outcome is Outcome.WINNER
    assert "still holds" in conclusion.sentence
    assert "it was 0.92" in conclusion.sentence
    assert {r.stage for r in store.of(ConfirmRun)} == {"recheck", "isolated"}
    assert store.of(TrialResult) == []
    assert len(store.of(AaRecord)) == 1
    assert winner_of(store).settings == FlagSet({"xla_a": "1", "xla_d": "2", "NCCL_DEBUG": "WARN"})
    assert build(store)["finalists"][0]["stage"] == "recheck"


@pytest.mark.parametrize(
    ("replay", "words"),
    [
        ({}, "it is no faster than the default"),
        ({"effects": {"xla_a=1": 1.1}}, "it is slower than the default"),
        ({"failures": {"xla_d=2": "unknown_flag"}}, "does not run any more: unknown flag"),
        ({"noise": {"white_sd": 0.02, "process_sd": 0.02}}, "is not proven any more: the difference is not resolved"),
    ],
)
def test_a_winner_that_does_not_hold_is_not_exported(
    finished: Store, tmp_path: Path, replay: dict[str, object], words: str
) -> None:
    conclusion, store = again(replay_study(**replay), tmp_path, winner_of(finished))
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert words in conclusion.sentence
    with pytest.raises(AutotuneError, match="only a proven winner"):
        winner_of(store)


def test_a_recheck_goes_on_where_it_was_stopped(finished: Store, tmp_path: Path) -> None:
    spec = replay_study(effects=EFFECTS)
    _, before = again(spec, tmp_path, winner_of(finished))
    _, store = again(spec, tmp_path, winner_of(finished))
    assert store.of(ConfirmRun) == before.of(ConfirmRun)
    assert len(store.of(AaRecord)) == 1
