"""Loading by name, options and their errors, the user's own workload."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from workloads.base import WorkloadError, jit_step
from workloads.loading import load


@pytest.mark.parametrize(
    ("entry", "options", "words"),
    [
        ("lama", {}, ["`lama`", "`llama`", "Families:"]),
        ("qwen3-8", {}, ["`qwen3-8`", "`qwen3-8b`"]),
        ("llama", {"size": "tyny"}, ["`size`", "'tyny'", "`tiny`"]),
        ("llama-tiny", {"size": "small"}, ["`size` goes with a family"]),
        ("llama", {"remmat": "full"}, ["`remmat`", "`remat`", "Known: size"]),
        ("llama", {"remat": "ful"}, ["none, dots, full", "'ful'", "`full`"]),
        ("llama", {"layers": True}, ["`layers`", "type int", "True"]),
        ("llama", {"layers": 0}, ["`layers`", "at least 1"]),
        ("llama", {"learning_rate": float("nan")}, ["`learning_rate`", "above 0"]),
        ("llama", {"scan": 1}, ["`scan`", "type bool"]),
        ("llama", {"mesh": 8}, ["`mesh`", "8"]),
        ("llama", {"mesh": {"fdsp": 2}}, ["`fdsp`", "`fsdp`"]),
        ("llama", {"mesh": {"data": 16}}, ["8 devices", "16"]),
        ("llama", {"mesh": {"data": -1, "fsdp": 3}}, ["8 devices", "fsdp=3"]),
        ("llama", {"mesh": {"data": -1, "fsdp": -1}}, ["only one", "data and fsdp"]),
        ("llama", {"mesh": {"data": 8}, "batch": 12}, ["`batch`", "multiple of 8", "data=8", "12"]),
        ("llama", {"mesh": {"tensor": 8}}, ["`kv_heads`", "multiple of 8", "4"]),
        ("llama", {"mesh": {"context": 4}, "seq": 66}, ["`seq`", "multiple of 4", "66"]),
        ("llama", {"mesh": {"pipeline": 3}}, ["`layers`", "multiple of 3", "4"]),
        ("llama", {"mesh": {"pipeline": 2}, "scan": False}, ["`scan`", "pipeline"]),
        ("llama", {"mesh": {"pipeline": 2}, "batch": 6}, ["`microbatches` = 4", "6"]),
        ("llama", {"mesh": {"expert": 2}}, ["expert", "experts"]),
        ("llama", {"mesh": {"data": 1}, "accumulate": 3}, ["`accumulate`", "8 and 3"]),
        ("llama", {"mesh": {"data": 1}, "input_dropout": -0.1}, ["`input_dropout`", "-0.1"]),
        ("llama", {"mesh": {"pipeline": 2}, "input_dropout": 0.1}, ["`input_dropout`", "pipeline"]),
        ("llama", {"mesh": {"data": 1}, "head_size": 5}, ["`head_size`", "even"]),
        ("llama", {"mesh": {"data": 1}, "kv_heads": 3}, ["`heads`", "8 and 3"]),
        ("gpt", {"mesh": {"data": 1}, "max_seq": 31}, ["`seq`", "31", "32"]),
        ("moe", {"mesh": {"data": 1}, "top_k": 5}, ["`top_k`"]),
        ("moe", {"mesh": {"data": 1}, "activation": "gelu"}, ["`experts`", "`activation`", "gate"]),
        ("llama", {"mesh": {"data": 1}, "local_layers": 1}, ["`local_layers`", "`window`"]),
        ("llama", {"mesh": {"data": 1}, "value_size": 8}, ["`value_size`", "`kv_rank`"]),
        ("llama", {"mesh": {"data": 1}, "shared_experts": 1}, ["`shared_experts`", "`experts`"]),
        ("gemma", {"mesh": {"context": 2}, "attention": "ring"}, ["ring", "`window` = 0"]),
        ("gpt-oss", {"mesh": {"data": 1}, "attention": "cudnn", "dtype": "bfloat16"}, ["cudnn", "`sinks` = false"]),
        ("gpt-oss", {"mesh": {"pipeline": 2}, "layers": 6}, ["pipeline = 2", "6 `layers`", "`local_layers` = 1"]),
        ("deepseek", {"mesh": {"pipeline": 2}}, ["pipeline = 2", "`dense_layers` = 1"]),
        ("deepseek", {"mesh": {"fsdp": 3}, "d_model": 129, "batch": 9}, ["`kv_rank`", "multiple of 3", "32"]),
        ("deepseek", {"mesh": {"data": 1}, "top_k": 5}, ["`top_k`", "`router_top_groups`"]),
        ("deepseek", {"mesh": {"data": 1}, "kv_heads": 4}, ["`kv_rank`", "`kv_heads` = `heads`"]),
        ("rssm", {"mesh": {"fsdp": 2}}, ["data only", "fsdp=2"]),
        ("rssm", {"mesh": {"data": 1}, "heads": 2}, ["`heads`", "`rssm`"]),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_with_advice(entry: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(entry, options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no_such_module:build", ["`no_such_module` was not found", "PYTHONPATH"]),
        ("workloads.no_such:build", ["`workloads.no_such` was not found"]),
        ("workloads.example:buidl", ["`buidl`", "`build`"]),
        ("json:JSONDecodeError", ["JSONDecodeError", "without a callable `step`"]),
    ],
)
def test_a_wrong_entry_is_refused_with_advice(entry: str, words: list[str]) -> None:
    options = {"msg": "m", "doc": "d", "pos": 0} if entry.startswith("json") else {}
    with pytest.raises((WorkloadError, TypeError)) as caught:
        load(entry, options)
    if caught.type is WorkloadError:
        for word in words:
            assert word in str(caught.value)
    else:
        assert "devices" in str(caught.value)  # the user's own function refuses its arguments in its own words


def test_a_missing_import_of_the_users_module_is_not_blamed_on_the_module(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_module.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        load("users_module:build", {})


def test_the_example_of_a_users_own_workload_trains() -> None:
    workload = load("workloads.example:build", {"width": 13, "rows": 101})
    assert (workload.name, workload.tokens_per_step, workload.flops_per_step) == ("example", 101, None)
    assert workload.config == {"entry": "workloads.example:build", "options": {"width": 13, "rows": 101}}
    state, step = workload.init(0), jit_step(workload)
    losses = []
    for index in range(60):
        state, metrics = step(state, workload.batch(index))
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]


def test_an_object_without_a_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.example.build", lambda devices: SimpleNamespace(init=int, batch=int))
    with pytest.raises(WorkloadError, match="SimpleNamespace without a callable `step`"):
        load("workloads.example:build", {})


def test_the_config_is_json_and_tells_two_programs_apart() -> None:
    first, second = (load("llama-tiny", {"mesh": {"data": 1}, "remat": r}).config for r in ("none", "full"))
    assert json.loads(json.dumps(first)) == first
    assert {k for k in first if first[k] != second[k]} == {"remat"}
    assert first["mesh"]["data"] == 1


def test_a_mesh_takes_the_first_devices_and_minus_one_the_rest() -> None:
    few = load("llama-tiny", {"mesh": {"fsdp": 2}}).mesh
    rest = load("llama-tiny", {"mesh": {"fsdp": 2, "data": -1}}).mesh
    plain = load("llama-tiny", {}).mesh
    assert few is not None
    assert rest is not None
    assert plain is not None
    assert list(few.devices.flat) == jax.devices()[:2]
    assert (rest.shape["fsdp"], rest.shape["data"]) == (2, 4)
    assert (plain.shape["data"], plain.size) == (8, 8)


def test_a_process_without_a_device_of_the_mesh_is_refused() -> None:
    devices: Any = [SimpleNamespace(process_index=i // 2) for i in range(4)]
    with pytest.raises(WorkloadError, match="every process must own a device"):
        load("llama-tiny", {"mesh": {"fsdp": 2}}, devices)
