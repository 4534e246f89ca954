"""Energy where it is known, and sandwiches where they were needed, in every place that shows results."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.model.records import FloorResult
from autotune.model.trial import TrialResult
from autotune.results import api
from autotune.results.effects import study_tables
from autotune.results.format import format_energy, format_floor
from autotune.results.report import build, render_html, render_markdown
from autotune.rundir.store import Store
from tests.machine.test_energy import metered_run


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study with energy; xla_a=1 draws twice the power in nine tenths of the time."""
    return metered_run(tmp_path_factory.mktemp("metered") / "run", mode="turns", effects={"xla_a=1": 0.9})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study in sandwiches."""
    return metered_run(tmp_path_factory.mktemp("alone") / "run", mode="sandwich", effects={"xla_a=1": 0.9})


def terminal(store: Store) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    for table in study_tables(store):
        console.print(table)
    return console.export_text()


def test_energy_stands_in_every_view(metered: Store) -> None:
    floor = metered.last(FloorResult)
    assert floor is not None
    assert "energy: 3 J a step, of whole devices (a test)" in format_floor(floor)
    costly = next(r for r in metered.of(TrialResult) if r.settings.get("xla_a") == "1" and r.comparison)
    assert format_energy(costly).startswith("energy: 5.4 J a step; ratio 1.80")
    page, text = render_html(metered), render_markdown(metered)
    assert "<th>energy</th>" in page
    assert "- default's energy of a step: 3 J" in text
    assert "| memory | energy |" in text
    frame = api.load(metered.path).trials
    row = frame[frame["trial"] == costly.number].iloc[0]
    assert row["step_j"] == pytest.approx(5.4, rel=0.01)
    assert row["energy_low"] < row["energy_ratio"] < row["energy_high"]


def test_where_energy_is_not_known_nothing_speaks_of_it(finished: Store) -> None:
    assert "nergy" not in terminal(finished)
    assert "nergy" not in render_html(finished)
    assert "nergy" not in render_markdown(finished)
    assert api.load(finished.path).trials["step_j"].isna().all()


def test_sandwiches_are_told_from_pairs(alone: Store, metered: Store) -> None:
    floor = alone.last(FloorResult)
    assert floor is not None
    assert any("in ABA runs" in line for line in format_floor(floor))
    assert "3 ABA runs" in terminal(alone)
    assert "ABA" not in terminal(metered)
    measured = {row["over"] for row in build(alone)["trials"]}
    assert "3 ABA runs" in measured
    assert all(not m or m.endswith(" pairs") for m in {row["over"] for row in build(metered)["trials"]})
    assert any("intervals are over ABA runs" in w for w in build(alone)["warnings"])
    assert set(api.load(alone.path).trials["mode"].dropna()) == {"sandwich"}
