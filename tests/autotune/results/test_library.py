"""The folder of winners: what is kept, what is nearest, and whether it still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import AutotuneError
from autotune.evaluate import Bench
from autotune.flags import FlagSet
from autotune.launch.replay import ReplayLauncher
from autotune.library import Query, add, best, describe, entries
from autotune.recheck import recheck
from autotune.records import ConclusionRecord, ConfirmRun, FloorResult, Outcome, TrialResult
from autotune.report import build
from autotune.spec import StudySpec
from autotune.store import Store
from autotune.winner import Winner, read_winner, winner_of
from tests.autotune.conftest import Diary, replay_study
from tests.autotune.results.conftest import EFFECTS, make_winner


def h200(**conditions: object) -> Winner:
    return make_winner({"xla_gpu_a": "1"}, **conditions)


def test_a_winner_is_kept_as_a_file_that_verify_reads(tmp_path: Path) -> None:
    winner = h200()
    path = add(winner, tmp_path)
    assert path.relative_to(tmp_path).as_posix() == "nvidia-h200/llama3-8b/8x-jaxlib-0.11.1-0123456789ab.json"
    assert read_winner(path) == winner
    assert [e.winner for e in entries(tmp_path)] == [winner]


def test_a_newer_proof_takes_the_place_and_an_older_one_does_not(tmp_path: Path) -> None:
    old, new = h200(), h200().model_copy(update={"ended": "2027-01-01T00:00:00+00:00"})
    add(old, tmp_path)
    add(new, tmp_path)
    assert [e.winner for e in entries(tmp_path)] == [new]
    with pytest.raises(AutotuneError, match="keeps the newest proof"):
        add(old, tmp_path)


def test_names_cannot_leave_the_library(tmp_path: Path) -> None:
    path = add(h200(device_kind="../../up/..", jaxlib="../1", workload="ab"), tmp_path / "library")
    assert path.resolve().is_relative_to((tmp_path / "library").resolve())


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "h200", "nvidia h200"])
@pytest.mark.parametrize("jaxlib", ["0.11", "0.11.1", None])
@pytest.mark.parametrize("workload", ["llama3-8b", "0123456789ab", None])
def test_an_exact_match_is_tested(tmp_path: Path, gpu: str, jaxlib: str | None, workload: str | None) -> None:
    add(h200(), tmp_path)
    match = best(entries(tmp_path), Query(gpu=gpu, count=8, jaxlib=jaxlib, workload=workload))
    assert match.is_tested
    assert describe(match)[0] == "proven for just this: xla_gpu_a=1"


def test_the_nearest_is_labelled_untested_with_the_distance_in_words(tmp_path: Path) -> None:
    add(h200(device_kind="NVIDIA H100 80GB HBM3"), tmp_path)
    add(h200(jaxlib="0.9.2"), tmp_path)
    add(h200(device_count=64), tmp_path)
    match = best(entries(tmp_path), Query(gpu="H200", count=8, jaxlib="0.12", workload="llama3-8b"))
    assert not match.is_tested
    assert match.distance == ("proven with jaxlib 0.9.2, not with 0.12",)
    assert describe(match)[0].startswith("nearest match, untested here")
    match = best(entries(tmp_path), Query(gpu="H200", count=32, jaxlib="0.11", workload="moe-80gb"))
    assert match.distance == ("proven for llama3-8b, not for moe-80gb", "proven on 64 devices, not on 32")
    match = best(entries(tmp_path), Query(gpu="B200"))
    assert match.distance[0].endswith(", not on B200")


def test_of_two_sizes_of_one_gpu_the_other_is_not_meant(tmp_path: Path) -> None:
    add(h200(device_kind="NVIDIA A100-SXM4-80GB"), tmp_path)
    assert best(entries(tmp_path), Query(gpu="A100 80GB")).is_tested
    assert best(entries(tmp_path), Query(gpu="A100-SXM4-80GB")).is_tested
    assert not best(entries(tmp_path), Query(gpu="A100-SXM4-40GB")).is_tested


def test_an_empty_library_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match="autotune library add RUN"):
        best(entries(tmp_path), Query())


def test_a_strange_file_in_the_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(AutotuneError, match=r"x\.json must be a file of `autotune export`"):
        entries(tmp_path)


# ---------------------------------------------------------------------- recheck


def again(spec: StudySpec, folder: Path, winner: Winner) -> tuple[ConclusionRecord, Store]:
    assert spec.replay is not None
    store = Store.create_or_resume(folder, spec, study_dir=folder)
    launcher = ReplayLauncher(spec.replay, seed=spec.seed + 1, platform="cpu")
    bench = Bench(store, launcher, runtime_settings=lambda s: s, watcher=Diary())
    try:
        return recheck(bench, winner, view=Diary()), store
    finally:
        store.close()


def test_a_winner_that_still_holds_is_proven_anew(finished: Store, tmp_path: Path) -> None:
    winner = winner_of(finished)
    conclusion, store = again(replay_study(effects=EFFECTS), tmp_path, winner)
    assert conclusion.outcome is Outcome.WINNER
    assert "still holds" in conclusion.sentence
    assert "it was 0.92" in conclusion.sentence
    assert {r.stage for r in store.of(ConfirmRun)} == {"recheck"}
    assert store.of(TrialResult) == []
    assert len(store.of(FloorResult)) == 1
    assert winner_of(store).settings == FlagSet({"xla_a": "1", "xla_d": "2", "NCCL_DEBUG": "WARN"})
    assert build(store).finalists[0]["stage"] == "recheck"


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
    again(spec, tmp_path, winner_of(finished))
    _, store = again(spec, tmp_path, winner_of(finished))
    assert len(store.of(ConfirmRun)) == spec.confirm.processes
    assert len(store.of(FloorResult)) == 1
