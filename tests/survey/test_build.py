"""The build of the table: what is kept, what is gone on with, what is guessed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.machine.environment import driver_python
from autotune.model.errors import LaunchError, SettingError
from autotune.settings.atlas import AtlasRow, AtlasVerdict, load_kinds, read_rows
from autotune.settings.catalog import Tier
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.survey import build as module
from autotune.survey.build import Guess, Plan, build_atlas
from autotune.survey.cells import planned_cells
from autotune.survey.judge import silent_settings
from tests.compiler.rules import COMBINE, SLOP, Rules, screen

WORDS = ("cell", "compiled", "note")


class Told:
    """Remembers what a build tells."""

    def __init__(self) -> None:
        self.cells: list[str] = []
        self.notes: list[str] = []
        self.works: list[str] = []

    def cell(self, number: int, of: int, words: str) -> None:
        self.cells.append(f"{number} of {of}: {words}")

    def compiled(self, done: int, of: int) -> None:
        assert done <= of

    def at_work(self, what: str) -> None:
        self.works.append(what)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Rules:
    """The compiler of every cell, in the place of the real one; the build's own plugin need not be there."""
    made = Rules()

    @contextlib.contextmanager
    def opened(spec: Any, **_: Any) -> Iterator[Any]:
        yield spec, screen(made)

    def probed(python: str, *, platform: str) -> Any:
        import dataclasses

        return dataclasses.replace(probe_build(driver_python(), platform="cuda"), plugin="made up")

    monkeypatch.setattr(module, "open_screener", opened)
    monkeypatch.setattr(module, "probe_build", probed)
    return made


def plan(folder: Path, **more: Any) -> Plan:
    cells = planned_cells(["dense-fsdp", "tensor-parallel"], ["h100-sxm"], [8])
    return Plan(cells=cells, folder=folder, has_recipes=False, **more)


def test_each_cell_is_written_when_it_is_whole_and_never_compiled_again(tmp_path: Path, rules: Rules) -> None:
    told = Told()
    path = build_atlas(plan(tmp_path), told)
    rows = read_rows(path)
    assert told.cells == ["1 of 2: dense-fsdp on 8 h100-sxm", "2 of 2: tensor-parallel on 8 h100-sxm"]
    assert {r.workload for r in rows} == {"", "dense-fsdp", "tensor-parallel"}
    settled = {(r.workload, r.name): r.verdict for r in rows if r.kind == "setting"}
    assert settled["dense-fsdp", COMBINE] is AtlasVerdict.CHANGES
    assert settled["dense-fsdp", SLOP] is AtlasVerdict.SAME
    assert settled["", SLOP] is AtlasVerdict.DEFAULT
    cell = next(r for r in rows if r.kind == "cell")
    assert (cell.verdict, cell.workload, cell.gpus) == (AtlasVerdict.DEFAULT, "dense-fsdp", 8)
    text, count = path.read_text("utf-8"), len(rules.compiled)
    assert build_atlas(plan(tmp_path), Told()).read_text("utf-8") == text
    assert len(rules.compiled) == count


def test_a_cell_that_is_judged_again_replaces_itself(tmp_path: Path, rules: Rules) -> None:
    path = build_atlas(plan(tmp_path), Told())
    before = read_rows(path)
    build_atlas(plan(tmp_path, is_again=True), Told())
    assert [r for r in read_rows(path) if r.kind != "cell"] == [r for r in before if r.kind != "cell"]


def test_the_time_that_is_up_costs_the_cell_under_way_and_no_more(tmp_path: Path, rules: Rules) -> None:
    told, begun = Told(), len(plan(tmp_path).cells)
    build_atlas(plan(tmp_path, limit_s=10.0), told, clock=lambda: 0.0 if len(told.cells) < begun else 11.0)
    rows = read_rows(next(tmp_path.glob("*.jsonl")))
    assert {r.workload for r in rows} == {"", "dense-fsdp"}
    assert "the same command goes on" in told.notes[0]
    build_atlas(plan(tmp_path), Told())
    assert {r.workload for r in read_rows(next(tmp_path.glob("*.jsonl")))} == {"", "dense-fsdp", "tensor-parallel"}


