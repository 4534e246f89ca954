"""Options of a workload and the study's own conditions in the search space."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from autotune.model.errors import SettingError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.settings.catalog import load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport
from autotune.settings.space import Parameter, SearchSpace
from tests.settings.conftest import NOTHING_TOLD, searched, space_of
from tests.tables import toml_beside

CUDA_GROUPS = tuple(g for g in load_catalog().groups if not g.startswith("cpu"))
SINGLE = {"device_count": 1}
FSDP = {"device_count": 8, "mesh": {"fsdp": 8}, "layer_bytes": {"weights": 404_750_336, "gradients": 404_750_336}}
PIPELINE = {"device_count": 16, "node_count": 2, "mesh": {"pipeline": 2, "tensor": 8}}
SEARCHES = toml_beside(__file__, "searches.toml")
TYPED = {"entry": "llama", "options": {"dtype": "float32"}}
POOL = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
Build = Callable[..., SearchSpace]


@pytest.fixture(scope="module")
def build(known: KnownSettings) -> Build:
    def make(**changes: Any) -> SearchSpace:
        facts: dict[str, Any] = {n: changes.pop(n) for n in NOTHING_TOLD if n in changes}
        device = {n: changes.pop(n) for n in ("platform", "node_count") if n in changes}
        return space_of(known, {"device_count": 1, **facts}, device=device, search=changes)

    return make


def points(space: SearchSpace) -> set[FlagSet]:
    """Every point of a small space."""
    found = set()
    for choice in itertools.product(*(p.choices for p in space.parameters)):
        chosen = dict(zip((p.name for p in space.parameters), choice, strict=True))
        found.add(space.suggest(lambda p, chosen=chosen: chosen[p.name]))  # type: ignore[misc]
    return found


def choose(generator: random.Random) -> Callable[[Parameter], str]:
    return lambda parameter: generator.choice(parameter.choices)


@pytest.mark.gate
def test_points_of_the_gpu_space_start(build: Build, parser: ParserProcess) -> None:
    space = build(groups=CUDA_GROUPS, **PIPELINE)  # with every setting that a workload of one node has
    generator = random.Random(7)
    points = {space.suggest(choose(generator)) for _ in range(40)}
    assert len(points) == 40
    for point in points:
        answer = parser.ask(point.render_xla_flags())
        assert answer.starts, (point, answer.log[:300])
        assert space.locate(point) is not None


@pytest.mark.gate
def test_every_value_of_the_gpu_space_changes_the_options(build: Build, parser: ParserProcess) -> None:
    base = parser.ask("").options
    for parameter in build(groups=CUDA_GROUPS, **PIPELINE).parameters:
        for value in parameter.choices:
            if parameter.name.startswith("xla_") and not parameter.is_absent(value):
                answer = parser.ask(FlagSet({parameter.name: value}).render_xla_flags())
                assert answer.starts
                assert answer.options != base, (parameter.name, value)


@pytest.mark.gate
def test_all_cpu_values_start(build: Build, parser: ParserProcess) -> None:
    space = build(platform="cpu")
    assert {"xla_cpu_experimental_ynn_fusion_type", "PJRT_NPROC", "MALLOC_ARENA_MAX"} <= searched(space)
    assert not {n for n in searched(space) if n.startswith(("xla_gpu", "NCCL"))}
    generator = random.Random(1)
    for _ in range(30):
        assert parser.ask(space.suggest(choose(generator)).render_xla_flags()).starts


def test_settings_that_change_results_need_their_group(build: Build) -> None:
    assert "xla_cpu_enable_fast_math" not in searched(build(platform="cpu"))
    space = build(platform="cpu", groups=["cpu_numerics"])
    fast_math = "xla_cpu_enable_fast_math"
    assert fast_math in searched(space)
    honor = next(p for p in space.parameters if p.name == "xla_cpu_fast_math_honor_nans")
    assert honor.condition == {fast_math: ("true",)}
    # Named by nothing but a symptom, they stay out.
    assert not {n for n in searched(build(groups=["gemm", "fusion"], **SINGLE)) if "deterministic" in n}


def test_one_device_has_nothing_for_several(build: Build) -> None:
    space = build(groups=CUDA_GROUPS)
    assert not {n for n in searched(space) if n.startswith("NCCL") or "all_gather" in n or "all_reduce" in n}
    assert space.left_out["xla_gpu_all_gather_combine_threshold_bytes"].startswith("acts on several devices")
    assert space.left_out["NCCL_P2P_NET_CHUNKSIZE"].startswith("acts across nodes")


def test_nothing_that_the_build_lacks_is_searched(build: Build, report: ProbeReport) -> None:
    space = build(groups=CUDA_GROUPS, **PIPELINE)
    for name in searched(space):
        assert not name.startswith("xla_") or report.flags[name].in_xla_flags
        assert not name.startswith("jax_") or name in report.jax_options
    modern, old = "xla_gpu_pipeline_all_gather", "xla_gpu_enable_pipelined_all_gather"
    assert len({modern, old} & searched(space)) == 1
    if modern in report.flags:
        assert space.left_out[old].endswith(f"name of {modern}")
    else:
        assert re.findall(r"\d[\d.]+", space.left_out[modern]) == [report.jaxlib, "0.11.2"]


def test_combine_thresholds_are_multiples_of_one_layer(build: Build) -> None:
    space = build(groups=["combining"], **FSDP)
    threshold = next(p for p in space.parameters if p.name == "xla_gpu_all_gather_combine_threshold_bytes")
    layer = 404_750_336
    assert threshold.choices == (DEFAULT, *(str(int(layer * m)) for m in (0.25, 0.5, 1, 2, 4, 8)))
    unknown = build(groups=["combining"], **{**FSDP, "layer_bytes": {}})
    powers = next(p for p in unknown.parameters if p.name == threshold.name)
    assert powers.choices == (DEFAULT, *(str(2**k) for k in range(20, 34)))


def test_conditional_groups(build: Build) -> None:
    space = build(groups=["command_buffer", "user_buffers", "loops", "gemm"], **FSDP)
    conditions = {p.name: {n: list(v) for n, v in (p.condition or {}).items()} for p in space.parameters}
    assert "" not in conditions["xla_gpu_graph_min_graph_size"]["xla_gpu_enable_command_buffer"]
    assert "XLA_CLIENT_MEM_FRACTION" in conditions
    assert {name: conditions[name] for name in SEARCHES["conditions"]} == SEARCHES["conditions"]
    alone = build(settings={POOL: [0, 512]}, **FSDP)
    assert alone.parameters == ()
    assert "xla_gpu_enable_nccl_user_buffers is 'true'" in alone.left_out[POOL]


@pytest.mark.parametrize(("kind", "whole", "has_layer", "values"), SEARCHES["thresholds"])
def test_no_threshold_is_above_all_that_is_moved(
    kind: str, whole: int, has_layer: bool, values: list[int], build: Build
) -> None:
    facts = {**FSDP, "collective_bytes": {kind: whole}, **({} if has_layer else {"layer_bytes": {}})}
    space, name = build(groups=["combining"], **facts), f"xla_gpu_{kind.replace('-', '_')}_combine_threshold_bytes"
    found = next((p.choices for p in space.parameters if p.name == name), None)
    assert found == ((DEFAULT, *map(str, values)) if values else None)
    assert (f"merges {kind}s, the program's have {whole} B in all" in space.left_out.values()) == (not values)


def test_the_pool_holds_what_collectives_write(build: Build, report: ProbeReport) -> None:
    shared = SEARCHES["shared_pool"]
    moved = {"collective_bytes": {"all-gather": 2_000_000_000, "reduce-scatter": 400_000_000}}
    space = build(groups=["user_buffers", "memory"], **FSDP, **moved)
    pool = next(p for p in space.parameters if p.name == POOL)
    assert pool.choices == (DEFAULT, "2560", "4608", "1536")
    has_shared_pool = shared in report.flags
    assert (shared in (pool.condition or {})) == has_shared_pool
    assert (POOL in build(groups=["user_buffers"], **FSDP, **moved).left_out) == has_shared_pool


@pytest.mark.parametrize("groups", [["command_buffer", "memory"], ["gemm"], ["loops"], ["cpu"]])
def test_every_point_is_yielded(build: Build, groups: list[str]) -> None:
    space = build(groups=groups, platform="cpu" if groups == ["cpu"] else "cuda")
    wanted = [p for p in space.parameters if len(p.choices) <= 5][:7]
    known = {p.name for p in wanted}
    small = SearchSpace(tuple(p for p in wanted if set(p.condition or {}) <= known))
    assert set(small.points()) == points(small)
    assert len(points(small)) <= small.size()


@pytest.mark.parametrize("workload", [SINGLE, FSDP, PIPELINE], ids=["single", "fsdp", "pipeline"])
def test_a_point_is_found_again_from_its_set(build: Build, workload: dict[str, Any]) -> None:
    space = build(groups=CUDA_GROUPS, **workload)
    generator = random.Random(3)
    for _ in range(50):
        point = space.suggest(choose(generator))
        found = space.locate(point)
        assert found is not None
        assert space.suggest(lambda p, found=found: found[p.name]) == point  # type: ignore[misc]


def test_other_spellings_of_a_value_are_the_same_point(build: Build) -> None:
    space = build(settings={"xla_gpu_all_gather_mode": ["private", "symmetric"]}, **FSDP)
    assert space.locate(FlagSet({"xla_gpu_all_gather_mode": "PRIVATE"})) == {"xla_gpu_all_gather_mode": "private"}
    bools = build(settings={"xla_gpu_async_dot": [True, False]})
    assert bools.locate(FlagSet({"xla_gpu_async_dot": "1"})) == {"xla_gpu_async_dot": "true"}
    assert bools.locate(FlagSet()) == {"xla_gpu_async_dot": "false"}


def test_a_default_is_rendered_as_absence(build: Build) -> None:
    space = build(settings={"xla_gpu_autotune_level": [3, 4], "xla_gpu_async_dot": [False]})
    level, _ = space.parameters
    assert level.choices == ("3", "4")
    assert space.suggest(lambda p: p.choices[-1]) == FlagSet()


def test_the_default_of_the_build_is_a_value_where_the_baseline_has_another(known: KnownSettings) -> None:
    level, baseline = "xla_gpu_autotune_level", {"xla_gpu_autotune_level": 0}
    found = space_of(known, baseline=baseline, search={"settings": {level: [0, 2, 4]}})
    assert points(found) == {FlagSet(), FlagSet({level: 2}), FlagSet({level: 4})}
    assert found.locate(FlagSet({level: 4})) == {level: "4"}


def test_domains_of_a_study(build: Build) -> None:
    space = build(settings=SEARCHES["domains"])
    values = {p.name: list(p.choices) for p in space.parameters}
    assert values["xla_gpu_graph_min_graph_size"] == ["1", "5", "9"]
    assert values["xla_gpu_dot_merger_threshold_mb"] == ["2", "4", "8", "16"]
    assert space.parameters[0].name == "xla_gpu_enable_command_buffer"  # what others depend on comes first
    assert len(set(space.points())) == (3 + 1) * 4  # without graphs the smallest graph has one value
    with pytest.raises(SettingError, match="but got '3'"):
        space.suggest(lambda p: "FUSION" if "FUSION" in p.choices else "3")


@pytest.mark.parametrize("search", SEARCHES["refused"], ids=str)
def test_a_wrong_study_is_told_what_is_legal(build: Build, search: dict[str, Any]) -> None:
    said, changes = search["said"], {name: value for name, value in search.items() if name != "said"}
    with pytest.raises(SettingError, match=said):
        build(**changes)


def test_process_layout_is_explained(build: Build) -> None:
    assert "process_count" in build(groups=["layout"], **FSDP).left_out["process_layout"]


def test_a_setting_with_options_is_searched_as_a_text(build: Build, parser: ParserProcess) -> None:
    name = "xla_gpu_analytical_latency_estimator_options"
    space = build(groups=["scheduling"], **PIPELINE)
    options = next(p for p in space.parameters if p.name == name)
    assert options.condition == {"xla_gpu_enable_analytical_sol_latency_estimator": ("true",)}
    slow_network = FlagSet({name: "nic_speed_gbps=12.5"})
    assert space.locate(slow_network) is not None
    resolved = parser.ask(slow_network.render_xla_flags()).options[name]
    assert "nic_speed_gbps=12.5" in resolved
    assert "rtt_us=-1" in resolved  # what is not named keeps its default


def test_the_references_value_is_absence_and_is_searched_though_not_listed(known: KnownSettings) -> None:
    found = space_of(known, workload=TYPED, search={"options": {"dtype": ["bfloat16"]}})
    assert points(found) == {FlagSet(), FlagSet({"option.dtype": '"bfloat16"'})}


def test_an_options_values_are_matched_as_json(known: KnownSettings) -> None:
    (parameter,) = space_of(known, workload=TYPED, search={"options": {"batch": [8, 16]}}).parameters
    assert parameter.match("16") == "16"
    assert parameter.match('"16"') is None
