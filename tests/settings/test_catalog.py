from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.model.errors import SettingError
from autotune.settings.catalog import (
    Catalog,
    Setting,
    Stage,
    Symptom,
    Tier,
    load_catalog,
    older,
    read_entries,
    release_of,
)
from autotune.settings.known import UNSET, KnownSettings
from autotune.settings.probe import ProbeReport
from tests.settings.conftest import doctored
from tests.tables import toml_beside

CASES = toml_beside(__file__)

# Every setting that the five pages we started from name.
PAGES = sorted(
    {n for names in json.loads(Path(__file__).with_name("seed_settings.json").read_text()).values() for n in names}
)


def false_claims(catalog: Catalog, report: ProbeReport) -> list[str]:
    """What the catalogue says of a build that the build itself denies."""
    return [f"{s.name}: {claim}" for s in catalog.values() for claim in _false_claims(s, report)]


def _false_claims(setting: Setting, report: ProbeReport) -> list[str]:
    version, name = report.jaxlib, setting.name
    if setting.kind not in ("xla", "jax"):
        return []
    there = name in report.flags if setting.kind == "xla" else name in report.jax_options
    has_come = not setting.since or not older(version, setting.since)
    is_gone = bool(setting.removed) and not older(version, setting.removed)
    if there != (has_come and not is_gone):
        return [f"since {setting.since!r}, removed {setting.removed!r}: not so in {version}"]
    if not there:
        return []
    if setting.kind == "jax":
        option = report.jax_options[name]
        legal = {"enum": {*option.values}}.get(option.type, {*setting.values})
        wrong = [f"value {v!r}" for v in setting.values if v not in legal]
        default = UNSET if option.default is None else option.default
        kind = {"str": "string"}.get(option.type, option.type)
        # Some JAX options are strings with a few sensible values, which the catalogue calls an enum.
        wrong += [f"type {setting.type}"] if kind != setting.type and kind != "string" else []
    else:
        info = report.flags[name]
        wrong = [f"type {setting.type}"] if (setting.type, setting.repeated) != (info.type, info.repeated) else []
        default = UNSET if info.default is None else info.default
    newest = max((v for v in setting.defaults if not older(version, v)), key=release_of, default="")
    claim = setting.defaults.get(newest)
    if claim != default:
        wrong.append(f"default {claim!r}, the build says {default!r}")
    return wrong


def test_every_claim_holds_on_this_build(report: ProbeReport) -> None:
    assert false_claims(load_catalog(), report) == []


@pytest.mark.parametrize(("name", "change"), CASES["wrong_claims"])
def test_a_wrong_claim_is_found(report: ProbeReport, name: str, change: dict[str, object]) -> None:
    assert [c.partition(":")[0] for c in false_claims(doctored(name, change), report)] == [name]


def test_every_setting_of_the_build_has_an_entry(report: ProbeReport) -> None:
    if report.jaxlib not in ("0.10.2", "0.11.2", "0.12.0.1"):
        pytest.skip(f"jaxlib {report.jaxlib} is newer than the catalogue")
    assert set(report.flags) <= set(load_catalog())


def test_every_setting_of_the_pages_has_an_entry() -> None:
    for name in PAGES:
        setting = load_catalog().find(name)
        assert setting.tier is not Tier.LISTED, name
        assert len(setting.summary) > 20, name


def test_entries_are_whole() -> None:
    catalog = load_catalog()
    assert len(catalog) >= 455
    for setting in catalog.values():
        assert setting.summary.endswith("."), setting.name
        assert setting.scopes, setting.name
        assert setting.sources, setting.name
        assert {*setting.sources} <= set(catalog.sources), setting.name
        assert {*setting.when, *setting.unless, *setting.excludes} <= set(catalog), setting.name
        assert not setting.renamed_to or setting.renamed_to in catalog, setting.name
        assert setting.tier is not Tier.DANGER or setting.danger, setting.name
        if setting.tier not in (Tier.LISTED, Tier.NOOP, Tier.REMOVED):
            assert "yet described" not in setting.summary, setting.name


def test_values_worth_trying_are_legal_and_sensible(report: ProbeReport, known: KnownSettings) -> None:
    for setting in load_catalog().values():
        info = report.flags.get(setting.name)
        tried = setting.values
        for value in tried:
            assert not known[setting.name].out_of_range(value), (setting.name, value)
            if info is not None and info.in_xla_flags and info.type in ("bool", "int32", "int64", "float"):
                assert not known[setting.name].refused(value), (setting.name, value)


def test_what_only_a_device_can_judge_is_not_called_a_program_setting() -> None:
    catalog = load_catalog()
    for name in ("xla_gpu_autotune_level", "xla_gpu_cudnn_gemm_fusion_level", "xla_gpu_exhaustive_tiling_search"):
        assert catalog[name].stage is Stage.AUTOTUNER
    for name in ("NCCL_PROTO", "XLA_CLIENT_MEM_FRACTION", "xla_gpu_nccl_collective_max_nchannels"):
        assert catalog[name].stage in (Stage.CLIENT, Stage.RUNTIME)
    assert catalog["xla_gpu_enable_while_loop_double_buffering"].stage is Stage.PROGRAM


def test_a_name_is_found_with_dashes_value_and_in_upper_case() -> None:
    catalog = load_catalog()
    assert catalog.find("--xla_gpu_autotune_level=3").name == "xla_gpu_autotune_level"
    assert catalog.find("JAX_ENABLE_PGLE").name == "jax_enable_pgle"
    with pytest.raises(SettingError, match="xla_gpu_autotune_level"):
        catalog.find("xla_gpu_autotun_level")


@pytest.mark.parametrize(("line", "said"), CASES["wrong_entries"])
def test_an_entry_that_does_not_fit_is_named_with_what_must_hold(tmp_path: Path, line: str, said: str) -> None:
    keys = {"summary": '"x."', "group": '"gemm"', "tier": '"tune"', "platform": '"cuda"', "type": '"bool"'}
    text = "\n".join(f"{k} = {v}" for k, v in keys.items() if not line.startswith(k))
    (tmp_path / "mine.toml").write_text(f"[xla_x]\n{text}\n{line}\n")
    with pytest.raises(SettingError, match=said):
        read_entries("mine.toml", Setting, tmp_path)


def test_symptoms_name_groups_that_can_be_searched() -> None:
    catalog = load_catalog()
    for symptom in read_entries("symptoms.toml", Symptom).values():
        assert {*symptom.groups} <= {*catalog.groups}, symptom.name
