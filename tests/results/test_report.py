"""Reports of studies in every state: complete, quick, self-contained, and nothing from a record is markup."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.model.records import FloorResult, IncidentRecord, TrialResult, TrialStatus
from autotune.results import charts
from autotune.results.report import build, render_html, render_markdown
from autotune.rundir.store import Store
from tests.runs import record, replay_study

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
    """The page of a run, which is well formed and loads nothing."""
    page = render_html(store)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.loads == []
    assert "script" not in checker.tags
    assert not re.search(r"url\(|@import|https?://", page)
    return checker


def test_a_finished_study_says_everything(finished: Store) -> None:
    text = checked(finished).text
    for expected in (
        "Finalists, in fresh processes",
        "final proof",
        "the default against itself (noise floor)",
        "Search history",
        "kept: it seems to pay",
        "Importance over all trials",
        "out of memory: ",
        "simulated failure of xla_b=2",
        f"autotune export {finished.path} --format env -o winner.env",
        "export XLA_FLAGS='--xla_a=1 --xla_d=2'",
        f"hash {finished.spec.workload_hash}",
        "a <b>study</b>",
    ):
        assert expected in text
    assert re.search(r"xla_a=1 xla_d=2 is 7\.[89] % faster than the default", text)  # 7.85 %: 0.95 * 0.97


def test_markdown_says_the_same(finished: Store) -> None:
    text = render_markdown(finished)
    assert text.startswith("# replayed\n")
    assert re.search(r"\*\*xla_a=1 xla_d=2 is 7\.[89] % faster than the default", text)
    tables = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    assert len(tables) > 40
    assert "## Failures" in text


def test_an_empty_study(tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    store.close()
    assert "nothing is known yet: it was never started" in checked(store).text
    assert build(store)["state"] == "empty"
    assert "never started" in render_markdown(store)


def test_a_running_study(finished: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, finished.spec, study_dir=tmp_path)
    for r in finished.records()[:8]:
        store.append(r)
    report = build(Store.open(tmp_path))
    assert report["state"] == "running"
    assert "not yet proven" in checked(store).text
    store.close()
    assert build(Store.open(tmp_path))["state"] == "stopped"


def test_a_study_in_which_everything_failed(tmp_path: Path) -> None:
    failures = {f"xla_{n}={v}": "crash" for n in "abcd" for v in "12"}
    store = record(tmp_path, replay_study(failures=failures), trials=7)
    checker = checked(store)
    assert "no setting tried ran to a result" in checker.text
    assert "crash: 7" in checker.text


def test_a_study_whose_reference_never_ran(tmp_path: Path) -> None:
    from autotune.model.errors import LaunchError

    spec = replay_study(failures={"xla_a=1": "crash"}, study={"baseline": {"xla_a": 1}})
    with pytest.raises(LaunchError):
        record(tmp_path, spec, trials=3)
    assert "no trial has ended yet" in checked(Store.open(tmp_path)).text


def test_text_from_records_is_never_markup(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>&\"'|`"
    store = Store.create_or_resume(tmp_path, replay_study(study={"description": evil}), study_dir=tmp_path)
    failure = {"kind": "crash", "message": evil, "phase": "step", "last_lines": [evil], "log": evil}
    fields = {"number": 1, "settings": {"NCCL_X": evil}, "origin": evil, "status": "failed", "failure": failure}
    store.append(TrialResult.model_validate(fields))
    store.append(IncidentRecord(what=evil))
    store.close()
    checker = checked(store)
    assert "img" not in checker.tags
    assert checker.text.count(evil) >= 5
    rows = [line for line in render_markdown(store).splitlines() if line.startswith("| 1 |")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 11


def test_the_command_that_made_a_study_is_shown_as_a_user_types_it(tmp_path: Path) -> None:
    from autotune.model.records import SessionRecord

    store = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    command = ("/usr/bin/autotune", "run", "my study.toml", "--seed", "7")
    store.append(SessionRecord(started="2026-11-21T01:02:03+00:00", pid=1, host="h", asked_trials=3, command=command))
    store.close()
    assert "autotune run 'my study.toml' --seed 7   # made this, on 2026-11-21" in build(store)["commands"]


def test_what_the_machine_did_meanwhile_is_said_before_the_figures(finished: Store, tmp_path: Path) -> None:
    store = Store.create_or_resume(tmp_path, finished.spec, study_dir=tmp_path)
    measured = next(r for r in finished.of(TrialResult) if r.status is TrialStatus.MEASURED)
    assert measured.comparison is not None
    warned = {"warnings": ("GPU 3 was held back by heat in 2 of 5 looks",)}
    store.append(measured.model_copy(update={"comparison": measured.comparison.model_copy(update=warned)}))
    store.close()
    assert f"trial {measured.number}: GPU 3 was held back by heat in 2 of 5 looks" in build(store)["warnings"]


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
    assert f"{trials - 300} more in records.jsonl" in page
    assert len(set(re.findall(r"<title>trial (\d+):", page))) == trials


def test_outlooks_have_shapes_of_their_own() -> None:
    rows = [
        charts.Mark(label=s, detail=s, x=1.0 + i / 100, x_ends=(0.9, 1.1), style=s)
        for i, s in enumerate(("promising", "unpromising", "same"))
    ]
    svg = charts.forest(rows, band=0.005)
    assert re.search(r'<circle class="mark promising"', svg)
    assert re.search(r'<rect class="mark unpromising"', svg)


def test_forest_axis_is_logarithmic_and_labelled() -> None:
    rows = [charts.Mark(label="x", detail="x", x=1.0, x_ends=(0.5, 2.0), style="same")]
    svg = charts.forest(rows, band=0.005)
    bar = re.search(r'class="bar same" d="M([\d.]+) [\d.]+L([\d.]+)', svg)
    mark = re.search(r'cx="([\d.]+)"', svg)
    assert bar is not None
    assert mark is not None
    # 1 lies in the middle of 1/2 and 2.
    assert float(mark[1]) == pytest.approx((float(bar[1]) + float(bar[2])) / 2, abs=0.2)


def test_unbounded_intervals_are_drawn_to_the_edge() -> None:
    rows = [
        charts.Mark(label="a", detail="a", x=0.9, x_ends=(0.0, float("inf")), style="open"),
        charts.Mark(label="b", detail="b", x=1.0, x_ends=(0.99, 1.01), style="same"),
    ]
    svg = charts.forest(rows, band=0.005)
    assert "nan" not in svg
    assert "inf" not in svg


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 360])
def test_the_page_in_a_browser_is_no_wider_than_its_window(finished: Store, tmp_path: Path, width: int) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    # The probe writes what it sees into the page that --dump-dom prints.
    probe = (
        "<script>document.title = JSON.stringify([document.documentElement.scrollWidth, innerWidth,"
        " getComputedStyle(document.body).backgroundColor])</script></body>"
    )
    page = tmp_path / "page.html"
    page.write_text(render_html(finished).replace("</body>", probe), encoding="utf-8")
    # Headless windows have a least width: the phone is a frame of its own.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="page.html" width="{width}" height="800" style="border:0"'
        ' onload="document.title = this.contentDocument.title"></iframe>'
    )
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=5000"
    command = [chromium, *flags.split(), *more.split(), f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=100, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    scroll_width, inner_width, background = json.loads(title[1])
    assert inner_width == width
    assert scroll_width <= inner_width
    assert background.startswith("rgb(")


def test_every_stage_name_of_a_run_is_known(finished: Store) -> None:
    stages = {f["stage"] for f in build(finished)["finalists"]}
    assert stages == {"fresh processes", "final proof", "its gain, measured once more", "each arm alone"}


def test_soak_causes_and_slow_nodes_are_shown(tmp_path: Path) -> None:
    spec = replay_study(effects={"xla_a=1": 0.9}, failures={"xla_b=2": "crash"})
    store = record(tmp_path / "r", spec, trials=20)
    # A second lane, on a machine whose reference is a tenth slower.
    floor = store.of(FloorResult)[0]
    slow_s = 1.1 * floor.comparison.reference_step_s
    slow = floor.model_copy(
        update={"by": "n2", "comparison": floor.comparison.model_copy(update={"reference_step_s": slow_s})}
    )
    third = floor.model_copy(update={"by": "n3"})
    (store.path / "records").mkdir()
    lines = "".join(f.model_dump_json(exclude_none=True) + "\n" for f in (floor.model_copy(update={"by": "n1"}), third))
    (store.path / "records" / "n1.jsonl").write_text(lines)
    (store.path / "records" / "n2.jsonl").write_text(slow.model_dump_json(exclude_none=True) + "\n")
    store = Store.open(store.path)
    report = build(store)
    assert [(n["lane"], n[""]) for n in report["nodes"]] == [("n2", "slow"), ("n1", ""), ("n3", "")]
    assert any(re.search(r"\d+ steps in 6\d s without a fault", line) for line in report["soak"])
    assert any("the cause of the crash is xla_b=2 (" in line for line in report["causes"])
    for page in (render_html(store), render_markdown(store)):
        assert "soak of xla_a=1" in page
        assert "the cause of the crash is xla_b=2" in page
        assert "<h2>The default on each lane</h2>" in page or "## The default on each lane" in page


def test_a_label_that_is_too_long_is_cut_to_its_limit() -> None:
    assert charts._cut("x" * 20, 20) == "x" * 20
    assert charts._cut("x" * 21, 20) == "x" * 19 + "…"
