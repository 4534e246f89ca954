"""Reports of studies in every state: complete, quick, self-contained, and nothing from a record is markup."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autotune.model.errors import LaunchError
from autotune.model.records import AaRecord, EffectsRecord, PairEffect, SessionRecord, TrialResult
from autotune.results import api, pages
from autotune.results.api import load
from autotune.results.effects import effect_lines, study_tables
from autotune.results.format import format_aa_run
from autotune.results.report import build, render_html, render_markdown
from autotune.rundir.store import Store
from tests.console import autotune
from tests.machine.test_energy import metered_run
from tests.runs import record, replay_study, there
from tests.tables import toml_beside

VOID = {"meta", "br", "img", "input", "link", "hr"}


class Checker(html.parser.HTMLParser):
    """Sees that tags are closed, and gathers what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(store: Store) -> Checker:
    """The page of a run, which is well formed, loads nothing, and has a place for each entry of its contents."""
    page = render_html(store)
    checker = check(page)
    assert {link.removeprefix("#") for link in checker.loads} == set(re.findall(r'<section id="(\w+)"', page))
    return checker


def check(page: str) -> Checker:
    """A page that is well formed and loads nothing; its links are in `loads`."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert "script" not in checker.tags
    assert not re.search(r"url\(|@import|https?://", page)
    return checker


def test_a_finished_study_says_everything_on_its_page(finished: Store) -> None:
    text = checked(finished).text
    for expected in toml_beside(__file__)["finished_page"]:
        assert expected.format(path=finished.path, workload=finished.spec.workload_hash) in text
    report = build(finished)
    assert re.match(r"This set of 2 settings beats .* 7\.[89] % less", report["verdict"])
    assert report["winner"] == ["xla_a=1", "xla_d=2"]
    assert report["verdict"] in text
    stages = {f["stage"] for f in report["finalists"]}
    assert stages == {"fresh processes", "isolated runs"}


def test_an_empty_study(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    store.close()
    assert "never started" in checked(store).text
    assert build(store)["state"] == "empty"
    assert "never started" in render_markdown(store)


@pytest.fixture
def without_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may be written whose raw pairs lie in another run."""
    monkeypatch.setattr("autotune.rundir.store.lost_pairs", lambda store, record: "")


@pytest.mark.usefixtures("without_pairs")
def test_a_running_study(finished: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, finished.spec, study_dir=tmp_path)
    for r in finished.records()[:8]:
        store.append(r)
    report = build(Store.open(tmp_path))
    assert report["state"] == "running"
    assert "yet proven" in checked(store).text
    store.close()
    assert build(Store.open(tmp_path))["state"] == "stopped"


def test_a_study_in_which_everything_failed(tmp_path: Path) -> None:
    failures = {f"xla_{n}={v}": "crash" for n in "abcd" for v in "12"}
    store = record(tmp_path, replay_study(failures=failures), trials=7)
    checker = checked(store)
    assert "to a result" in checker.text
    assert "crash: 7" in checker.text


def test_a_study_whose_reference_never_ran(tmp_path: Path) -> None:
    spec = replay_study(failures={"xla_a=1": "crash"}, study={"baseline": {"xla_a": 1}})
    with pytest.raises(LaunchError):
        record(tmp_path, spec, trials=3)
    assert "no trial" in checked(Store.open(tmp_path)).text


