"""Studies in which nothing is measured: how they search, go on, and that every face says what their figures are."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.model.errors import AutotuneError, NotComparableError, RunDirectoryError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import PREDICTED
from autotune.model.records import ConclusionRecord, Outcome, ScreenRecord
from autotune.model.spec import StudySpec, parse_study
from autotune.model.trial import TrialResult, TrialStatus
from autotune.results.carried import read_winner
from autotune.results.export import ExportFormat
from autotune.results.library import add_to_library
from autotune.results.report import render_html, render_markdown
from autotune.results.winner import proven_winner
from autotune.rundir.store import Store
from autotune.settings.parameters import SearchSpace
from autotune.study import predicted
from autotune.study import screen as stage
from autotune.study.predicted import Predicting, cluster_of
from autotune.study.stages import run_study
from autotune.workers.base import Launcher
from harness.simulated import GivenSetup, given_run
from tests.compiler.rules import BUFFER, COMBINE, SLOP, LosingCount, Rules, screen, space
from tests.runs import Diary, asking

ROOT = Path(__file__).parents[2]
STUDY: dict[str, Any] = {
    "name": "foretold",
    "workload": {"entry": "llama"},
    "device": {"platform": "cuda", "count": 8},
    "search": {"step_time": "predicted", "use_environment": False, "startup_trials": 3},
    "screen": {"target": "h100-sxm", "topology": "8"},
}

Run = Callable[..., tuple[ConclusionRecord, Store, Diary, list[str]]]


class NoLauncher(GivenSetup):
    """A predicted study that asks for what starts workers is wrong: its nodes need not be here."""

    def launcher(self, store: Store) -> Launcher:
        raise AssertionError("a predicted study starts nothing")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a study that predicts with a compiler of known rules; gives what was left to search, too."""

    def go(
        data: Mapping[str, Any] = STUDY,
        rules: Rules | None = None,
        *,
        trials: int = 8,
        first: tuple[tuple[str, FlagSet], ...] = (),
    ) -> tuple[ConclusionRecord, Store, Diary, list[str]]:
        spec = parse_study(dict(data))
        searched: list[str] = []

        @contextlib.contextmanager
        def opened(*_: Any, **__: Any) -> Iterator[Any]:
            yield spec, screen(rules or Rules())

        class Noting(Predicting):
            def narrow(self, space: SearchSpace) -> SearchSpace:
                left = super().narrow(space)
                searched.extend(p.name for p in left.parameters)
                return left

        monkeypatch.setattr(stage, "open_screener", opened)
        diary = Diary()
        setup = NoLauncher(given_space=space(), first=first)
        study = given_run(asking(spec, trials), tmp_path / "run", setup, diary, make_evaluator=Noting)
        return run_study(study), study.store, diary, searched

    return go


def test_the_set_with_the_shortest_predicted_step_is_named_and_nothing_is_called_a_winner(run: Run) -> None:
    conclusion, store, diary, _ = run(trials=30)
    assert conclusion.outcome is Outcome.PREDICTED
    assert conclusion.settings is not None
    assert conclusion.settings[COMBINE] == "11"
    assert conclusion.estimate is None
    assert conclusion.prediction is not None
    assert conclusion.prediction.ratio == pytest.approx(7 / 11, rel=0.01)
    assert PREDICTED in conclusion.sentence
    assert diary.stages == ["reference", "search"]
    assert all(r.comparison is None and r.worker is None for r in store.of(TrialResult))


def test_nothing_better_is_said_so(run: Run) -> None:
    conclusion, _, _, _ = run(trials=1, first=(("dead", FlagSet({SLOP: "17"})),))
    assert conclusion.outcome is Outcome.PREDICTED
    assert conclusion.settings is None
    assert "no set tried" in conclusion.sentence


@pytest.mark.slow
def test_a_set_whose_loop_nobody_counted_is_not_predicted_and_never_named(run: Run) -> None:
    conclusion, store, _, _ = run(rules=LosingCount(), trials=30, first=(("fast", FlagSet({COMBINE: "11"})),))
    found = store.of(TrialResult)
    assert found[0].failure is not None
    assert "how often each loop of its program runs must be known" in found[0].failure.message
    assert "not known are while.9 here and none there" in found[0].failure.message
    assert found[0].prediction is None
    assert conclusion.settings is None


def test_equal_programs_are_named_and_a_runtime_setting_is_neither_dead_nor_searched(run: Run) -> None:
    first = (
        ("dead", FlagSet({SLOP: "17"})),
        ("one", FlagSet({COMBINE: "11"})),
        ("twin", FlagSet({COMBINE: "11", SLOP: "19"})),
        ("read later", FlagSet({"NCCL_PROTO": "LL"})),
        ("too large", FlagSet({BUFFER: "true"})),
        ("refused", FlagSet({COMBINE: "13"})),
    )
    _, store, _, searched = run(trials=6, first=first)
    results = store.of(TrialResult)
    assert [(r.status, r.same_as) for r in results[:4]] == [
        (TrialStatus.SAME_PROGRAM, 0), (TrialStatus.PREDICTED, None), (TrialStatus.SAME_PROGRAM, 2),
        (TrialStatus.PREDICTED, None),
    ]  # fmt: skip
    assert [str(r.failure.kind) for r in results[4:] if r.failure] == ["out_of_memory", "compile_error"]
    assert "NCCL_PROTO" not in searched
    assert SLOP in searched


