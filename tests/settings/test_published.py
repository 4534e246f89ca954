"""Published effects: what the file may hold, which ideas they give, and what is expected of them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.spec import load_study
from autotune.settings import published
from autotune.settings.catalog import Scope, load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.published import EXPOSED, Here, PublishedEffect, format_effects, load_effects, with_published
from autotune.settings.space import SearchSpace
from autotune.study.preflight import space_here
from tests.settings.conftest import ROOT, space_of

NODE: dict[str, Any] = {"device_count": 8, "mesh": {"fsdp": 8}}
HOPPER = {Scope.NVLINK: True, Scope.NVLS: True, Scope.HOPPER: True, Scope.BLACKWELL: False}
GROUPS = ["nccl", "user_buffers", "async", "combining", "pipelining", "command_buffer", "scheduling"]
PROTOCOL, SYMMETRIC = "NCCL_PROTO", "xla_gpu_experimental_enable_nccl_symmetric_buffers"
LIKE = {"ratio": 0.9, "generation": "hopper", "gpus": 8, "source": "made up"}


def node(known: KnownSettings, machines: Mapping[Scope, bool] = HOPPER) -> SearchSpace:
    space = space_of(known, NODE, machines=machines, search={"groups": GROUPS})
    return with_published(space, known, machines, Here(gpus=8))


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> None:
    effects = tuple(PublishedEffect(**{**LIKE, **row}) for row in rows)
    monkeypatch.setattr(published, "load_effects", lambda: effects)


def test_the_file_names_settings_of_the_catalogue_and_figures_that_can_be() -> None:
    catalog, effects = load_catalog(), load_effects()
    measured = [e for e in effects if e.ratio is not None]
    assert len(measured) >= 60
    assert len({e.source for e in measured}) >= 15
    assert any(e.ratio > 1 for e in measured if e.ratio)
    for effect in effects:
        assert effect.source
        assert set(effect.settings) <= set(catalog), effect
        assert effect.of in EXPOSED
        assert effect.generation in ("", "hopper", "blackwell")
        assert effect.ratio is None or effect.ratio > 0


def test_the_first_trials_are_the_largest_gains_that_are_expected(known: KnownSettings) -> None:
    space = node(known)
    expected = {e.settings: e for e in space.expected}
    gains = [expected[settings] for _, settings in space.first]
    assert 0 < len(gains) <= published.MOST_IDEAS
    assert all(e.log_ratio < -e.sd and space.locate(e.settings) is not None for e in gains)
    assert gains == sorted(gains, key=lambda e: e.log_ratio)
    assert FlagSet([(SYMMETRIC, True), ("XLA_CLIENT_MEM_FRACTION", "0.7")]) in [e.settings for e in gains]


def test_what_a_machine_cannot_have_is_no_idea_and_is_left_out_with_its_reason(known: KnownSettings) -> None:
    plain = node(known, dict.fromkeys(HOPPER, False))
    assert not any(SYMMETRIC in e.settings for e in plain.expected)
    assert "NVLink" in plain.left_out[SYMMETRIC]
    assert not any("NVLS" in e.settings.get("NCCL_ALGO", "") for e in plain.expected)
    old = KnownSettings(dataclasses.replace(known.build, nccl="2.27.7"))
    assert re.findall(r"[\d.]+", node(old).left_out[SYMMETRIC]) == ["2.28", "2.27.7"]
    new = KnownSettings(dataclasses.replace(known.build, nccl="2.28.3"))
    assert SYMMETRIC not in node(new).left_out


@pytest.mark.parametrize(
    ("row", "log_ratio", "sd"),
    [
        pytest.param({}, math.log(0.9), 0.03, id="alike"),
        pytest.param({"generation": "blackwell"}, math.log(0.9), 0.045, id="other GPUs"),
        pytest.param({"gpus": 1024}, math.log(0.9), 0.045, id="other scale"),
        pytest.param({"gpus": 0}, math.log(0.9), 0.045, id="unknown scale"),
        pytest.param({"experts": True, "generation": ""}, math.log(0.9), 0.0675, id="other model and GPUs"),
        pytest.param({"of": "collective"}, 0.1 * math.log(0.9), 0.045, id="collectives alone"),
        pytest.param({"of": "inference"}, 0.5 * math.log(0.9), 0.045, id="inference"),
    ],
)
def test_an_effect_is_expected_the_wider_the_less_alike(
    row: dict[str, Any], log_ratio: float, sd: float, known: KnownSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(monkeypatch, {"settings": {PROTOCOL: "SIMPLE"}, **row})
    (expected,) = node(known).expected
    assert expected.settings == FlagSet({PROTOCOL: "SIMPLE"})
    assert expected.log_ratio == pytest.approx(log_ratio)
    assert expected.sd == pytest.approx(sd)


def test_two_figures_are_weighed_and_nothing_is_expected_of_advice_without_one(
    known: KnownSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = {"settings": {PROTOCOL: "SIMPLE"}}
    with_rows(monkeypatch, proto, {**proto, "ratio": 1 / 0.9}, {"settings": {PROTOCOL: "LL"}, "ratio": None})
    space = node(known)
    (expected,) = space.expected
    assert expected.log_ratio == pytest.approx(0.0)
    assert expected.sd == pytest.approx(0.03)
    assert space.first == ()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"settings": {PROTOCOL: "SIMPLE"}, "over": {PROTOCOL: "LL"}}, id="not over the defaults"),
        pytest.param({"settings": {"NCCL_NTHREADS": "512"}}, id="a setting that is not searched"),
        pytest.param({"settings": {"NCCL_MAX_NCHANNELS": "7"}}, id="a number that is none of the values"),
        pytest.param({"settings": {"xla_gpu_all_gather_combine_threshold_bytes": "99000000000"}}, id="a far size"),
        pytest.param({"settings": {"NCCL_NVLS_ENABLE": "1"}}, id="what says no more than the default"),
    ],
)
def test_of_what_nothing_is_expected(
    row: dict[str, Any], known: KnownSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(monkeypatch, row)
    assert node(known).expected == ()


@pytest.mark.parametrize(("ratio", "is_tried"), [(0.9, True), (0.98, False), (1.1, False)])
def test_only_a_gain_beyond_its_uncertainty_is_tried_first(
    ratio: float, is_tried: bool, known: KnownSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(monkeypatch, {"settings": {PROTOCOL: "SIMPLE"}, "ratio": ratio})
    assert bool(node(known).first) == is_tried


def test_the_nearest_size_and_the_name_of_this_build_stand_for_the_published_ones(
    known: KnownSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = "xla_gpu_all_gather_combine_threshold_bytes"
    with_rows(
        monkeypatch,
        {"settings": {threshold: "100000000"}},
        {"settings": {"xla_gpu_enable_pipelined_all_gather": "true"}},
        {"settings": {"xla_gpu_pipeline_all_reduce": "on"}},
    )
    space = node(known)
    named = {name for e in space.expected for name in e.settings}
    assert any(e.settings.get(threshold) == str(1 << 27) for e in space.expected)
    searched = {p.name for p in space.parameters}
    assert {n for n in searched if "pipeline" in n and ("all_gather" in n or "all_reduce" in n)} <= named


def test_a_line_says_figure_place_and_source() -> None:
    lines = format_effects(PROTOCOL, "LL128")
    assert any("1.027" in line and "64 GB200" in line and "marin" in line for line in lines)
    assert len(format_effects(PROTOCOL)) > len(lines)
    assert format_effects("xla_gpu_autotune_level") == []


def test_the_page_prints_the_first_trials_of_the_study_of_one_node(cuda: KnownSettings) -> None:
    if cuda.build.jaxlib != "0.10.2":
        pytest.skip("the page is of jaxlib 0.10.2")
    spec = load_study(ROOT / "studies/eight-gpus-fsdp.toml")
    spec = spec.model_copy(update={"screen": spec.screen.model_copy(update={"target": "h100-sxm"})})
    space = space_here(spec, cuda, None)
    printed = (ROOT / "docs/search.md").read_text("utf-8").partition("```text\n")[2].partition("```")[0]
    assert printed.splitlines() == [str(settings) for _, settings in space.first]
