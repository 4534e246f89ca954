"""Energy where it is known, and ABA runs where they were needed, in every place that shows results."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from autotune.model.records import (
    FloorResult,
    TrialResult,
)
from autotune.results import (
    analysis,
    api,
)
from autotune.results.report import (
    build,
    render_html,
    render_markdown,
)
from autotune.results.tables import study_tables
from autotune.results.words import (
    describe_energy,
    describe_floor,
)
from autotune.rundir.store import Store
from tests.machine.test_energy import metered_run


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study with energy; xla_a=1 draws twice the power in nine tenths of the time."""
    return metered_run(tmp_path_factory.mktemp("metered") / "run", mode="interleaved", effects={"xla_a=1": 0.9})


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study in ABA runs."""
    return metered_run(tmp_path_factory.mktemp("alone") / "run", mode="aba", effects={"xla_a=1": 0.9})


def terminal(store: Store) -> str:
    console = Console(width=220, record=True, file=io.StringIO())
    for table in study_tables(store):
        console.print(table)
    return console.export_text()


def test_energy_stands_in_every_view(metered: Store) -> None:
    floor = metered.last(FloorResult)
    assert floor is not None
    assert "energy: 3 J a step, of whole GPUs" in describe_floor(floor)
    costly = next(r for r in metered.of(TrialResult) if r.settings.get("xla_a") == "1" and r.comparison)
    assert describe_energy(costly).startswith("energy: 5.4 J a step")
    assert "energy of a step" in terminal(metered)
    page, text = render_html(metered), render_markdown(metered)
    assert "Step time and energy" in page
    assert "<th>energy</th>" in page
    assert "- default's energy of a step: 3 J" in text
    assert "| memory | energy |" in text
    frame = analysis.trials_frame(metered)
    row = frame[frame["trial"] == costly.number].iloc[0]
    assert row["step_j"] == pytest.approx(5.4, rel=0.01)
    assert "step_j" in analysis.pareto_frame(metered)


def test_studies_are_compared_by_energy_where_both_know_it(metered: Store, finished: Store, alone: Store) -> None:
    table = api.compare([metered.path, alone.path])
    assert list(table.frame["winner_step_j"]) == pytest.approx([5.4, 5.4], rel=0.01)
    assert "| energy of a step |" in table.to_markdown()
    assert "3 J, winner 5.4" in table.to_markdown()
    assert "energy" not in api.compare([finished.path, _again(finished)]).to_markdown().split("## Settings")[0]


def _again(store: Store) -> Path:
    """The same run under another path."""
    link = store.path.with_name("again")
    if not link.exists():
        import shutil

        shutil.copytree(store.path, link)
    return link


def test_where_energy_is_not_known_nothing_speaks_of_it(finished: Store) -> None:
    assert "nergy" not in terminal(finished)
    assert "nergy" not in render_html(finished)
    assert "nergy" not in render_markdown(finished)
    assert analysis.trials_frame(finished)["step_j"].isna().all()


def test_aba_runs_are_told_from_pairs(alone: Store, metered: Store) -> None:
    floor = alone.last(FloorResult)
    assert floor is not None
    assert any("in ABA runs of fresh processes" in line for line in describe_floor(floor))
    assert "promising, 3 ABA runs" in terminal(alone)
    assert "aba" not in terminal(metered)
    measured = {row["over"] for row in build(alone)["trials"]}
    assert "3 ABA runs" in measured
    assert all(not m or m.endswith(" pairs") for m in {row["over"] for row in build(metered)["trials"]})
    assert any("intervals are over ABA runs" in w for w in build(alone)["warnings"])
    assert set(analysis.trials_frame(alone)["mode"].dropna()) == {"aba"}
