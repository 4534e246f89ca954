from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from autotune.model.flags import FlagSet
from autotune.settings.check import SettingVerdict, check_setting, check_settings, check_xla_flags, migrate_text
from autotune.settings.known import KnownSettings
from autotune.settings.probe import FlagInfo, ParserProcess, ProbeReport
from tests.settings.conftest import doctored, rows_of, space_of
from tests.tables import toml_beside

V = SettingVerdict

# What NVIDIA's page on LLM performance names, as a reader would paste it, the flags it calls obsolete included.
TEXTS = toml_beside(__file__, "texts.toml")
PAGE = Path(__file__).with_name("nvidia_page.txt").read_text(encoding="utf-8")


@pytest.mark.gate
def test_the_check_of_the_page_names_only_what_the_build_rejects(parser: ParserProcess, known: KnownSettings) -> None:
    checks = check_xla_flags(PAGE, known)
    named = {c.name for c in checks if not c.starts}
    assert named == set(parser.ask(PAGE).unknown)
    # Each alone, in a process of its own: the parser says so of every single flag.
    for check in checks:
        assert parser.ask(f'--{check.name}="{check.value}"').starts == check.starts, check.name
    replaced = {c.name: c.replacement for c in checks if c.replacement and c.name in named}
    assert replaced == {
        "xla_gpu_cudnn_gemm_fusion": ("xla_gpu_cudnn_gemm_fusion_level", "1"),
        "xla_gpu_enable_custom_fusions": ("xla_gpu_enable_dynamic_slice_fusion", "true"),
        "xla_gpu_enable_address_computation_fusion": ("xla_gpu_enable_dynamic_slice_fusion", "true"),
    }


def test_a_migrated_page_starts(parser: ParserProcess, known: KnownSettings) -> None:
    assert parser.ask(migrate_text(PAGE, known).render_xla_flags()).starts


@pytest.mark.gate
def test_effect_verdicts_are_those_of_the_resolved_options(parser: ParserProcess, known: KnownSettings) -> None:
    base = parser.ask("").options
    for check in check_xla_flags(PAGE, known):
        if check.starts and check.verdict in (V.EFFECTIVE, V.ALREADY_DEFAULT, V.NO_EFFECT):
            changed = parser.ask(f'--{check.name}="{check.value}"').options != base
            assert changed == (check.verdict is V.EFFECTIVE), check


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s else pytest.mark.gate) for s in range(3)])
def test_whether_it_starts_is_what_the_real_parser_says(
    report: ProbeReport, parser: ParserProcess, known: KnownSettings, seed: int
) -> None:
    generator = random.Random(seed)
    # Left out: aliases, texts and maps with a parser of their own (durations ...), enums without known values.
    plain = [f for f in report.flags.values() if f.in_xla_flags and f.sets == (f.name,)]
    flags = [f for f in plain if f.values or f.type in ("bool", "int32", "int64", "float")]
    texts = ["true", "FALSE", "yes", "1", "-1", "+3", "3.5", "1e3", "0x10", "", "x", "2147483648", "9" * 20]
    for _ in range(150):
        info = generator.choice(flags)
        value = generator.choice([*texts, *info.spellings, *(f"+{v}" for v in info.values), ",".join(info.values[:2])])
        check = check_setting(info.name, value, known)
        assert check.starts == parser.ask(f'--{info.name}="{value}"').starts, (info.name, value)


def test_a_switch_that_the_build_cannot_turn_is_refused_as_by_the_parser(
    report: ProbeReport, parser: ParserProcess, known: KnownSettings
) -> None:
    for flag in (f for f in report.flags.values() if f.type == "bool" and f.values):
        for value in ("true", "false"):
            starts = parser.ask(f"--{flag.name}={value}").starts
            assert starts == (value in flag.values) == check_setting(flag.name, value, known).starts, flag.name


