"""What is compared, what is refused, and what is said of the rest."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import autotune
from autotune.model.errors import NotComparableError, RunDirectoryError
from autotune.results.charts import Mark, panels
from autotune.results.comparison import FIELDS, compare_stores
from autotune.rundir.store import Store
from tests.runs import EFFECTS, record, replay_study

Alter = Callable[..., Path]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same study after an upgrade: `xla_a=1` does nothing to the program now, `xla_d=2` still pays."""
    spec = replay_study(
        effects={"xla_d=2": EFFECTS["xla_d=2"], "xla_b=1": EFFECTS["xla_b=1"]},
        inert=["xla_a=1", "xla_c=1"],
        failures={"xla_b=2": "out_of_memory"},
        noise={"white_sd": 1e-6},
        study={"baseline": {"NCCL_DEBUG": "WARN"}},
    )
    return record(tmp_path_factory.mktemp("runs") / "newer", spec, trials=30)


def test_versions_side_by_side(finished: Store, newer: Store, altered: Alter) -> None:
    new = Store.open(altered(newer, "after", versions={"jaxlib": "0.10.0"}))
    old = Store.open(altered(finished, "before", versions={"jaxlib": "0.9.2"}))
    table = compare_stores([new, old], by=["jaxlib"])
    # 0.9 comes before 0.10.
    assert list(table.frame["study"]) == ["before", "after"]
    assert list(table.frame["jaxlib"]) == ["0.9.2", "0.10.0"]
    assert list(table.frame["winner"]) == ["xla_a=1 xla_d=2", "xla_d=2"]
    assert table.frame["ratio"].to_list() == pytest.approx([0.95 * 0.97, 0.97], abs=1e-3)
    assert "jaxlib" not in table.same
    assert table.same["workload"] == "llama"
    assert table.settings.loc["xla_d=2", "agreement"] == "agree"
    assert table.settings.loc["xla_a=1", "agreement"] == "differ"
    assert table.settings.loc["xla_a=1", "after"] == "no-op"
    assert table.settings.loc["xla_b=2", "agreement"] == "agree"
    assert any(c.startswith("xla_a=1: in the winner 0.950") and c.endswith("no-op with 0.10.0") for c in table.changes)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("gpu", {"device_kind": "NVIDIA H200"}),
        ("count", {"device_count": 7}),
        ("count", {"process_count": 2}),
        ("mesh", {"mesh": {"fsdp": 8}}),
        ("jaxlib", {"versions": {"jaxlib": "9.9.9"}}),
        ("workload", {"study": {"workload": {"entry": "moe"}}}),
        ("workload", {"study": {"workload": {"entry": "llama", "options": {"seq": 7}}}}),
    ],
)
def test_a_difference_is_refused_by_name_unless_it_is_the_axis(
    finished: Store, altered: Alter, field: str, change: dict[str, object]
) -> None:
    other = Store.open(altered(finished, "other", **change))
    with pytest.raises(
        NotComparableError, match=rf"must have the same {field} but .* make it the axis with --by {field}"
    ):
        compare_stores([finished, other])
    table = compare_stores([finished, other], by=[field])
    assert len(table.frame) == 2
    assert field in table.frame.columns


def test_another_schema_is_refused(finished: Store, altered: Alter) -> None:
    path = altered(finished, "later")
    data = json.loads((path / "study.json").read_text())
    (path / "study.json").write_text(json.dumps({**data, "schema_version": 99}))
    with pytest.raises(RunDirectoryError, match="must be of schema 2 but is of 99"):
        autotune.compare([finished.path, path])


def test_too_few_unknown_axis_twice_and_unmeasured_are_refused(finished: Store, tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="at least two runs but got 1"):
        compare_stores([finished])
    with pytest.raises(NotComparableError, match="did you mean `jaxlib`"):
        compare_stores([finished, finished], by=["jaxlb"])
    with pytest.raises(NotComparableError, match="given twice"):
        compare_stores([finished, Store.open(finished.path)])
    empty = Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path)
    empty.close()
    with pytest.raises(NotComparableError, match="must have measured its reference"):
        compare_stores([finished, empty])


