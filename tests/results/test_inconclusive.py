"""Inconclusive is an outcome of its own, wherever it is looked at: nobody reads of it that the default is the best."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.errors import AutotuneError
from autotune.model.records import Outcome
from autotune.model.units import LARGEST_TOLD, format_provable
from autotune.results.api import load
from autotune.results.comparison import compare_stores
from autotune.results.export import ExportFormat, render_winner
from autotune.results.report import render_html, render_markdown
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from tests.runs import rewrite

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
        render_winner(winner_of(store), ExportFormat.ENV)


def test_a_comparison_does_not_name_the_default_as_winner(finished: Store, open_run: Path, tmp_path: Path) -> None:
    none = concluded(finished, tmp_path / "none", Outcome.NOTHING_BEATS_THE_DEFAULT, "no setting tried beats ...")
    table = compare_stores([finished, Store.open(open_run), Store.open(none)])
    by_study = {row["study"]: (row["winner"], row["ratio"]) for row in table.frame.to_dict("records")}
    assert by_study["open"][0] == "(not settled)"
    assert math.isnan(by_study["open"][1])
    assert by_study["none"] == ("(default)", 1.0)


def test_no_bound_of_a_hundred_percent_is_told() -> None:
    assert format_provable(LARGEST_TOLD) != format_provable(LARGEST_TOLD - 0.001)
    assert format_provable(math.nan) == "-"
