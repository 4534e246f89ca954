"""Which processors other work may have while devices are measured: from what the kernel says of cores and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.machine import spare_processors


def machine(root: Path, *, cores: int, threads: int = 1, nodes: int = 1, gpu_node: int | None = None) -> Path:
    """What the kernel of such a machine shows; the second thread of core N is processor N + cores."""
    for cpu in range(cores * threads):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        siblings = ",".join(str(cpu % cores + cores * t) for t in range(threads))
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    for node in range(nodes):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        each = cores // nodes
        ranges = [f"{cores * t + node * each}-{cores * t + (node + 1) * each - 1}" for t in range(threads)]
        (folder / "cpulist").write_text(",".join(ranges) + "\n")
    for name, vendor, at in (("gpu", "0x10de", gpu_node), ("nic", "0x15b3", 0)):
        folder = root / f"sys/bus/pci/devices/{name}"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "numa_node").write_text(f"{-1 if at is None else at}\n")
    return root


@pytest.mark.parametrize(
    ("cores", "gpus", "spare"),
    [(2, 1, 0), (4, 1, 2), (16, 1, 8), (16, 8, 7), (8, 8, 0), (96, 8, 48)],
)
def test_half_of_the_cores_are_left_and_one_for_each_device(tmp_path: Path, cores: int, gpus: int, spare: int) -> None:
    found = spare_processors(gpus, usable=range(cores), root=machine(tmp_path, cores=cores))
    assert len(found) == spare
    assert found == set(range(cores - spare, cores))


def test_threads_of_one_core_are_not_shared_out(tmp_path: Path) -> None:
    root = machine(tmp_path, cores=8, threads=2)
    assert spare_processors(1, usable=range(16), root=root) == {4, 5, 6, 7, 12, 13, 14, 15}


def test_cores_far_from_the_gpu_go_first(tmp_path: Path) -> None:
    root = machine(tmp_path, cores=16, threads=2, nodes=2, gpu_node=1)
    assert spare_processors(1, usable=range(32), root=root) == {*range(8), *range(16, 24)}


def test_only_what_may_be_used_is_given(tmp_path: Path) -> None:
    """A container, or a SLURM job, has some of the processors, and of some cores one thread."""
    root = machine(tmp_path, cores=16, threads=2)
    found = spare_processors(1, usable=[3, 5, 7, 9, 11, 19], root=root)
    assert found == {9, 11}
    assert spare_processors(1, usable=[3], root=root) == set()


def test_a_system_that_says_nothing_has_a_core_for_each_processor(tmp_path: Path) -> None:
    assert spare_processors(1, usable=range(6), root=tmp_path) == {3, 4, 5}
