"""The folder of winners: what is kept, what is nearest, and whether it still holds."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, ConclusionRecord, ConfirmRun, Outcome, TrialResult
from autotune.model.spec import StudySpec
from autotune.results.export import read_winner, render_winner
from autotune.results.library import Match, add_to_library, best_known, format_match, library_entries
from autotune.results.report import build
from autotune.results.verify import check_records
from autotune.results.winner import Winner, winner_of, with_rechecks
from autotune.rundir.store import Store
from autotune.settings.space import SearchSpace
from autotune.study.recheck import recheck_winner
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher
from tests.runs import EFFECTS, Diary, make_winner, replay_study, there
from tests.tables import toml_beside

CASES = toml_beside(__file__)


def h200(**conditions: object) -> Winner:
    return make_winner({"xla_gpu_a": "1"}, **conditions)


def test_a_winner_is_kept_as_a_file_of_the_library_that_verify_reads(tmp_path: Path) -> None:
    winner = h200()
    path = add_to_library(winner, tmp_path)
    assert path.relative_to(tmp_path).as_posix() == "nvidia-h200/llama3-8b/8x-jaxlib-0.11.1-0123456789ab.json"
    assert read_winner(path) == winner
    assert list(library_entries(tmp_path, pytest.fail).values()) == [winner]
    path = add_to_library(h200(device_kind="../../up/..", jaxlib="../1", workload="ab"), tmp_path / "library")
    assert path.resolve().is_relative_to((tmp_path / "library").resolve())


def test_a_newer_proof_takes_the_place_and_an_older_one_does_not(tmp_path: Path) -> None:
    old, new = h200(), h200().model_copy(update={"ended": "2027-01-01T00:00:00+00:00"})
    add_to_library(old, tmp_path)
    add_to_library(new, tmp_path)
    assert list(library_entries(tmp_path, pytest.fail).values()) == [new]
    with pytest.raises(AutotuneError, match="newest proof"):
        add_to_library(old, tmp_path)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "h200"])
@pytest.mark.parametrize(
    ("jaxlib", "workload"), [("0.11", "llama3-8b"), ("0.11.1", "0123456789ab"), (None, "llama3-8b"), ("0.11.1", None)]
)
def test_an_exact_match_is_tested(tmp_path: Path, gpu: str, jaxlib: str | None, workload: str | None) -> None:
    add_to_library(h200(), tmp_path)
    match = best_known(library_entries(tmp_path, pytest.fail), gpu=gpu, count=8, jaxlib=jaxlib, workload=workload)
    assert match.is_tested
    assert format_match(match)[0].endswith(": xla_gpu_a=1")


def test_the_nearest_is_labelled_untested_with_the_distance_in_words(tmp_path: Path) -> None:
    add_to_library(h200(device_kind="NVIDIA H100 80GB HBM3"), tmp_path)
    add_to_library(h200(jaxlib="0.9.2"), tmp_path)
    add_to_library(h200(device_count=64), tmp_path)
    match = best_known(library_entries(tmp_path, pytest.fail), gpu="H200", count=8, jaxlib="0.12", workload="llama3-8b")
    assert not match.is_tested
    assert [re.findall(r"[\d.]+", d) for d in match.distance] == [["0.9.2", "0.12"]]
    assert format_match(match)[0].startswith("nearest match")
    match = best_known(library_entries(tmp_path, pytest.fail), gpu="H200", count=32, jaxlib="0.11", workload="moe-80gb")
    assert match.distance == ("proven for llama3-8b, not for moe-80gb", "proven on 64 devices, not on 32")
    match = best_known(library_entries(tmp_path, pytest.fail), gpu="B200")
    assert match.distance[0].endswith(", not on B200")


def test_of_two_sizes_of_one_gpu_the_other_is_not_meant(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match="add RUN"):  # it is empty
        best_known(library_entries(tmp_path, pytest.fail))
    add_to_library(h200(device_kind="NVIDIA A100-SXM4-80GB"), tmp_path)
    for gpu, is_tested in (("A100 80GB", True), ("A100-SXM4-80GB", True), ("A100-SXM4-40GB", False)):
        assert best_known(library_entries(tmp_path, pytest.fail), gpu=gpu).is_tested is is_tested


def test_files_that_hold_no_winner_are_named_and_the_others_count(tmp_path: Path) -> None:
    add_to_library(h200(), tmp_path)
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "deep.json").write_text('{"winner": ' + "[" * 3000)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.json")
    said: list[str] = []
    assert best_known(library_entries(tmp_path, said.append), gpu="H200").is_tested
    named = ("binary", "deep", "gone", "pipe", "x")
    assert len(said) == len(named)
    assert all(f"{name}.json must" in text for name, text in zip(named, said, strict=True))


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


@pytest.mark.parametrize(("replay", "words"), CASES["lost_winners"])
def test_a_winner_that_does_not_hold_is_not_exported(
    finished: Store, tmp_path: Path, replay: dict[str, object], words: str
) -> None:
    conclusion, store = again(replay_study(**replay), tmp_path, winner_of(finished))
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert words in conclusion.sentence
    with pytest.raises(AutotuneError, match="proven winner"):
        winner_of(store)


def test_a_recheck_goes_on_where_it_was_stopped(finished: Store, tmp_path: Path) -> None:
    spec = replay_study(effects=EFFECTS)
    _, before = again(spec, tmp_path, winner_of(finished))
    _, store = again(spec, tmp_path, winner_of(finished))
    assert store.of(ConfirmRun) == before.of(ConfirmRun)
    assert len(store.of(AaRecord)) == 1


def test_an_export_names_the_ratios_of_rechecks_with_other_studies(finished: Store, tmp_path: Path) -> None:
    winner = winner_of(finished)
    study = replay_study(effects=EFFECTS, study={"baseline": {"NCCL_DEBUG": "WARN"}, "workload": {"entry": "moe"}})
    small = tmp_path / "small"
    shutil.copytree(finished.path, small)
    _, store = again(study.model_copy(update={"name": "long"}), tmp_path / "small-larger", winner)
    both = with_rechecks(winner, [store])
    assert both.further == {"long": winner_of(store).estimate}
    assert "long: ratio 0.92" in render_winner(both, "env")
    other = winner.model_copy(update={"settings": FlagSet({"xla_a": "1"})})
    with pytest.raises(AutotuneError, match="the set"):
        with_rechecks(other, [store])
    # What is proven beside a run, as by a job of `submit --winner`, is told beside its own verdict.
    at_scale = winner_of(Store.open(small))
    verdict = there(store.last(ConclusionRecord)).sentence
    assert there(at_scale.at_scale).endswith(f": {verdict}")
    assert any(verdict in line for line in build(Store.open(small))["evidence"])
    assert verdict in format_match(Match(path=small, winner=at_scale, distance=()))[2]
    for exported in (winner, both, at_scale):
        file = tmp_path / "winner.env"
        file.write_text(render_winner(exported, "env"), encoding="utf-8")
        assert check_records(exported, file, run=small).status == "holds"