def test_a_cell_that_cannot_be_compiled_does_not_stop_the_others(
    tmp_path: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = vars(module)["open_screener"]

    def opened(spec: Any, **more: Any) -> Any:
        if "tensor" not in spec.workload.options["mesh"]:
            raise LaunchError("no such program")
        return working(spec, **more)

    monkeypatch.setattr(module, "open_screener", opened)
    told = Told()
    rows = read_rows(build_atlas(plan(tmp_path), told))
    assert {r.workload for r in rows} == {"", "tensor-parallel"}
    assert told.notes == ["dense-fsdp on 8 h100-sxm is left out: no such program"]


def test_a_table_that_was_torn_is_refused_and_kept(tmp_path: Path, rules: Rules) -> None:
    path = build_atlas(plan(tmp_path), Told())
    torn = path.read_text("utf-8")[:-40]
    path.write_text(torn, "utf-8")
    with pytest.raises(SettingError, match=r"line \d+ must be a row of the atlas"):
        build_atlas(plan(tmp_path), Told())
    assert path.read_text("utf-8") == torn


def test_a_second_cell_of_a_kind_costs_less_for_what_the_first_told(tmp_path: Path, rules: Rules) -> None:
    cells = planned_cells(["dense-fsdp"], ["h100-sxm", "h200"], [8])
    rows = read_rows(build_atlas(Plan(cells=cells, folder=tmp_path, has_recipes=False), Told()))
    first, second = (next(r for r in rows if r.kind == "cell" and r.target == t) for t in ("h100-sxm", "h200"))
    assert first.compiled is not None
    assert second.compiled is not None
    assert second.compiled < first.compiled
    verdicts = [{(r.name, r.value): r.verdict for r in rows if r.target == t} for t in ("h100-sxm", "h200")]
    assert verdicts[0] == verdicts[1]


def test_the_nearest_cell_is_asked(tmp_path: Path) -> None:
    known = KnownSettings(probe_build(driver_python(), platform="cpu"))
    cell = planned_cells(["dense-fsdp"], ["h200"], [8])[0]
    own = known.build.jaxlib

    def row(jaxlib: str, target: str, verdict: AtlasVerdict, workload: str = "dense-fsdp") -> AtlasRow:
        return AtlasRow(jaxlib=jaxlib, workload=workload, target=target, gpus=8, name=SLOP, value="1", verdict=verdict)

    changes, same = AtlasVerdict.CHANGES, AtlasVerdict.SAME
    assert Guess([], cell, known).acts(COMBINE)  # it changed a test program of the catalogue
    assert not Guess([], cell, known).acts(SLOP)  # it changed none
    assert Guess([], cell, known).acts("jax_optimization_level")  # searched by itself, and not tried
    assert not Guess([row(own, "h100-sxm", same)], cell, known).acts(SLOP)
    assert Guess([row("0.1", "h200", same), row(own, "h100-sxm", changes)], cell, known).acts(SLOP)
    assert not Guess([row(own, "h200", same, workload="moe")], cell, known).acts(SLOP)
    assert Guess([row(own, "h200", same, workload="moe"), row(own, "h200", changes)], cell, known).acts(SLOP)


def test_only_what_is_never_seen_to_act_is_silent() -> None:
    def row(name: str, verdict: AtlasVerdict) -> AtlasRow:
        return AtlasRow(jaxlib="1", name=name, value="1", verdict=verdict)

    rows = [row("a", AtlasVerdict.SAME), row("b", AtlasVerdict.SAME), row("b", AtlasVerdict.FAILS)]
    assert silent_settings(rows) == {"a"}


def test_every_kind_fits_every_count_of_gpus() -> None:
    for cell in planned_cells():
        assert cell.topology.device_count == cell.gpus
        assert cell.study.workload.options["batch"] >= 1
    with pytest.raises(SettingError, match="--kind must be one of dense-fsdp"):
        planned_cells(["dense"])
    with pytest.raises(SettingError, match="--gpus must be a count"):
        planned_cells(["dense-one-gpu"], gpus=[7])
    assert set(load_kinds()) >= {"dense-fsdp", "dense-one-gpu", "tensor-parallel", "pipeline", "moe", "recurrent"}


def test_what_is_said_of_a_setting_that_is_not_compiled_follows_from_its_entry() -> None:
    known = KnownSettings(probe_build(driver_python(), platform="cpu"))
    said = {name: module._of_release(name, known, is_compiled=False)[0] for name in known.catalog}
    for name, verdict in said.items():
        setting = known[name]
        assert setting.entry is not None
        does_nothing = setting.entry.tier is Tier.NOOP or (setting.flag is not None and not setting.flag.sets)
        if verdict is AtlasVerdict.SAME:
            assert does_nothing, name
        elif does_nothing:
            assert verdict in (AtlasVerdict.ELSEWHERE, AtlasVerdict.REJECTED), name
    assert {AtlasVerdict.SAME, AtlasVerdict.UNSETTLED, AtlasVerdict.UNSEEN, AtlasVerdict.ELSEWHERE} <= set(
        said.values()
    )
