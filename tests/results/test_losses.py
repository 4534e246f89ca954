"""What is said of a loss that nobody compared: in every format, and refused where it is asked for.

Inconclusive is an outcome of its own, wherever it is looked at: nobody reads of it that the default is the best.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.measurement import LOSS_NOT_CHECKED, LossBasis, LossCheck
from autotune.model.records import ConfirmRun, Outcome, SoakRecord
from autotune.results.api import load
from autotune.results.comparison import compare_stores
from autotune.results.export import FORMATS, is_unchanged, parse_winner, render_winner
from autotune.results.report import render_html, render_markdown
from autotune.results.winner import Winner, loss_addition, loss_of, require_loss, winner_of
from autotune.rundir.store import Store
from tests.runs import make_winner, rewrite, there

SILENT = LossCheck(basis=LossBasis.STEPS, words=f"{LOSS_NOT_CHECKED}: the reference reports no loss")
CHECKED = LossCheck(basis=LossBasis.STEPS, is_ok=True, words="loss step by step over 5 steps")
WORK = LossCheck(basis=LossBasis.WORK, is_ok=True, is_final=False, words="the work of a step changes: they agree")
SOAKED = LossCheck(basis=LossBasis.WORK, is_ok=True, words="the work of a step changes: judged by loss")


def winner(loss: LossCheck | None) -> Winner:
    return make_winner({"xla_gpu_a": "1"}).model_copy(update={"loss": loss})


def run(loss: LossCheck | None) -> ConfirmRun:
    return ConfirmRun(stage="final", settings=FlagSet(), trial=1, repeat=0, pair_count=1, loss=loss)


def soak(loss: LossCheck | None) -> SoakRecord:
    data: dict[str, Any] = {"steps_s": 1, "step_count": 1, "starts": 1}
    return SoakRecord(settings=FlagSet(), loss=loss, **data)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_that_a_loss_was_not_checked(form: str) -> None:
    text = render_winner(winner(SILENT), form)
    assert LOSS_NOT_CHECKED in text
    assert "NOT PROVEN" not in text
    assert LOSS_NOT_CHECKED not in render_winner(winner(CHECKED), form)
    assert is_unchanged(text, parse_winner(text, source="it"))
    assert not is_unchanged(text.replace(LOSS_NOT_CHECKED, "loss checked"), winner(SILENT))


@pytest.mark.parametrize(("loss", "is_checked"), [(SILENT, False), (CHECKED, True), (WORK, True)])
def test_what_reads_data_finds_it_as_data(loss: LossCheck, is_checked: bool) -> None:
    found = winner(loss)
    assert json.loads(render_winner(found, "json"))["loss_checked"] is is_checked


def test_who_requires_a_loss_is_refused_a_winner_without_one() -> None:
    require_loss(winner(CHECKED))
    for loss in (SILENT, None):
        with pytest.raises(AutotuneError, match=f"--require-loss .*{LOSS_NOT_CHECKED}.*--require-loss out"):
            require_loss(winner(loss))


@pytest.mark.parametrize(
    ("runs", "soaks", "said"),
    [
        ([], [], ""),
        ([run(None)], [], ""),
        ([run(CHECKED), run(CHECKED)], [], ""),
        ([run(CHECKED)], [soak(CHECKED)], ""),
        ([run(SILENT), run(SILENT)], [], f"; {LOSS_NOT_CHECKED}"),
        ([run(CHECKED), run(SILENT)], [], f"; {LOSS_NOT_CHECKED}"),  # one process that told nothing is one too many
        ([run(SILENT)], [soak(SILENT)], f"; {LOSS_NOT_CHECKED}"),
        ([run(WORK)], [], ""),
        ([run(WORK)], [soak(SOAKED)], f"; {SOAKED.words}"),
        ([run(WORK)], [soak(SOAKED), soak(None)], f"; {SOAKED.words}"),
    ],
)
def test_the_sentence_of_a_conclusion_says_what_is_worth_a_word(
    runs: list[ConfirmRun], soaks: list[SoakRecord], said: str
) -> None:
    assert loss_addition(runs, soaks) == said


def test_first_steps_of_another_batch_are_no_last_word() -> None:
    found = there(loss_of([run(WORK)], []))
    assert found.is_ok is None
    assert "never soaked" in found.words
    assert loss_of([run(WORK)], [soak(SOAKED)]) == SOAKED


SENTENCE = "inconclusive: gains of step time up to 4.2 % are not ruled out (xla_a=1)"


def concluded(store: Store, path: Path, outcome: Outcome, sentence: str) -> Path:
    """A copy of a run whose conclusion is another."""

    def conclude(records: list[dict[str, Any]]) -> None:
        for record in (r for r in records if r["kind"] == "conclusion"):
            for gone in ("settings", "trial", "estimate", "soaked_s", "soaked_steps"):
                record.pop(gone, None)
            record |= {"outcome": outcome, "sentence": sentence}

    rewrite(Path(shutil.copytree(store.path, path)), conclude)
    return path


@pytest.fixture
def open_run(finished: Store, tmp_path: Path) -> Path:
    return concluded(finished, tmp_path / "open", Outcome.INCONCLUSIVE, SENTENCE)


def test_it_is_said_in_every_form(open_run: Path) -> None:
    store = Store.open(open_run)
    for text in (render_html(store), render_markdown(store)):
        assert SENTENCE in text
        assert "beats the default" not in text.replace(SENTENCE, "")
    study = load(open_run)
    assert (study.outcome, study.verdict, study.winner) == (Outcome.INCONCLUSIVE, SENTENCE, None)
    shown = CliRunner().invoke(app, ["show", str(open_run), "--json"])
    assert '"inconclusive"' in shown.output
    with pytest.raises(AutotuneError, match="inconclusive"):
        render_winner(winner_of(store), "env")


def test_a_comparison_does_not_name_the_default_as_winner(finished: Store, open_run: Path, tmp_path: Path) -> None:
    none = concluded(finished, tmp_path / "none", Outcome.NOTHING_BEATS_THE_DEFAULT, "no setting tried beats ...")
    table = compare_stores([finished, Store.open(open_run), Store.open(none)])
    by_study = {Path(row["study"]).name: (row["winner"], row["ratio"]) for row in table.frame.to_dict("records")}
    assert by_study["open"][0] == "(not settled)"
    assert math.isnan(by_study["open"][1])
    assert by_study["none"] == ("(default)", 1.0)
