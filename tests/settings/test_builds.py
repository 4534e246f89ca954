"""What the catalogue says of builds, held to the builds: releases, live help texts, lines of the source."""

from __future__ import annotations

import difflib
import re
from types import ModuleType
from typing import Any

import pytest

from autotune.settings.catalog import NEVER_SEARCHED, Catalog, Setting, Tier, load_catalog, read_asked
from autotune.settings.known import UNSET, KnownSettings
from autotune.settings.probe import FlagInfo, ParserProcess, ProbeReport
from tests.settings.conftest import docs_script, doctored, searched, space_of
from tests.tables import toml_beside

CASES = toml_beside(__file__)

LINE = re.compile(r"(xla|src|plugins|transformer_engine|include)/[\w/-]+\.\w+:[1-9]\d*(@[0-9a-f]{12})?")
# None of these say what a setting does.
EMPTY_WORDS = ("not yet described", "nobody described", "known to the build", "todo")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return docs_script("ask_builds")


def test_a_release_adds_what_it_has_and_marks_what_it_lacks(script: ModuleType) -> None:
    def flags(**defaults: str | None) -> dict[str, FlagInfo]:
        return {name: FlagInfo(name=name, type="string", default=default) for name, default in defaults.items()}

    settings: dict[str, dict[str, Any]] = {}
    script.add_release(settings, "1", flags(stays="x", goes="x"))
    script.add_release(settings, "2", flags(stays="y", comes=None))
    script.add_release(settings, "3", flags(stays="y", comes=None, goes="x"))
    assert settings == {
        "stays": {"since": "1", "stage": "runtime", "type": "string", "default": {"": "x", "2": "y"}},
        "goes": {"since": "3", "stage": "runtime", "type": "string", "default": "x"},
        "comes": {"since": "2", "stage": "runtime", "type": "string", "default": UNSET},
    }
    script.add_release(settings, "4", {})
    assert {entry["removed"] for entry in settings.values()} == {"4"}


def test_asking_the_newest_release_again_changes_nothing(script: ModuleType, report: ProbeReport) -> None:
    asked = read_asked("xla")
    if report.jaxlib != asked["releases"][-1]:
        pytest.skip(f"jaxlib {report.jaxlib} is not the newest that was asked")
    script.add_release(asked["settings"], report.jaxlib, report.flags)
    assert asked == read_asked("xla")


def test_the_source_of_a_flag_is_found_with_its_help_text(script: ModuleType) -> None:
    source = CASES["xla_source"]
    for name, line, text in CASES["xla_flags"]:
        assert (script.defining_line(source, name), script.help_text(source, name)) == (line, text)


def undescribed(catalog: Catalog) -> list[str]:
    """Judged settings without a meaning, and settings with a line of a source that is none."""
    wrong = []
    for setting in catalog.values():
        words = setting.summary.lower()
        is_empty = any(empty in words for empty in EMPTY_WORDS) or len(words.split()) < 4
        if is_empty and setting.tier is not Tier.LISTED:
            wrong.append(f"{setting.name}: {setting.summary!r}")
        elif setting.source_line and not LINE.fullmatch(setting.source_line):
            wrong.append(f"{setting.name}: source_line {setting.source_line!r}")
    return wrong


def test_every_setting_is_described_from_a_source() -> None:
    catalog = load_catalog()
    assert undescribed(catalog) == []
    assert re.fullmatch("[0-9a-f]{40}", catalog.sources["xla"].commit)


@pytest.mark.parametrize("change", CASES["without_meaning"])
def test_a_setting_without_a_meaning_is_found(change: dict[str, str]) -> None:
    name = "xla_gpu_autotune_level"
    assert [w.partition(":")[0] for w in undescribed(doctored(name, change))] == [name]


def test_a_source_line_is_a_link() -> None:
    xla = load_catalog().sources["xla"]
    assert xla.link("xla/xla.proto:7") == f"https://github.com/openxla/xla/blob/{xla.commit}/xla/xla.proto#L7"
    assert xla.link("xla/a.cc:7@0123456789ab") == "https://github.com/openxla/xla/blob/0123456789ab/xla/a.cc#L7"


def test_no_written_summary_is_the_library_s_own_sentence(parser: ParserProcess) -> None:
    log = parser.ask("--help").log
    usage = r"^\t--(\w+)=(?:\".*?\"|\S*)\s*\t\w+\t(.*?)(?=\n\t--\w+=|\Z)"
    texts = {name: " ".join(text.split()) for name, text in re.findall(usage, log, re.MULTILINE | re.DOTALL)}
    assert len(texts) > 60

    def likeness(setting: Setting) -> float:
        return difflib.SequenceMatcher(None, texts.get(setting.name, "").lower(), setting.summary.lower()).ratio()

    copied = {name for name, keys in read_asked("xla")["settings"].items() if "summary" in keys}
    assert {s.name: s.summary for s in load_catalog().values() if likeness(s) > 0.8 and s.name not in copied} == {}


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
