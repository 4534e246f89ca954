"""What is shown of a front, and what is exported from it."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from autotune.model.errors import AutotuneError
from autotune.model.records import ConclusionRecord, ConfirmRun, Outcome
from autotune.results import analysis, api
from autotune.results.carried import parse_winner
from autotune.results.export import ExportFormat, render_export
from autotune.results.library import add_to_library
from autotune.results.report import render_html, render_markdown
from autotune.results.tables import study_tables
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from autotune.study.recheck import recheck_winner
from autotune.workers.replay import ReplayLauncher
from harness.simulated import GivenSetup, given_run
from tests.fronts import MEMORY, pareto_study, run
from tests.runs import SPACE, Diary

pytestmark = pytest.mark.slow


def test_the_front_frame_has_the_proven_sets_first(front_run: Store) -> None:
    frame = analysis.front_frame(front_run)
    conclusion = front_run.last(ConclusionRecord)
    assert conclusion is not None
    assert tuple(frame[frame["is_proven"]]["trial"]) == conclusion.front
    assert np.all(frame["memory_low"] <= frame["memory"])
    assert api.load(front_run.path).front.equals(frame)


def test_a_study_that_runs_still_shows_the_front_of_its_search(front_run: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, front_run.spec, study_dir=tmp_path)
    for record in itertools.takewhile(lambda r: not isinstance(r, ConfirmRun), front_run.records()):
        store.append(record)
    store.close()
    frame = analysis.front_frame(store)
    assert len(frame) >= 3
    assert not frame["is_proven"].any()
    assert frame["memory_low"].isna().all()
    assert not frame["step_time_low"].isna().any()
    assert "not measured again" in render_markdown(store)


def test_the_report_shows_the_front_with_intervals(front_run: Store) -> None:
    page, text = render_html(front_run), render_markdown(front_run)
    assert "The front: step time, memory" in page
    assert "Step time and memory" in page
    assert page.count("proven in fresh processes") == 1
    for number in analysis.front_frame(front_run)["trial"]:
        assert f"autotune export {front_run.path} --trial {number} -o trial-{number}.env" in page
    rows = text.split("## The front: step time, memory\n")[1].strip().split("\n\n")[0].splitlines()
    assert len(rows) == 2 + len(analysis.front_frame(front_run))
    assert "| proven |" in rows[2]
    assert "[" in rows[2]


def test_the_terminal_shows_the_front(front_run: Store) -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    for table in study_tables(front_run):
        console.print(table)
    text = console.export_text()
    assert "the front: ratios over the default's" in text
    assert text.count("proven") >= 4


def test_export_gives_the_fastest_or_the_set_that_is_named(front_run: Store) -> None:
    conclusion = front_run.last(ConclusionRecord)
    assert conclusion is not None
    fastest, _, smallest = conclusion.front or ()
    text = render_export(front_run, ExportFormat.ENV)
    assert parse_winner(text, source="").settings["xla_a"] == "1"
    assert "# memory over the default's: 1.250 [" in text
    chosen = parse_winner(render_export(front_run, ExportFormat.JSON, trial=smallest), source="")
    assert chosen.settings["xla_b"] == "1"
    assert chosen.others is not None
    assert chosen.others[MEMORY].ratio == pytest.approx(0.7)
    assert chosen.sentence.startswith(f"trial {smallest} (")
    assert chosen.step_s is not None
    with pytest.raises(AutotuneError, match=rf"trial 999 .* try autotune export .* --trial {fastest}\|"):
        render_export(front_run, ExportFormat.ENV, trial=999)


def test_a_library_keeps_the_fastest_of_a_front_and_no_slower_set(front_run: Store, tmp_path: Path) -> None:
    conclusion = front_run.last(ConclusionRecord)
    assert conclusion is not None
    add_to_library(winner_of(front_run), tmp_path)
    with pytest.raises(AutotuneError, match="a library keeps what is proven faster than the default"):
        add_to_library(winner_of(front_run, (conclusion.front or ())[-1]), tmp_path)


def test_a_front_without_a_faster_set_must_be_chosen_from(tmp_path: Path) -> None:
    store, _ = run(tmp_path, pareto_study(effects={"xla_b=1": 1.05}), trials=20)
    with pytest.raises(AutotuneError, match=r"choose one by what it saves \(autotune export .* --trial \d+\)"):
        winner_of(store)
    conclusion = store.last(ConclusionRecord)
    assert conclusion is not None
    assert winner_of(store, (conclusion.front or ())[0]).others is not None
    assert api.load(store.path).winner is None


def test_a_single_winner_may_be_named_by_its_own_number_only(finished: Store) -> None:
    conclusion = finished.last(ConclusionRecord)
    assert conclusion is not None
    assert winner_of(finished, conclusion.trial) == winner_of(finished)
    with pytest.raises(AutotuneError, match="only a proven set is exported but trial 999"):
        winner_of(finished, 999)


@pytest.mark.parametrize(("memory", "holds"), [(0.70, True), (1.0, False)])
def test_recheck_holds_if_all_that_was_better_is_better_still(
    front_run: Store, tmp_path: Path, memory: float, holds: bool
) -> None:
    conclusion = front_run.last(ConclusionRecord)
    assert conclusion is not None
    saver = winner_of(front_run, (conclusion.front or ())[-1])
    spec = pareto_study(memory_effects={"xla_b=1": memory, "xla_a=1": 1.25})
    assert spec.replay is not None
    launcher = ReplayLauncher(spec.replay, seed=1, platform="cpu")
    setup = GivenSetup(given_space=SPACE, given_launcher=launcher, read_at_run_time=lambda s: s)
    study = given_run(spec, tmp_path, setup, Diary())
    found, store = recheck_winner(study, saver), study.store
    assert (found.outcome is Outcome.WINNER) == holds
    assert ("still holds" in found.sentence) == holds
    assert f"memory {memory:.3f}" in found.sentence
    if holds:
        assert json.loads(render_export(store, ExportFormat.JSON))["winner"]["others"]["memory"][
            "ratio"
        ] == pytest.approx(0.7)


def test_the_front_can_be_plotted(front_run: Store) -> None:
    study = api.load(front_run.path)
    chart = study.plot.front("memory")
    assert chart.title == "Step time and memory"
    assert ">memory over the default&apos;s<" in chart.svg or ">memory over the default's<" in chart.svg
    for number in study.front["trial"]:
        assert f">{number}</text>" in chart.svg
    with pytest.raises(AutotuneError, match=r"another objective of the study must be named \(memory\): energy"):
        study.plot.front("energy")