def test_a_screen_that_is_asked_for_takes_dead_settings_out(run: Run) -> None:
    _, _, _, searched = run({**STUDY, "screen": {**STUDY["screen"], "enabled": True, "cache": False}}, trials=2)
    assert SLOP not in searched
    assert COMBINE in searched


@pytest.mark.slow
def test_stopped_study_goes_on_and_proposes_what_it_would_have_proposed(run: Run, tmp_path: Path) -> None:
    run(trials=3)
    _, store, _, _ = run(trials=8)
    resumed = [(r.settings, r.origin) for r in store.of(TrialResult)]
    (tmp_path / "run").rename(tmp_path / "stopped")
    _, whole, _, _ = run(trials=8)
    assert resumed == [(r.settings, r.origin) for r in whole.of(TrialResult)]
    assert len(store.of(ScreenRecord)) == 1


def test_predicted_and_measured_trials_and_two_clusters_never_share_a_run(run: Run) -> None:
    run(trials=1)
    with pytest.raises(RunDirectoryError, match="screen"):
        run({**STUDY, "screen": {"target": "h200", "topology": "8"}}, trials=2)
    with pytest.raises(RunDirectoryError, match="search"):
        run({**STUDY, "search": {"use_environment": False, "startup_trials": 3}}, trials=2)