def test_the_command_that_made_a_study_is_shown_as_a_user_types_it(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    command = ("/usr/bin/autotune", "run", "my study.toml", "--seed", "7")
    made = {"identity": "x", "started": "2026-11-21T01:02:03+00:00", "pid": 1, "host": "h", "asked_trials": 3}
    store.append(SessionRecord(**made, command=command))
    failure = {"kind": "crash", "message": "m", "phase": "step"}
    failed = {"number": 1, "settings": {"NCCL_X": "1"}, "origin": "x", "status": "failed", "failure": failure}
    store.append(TrialResult.model_validate(failed))
    store.close()
    assert build(store)["commands"] == ["autotune run 'my study.toml' --seed 7   # goes on"]
    assert build(store)["verdict"].rpartition(": ")[0].endswith(" 1 of 3 trials")


@pytest.mark.usefixtures("without_pairs")
def test_what_the_machine_did_meanwhile_is_said_before_the_figures(finished: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, finished.spec, study_dir=tmp_path)
    measured = next(r for r in finished.of(TrialResult) if r.status == "measured")
    warned = {"warnings": ("GPU 3 was held back by heat in 2 of 5 looks",)}
    store.append(measured.model_copy(update={"comparison": there(measured.comparison).model_copy(update=warned)}))
    store.close()
    assert any(w.startswith(f"trial {measured.number}: GPU 3 ") and "2 of 5" in w for w in build(store)["warnings"])


def big_study(folder: Path, source: Store, trials: int) -> Store:
    """A run with many trials, each with its own folder of raw pairs, from one that was recorded."""
    store = Store.create_or_resume(folder, source.spec, study_dir=folder)
    kept = [r for r in source.records() if not isinstance(r, TrialResult)]
    results = source.of(TrialResult)
    lines = [r.model_dump_json(exclude_none=True) for r in kept[:2]]
    for number in range(1, trials + 1):
        r = results[number % len(results)]
        more = {"number": number, "settings": r.settings.merge({f"xla_s{number % 37}": number % 3, "xla_n": number})}
        lines.append(r.model_copy(update=more).model_dump_json(exclude_none=True))
    lines += [r.model_dump_json(exclude_none=True) for r in kept[2:]]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    store.close()
    return Store.open(folder)


@pytest.mark.parametrize("trials", [400, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_trials_stay_one_readable_page(finished: Store, tmp_path: Path, trials: int) -> None:
    page = render_html(big_study(tmp_path, finished, trials))
    assert len(page) < 2_000_000
    assert f"{trials - 300} more in" in page
    assert len(set(re.findall(r"<title>trial (\d+):", page))) > trials / 2  # those that did not fail


def test_a_chart_fits_any_width_and_unbounded_intervals_go_to_its_edge(finished: Store) -> None:
    rows = [
        pages.Mark(label="a", detail="a", x=0.9, x_ends=(0.0, float("inf")), style="open"),
        pages.Mark(label="b", detail="b", x=1.0, x_ends=(0.99, 1.01), style="same"),
    ]
    svg = pages.forest(rows, band=0.005)
    assert "nan" not in svg
    assert "inf" not in svg
    # Positions along the x axis are shares of the width: text keeps its size on a phone.
    for chart in (load(finished.path).plot.forest(), load(finished.path).plot.steps()):
        root, *parts = ElementTree.fromstring(chart.svg).iter()
        assert "viewBox" not in root.attrib
        drawn = [part for part in parts if part.tag in ("line", "rect", "circle", "text", "svg")]
        assert len(drawn) > 10
        assert all(part.get(x, "0%").endswith("%") for part in drawn for x in ("x", "x1", "x2", "cx"))


@pytest.mark.parametrize("least", [0.95, 0.3, 0.045, 0.0005])
def test_ratios_on_an_axis_of_any_range_have_room_for_their_labels(least: float) -> None:
    """On a phone 0.6, 0.8 and 1.0 of an axis from 0.04 lay upon each other."""
    mark = pages.Mark(label="a", detail="a", x=least, style="good", x_ends=(float("nan"), float("nan")))
    svg = pages.forest([mark], band=0.005)
    at = [float(x) for x in re.findall(r'class="tick" x="([\d.]+)%"', svg)]
    assert 3 <= len(at) <= 8
    assert min(b - a for a, b in itertools.pairwise(at)) > 8  # per cent of 390 pixels


def test_soak_and_causes_are_shown(tmp_path: Path) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, failures={"xla_b=2": "crash"})
    store = record(tmp_path / "r", spec, trials=20)
    report = build(store)
    assert any(re.search(r"\d+ steps in 6\d s ", line) for line in report["soak"])
    assert any("(crash): xla_b=2 (" in line for line in report["causes"])
    for page in (render_html(store), render_markdown(store)):
        assert "soak of xla_a=1" in page
        assert "(crash): xla_b=2" in page


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished study with energy; xla_a=1 draws twice the power in nine tenths of the time."""
    return metered_run(tmp_path_factory.mktemp("metered") / "run", mode="interleaved", effects={"xla_a=1": 0.9})


def terminal(store: Store) -> str:
    tables = study_tables(store)
    return "\n".join("\t".join([title, *row, *row.values()]) for title, rows in tables.items() for row in rows)


def test_energy_stands_in_every_view(metered: Store) -> None:
    aa_run = there(metered.last(AaRecord))
    assert "energy: 3 J" in str(format_aa_run(aa_run, None))
    costly = next(r for r in metered.of(TrialResult) if r.settings.get("xla_a") == "1" and r.comparison)
    assert "energy: 5.4 J a step" in autotune("show", metered.path, str(costly.number)).stdout
    page, text = render_html(metered), render_markdown(metered)
    assert "<th>energy</th>" in page
    assert "- energy: 3 J" in text
    assert "| memory | energy |" in text
    frame = api.load(metered.path).trials
    row = frame[frame["trial"] == costly.number].iloc[0]
    assert row["step_j"] == pytest.approx(5.4, rel=0.01)


def test_where_energy_is_not_known_nothing_speaks_of_it(finished: Store) -> None:
    assert "nergy" not in terminal(finished)
    assert "nergy" not in render_html(finished)
    assert "nergy" not in render_markdown(finished)
    assert api.load(finished.path).trials["step_j"].isna().all()


def test_aba_runs_are_told_from_pairs(metered: Store, tmp_path: Path) -> None:
    alone = metered_run(tmp_path / "run", mode="aba", effects={"xla_a=1": 0.9})
    aa_run = there(alone.last(AaRecord))
    assert any("ABA runs" in line for line in format_aa_run(aa_run, None))
    assert "3 ABA runs" in terminal(alone)
    assert "ABA" not in terminal(metered)
    measured = {row["over"] for row in build(alone)["trials"]}
    assert "3 ABA runs" in measured
    assert all(not m or m.endswith(" pairs") for m in {row["over"] for row in build(metered)["trials"]})
    assert any("ABA runs" in w for w in build(alone)["warnings"])
    assert set(api.load(alone.path).trials["mode"].dropna()) == {"aba"}


SMALL = Path(__file__).parents[1] / "rundir" / "small"


def test_what_trials_taught_stands_in_every_view_and_in_frame_and_chart(finished: Store) -> None:
    html, markdown, shown = render_html(finished), render_markdown(finished), terminal(finished)
    for view in (html, markdown, shown):
        assert "(model, unverified)" in view
    for line in effect_lines(finished):
        assert line.replace("<", "&lt;").replace(">", "&gt;") in html
    assert any("(unverified): xla_a=1 xla_d=2" in line for line in effect_lines(finished))
    assert 'aria-label="effects of settings"' in html
    study, record = load(finished.path), finished.last(EffectsRecord)
    frame = study.estimated_effects()
    tried = {(s.name, v.value) for s in there(record).settings for v in s.values}
    assert set(zip(frame.setting, frame.value, strict=True)) == tried
    row = frame[(frame.setting == "xla_a") & (frame.value == "1")].iloc[0]
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


def test_settings_that_act_together_are_named(finished: Store, tmp_path: Path) -> None:
    pairs = (PairEffect(names=("xla_a", "xla_b"), chance=0.3),)
    store = Store.create_or_resume(tmp_path / "run", finished.spec, study_dir=tmp_path)
    store.append(there(finished.last(EffectsRecord)).model_copy(update={"pairs": pairs}))
    store.close()
    assert any("xla_a and xla_b (30 %)" in line for line in effect_lines(store))
