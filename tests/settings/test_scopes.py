"""What leaves a setting out without compiling: what is certain, and nothing else; held against what compilers did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.settings.catalog import Scope, Stage, Tier, load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.space import GIVES, SearchSpace
from tests.settings.conftest import rows_of, searched, space_of
from tests.tables import toml_beside

CASES = toml_beside(__file__)

# Which programs were compiled for described H100s, and what each of them has: a scanned or unrolled transformer step.
SEVERAL, PERMUTE = Scope.MULTI_DEVICE, Scope.COLLECTIVE_PERMUTE
PROGRAMS = {program: set(map(Scope, scopes)) for program, scopes in CASES["programs"].items()}
DECOMPOSER, PIPELINED = "xla_gpu_collective_permute_decomposer_threshold", "xla_gpu_enable_pipelined_p2p"
EINSUM, COMBINE = "xla_gpu_threshold_for_windowed_einsum_mib", "xla_gpu_all_gather_combine_threshold_bytes"
SLOP, IN_LOOPS = "xla_gpu_memory_limit_slop_factor", "xla_gpu_enable_dus_accumulator_zero_init_elimination"
GROUPS = "p2p pipelining combining collective_matmul loops scheduling nccl multi_node"
COMMAND = {"command": ["python", "train.py"], "hook": True}

Build = Callable[..., SearchSpace]
EFFECTS = rows_of("program_effects.tsv")


@pytest.fixture(scope="module")
def build(known: KnownSettings) -> Build:
    def make(workload: dict[str, Any] = COMMAND, told: int | None = None, **study: Any) -> SearchSpace:
        study.setdefault("search", {"groups": GROUPS.split()})
        return space_of(known, {"device_count": told} if told else None, workload=workload, **study)

    return make


def test_ring_attention_is_changed_by_settings_that_were_once_thought_to_need_a_pipeline() -> None:
    (row,) = [row for row in EFFECTS if row["setting"] == f"{DECOMPOSER} {PIPELINED}"]
    assert (row["program"], row["result"]) == ("ring", "changed")
    assert {PERMUTE} <= set(load_catalog()[DECOMPOSER].scopes) & set(load_catalog()[PIPELINED].scopes)
    assert PERMUTE in GIVES["context"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_scope_is_contradicted_by_a_program_that_changed_without_it(program: str) -> None:
    sets = [row["setting"] for row in EFFECTS if row["program"] == program and row["result"] == "changed"]
    changed = {name for settings in sets for name in settings.split()}
    catalog = load_catalog()
    wrong = {n: set(catalog[n].scopes) - PROGRAMS[program] - {Scope.SINGLE_DEVICE, Scope.NVLINK} for n in changed}
    assert {n: scopes for n, scopes in wrong.items() if scopes} == {}
    assert changed or program in ("dp", "ring", "unrolled")


def test_a_setting_is_called_one_of_several_devices_only_if_one_gpu_was_tried_with_it() -> None:
    tried = {row["setting"] for row in EFFECTS if row["program"] == "single" and row["result"] == "same"}
    searched = [s for s in load_catalog().values() if s.tier in (Tier.TUNE, Tier.NUMERICS)]
    claimed = {s.name for s in searched if s.kind == "xla" and s.stage is Stage.PROGRAM and SEVERAL in s.scopes}
    assert len(claimed) > 15
    assert claimed - tried == set()


def test_nothing_is_left_out_of_what_a_command_does_not_tell(build: Build) -> None:
    space = build()
    assert not [reason for reason in space.left_out.values() if reason.startswith("acts on ")]
    assert not [reason for reason in space.left_out.values() if reason.startswith("acts across ")]
    assert {DECOMPOSER, EINSUM, COMBINE, IN_LOOPS, "NCCL_PROTO", "NCCL_P2P_NET_CHUNKSIZE"} <= searched(space)
    # Nor is "one device" believed of a program that only told of its own process.
    assert searched(build(told=1)) == searched(space)


@pytest.mark.parametrize(("declared", "wanted", "left_out"), CASES["declared"])
def test_a_declaration_leaves_out_what_it_does_not_tell_of(
    build: Build, declared: dict[str, Any], wanted: list[str], left_out: list[str]
) -> None:
    space = build({**COMMAND, **declared})
    assert set(wanted) <= searched(space)
    assert set(left_out) <= set(space.left_out)


@pytest.mark.parametrize(("setting", "values", "workload", "device"), CASES["named"])
def test_what_a_person_names_is_searched_and_what_the_catalogue_thinks_is_said(
    build: Build, setting: str, values: list[Any], workload: dict[str, Any], device: dict[str, Any]
) -> None:
    space = build(workload, device=device, search={"settings": {setting: values}})
    assert searched(space) == {setting}
    assert space.notes[setting].startswith("named by the study, ")
    assert space.left_out == {}
