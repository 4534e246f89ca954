from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from autotune.compiler import targets
from autotune.compiler.compiler import Compiler
from autotune.compiler.program import walk
from autotune.compiler.targets import load_target, parse_topology, target_here, target_names, target_of
from autotune.machine.gpus import GpuFacts
from autotune.model.errors import SettingError, StudyFileError
from autotune.model.flags import FlagSet
from tests.runs import there
from tests.tables import toml_beside

TARGETS = toml_beside(__file__, "targets.toml")


@pytest.mark.parametrize("name", target_names())
def test_every_packaged_target_is_whole(name: str) -> None:
    target = load_target(name)
    assert target.network is not None
    assert target.flops_per_s["bf16"] > target.flops_per_s["scalar"]
    assert 20e9 < target.memory_bytes < 300e9
    assert target.sources
    assert f"core_count: {target.core_count}\n" in target.config_text
    assert (target.network.nvlink_links > 0) == (target.network.nvlink_domain > 1)


@pytest.mark.parametrize(("name", "products", "share"), [(n, *figures) for n, figures in TARGETS["peaks"].items()])
def test_peaks_follow_from_the_cores_at_some_share_of_the_boost_clock(name: str, products: int, share: float) -> None:
    # All matrix units at once stay below the boost clock; so does what the data sheets call the peak.
    target = load_target(name)
    clock = float(re.search(r"clock_rate_ghz: ([\d.]+)", target.config_text)[1])  # type: ignore[index]
    per_clock = target.core_count * 4 * products * 2
    assert target.flops_per_s["bf16"] == pytest.approx(per_clock * clock * share * 1e9, rel=0.01)
    assert target.flops_per_s["f8"] == pytest.approx(2 * target.flops_per_s["bf16"], rel=0.01)
    assert target.flops_per_s["tf32"] == pytest.approx(target.flops_per_s["bf16"] / 2, rel=0.01)


@pytest.mark.parametrize(("versions", "runtime", "toolkit", "dnn"), TARGETS["cuda"])
def test_cuda_is_that_of_the_installed_plugin(versions: dict[str, str], runtime: str, toolkit: str, dnn: str) -> None:
    with mock.patch("autotune.compiler.targets.installed_versions", return_value=versions):
        text = load_target("h100-sxm").config_text
    assert f'runtime_version: "{runtime}"' in text
    assert f'compile_time_toolkit_version: "{toolkit}"' in text
    assert ".".join(re.findall(r"(?:major|minor|patch): (\d+)\n", text)[-3:]) == dnn


H100 = GpuFacts(name="NVIDIA H100 80GB HBM3", lanes=16896, memory_bytes=84942979072, cuda="12.4.0")


def test_gpu_that_is_here_is_its_table_but_for_its_driver_or_what_it_tells() -> None:
    table, here = load_target("h100-sxm"), load_target("h100-sxm", facts=H100)
    text = here.config_text
    assert sorted(text.splitlines()) == sorted(table.config_text.replace('"13.0.0"', '"12.4.0"', 1).splitlines())
    facts = H100._replace(lanes=128 * 114, memory_bytes=7 << 30, cuda=None)
    here = load_target("h100-sxm", facts=facts)
    assert (here.core_count, here.memory_bytes) == (114, 7 << 30)
    assert here.digest != load_target("h100-sxm").digest


def test_target_is_the_attached_gpu_of_the_kind_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "gpu_facts", lambda environment: (H100, H100._replace(name="other")))
    for kind in (None, "NVIDIA H100 80GB HBM3"):
        here = there(target_here(kind))
        assert 'driver_version: "12.4.0"' in here.config_text
    elsewhere = there(target_here("NVIDIA H200"))
    assert elsewhere.config_text == load_target("h200").config_text
    assert target_here("NVIDIA H7") is None
    monkeypatch.setattr(targets, "gpu_facts", lambda environment: ())
    assert target_here() is None


@pytest.mark.parametrize(("target", "topology", "xla"), TARGETS["topologies"])
def test_topology_in_xlas_form_keeps_nvlink_domains_together(target: str, topology: str, xla: str) -> None:
    assert parse_topology(topology).for_xla(load_target(target).network) == xla


@pytest.mark.parametrize("text", ["", "x8", "0x8", "8x", "8x8x8", "-1", "2x0", "eight", "19x4"])
def test_odd_topologies_and_nodes_that_do_not_fill_domains_are_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match="multiple of 18" if text == "19x4" else "8x8"):
        parse_topology(text).for_xla(load_target("gb200").network)


def test_a_target_file_of_the_user_has_the_form_of_the_packaged_ones(tmp_path: Path) -> None:
    packaged = Path(targets.__file__).parents[1] / "data" / "targets" / "h200.toml"
    path = tmp_path / "mine.toml"
    path.write_text(packaged.read_text("utf-8"), encoding="utf-8")
    assert load_target(str(path)) == dataclasses.replace(load_target("h200"), name="mine")
    path.write_text("title = 'x'", encoding="utf-8")
    with pytest.raises(SettingError, match="sources"):
        load_target(str(path))
    with pytest.raises(StudyFileError, match="readable"):
        load_target(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(("versions", "said"), TARGETS["plugins"])
def test_plugin_must_be_whole_and_of_jaxlibs_version(versions: dict[str, str], said: str) -> None:
    found = targets.compiler_problem(versions)
    assert said in (found or "")
    assert bool(said) == bool(found)


@pytest.mark.parametrize(("kind", "name"), list(TARGETS["kinds"].items()))
def test_target_of_a_device_kind(kind: str, name: str) -> None:
    found = target_of(kind)
    assert (found.name if found else "") == name


def test_memory_that_a_process_takes_is_what_the_scheduler_counts_on() -> None:
    h100 = load_target("h100-sxm")
    described = dataclasses.replace(h100, memory_share=0.92)
    assert f"device_memory_size: {round(h100.memory_bytes * 0.92 / 0.8)}" in described.config_text
    assert described.memory_bytes == h100.memory_bytes
    assert described.digest != h100.digest


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.parametrize("name", target_names())
def test_every_packaged_target_compiles(toy_job: Any, name: str) -> None:
    with contextlib.closing(Compiler(toy_job(f"2x{load_target(name).network.gpus_per_node}", target=name))) as compiler:
        (result,) = compiler.compile([FlagSet()])
    assert result.program is not None, result.failure
    assert any(op.matrix_flops for op, _, _ in walk(result.program.schedule))
