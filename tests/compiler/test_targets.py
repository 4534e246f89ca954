from __future__ import annotations

from pathlib import Path

import pytest

from autotune.compiler import plugin
from autotune.compiler.targets import Topology, load_target, parse_topology, proto_text, target_names, target_of
from autotune.model.errors import StudyFileError


@pytest.mark.parametrize("name", target_names())
def test_every_packaged_target_is_whole(name: str) -> None:
    target = load_target(name)
    assert target.network is not None
    assert target.flops_per_s["bf16"] > target.flops_per_s["scalar"]
    assert 20e9 < target.memory_bytes < 300e9
    assert target.sources
    assert f"core_count: {target.core_count}\n" in target.config_text
    assert (target.network.nvlink_links > 0) == (target.network.nvlink_domain > 1)


def test_peak_of_a_packaged_target_follows_from_its_cores() -> None:
    # H100: 132 cores x 4 tensor cores x 512 products x 2 FLOPs x 1.83 GHz boost
    assert load_target("h100-sxm").flops_per_s["bf16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=0.01)


@pytest.mark.parametrize(
    ("target", "topology", "xla"),
    [
        ("h100-sxm", "8", "1x1x8"),
        ("h100-sxm", "8x8", "8x1x8"),
        ("h100-sxm", "64x8", "64x1x8"),
        ("gb200", "18x4", "1x18x4"),
        ("gb200", "36x4", "2x18x4"),
        ("gb200", "2x4", "1x2x4"),
        ("l4", "3x1", "3x1x1"),
    ],
)
def test_topology_in_xlas_form_keeps_nvlink_domains_together(target: str, topology: str, xla: str) -> None:
    assert parse_topology(topology).for_xla(load_target(target).network) == xla


def test_nodes_that_do_not_fill_domains_are_refused() -> None:
    with pytest.raises(StudyFileError, match="multiple of 18"):
        Topology(19, 4).for_xla(load_target("gb200").network)


@pytest.mark.parametrize("text", ["", "x8", "0x8", "8x", "8x8x8", "-1", "2x0", "eight"])
def test_odd_topologies_are_refused(text: str) -> None:
    with pytest.raises(StudyFileError, match="8x8"):
        parse_topology(text)


def test_unknown_target_names_close_ones() -> None:
    with pytest.raises(StudyFileError, match="h100-sxm"):
        load_target("h100sxm")


def test_target_file_takes_the_rates_of_the_packaged_gpu_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.txtpb"
    path.write_text(load_target("h200").config_text, encoding="utf-8")
    found, known = load_target(str(path)), load_target("h200")
    assert (found.name, found.memory_bytes, found.network) == ("mine", known.memory_bytes, known.network)
    path.write_text(known.config_text.replace("NVIDIA H200", "NVIDIA H7"), encoding="utf-8")
    assert load_target(str(path)).network is None


def test_target_file_that_says_too_little_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.txtpb"
    path.write_text("gpu_device_info { core_count: 7 }", encoding="utf-8")
    with pytest.raises(StudyFileError, match="device_memory_size"):
        load_target(str(path))
    with pytest.raises(StudyFileError, match="readable"):
        load_target(str(tmp_path / "none.txtpb"))


def test_proto_text_nests_and_quotes() -> None:
    text = proto_text({"a": {"b": 7, "feature_extension": "NONE"}, "name": "x y"})
    assert text == 'a {\n  b: 7\n  feature_extension: NONE\n}\nname: "x y"\n'


WHOLE = {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (WHOLE, None),
        ({n: v for n, v in WHOLE.items() if "cuda" not in n}, "none is installed"),
        ({n: v for n, v in WHOLE.items() if "pjrt" not in n}, "only jax-cuda12-plugin"),
        ({**WHOLE, "jax-cuda12-plugin": "0.9.7"}, "jax-cuda12-plugin==0.10.2"),
    ],
)
def test_plugin_must_be_whole_and_of_jaxlibs_version(versions: dict[str, str], said: str | None) -> None:
    found = plugin.compiler_problem(versions)
    assert found is None if said is None else found is not None and said in found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H100", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("cpu", None),
    ],
)
def test_target_of_a_device_kind(kind: str, name: str | None) -> None:
    found = target_of(kind)
    assert (found.name if found else None) == name
