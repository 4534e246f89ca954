"""A run that commit 2b61fbc recorded, before the house was rebuilt: it is read, shown, exported and gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.model.records import AblationResult, BlameRecord, ConclusionRecord, Outcome, SoakRecord
from autotune.model.trial import TrialResult
from autotune.results.api import load
from autotune.results.audit import doubts
from autotune.results.export import ExportFormat, render_export
from autotune.results.report import render_html, render_markdown
from autotune.results.rows import effect_rows
from autotune.results.winner import winner_of
from autotune.results.words import describe_trial
from autotune.rundir.store import RECORDS, Store
from autotune.settings.parameters import Parameter, SearchSpace
from autotune.stats import Verdict
from autotune.study.stages import run_study
from autotune.study.status import study_status
from harness.simulated import GivenSetup, given_run
from tests.runs import Diary, asking

RUN = Path(__file__).parent / "made_by_2b61fbc"
SPACE = SearchSpace(
    (
        Parameter(name="xla_cpu_prefer_vector_width", choices=("128", "256", "512"), default="256"),
        Parameter(name="xla_backend_optimization_level", choices=("0", "1", "2", "3"), default="3"),
    )
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "runs" / "made-before"))


def test_every_record_is_read(run: Path) -> None:
    store = Store.open(run)
    assert len(store.records()) == len((run / RECORDS).read_text().splitlines()) == 21
    outcomes = [type(r.outcome).__name__ for r in store.of(TrialResult)]
    assert outcomes == ["Measured", "Failed", *["Measured"] * 4]
    assert [dict(b.smallest) for b in store.of(BlameRecord)] == [{"xla_cpu_max_isa": "SSE4_2"}]
    assert [a.left_out for a in store.of(AblationResult) if not a.kept] == ["xla_cpu_max_isa"]
    assert store.of(SoakRecord)[0].failure is None
    assert len(list(store.pairs("trials/0001"))) == 8


def test_it_is_shown_and_exported(run: Path) -> None:
    status = study_status(run)
    assert (status.state, status.trials, status.asked_trials, status.outcome) == ("finished", 6, 6, "winner")
    store = Store.open(run)
    for page in (render_html(store), render_markdown(store)):
        assert "xla_cpu_prefer_vector_width=512 is 10.0 % faster than the default" in page
    assert list(load(run).trials.query("outlook == 'promising'").trial) == [1]
    assert dict(winner_of(store).settings) == {"xla_cpu_prefer_vector_width": "512"}
    for form in ExportFormat:
        if form is ExportFormat.ARGUMENTS:
            continue  # of options alone
        assert "--xla_cpu_prefer_vector_width=512" in render_export(store, form).replace("\\", "")


def test_it_is_gone_on_with(run: Path) -> None:
    before = (run / RECORDS).read_text()
    spec = Store.open(run).spec
    study = given_run(asking(spec, 9), run, GivenSetup(given_space=SPACE), Diary())
    conclusion = run_study(study)
    assert (run / RECORDS).read_text().startswith(before)
    assert [r.number for r in study.store.of(TrialResult)] == list(range(1, 10))
    assert conclusion.outcome is Outcome.WINNER
    assert len(study.store.of(ConclusionRecord)) == 2


# ---------------------------------------------------------------------- words that belong to proofs now


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A run of commit 4582ee2: each of its trials has a verdict, and the digest of its proof goes over such words."""
    return Path(shutil.copytree(RUN.with_name("made_by_4582ee2"), tmp_path / "runs" / "judged"))


def test_a_proof_over_old_words_holds_and_breaks_if_one_is_edited(judged: Path) -> None:
    store = Store.open(judged)
    conclusion = store.last(ConclusionRecord)
    assert conclusion is not None
    assert conclusion.digest is not None
    assert doubts(store) == []
    assert dict(winner_of(store).settings) == {"xla_a": "1"}
    text = (judged / RECORDS).read_text()
    lines = [
        line.replace('"verdict":"slower"', '"verdict":"faster"') if '"ablation"' in line else line
        for line in text.splitlines(keepends=True)
    ]
    assert "".join(lines) != text
    (judged / RECORDS).write_text("".join(lines))
    assert any("the records have the digest" in line for line in doubts(Store.open(judged)))


def test_old_words_of_a_trial_are_not_repeated(judged: Path) -> None:
    lines = (judged / RECORDS).read_text().splitlines()
    assert sum("verdict reached: " in line for line in lines if '"kind":"trial"' in line) >= 3
    store = Store.open(judged)
    trials = [r.model_dump_json() for r in store.of(TrialResult)]
    shown = [describe_trial(r, r.outlook_at(sesoi=0.005)) for r in store.of(TrialResult)]
    effects = [row.reason for row in effect_rows(store)]
    assert not [said for said in (*trials, *shown, *effects) for word in Verdict if word in said]
    assert "verdict" not in "".join(trials)