def test_other_versions_cannot_go_on_with_a_prediction(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(trials=1)
    monkeypatch.setattr(predicted, "compiler_versions", lambda: {"jaxlib": "0.99"})
    with pytest.raises(StudyFileError, match=r"0\.99"):
        run(trials=2)


# ---------------------------------------------------------------------- every face


@pytest.fixture
def foretold(run: Run) -> Store:
    first = (
        ("dead", FlagSet({SLOP: "17"})),
        ("one", FlagSet({COMBINE: "11"})),
        ("twin", FlagSet({COMBINE: "11", SLOP: "17"})),
    )
    return run(trials=4, first=first)[1]


FACES = [
    ["show", "RUN"],
    ["show", "RUN", "2"],
    ["status", "RUN"],
    ["status", "RUN", "--json"],
    ["report", "RUN", "--md"],
]


@pytest.mark.parametrize("arguments", FACES)
def test_every_command_that_shows_it_says_what_it_is(foretold: Store, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, [str(foretold.path) if a == "RUN" else a for a in arguments])
    assert done.exit_code == 0, done.output
    # A table folds long cells.
    assert "PREDICTED" in done.output
    assert "NOT" in done.output
    assert "faster" not in done.output.lower()


def test_reports_carry_the_mark_in_every_row_and_draw_no_chart_of_measurements(foretold: Store) -> None:
    html, text = render_html(foretold), render_markdown(foretold)
    rows = [line for line in text.splitlines() if line.startswith("| 1 ") or line.startswith("| 2 ")]
    assert rows
    assert all("predicted" in row.lower() for row in rows)
    assert html.count(PREDICTED) >= 4
    assert "No trial has a result yet" not in html
    assert 'aria-label="intervals of all trials"' not in html


def test_frames_keep_predictions_out_of_the_columns_of_measurements(foretold: Store) -> None:
    study = autotune.load(foretold.path)
    assert study.is_predicted
    assert PREDICTED in repr(study)
    assert study.winner is None
    row = study.trials.set_index("trial").loc[2]
    assert row["status"] == "predicted"
    assert row["predicted_ratio"] == pytest.approx(7 / 11, rel=0.01)
    assert row[["ratio", "low", "high", "candidate_step_s"]].isna().all()
    assert "predicted_ratio" in study._repr_html_()


def test_nothing_predicted_is_exported_compared_or_kept_as_proven(foretold: Store, tmp_path: Path) -> None:
    with pytest.raises(AutotuneError, match=PREDICTED):
        proven_winner(foretold)
    done = CliRunner().invoke(app, ["export", str(foretold.path)])
    assert done.exit_code != 0
    with pytest.raises(NotComparableError, match=PREDICTED):
        autotune.compare([foretold.path, shutil.copytree(foretold.path, tmp_path / "other")])
    done = CliRunner().invoke(app, ["t4", "export", str(foretold.path)])
    assert isinstance(done.exception, AutotuneError)


@pytest.mark.slow
@pytest.mark.parametrize("form", list(ExportFormat))
def test_forced_export_says_what_it_is_and_is_trusted_by_nothing(
    foretold: Store, tmp_path: Path, form: ExportFormat
) -> None:
    file = tmp_path / "forced"
    done = CliRunner().invoke(app, ["export", str(foretold.path), "--force", "--format", form, "-o", str(file)])
    assert done.exit_code == 0, done.output
    text = file.read_text(encoding="utf-8")
    assert PREDICTED in text
    assert "proven by autotune" not in text
    done = CliRunner().invoke(app, ["verify", str(file)])
    assert done.exit_code == 1
    assert PREDICTED in done.output
    done = CliRunner().invoke(app, ["exec", str(file), "--", "true"])
    assert isinstance(done.exception, AutotuneError)
    with pytest.raises(AutotuneError, match=PREDICTED):
        add_to_library(read_winner(file), tmp_path / "library")


# ---------------------------------------------------------------------- study files and clusters


def test_predicting_needs_an_entry_and_a_known_gpu(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [{"workload": {"command": ["true"], "hook": True}}, {"replay": {}}]
    for more in others:
        with pytest.raises(StudyFileError, match="predicted"):
            parse_study({**STUDY, **more})
    with pytest.raises(StudyFileError, match="--target"):
        cluster_of(parse_study({**STUDY, "screen": {}}))
    file = tmp_path / "own.txtpb"
    file.write_text("memory_bandwidth: 1e12\ncore_count: 7\ndevice_memory_size: 1000000\n", encoding="utf-8")
    with pytest.raises(StudyFileError, match="rates"):
        cluster_of(parse_study({**STUDY, "screen": {"target": str(file)}}))


def test_how_a_measured_study_is_screened_does_not_make_it_another_study() -> None:
    base = {"name": "a", "workload": {"entry": "llama"}}
    assert parse_study(base).identity == parse_study({**base, "screen": {"enabled": True}}).identity
    assert parse_study(STUDY).identity != parse_study({**STUDY, "screen": {"target": "b200"}}).identity


def test_cluster_of_a_study_for_64_gpus() -> None:
    spec = parse_study({**STUDY, "screen": {"target": "h100-sxm", "topology": "8x8"}})
    moved = predicted.on_its_cluster(spec)
    assert (moved.device.platform, moved.device.count, moved.device.node_count) == ("cuda", 64, 8)


def test_facts_stand_in_for_a_reference_that_ran() -> None:
    assert {f.name for f in dataclasses.fields(predicted.Facts)} == {"device_count", "mesh", "layer_bytes"}


AOT_STUDY = """
name = "toy-foretold"
[workload]
entry = "toy_workload:make"
[device]
platform = "cuda"
count = 8
[search]
trials = 5
use_environment = false
startup_trials = 2
[search.settings]
xla_gpu_enable_while_loop_double_buffering = [false, true]
xla_gpu_memory_limit_slop_factor = [95, 80]
NCCL_PROTO = ["LL", "Simple"]
[[search.first]]
name = "dead"
settings = { xla_gpu_memory_limit_slop_factor = 80 }
"""


@pytest.fixture
def toy_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = (Path(__file__).parents[1] / "compiler/toy_workload.py").read_text(encoding="utf-8")
    (tmp_path / "toy_workload.py").write_text(source, encoding="utf-8")
    (tmp_path / "study.toml").write_text(AOT_STUDY, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "study.toml"


@pytest.mark.aot
@pytest.mark.slow
def test_a_whole_study_without_a_gpu_from_a_study_file(toy_study: Path) -> None:
    where = ["run", str(toy_study), "--objective", "predicted", "--target", "h100-sxm", "--topology", "8"]
    done = CliRunner().invoke(app, [*where, "--trials", "2"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, [*where, "--trials", "5", "--json"])
    assert done.exit_code == 0, done.output
    conclusion = json.loads(done.stdout)
    assert conclusion["outcome"] == "predicted"
    store = Store.open(Path("runs/toy-foretold"))
    results = store.of(TrialResult)
    # Two live values and the dead one: the space without NCCL_PROTO has four points, one of them the default.
    assert (results[0].status, results[0].same_as) == (TrialStatus.SAME_PROGRAM, 0)
    assert len(results) == 3
    assert {str(r.status) for r in results[1:]} == {"predicted", "same_program"}
    assert not any("NCCL_PROTO" in r.settings for r in results)


@pytest.mark.aot
@pytest.mark.slow
def test_cluster_that_the_workload_does_not_fit_is_an_error_in_its_words(toy_study: Path) -> None:
    text = toy_study.read_text(encoding="utf-8").replace("toy_workload:make", "toy_workload:broken")
    toy_study.write_text(text, encoding="utf-8")
    where = ["run", str(toy_study), "--objective", "predicted", "--target", "h100-sxm"]
    done = CliRunner().invoke(app, where)
    assert isinstance(done.exception, AutotuneError)
    assert "seven is not a size" in str(done.exception)


def test_the_study_file_for_64_gpus_is_run_by_the_command_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "studies" / "sixty-four-gpus-predicted.toml").read_text(encoding="utf-8")
    (command,) = [line for line in text.splitlines() if "autotune run" in line]
    arguments = command.lstrip("# ").split()[1:]
    seen: list[StudySpec] = []

    def remember(spec: StudySpec, *_: Any, **__: Any) -> Any:
        seen.append(spec)
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.cli.run._run", remember)
    monkeypatch.chdir(ROOT)
    CliRunner().invoke(app, arguments)
    assert seen[0].is_predicted
    assert cluster_of(seen[0])[1].device_count == 64
