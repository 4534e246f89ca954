"""What is said of a loss that nobody compared: in every format, and refused where it is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.measurement import LOSS_NOT_CHECKED, LossBasis, LossCheck
from autotune.model.records import ConfirmRun, SoakRecord
from autotune.results.export import ExportFormat, is_unchanged, parse_winner, render_winner
from autotune.results.winner import Winner, loss_addition, loss_of, require_loss
from tests.runs import make_winner, there

SILENT = LossCheck(basis=LossBasis.STEPS, words=f"{LOSS_NOT_CHECKED}: the reference reports no loss")
CHECKED = LossCheck(basis=LossBasis.STEPS, is_ok=True, words="loss step by step over 5 steps")
WORK = LossCheck(
    basis=LossBasis.WORK, is_ok=True, is_final=False, words="the work of a step changes: first steps agree"
)
SOAKED = LossCheck(basis=LossBasis.WORK, is_ok=True, words="the work of a step changes: judged by loss")


def winner(loss: LossCheck | None) -> Winner:
    return make_winner({"xla_gpu_a": "1"}).model_copy(update={"loss": loss})


def run(loss: LossCheck | None) -> ConfirmRun:
    return ConfirmRun(stage="final", settings=FlagSet(), trial=1, repeat=0, pair_count=1, loss=loss)


def soak(loss: LossCheck | None) -> SoakRecord:
    data: dict[str, Any] = {"steps_s": 1, "step_count": 1, "starts": 1}
    return SoakRecord(settings=FlagSet(), loss=loss, **data)


@pytest.mark.parametrize("form", ExportFormat)
def test_every_format_says_that_a_loss_was_not_checked(form: ExportFormat) -> None:
    text = render_winner(winner(SILENT), form)
    assert LOSS_NOT_CHECKED in text
    assert "NOT PROVEN" not in text
    assert LOSS_NOT_CHECKED not in render_winner(winner(CHECKED), form)
    assert is_unchanged(text, parse_winner(text, source="it"))
    assert not is_unchanged(text.replace(LOSS_NOT_CHECKED, "loss checked"), winner(SILENT))


@pytest.mark.parametrize(("loss", "is_checked"), [(SILENT, False), (CHECKED, True), (WORK, True)])
def test_what_reads_data_finds_it_as_data(loss: LossCheck, is_checked: bool) -> None:
    found = winner(loss)
    assert json.loads(render_winner(found, ExportFormat.JSON))["loss_checked"] is is_checked


def test_who_requires_a_loss_is_refused_a_winner_without_one() -> None:
    require_loss(winner(CHECKED))
    for loss in (SILENT, None):
        with pytest.raises(AutotuneError, match=f"--require-loss wants .*{LOSS_NOT_CHECKED}.*leave --require-loss out"):
            require_loss(winner(loss))


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ([], ""),
        ([run(None)], ""),
        ([run(CHECKED), run(CHECKED)], ""),
        ([run(CHECKED), soak(CHECKED)], ""),
        ([run(SILENT), run(SILENT)], f"; {LOSS_NOT_CHECKED}"),
        ([run(CHECKED), run(SILENT)], f"; {LOSS_NOT_CHECKED}"),  # one process that told nothing is one too many
        ([run(SILENT), soak(SILENT)], f"; {LOSS_NOT_CHECKED}"),
        ([run(WORK)], ""),
        ([run(WORK), soak(SOAKED)], f"; {SOAKED.words}"),
    ],
)
def test_the_sentence_of_a_conclusion_says_what_is_worth_a_word(evidence: list[Any], said: str) -> None:
    assert loss_addition(evidence) == said


def test_first_steps_of_another_batch_are_no_last_word() -> None:
    found = there(loss_of([run(WORK)]))
    assert found.is_ok is None
    assert "it was never soaked" in found.words
    assert loss_of([run(WORK), soak(SOAKED)]) == SOAKED