def test_all_forms_hold_the_same(finished: Store, altered: Alter) -> None:
    other = Store.open(altered(finished, "other|<i>"[:5], device_kind="<i>GPU</i>|"))
    table = compare_stores([finished, other], by=["gpu"])
    data = json.loads(json.dumps(table.to_json()))
    assert [s["study"] for s in data["studies"]] == list(table.frame["study"])
    assert {s["setting"] for s in data["settings"]} == set(table.settings.index)
    assert "&lt;i&gt;GPU&lt;/i&gt;|" in table.to_html()
    assert "<i>" not in table.to_html()
    text = table.to_markdown()
    assert "&lt;i>GPU&lt;/i>\\|" in text
    head = next(line for line in text.splitlines() if line.startswith("| study"))
    rule, first = text.splitlines()[text.splitlines().index(head) + 1 :][:2]
    assert head.count("|") == rule.count("|") == first.replace("\\|", "").count("|")


def test_every_field_is_known_of_every_run(finished: Store) -> None:
    from autotune.results.comparison import _facts

    assert set(_facts(finished)) == set(FIELDS)


EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_the_chart_has_each_setting_that_has_a_ratio_in_each_study(
    finished: Store, newer: Store, altered: Alter
) -> None:
    old = Store.open(altered(finished, "before", versions={"jaxlib": "0.9.2"}))
    new = Store.open(altered(newer, "after", versions={"jaxlib": "0.10.0"}))
    chart = compare_stores([old, new], by=["jaxlib"]).effects
    for svg in (chart.svg, chart.narrow):
        titles = [f"{s}" for s in re.findall(r"<title>(.*?)</title>", svg)]
        assert len(titles) == 2 * len(set(re.findall(r"xla_\w=\d", " ".join(titles))))
        assert any(title.startswith("xla_a=1: in the winner 0.950") for title in titles)
        assert "xla_a=1: no-op (same program)" in titles
        assert "b=2" not in svg  # it fails in both: no ratio anywhere, so the table alone has it
        assert ">a=1</text>" in svg
        assert svg.count('class="band"') == (2 if svg is chart.svg else 1)
        for number in re.findall(r'(?:x|cx|width)="(-?[\d.]+)"', svg):  # nothing is drawn beside the picture
            assert 0 <= float(number) <= float(re.search(r'viewBox="0 0 (\d+)', svg)[1])  # type: ignore[index]


def test_panels_share_rows_and_axis() -> None:
    one, other = (Mark(x=x, x_ends=(x - 0.01, x + 0.01), detail=f"{x}", style="good") for x in (0.8, 0.9))
    svg = panels(["a", "b"], [("A", [one, "no-op"]), ("B", [one, other])], band=0.01, description="d")
    at = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    (a, row), (b, same_row), (c, next_row) = at
    assert row == same_row < next_row
    units = [float(x) for x in re.findall(r'class="unit" d="M([\d.]+)', svg)]
    assert a - units[0] == pytest.approx(b - units[1], abs=0.2)
    assert a < units[0]
    assert b < c < units[1]
    assert "<title>A: b: no-op</title>" in svg
    assert panels([], [("A", [])], band=0.01, description="d") == ""


def test_hostile_names_are_text_on_the_page(finished: Store, altered: Alter) -> None:
    evil = Store.open(altered(finished, "evil", device_kind=EVIL))
    table = compare_stores([finished, evil], by=["gpu"])
    page = table.to_html()
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    drawn = panels(
        [EVIL], [(EVIL, [EVIL]), (EVIL, [Mark(x=1.0, detail=EVIL, style="good")])], band=0.1, description=EVIL
    )
    assert "<img" not in drawn
    assert "<script" not in drawn


def test_the_page_runs_its_own_script_and_loads_nothing(finished: Store, altered: Alter) -> None:
    page = compare_stores([finished, Store.open(altered(finished, "other", device_count=7))], by=["count"]).to_html()
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert not re.findall(r"(?:src|href)=|url\(|fetch\(", page)


@pytest.mark.slow
def test_in_a_browser_its_tables_sort(finished: Store, altered: Alter, tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    page = compare_stores([finished, Store.open(altered(finished, "other", device_count=7))], by=["count"]).to_html()
    (tmp_path / "page.html").write_text(page)
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --dump-dom"
    command = ["chromium", *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    assert '<th class="sorts"' in done.stdout
    assert 'class="filter"' in done.stdout
