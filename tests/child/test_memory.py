"""What a process and all that it started have in use."""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.child.devices import memory_in_use

MB = 1 << 20
ROOT = Path(__file__).parents[2]
HOLD = "import sys; kept = b'x' * (80 << 20); print('ready', flush=True); sys.stdin.read()"


def host() -> int:
    found = memory_in_use()["host_bytes"]
    assert found is not None
    return found


def in_a_process_of_its_own(call: str) -> None:
    """Calls a function of this file: in pytest's process other tests leave threads and children, which count too."""
    program = f"from tests.child import test_memory; test_memory.{call}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def count() -> None:
    before = host()
    kept = b"x" * (100 * MB)
    assert 90 * MB < host() - before < 130 * MB
    with_kept = host()
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert host() - with_kept > 80 * MB
    of_child = memory_in_use(child.pid)
    assert of_child["host_bytes"] is not None
    assert 80 * MB < of_child["host_bytes"] < 160 * MB
    assert of_child["device_bytes"] is None
    child.communicate()
    assert abs(host() - with_kept) < 20 * MB
    del kept


def test_memory_of_this_process_and_of_those_below_it_is_counted() -> None:
    in_a_process_of_its_own("count()")


def map_file(path: str) -> None:
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = host()
        assert sum(mapped[::4096]) > 0
        assert host() - before < 20 * MB


def test_mapped_files_are_not_a_programs_own() -> None:
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:  # of a disk: what lies in memory is somebody's own
        file.write(b"x" * (100 * MB))
        file.flush()
        in_a_process_of_its_own(f"map_file({file.name!r})")


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert memory_in_use(child.pid) == {"host_bytes": None, "device_bytes": None}
