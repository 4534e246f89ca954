"""Reservations of devices: by one study at a time, until its process ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autotune.machine.devices import reserve_devices
from autotune.model.errors import LaunchError
from tests.runs import there
from tests.tables import toml_beside

OTHER = toml_beside(__file__, "programs.toml")["holds_a_device"]


def test_a_device_is_of_one_study_at_a_time() -> None:
    with reserve_devices("cuda", ["0", "1"]):
        with pytest.raises(LaunchError, match=rf"device 1 .*\(process {os.getpid()}\)"):
            reserve_devices("cuda", ["1"]).__enter__()
        with reserve_devices("cuda", ["2"]), reserve_devices("cpu", ["0"]), reserve_devices("cuda", []):
            pass
    with reserve_devices("cuda", ["0", "1"]):
        pass


def test_a_device_of_a_killed_study_is_free() -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        there(other.stdout).readline()
        with pytest.raises(LaunchError, match=rf"process {other.pid}\)"):
            reserve_devices("cuda", ["3"]).__enter__()
        other.kill()
    with reserve_devices("cuda", ["3"]):
        pass
