"""What the catalogue says of builds, held to the builds: releases, live help texts, lines of the source."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from autotune.settings.catalog import NEVER_SEARCHED, Catalog, Setting, Tier, load_catalog, older
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport
from tests.settings.conftest import docs_script, doctored, searched, space_of
from tests.tables import toml_beside

CASES = toml_beside(__file__)

TABLE = Path(__file__).with_name("flags_by_build.json")
LINE = re.compile(r"(xla|src|plugins|transformer_engine|include)/[\w/-]+\.\w+:[1-9]\d*(@[0-9a-f]{12})?")
# None of these say what a setting does.
EMPTY_WORDS = ("not yet described", "known to the build", "todo")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return docs_script("ask_builds")


@pytest.fixture(scope="module")
def builds() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    names: set[str] = set()
    for version, change in json.loads(TABLE.read_text("utf-8")).items():
        assert not names & {*change["new"]}, version
        assert names >= {*change["gone"]}, version
        names = (names - {*change["gone"]}) | {*change["new"]}
        found[version] = names
    return found


def wrong_lives(catalog: Catalog, builds: Mapping[str, set[str]]) -> list[str]:
    """XLA flags of which the catalogue says that a build has, or lacks, what the build says otherwise."""
    wrong = []
    for setting in catalog.values():
        if setting.kind != "xla":
            continue
        there: list[str] = []  # the last unbroken row of builds: one that went and came back is told from its return on
        for before, now in itertools.pairwise(["", *builds]):
            if setting.name in builds[now]:
                there = [*there, now] if before and setting.name in builds[before] else [now]
        told = [v for v in builds if _has(setting, v)]
        if told != there:
            wrong.append(f"{setting.name}: told {told}, asked {there}")
    return wrong


def _has(setting: Setting, version: str) -> bool:
    has_come = not setting.since or not older(version, setting.since)
    return has_come and not (setting.removed and not older(version, setting.removed))


def test_since_and_removed_are_what_thirteen_builds_say(builds: Mapping[str, set[str]]) -> None:
    assert next(iter(builds)) == "0.4.18"
    assert {"0.5.3", "0.10.2", "0.11.2", "0.12.0.1"} <= {*builds}
    assert wrong_lives(load_catalog(), builds) == []


@pytest.mark.parametrize(("name", "change"), CASES["wrong_lives"])
def test_a_wrong_since_or_removed_is_found(builds: Mapping[str, set[str]], name: str, change: dict[str, str]) -> None:
    assert [w.partition(":")[0] for w in wrong_lives(doctored(name, change), builds)] == [name]


def test_the_table_has_of_this_build_what_the_build_has(builds: Mapping[str, set[str]], report: ProbeReport) -> None:
    if report.jaxlib not in builds:
        pytest.skip(f"jaxlib {report.jaxlib} was not asked; docs/ask_builds.py does it")
    assert builds[report.jaxlib] == {*report.flags}


def test_the_script_finds_the_same_lives(script: ModuleType, builds: Mapping[str, set[str]]) -> None:
    assert script.read_table() == builds
    for setting in load_catalog().values():
        if setting.kind == "xla":
            assert script.life(setting.name, builds) == (setting.since, setting.removed), setting.name
    came_back = {"1": {"a"}, "2": set(), "3": {"a"}, "4": set()}
    assert script.life("a", came_back) == ("3", "4")
    assert script.life("b", came_back) == ("", "1")


def undescribed(catalog: Catalog) -> list[str]:
    """Settings without a meaning, or XLA flags without the place that it was taken from."""
    wrong = []
    for setting in catalog.values():
        words = setting.summary.lower()
        if any(empty in words for empty in EMPTY_WORDS) or len(words.split()) < 4:
            wrong.append(f"{setting.name}: {setting.summary!r}")
        elif setting.kind == "xla" and not setting.source_line and "xla-help" not in setting.sources:
            wrong.append(f"{setting.name}: no source_line")
        elif setting.source_line and not LINE.fullmatch(setting.source_line):
            wrong.append(f"{setting.name}: source_line {setting.source_line!r}")
    return wrong


def test_every_setting_is_described_from_a_source() -> None:
    catalog = load_catalog()
    assert undescribed(catalog) == []
    assert re.fullmatch("[0-9a-f]{40}", catalog.sources["xla"].commit)
    assert not [s.name for s in catalog.values() if s.tier is Tier.LISTED and s.summary.endswith("described.")]


@pytest.mark.parametrize("change", CASES["without_meaning"])
def test_a_setting_without_a_meaning_is_found(change: dict[str, str]) -> None:
    name = "xla_gpu_autotune_level"
    assert [w.partition(":")[0] for w in undescribed(doctored(name, change))] == [name]


def test_a_source_line_is_a_link() -> None:
    xla = load_catalog().sources["xla"]
    assert xla.link("xla/xla.proto:7") == f"https://github.com/openxla/xla/blob/{xla.commit}/xla/xla.proto#L7"
    assert xla.link("xla/a.cc:7@0123456789ab") == "https://github.com/openxla/xla/blob/0123456789ab/xla/a.cc#L7"


def test_no_summary_is_the_library_s_own_sentence(parser: ParserProcess) -> None:
    log = parser.ask("--help").log
    usage = r"^\t--(\w+)=(?:\".*?\"|\S*)\s*\t\w+\t(.*?)(?=\n\t--\w+=|\Z)"
    texts = {name: " ".join(text.split()) for name, text in re.findall(usage, log, re.MULTILINE | re.DOTALL)}
    assert len(texts) > 60

    def likeness(setting: Setting) -> float:
        return difflib.SequenceMatcher(None, texts.get(setting.name, "").lower(), setting.summary.lower()).ratio()

    assert {s.name: s.summary for s in load_catalog().values() if likeness(s) > 0.8} == {}


def test_what_acts_on_tpus_or_amd_gpus_is_catalogued_and_never_searched(known: KnownSettings) -> None:
    catalog = load_catalog()
    elsewhere = {s.name: s.platform for s in catalog.values() if s.platform not in ("any", "cpu", "cuda")}
    assert {n for n in catalog if "tpu_" in n.lower() or "_rocm_" in n} <= {*elsewhere}
    assert {*elsewhere.values()} == {*NEVER_SEARCHED}
    for platform in ("cpu", "cuda"):
        space = space_of(known, device={"platform": platform}, search={"groups": list(catalog.groups)})
        assert not searched(space) & {*elsewhere}
        told = {n: r for n, r in space.left_out.items() if n in elsewhere}
        assert told.keys() >= {"xla_gpu_experimental_use_ragged_dot_grouped_gemm"}
        assert {*told.values()} <= {*NEVER_SEARCHED.values()}
