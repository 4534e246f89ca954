"""What a process says that it ran on, with libraries in the places of NVIDIA's that a process cannot tell from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.child import gpus
from harness.fake_cuda import make_cuda
from harness.fake_nvml import FUNCTION_NOT_FOUND, GPU_IS_LOST, FakeNvml, missing, uuid_of
from tests.tables import toml_beside

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TELL = "import json; from autotune.child.gpus import ran_on; print(json.dumps(ran_on({devices})))"
LOAD = "import ctypes; [ctypes.CDLL(n) for n in {names!r}]; "


def answer(program: str, libraries: str, *arguments: str) -> Any:
    """What a process of its own writes, as JSON, that finds libraries in these folders."""
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def told(nvml: FakeNvml, *, load: tuple[str, ...] = (), devices: object = None, path: str = "") -> Any:
    """What a process tells that loaded some libraries before."""
    libraries = os.pathsep.join(filter(None, [path, str(nvml.folder)]))
    return answer(LOAD.format(names=load) + TELL.format(devices=devices), libraries)


def test_a_process_tells_the_versions_of_what_it_has_loaded_and_of_nothing_else(tmp_path: Path) -> None:
    cuda, nvml = make_cuda(tmp_path / "cuda", nccl=22703), FakeNvml(tmp_path / "nvml")
    found = told(nvml, path=str(cuda), load=("libcublas.so.12", "libnccl.so.2"))
    assert found["versions"] == {"driver": "580.65.06", "cublas": "12.9.1", "nccl": "2.27.3"}


def test_a_library_that_is_none_is_not_told(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path / "nvml")
    (tmp_path / "libcudnn.so.9").write_bytes((nvml.folder / "libnvidia-ml.so.1").read_bytes())
    assert told(nvml, path=str(tmp_path), load=("libcudnn.so.9",))["versions"] == {"driver": "580.65.06"}


def test_firmware_limits_and_modes_of_a_gpu_are_told(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path / "nvml", gpus=2)
    nvml.set(1, "nvmlDeviceGetEccMode.0", 0)
    nvml.fail(1, "nvmlDeviceGetGspFirmwareVersion", FUNCTION_NOT_FOUND)
    first, second = told(nvml)["gpus"]
    assert first == {
        "name": "NVIDIA H200",
        "uuid": uuid_of(0),
        "index": 0,
        "vbios": "96.00.BC.00.01",
        "gsp": "580.65.06",
        "max_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "application_clock_mhz": 1980,
        "application_memory_clock_mhz": 3201,
        "power_limit_w": 700.0,
        "persistence": True,
        "mig": False,
        "ecc": True,
    }
    assert (second["gsp"], second["ecc"], second["vbios"]) == (None, False, "96.00.BC.00.01")


VISIBLE = toml_beside(__file__, "visible_gpus.toml")


def test_the_gpus_of_a_process_are_those_that_cuda_would_give_it(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path / "nvml", gpus=3)
    uuids = {"UUID1": uuid_of(1), "UUID1-short": uuid_of(1)[:8]}
    cases = [[uuids.get(visible, visible), devices, indices] for visible, devices, indices in VISIBLE["cases"]]
    found = answer(VISIBLE["program"], str(nvml.folder), json.dumps(cases))
    assert found == [indices for _, _, indices in cases]


def test_a_lost_gpu_leaves_the_others(tmp_path: Path) -> None:
    nvml = FakeNvml(tmp_path / "nvml", gpus=2)
    nvml.fail(0, "nvmlDeviceGetHandleByIndex", GPU_IS_LOST)
    assert [g["index"] for g in told(nvml)["gpus"]] == [1]


def test_without_nvml_the_kernels_module_tells_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "load_nvml", lambda: None)
    file = tmp_path / "version"
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
    file.write_text(f"{driver}\nGCC version: 13\n")
    monkeypatch.setattr(gpus, "DRIVER", file)
    loaded = gpus.loaded_versions()  # what JAX's plugin has brought into pytest's process, where it is installed
    assert gpus.ran_on()["versions"] == {"driver": "580.65.06", **loaded}
    file.unlink()
    assert gpus.ran_on()["versions"] == loaded


@pytest.mark.parametrize(("environment", "count"), VISIBLE["ports_under"])
def test_ports_are_counted_as_nccl_counts_them(
    environment: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "CLASSES", tmp_path)
    cards = tmp_path / "infiniband"
    for place, state, layer in VISIBLE["ports"]:
        (cards / place).mkdir(parents=True)
        (cards / place / "state").write_text(f"{state}\n")
        (cards / place / "link_layer").write_text(f"{layer}\n")
    (cards / "mlx5_9/ports/1").mkdir(parents=True)  # one that cannot be read
    assert gpus.infiniband_ports(environment) == count


@pytest.mark.parametrize(("vendors", "networks"), VISIBLE["networks"])
def test_networks_of_clouds_are_known_by_the_vendors_of_their_cards(
    vendors: dict[str, str], networks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "CLASSES", tmp_path)
    (tmp_path / "net/lo").mkdir(parents=True)  # it has no card
    for number, (card, vendor) in enumerate(vendors.items()):
        device = tmp_path / "devices" / str(number)  # of PCIe
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (tmp_path / card).mkdir(parents=True)
        (tmp_path / card / "device").symlink_to(device)
    assert gpus.cloud_networks() == networks
