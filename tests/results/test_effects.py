"""Estimated effects of settings, in every place that shows results."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from autotune.model.effects import BestPredicted, EffectsRecord, PairEffect, PairValueEffect, SettingEffect, Suspect
from autotune.model.flags import FlagSet
from autotune.results.api import load
from autotune.results.effects import effect_lines, estimate_rows, format_chance, left_to_gain, study_tables
from autotune.results.report import render_html, render_markdown
from autotune.rundir.store import Store

SMALL = Path(__file__).parents[1] / "rundir" / "small"


def terminal(store: Store) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    for table in study_tables(store):
        console.print(table)
    return console.export_text()


def test_it_stands_in_every_view(finished: Store) -> None:
    record = finished.last(EffectsRecord)
    assert record is not None
    html, markdown, shown = render_html(finished), render_markdown(finished), terminal(finished)
    for view in (html, markdown, shown):
        assert "(model, unverified)" in view
    for line in effect_lines(finished):
        assert line.replace("<", "&lt;").replace(">", "&gt;") in html
    assert any("best set by the model (unverified): a=1 d=2" in line for line in effect_lines(finished))
    assert any(line.startswith("left to gain: ") for line in effect_lines(finished))
    assert 'aria-label="effects of settings"' in html


def test_a_frame_has_every_value_and_the_chart_what_may_act(finished: Store) -> None:
    study, record = load(finished.path), finished.last(EffectsRecord)
    assert record is not None
    frame = study.estimated_effects()
    tried = {(s.name, v.value) for s in record.settings for v in s.values}
    alone = frame[frame.beside == ""]
    assert set(zip(alone.setting, alone.value, strict=True)) == tried
    row = frame[(frame.setting == "xla_a") & (frame.value == "1") & (frame.beside == "")].iloc[0]
    assert row.chance > 0.95
    assert row.low <= 0.95 <= row.high
    assert "a=1" in study.plot.effects().svg


def test_a_run_that_was_taught_nothing_shows_nothing_of_it(tmp_path: Path) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(line for line in lines if json.loads(line)["kind"] != "effects"))
    store, study = Store.open(run), load(run)
    assert effect_lines(store) == []
    assert study.estimated_effects().empty
    assert "chance" in study.estimated_effects().columns
    assert not study.plot.effects().svg
    for view in (render_html(store), render_markdown(store), terminal(store)):
        assert "(model, unverified)" not in view


def record(**more: object) -> EffectsRecord:
    settings = (SettingEffect(name="xla_a", chance=0.72), SettingEffect(name="xla_b", chance=0.03))
    best = BestPredicted(settings=FlagSet({"xla_a": 1}), ratio=0.95, low=0.94, high=0.96)
    shown = {"trials": 9, "measured": 8, "settings": settings, "best": best, "left": 0.98, **more}
    return EffectsRecord.model_validate(shown)


def test_sentences(finished: Store, tmp_path: Path) -> None:
    together = PairValueEffect(values=("1", "2"), ratio=0.97, low=0.95, high=1.0, trials=4)
    store = Store.create_or_resume(tmp_path / "run", finished.spec, study_dir=tmp_path)
    store.append(
        record(
            pairs=(PairEffect(names=("xla_a", "xla_b"), chance=0.3, values=(together,)),),
            suspects=(Suspect(settings=FlagSet({"xla_b": 2}), chance=0.44),),
        )
    )
    text = "\n".join(effect_lines(store))
    for said in (
        "8 trials: xla_a (72 %) probably active; 1", "interacting: xla_a and xla_b (30 %)", "fail: xla_b=2 (44 %)",
        "ratio 0.950 [0.940, 0.960]", "more than 2.0 % faster than the best set",
    ):  # fmt: skip
        assert said in text
    (row,) = estimate_rows(store)
    assert row.label == "xla_a=1 with xla_b=2"
    store.close()


def test_nothing_left_and_nothing_found_are_said_plainly() -> None:
    assert "no set is 0.05 % faster" in left_to_gain(record(left=0.9999))
    default = BestPredicted(settings=FlagSet(), ratio=1, low=1, high=1)
    assert "not known" in left_to_gain(record(left=0.9999, together=True))
    assert "1.0 % faster than the default" in left_to_gain(record(best=default, left=0.99))


@pytest.mark.parametrize(("chance", "words"), [(0.0, "< 1 %"), (0.72, "72 %"), (0.999, "> 99 %"), (1.0, "> 99 %")])
def test_a_chance_is_never_certain(chance: float, words: str) -> None:
    assert format_chance(chance) == words