@pytest.mark.parametrize("text", TEXTS["words_of_flags"])
def test_words_that_the_build_does_not_list_are_judged_by_the_catalogue(known: KnownSettings, text: str) -> None:
    """As jaxlib 0.12.0.1's own parser did, asked for each of them."""
    name, _, value = text.partition("=")
    kind, default, starts = TEXTS["words_of_flags"][text]
    flag = FlagInfo(name=name, type=kind, repeated=True, default=default, sets=(name,))
    build = dataclasses.replace(known.build, flags={**known.build.flags, name: flag})
    check = check_setting(name, value, dataclasses.replace(known, build=build))
    assert check.starts is starts, check
    assert (check.verdict is V.BAD_VALUE) is not starts, check


@pytest.mark.parametrize("row", rows_of("verdicts.tsv"), ids=lambda row: f"{row['name']}={row['value']}")
def test_verdicts(known: KnownSettings, row: dict[str, str]) -> None:
    (check,) = check_settings(FlagSet({row["name"]: row["value"]}), known)
    assert (check.verdict.name.lower(), check.starts) == (row["verdict"], row["starts"] == "yes"), check.reason


def test_the_latency_hiding_scheduler_may_be_neither_on_nor_off(report: ProbeReport, known: KnownSettings) -> None:
    check = check_setting("xla_gpu_enable_latency_hiding_scheduler", "false", known)
    unset = report.flags["xla_gpu_enable_latency_hiding_scheduler"].default is None
    assert check.verdict is (V.EFFECTIVE if unset else V.ALREADY_DEFAULT)


def test_variables_of_gpus_act_under_the_plugin(cuda: KnownSettings) -> None:
    for name, value, verdict in TEXTS["variables_of_gpus"]:
        assert check_setting(name, value, cuda).verdict == verdict, name
    check = check_setting("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9", cuda)
    assert check.replacement == ("XLA_CLIENT_MEM_FRACTION", "0.9")


@pytest.mark.parametrize("name", ["xla_gpu_autotune_level", "CUDA_DEVICE_MAX_CONNECTIONS"])
def test_what_should_stay_unset_on_a_gpu_is_advised_against_there(report: ProbeReport, name: str) -> None:
    for target, advice in (("b200", "on b200 leave it unset"), ("h100-sxm", ""), (None, "")):
        catalog = doctored(name, {"not_on": {"1": ("b200", "b300")}})
        known = KnownSettings(dataclasses.replace(report, platform="cuda"), target, catalog)
        check = check_setting(name, "1", known)
        assert (check.verdict, check.advice) == (V.EFFECTIVE, advice)
        assert check_setting(name, "2", known).advice == ""
        space = space_of(known, search={"groups": [known.catalog[name].group]})
        values = next((p.choices for p in space.parameters if p.name == name), ())
        assert ("1" in values) == (not advice)


@pytest.mark.parametrize("text", TEXTS["texts"])
def test_a_text_is_judged_as_the_real_parser_reads_it(parser: ParserProcess, known: KnownSettings, text: str) -> None:
    checks = check_xla_flags(text, known)
    assert [c.verdict.name.lower() for c in checks] == TEXTS["texts"][text]
    assert all(c.starts for c in checks) == parser.ask(text).starts


SCRIPT = Path(__file__).with_name("train_script.txt").read_text(encoding="utf-8")


def test_the_settings_of_a_script_are_given_as_the_build_takes_them(cuda: KnownSettings) -> None:
    notes = list[str]()
    migrated = migrate_text(SCRIPT, cuda, note=notes.append)
    by_build = ("xla_gpu_enable_latency_hiding_scheduler", "xla_gpu_enable_dynamic_slice_fusion")  # defaults of some
    assert dict(migrated.without(*by_build)) == {"XLA_CLIENT_MEM_FRACTION": "0.9", "xla_gpu_enable_command_buffer": ""}
    named = {note.partition(" ")[0] for note in notes}
    by_build = ("xla_gpu_enable_address_computation_fusion", "xla_gpu_enable_custom_fusions")
    assert named | {*by_build} == {*TEXTS["named_in_the_script"]}


def test_flags_are_found_in_python_sources_too(known: KnownSettings) -> None:
    source = "FLAGS = ('--xla_gpu_triton_gemm_any=True '\n         '--xla_gpu_cudnn_gemm_fusion=true')\n"
    assert migrate_text(source, known)["xla_gpu_cudnn_gemm_fusion_level"] == "1"
    assert migrate_text("python train.py --xla=1\n", known, note=pytest.fail) == FlagSet()
