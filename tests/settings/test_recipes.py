from __future__ import annotations

import pytest

from autotune.model.flags import FlagSet
from autotune.settings.catalog import find_recipe, load_recipes
from autotune.settings.check import SettingVerdict, check_setting, check_settings, for_build
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport


def test_all_published_sets_are_there_with_source_and_date() -> None:
    recipes = load_recipes()
    assert len(recipes) == 39
    for recipe in recipes.values():
        assert recipe.source, recipe.name
        assert recipe.date, recipe.name
        assert recipe.settings, recipe.name


@pytest.mark.gate
def test_the_verdict_on_a_published_set_is_that_of_the_real_parser(known: KnownSettings, parser: ParserProcess) -> None:
    for name, recipe in load_recipes().items():
        checks = check_settings(recipe.settings, known)
        answer = parser.ask(recipe.flags)
        assert all(c.starts for c in checks) == answer.starts, name
        assert {c.name for c in checks if not c.starts} == set(answer.unknown), name


@pytest.mark.gate
def test_what_is_left_of_a_published_set_starts_and_acts(known: KnownSettings, parser: ParserProcess) -> None:
    all_left = {name: for_build(recipe.settings, known) for name, recipe in load_recipes().items()}
    for name, left in all_left.items():
        assert parser.ask(left.render_xla_flags()).starts, name
    base = parser.ask("").options
    for setting, value in {item for left in all_left.values() for item in left.of_kind("xla").items()}:
        assert parser.ask(f"--{setting}={value}").options != base, setting


def test_several_old_switches_become_one_list(known: KnownSettings) -> None:
    old = find_recipe("gcp_maxtext_2024_a3mega").settings.of_kind("xla")
    switches = {n: "false" for n in old if "enable_async_" in n}
    left = for_build(old.merge(dict(switches)), known)
    assert left["xla_gpu_disable_async_collectives"] == "ALLGATHER,ALLREDUCE,REDUCESCATTER"


def test_what_becomes_of_each_setting_is_told(known: KnownSettings) -> None:
    told: list[str] = []
    flags = FlagSet({"xla_gpu_no_such_flag": "1", "xla_gpu_enable_triton_gemm": "true", "NCCL_DEBUG": "INFO"})
    left = for_build(flags, known, note=told.append)
    assert "xla_gpu_no_such_flag" not in left
    assert sum(line.startswith("xla_gpu_no_such_flag is left") for line in told) == 1
    assert not any("xla_gpu_enable_triton_gemm" in line for line in told)  # the default already: nothing is lost
    assert "xla_gpu_enable_triton_gemm" not in left


def test_a_default_stays_where_it_undoes_what_lies_beneath(known: KnownSettings) -> None:
    flags = FlagSet({"xla_gpu_enable_triton_gemm": "true"})
    over = FlagSet({"xla_gpu_enable_triton_gemm": "false"})
    assert for_build(flags, known, over=over) == flags


def test_a_newer_name_is_translated_back_for_an_older_build(report: ProbeReport, known: KnownSettings) -> None:
    newer = "xla_gpu_pipeline_all_gather"
    check = check_setting(newer, find_recipe("maxtext_llama2_7b_1vm").settings[newer], known)
    if newer in report.flags:
        assert check.verdict is SettingVerdict.EFFECTIVE
    else:
        assert check.replacement == ("xla_gpu_enable_pipelined_all_gather", "true")
