"""What the trials taught, in every place that shows results."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from autotune.model.flags import FlagSet
from autotune.model.records import BestPredicted, EffectsRecord, PairEffect, SettingEffect
from autotune.results.api import load
from autotune.results.report import render_html, render_markdown
from autotune.results.tables import study_tables
from autotune.results.taught import format_chance, taught_lines
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
        assert "hat the trials taught" in view
        assert "believed to act" in view
    for line in taught_lines(finished):
        assert line.replace("<", "&lt;").replace(">", "&gt;") in html
    assert any("the set that promises most: a=1 d=2" in line for line in taught_lines(finished))
    assert 'aria-label="effects of settings"' in html


def test_a_frame_has_every_value_and_the_chart_what_may_act(finished: Store) -> None:
    study, record = load(finished.path), finished.last(EffectsRecord)
    assert record is not None
    frame = study.taught()
    tried = {(s.name, v.value) for s in record.settings for v in s.values}
    assert set(zip(frame.setting, frame.value, strict=True)) == tried
    row = frame[(frame.setting == "xla_a") & (frame.value == "1")].iloc[0]
    assert row.chance > 0.95
    assert row.low <= 0.95 <= row.high
    assert "a=1" in study.plot.effects().svg
    assert study.lessons == taught_lines(finished)


def test_a_run_that_was_taught_nothing_shows_nothing_of_it(tmp_path: Path) -> None:
    run = shutil.copytree(SMALL, tmp_path / "run")
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(line for line in lines if json.loads(line)["kind"] != "effects"))
    store, study = Store.open(run), load(run)
    assert taught_lines(store) == []
    assert study.taught().empty
    assert "chance" in study.taught().columns
    assert not study.plot.effects().svg
    for view in (render_html(store), render_markdown(store), terminal(store)):
        assert "hat the trials taught" not in view


def record(**more: object) -> EffectsRecord:
    settings = (SettingEffect(name="xla_a", chance=0.72), SettingEffect(name="xla_b", chance=0.03))
    best = BestPredicted(settings=FlagSet({"xla_a": 1}), ratio=0.95, low=0.94, high=0.96)
    shown = {"trials": 9, "measured": 8, "settings": settings, "best": best, **more}
    return EffectsRecord.model_validate(shown)


def test_sentences(finished: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path / "run", finished.spec, study_dir=tmp_path)
    store.append(record(pairs=(PairEffect(names=("xla_a", "xla_b"), chance=0.3),)))
    text = "\n".join(taught_lines(store))
    assert "after 8 trials with a figure, believed to act: xla_a (72 %); 1 other searched settings" in text
    assert "beyond what each does: xla_a and xla_b (30 %)" in text
    assert "ratio 0.950 [0.940, 0.960] as the model expects it: no proof" in text
    store.close()


@pytest.mark.parametrize(("chance", "words"), [(0.0, "< 1 %"), (0.72, "72 %"), (0.999, "> 99 %"), (1.0, "> 99 %")])
def test_a_chance_is_never_certain(chance: float, words: str) -> None:
    assert format_chance(chance) == words
