"""Loading by name, options and their errors, the user's own workload."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from tests.tables import toml_beside
from workloads.base import WorkloadError, jit_step
from workloads.loading import load

CASES = toml_beside(__file__)


@pytest.mark.parametrize(
    ("entry", "options", "words"),
    CASES["refused"],
    ids=str,
)
def test_a_wrong_option_is_refused_with_advice(entry: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(entry, options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(("entry", "words"), CASES["wrong_entries"])
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
    with pytest.raises(WorkloadError, match=r"SimpleNamespace .*`step`"):
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
    with pytest.raises(WorkloadError, match="own a device"):
        load("llama-tiny", {"mesh": {"fsdp": 2}}, devices)
