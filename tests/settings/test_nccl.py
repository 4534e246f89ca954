"""What the catalogue says of variables, held to the sources of the libraries that read them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.targets import Topology, load_target
from autotune.machine.environment import STEERING
from autotune.settings.catalog import Catalog, Scope, Setting, Tier, load_catalog, read_asked
from autotune.settings.check import SettingVerdict, check_setting, migrate_text
from autotune.settings.known import KnownSettings, format_setting
from autotune.settings.space import SearchSpace, format_cannot_act
from tests.settings.conftest import docs_script, doctored, searched, space_of
from tests.tables import toml_beside

CASES = toml_beside(__file__)
HERE = Path(__file__).parent
ASKED = read_asked("nccl-source")["settings"]
# Names that other libraries read, by the source of the catalogue that they were found in.
OTHERS: dict[str, list[str]] = json.loads((HERE / "library_names.json").read_text("utf-8"))

# Variable, list, and what the refusal names: nothing where NCCL takes it.
LISTS_OF_WORDS = [
    ("NCCL_ALGO", "allreduce:tree;allgather:ring", ""),
    ("NCCL_ALGO", "ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", ""),
    ("NCCL_ALGO", "^PAT", ""),
    ("NCCL_PROTO", "^LL128;ALLREDUCE:LL128", ""),
    ("NCCL_PROTO", "broadcast:^Simple;reduce:Simple,LL", ""),
    ("NCCL_ALGO", "Ring;alltoall:Tree", "'alltoall'"),
    ("NCCL_ALGO", "allreduce:Trea", "'Trea'"),
    ("NCCL_ALGO", "Ring,", "''"),
    ("NCCL_ALGO", "LL", "'LL'"),
    ("NCCL_PROTO", "allreduce:LL128;LL,Simple", "'LL,Simple'"),
    ("NCCL_PROTO", "allreduce:LL:LL", "'allreduce:LL'"),
    ("NCCL_PROTO", "LL;", "''"),
]


def wrong_claims(catalog: Catalog) -> list[str]:
    """What the catalogue says of variables that the sources deny."""
    return [f"{s.name}: {claim}" for s in catalog.values() for claim in _wrong_claims(s)]


def _wrong_claims(setting: Setting) -> Iterator[str]:
    name = setting.name
    if not name.startswith(("NCCL_", "NVTE_")):
        return
    keys = ASKED.get(name)
    if setting.tier == Tier.REMOVED:
        if keys is not None and "removed" not in keys:
            yield "NCCL still reads it"
        return
    if keys is None and any(name in names for names in OTHERS.values()):
        return
    if keys is None:
        yield "no library reads it"
        return
    default = keys.get("default", "")
    if default and setting.defaults[""].split(" ")[0] != default:
        yield f"default {setting.defaults['']!r}, the sources say {default}"


def test_every_claim_of_a_variable_holds_in_the_sources() -> None:
    assert wrong_claims(load_catalog()) == []


@pytest.mark.parametrize(("name", "change", "claim"), CASES["wrong_variables"])
def test_a_wrong_claim_is_found(name: str, change: dict[str, Any], claim: str) -> None:
    assert wrong_claims(doctored(name, change)) == [f"{change.get('name', name)}: {claim}"]


def test_the_script_reads_each_way_in_which_nccl_asks_for_a_variable() -> None:
    text = "\n".join(f"v2.30.7-1:{line}" for line in CASES["nccl_lines"])
    assert docs_script("ask_builds").read_variables(text) == CASES["nccl_variables"]


def on_nodes(known: KnownSettings, nodes: int, *groups: str, gpu: str = "", ports: int = -1) -> SearchSpace:
    machines = load_target(gpu).scopes(Topology(nodes, 8)) if gpu else {}
    machines |= {Scope.INFINIBAND: ports > 0} if ports >= 0 else {}
    study = {"device": {"node_count": nodes}, "search": {"groups": [*groups]}, "machines": machines}
    return space_of(known, {"device_count": 8 * nodes}, **study)


def test_what_cannot_act_on_one_host_is_told_in_one_line(known: KnownSettings) -> None:
    one, two = (on_nodes(known, n, "nccl") for n in (1, 2))
    across = sorted(searched(two) - searched(one), key=str.lower)
    assert format_cannot_act(one) == f"acts across nodes, the study has one: {', '.join(across)}"
    assert format_cannot_act(two) == ""
    split = next(p for p in two.parameters if p.name == "NCCL_IB_SPLIT_DATA_ON_QPS")
    assert split.condition == {"NCCL_IB_QPS_PER_CONNECTION": ("2", "4", "8")}


@pytest.mark.parametrize(("gpu", "nodes", "ports", "lacked"), CASES["machines"])
def test_what_the_machines_lack_is_never_tried_and_what_they_may_have_is(
    gpu: str, nodes: int, ports: int, lacked: list[str], known: KnownSettings
) -> None:
    groups = ("nccl", "user_buffers", "multi_node")
    space = on_nodes(known, nodes, *groups, gpu=gpu, ports=ports)
    algorithms = next(p.choices or () for p in space.parameters if p.name == "NCCL_ALGO")
    anywhere = {*searched(on_nodes(known, 2, *groups)), "NVLS,NVLSTree,Ring"}
    assert anywhere - {*searched(space), *algorithms} == set(lacked)


def test_each_variable_of_one_transport_says_so() -> None:
    here = [s for s in load_catalog().values() if s.tier not in (Tier.REMOVED, Tier.NOOP)]
    assert {s.name for s in here if s.name.startswith("NCCL_IB_") and Scope.INFINIBAND not in s.scopes} == set()
    assert {s.name for s in here if Scope.INFINIBAND in s.scopes and Scope.MULTI_NODE not in s.scopes} == set()
    assert {s.name for s in here if "_FASTRAK_" in s.name and Scope.GVNIC not in s.scopes} == set()
    assert {s.name for s in here if s.name.startswith("OFI_") and Scope.EFA not in s.scopes} == set()
    assert {s.name for s in here if "MNNVL" in s.name and Scope.NVLINK_OVER_HOSTS not in s.scopes} == set()


def test_the_group_searches_lists_of_algorithms_and_the_policy_only_with_registered_buffers(
    known: KnownSettings,
) -> None:
    space = on_nodes(known, 1, "nccl")
    algorithms = next(p for p in space.parameters if p.name == "NCCL_ALGO")
    # From NCCL 2.24 a list without Ring ends gathers, which no tree serves; a list for all-reduces alone does not.
    lists = [value for value in algorithms.choices[1:] if not value.startswith("allreduce:")]
    assert all("Ring" in value.split(",") for value in lists)
    assert space.left_out["NCCL_CTA_POLICY"].endswith(" xla_gpu_enable_nccl_user_buffers is 'true'")
    conditions = {p.name: p.condition for p in on_nodes(known, 1, "nccl", "user_buffers").parameters}
    assert conditions["NCCL_CTA_POLICY"] == {"xla_gpu_enable_nccl_user_buffers": ("true",)}
    assert set(conditions["NCCL_NVLS_NCHANNELS"] or {}) == {"NCCL_NVLS_ENABLE"}


def test_every_searched_variable_is_taken_out_of_the_caller_s_environment() -> None:
    # Else the caller's value would stand in the reference, and in each set that leaves the variable unset.
    searched = {s.name for s in load_catalog().values() if s.kind == "env" and s.tier in (Tier.TUNE, Tier.NUMERICS)}
    assert {name for name in searched if not STEERING.fullmatch(name)} == set()


def test_a_variable_of_nccl_is_judged_and_its_line_shown(known: KnownSettings) -> None:
    misspelled = check_setting("NCCL_PORTO", "LL", known)
    assert misspelled.verdict is SettingVerdict.UNKNOWN
    assert "NCCL_PROTO" in misspelled.reason
    assert known["NCCL_WIN_ENABLE"].is_default("1")
    assert known["NCCL_CGA_CLUSTER_SIZE"].is_default("4")  # of NCCL's config, which the variable's own default leaves
    assert not known["NCCL_WIN_ENABLE"].is_too_new  # its release is one of NCCL, not of jaxlib
    shown = dict(format_setting(known.catalog["NCCL_WIN_ENABLE"], known))
    assert shown["since"] == "NCCL 2.27.3"
    commit = known.catalog.sources["nccl-source"].commit
    file, _, number = ASKED["NCCL_WIN_ENABLE"]["source_line"].partition(":")
    assert shown["source line"] == f"https://github.com/NVIDIA/nccl/blob/{commit}/{file}#L{number}"


@pytest.mark.parametrize(("name", "value", "problem"), LISTS_OF_WORDS)
def test_a_list_of_algorithms_or_protocols_is_read_as_nccl_does(
    name: str, value: str, problem: str, known: KnownSettings
) -> None:
    assert problem in known[name].refused(value)
    check = check_setting(name, value, known)
    assert bool(problem) == (check.verdict is SettingVerdict.BAD_VALUE) == (not check.starts)


def test_a_script_with_plugins_and_a_misspelled_variable_is_migrated_without_them(known: KnownSettings) -> None:
    script = "export NCCL_TUNER_PLUGIN=libnccl-tuner.so\nexport NCCL_PORTO=LL\nexport NCCL_BUFFSIZE=8388608\n"
    notes = list[str]()
    assert not {"NCCL_TUNER_PLUGIN", "NCCL_PORTO"} & set(migrate_text(script, known, note=notes.append))
    assert {note.split(" ")[0] for note in notes} >= {"NCCL_TUNER_PLUGIN", "NCCL_PORTO"}


def test_what_the_installed_nccl_lacks_is_told_and_never_tried(known: KnownSettings) -> None:
    def with_nccl(release: str | None) -> KnownSettings:
        return KnownSettings(dataclasses.replace(known.build, nccl=release, platform="cuda"))

    old, new, unknown = with_nccl("2.26.5"), with_nccl("2.27.3"), with_nccl(None)
    policy, spaces = "NCCL_CTA_POLICY", [on_nodes(k, 1, "nccl", "user_buffers") for k in (old, new, unknown)]
    assert [policy in searched(space) for space in spaces] == [False, True, True]
    assert re.findall(r"[\d.]+", spaces[0].left_out[policy]) == ["2.27.3", "2.26.5"]
    verdicts = [check_setting("NCCL_CTA_POLICY", "1", k).verdict for k in (old, new, unknown)]
    assert verdicts == [SettingVerdict.NO_EFFECT, SettingVerdict.EFFECTIVE, SettingVerdict.EFFECTIVE]
    assert not old["NCCL_PROTO"].is_too_new
    assert not old["XLA_CLIENT_MEM_FRACTION"].is_too_new
    assert not with_nccl("2.5.6")["NVTE_USE_CUTLASS_GROUPED_GEMM"].is_too_new  # since Transformer Engine 2.8
