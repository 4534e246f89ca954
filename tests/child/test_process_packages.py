"""Which packages a process has its XLA from: told by its memory, whatever started it; never by the driver's own."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from autotune.child.process_packages import near_home, packages_in_memory, versions_in
from tests.workers.conftest import PRINTED, PROGRAMS, Start, study


def test_another_environment_is_told_with_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    for name in ("jax-0.6.2", "jaxlib-0.6.2", "jax_cuda12_plugin-0.6.2", "other-1"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr\nversion = 3.12.9\n")
    maps = f"7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/libc.so.6\n7f02-7f03 r-xp 0 08:01 2   {folder}/jaxlib/_jax.so\n"
    told = packages_in_memory(maps)
    assert told["packages"] == "~/env/lib/python3.12/site-packages", "the name of a user is not told"
    assert told["versions"] == {"jax": "0.6.2", "jaxlib": "0.6.2", "jax-cuda12-plugin": "0.6.2", "python": "3.12.9"}
    assert versions_in(told["packages"]) == told["versions"]
    assert packages_in_memory("7f00-7f01 r-xp 0 08:01 1  /usr/lib/libc.so.6\n") == {}
    assert versions_in(str(tmp_path / "gone")) == {}
    assert near_home(f"{tmp_path}x/lib") == f"{tmp_path}x/lib"


LAUNCHERS = {
    "python": [sys.executable, "train.py"],
    "bash": ["bash", "-c", f"cd {PROGRAMS}; export A=1; {sys.executable} train.py & wait"],
    "env": ["env", "A=1", sys.executable, "train.py"],
    "nested": ["bash", "-c", f"env A=1 bash -c 'exec {sys.executable} train.py'"],
    "module": [sys.executable, "-m", "train"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_whatever_starts_a_program_its_own_process_tells(start: Start, launcher: str) -> None:
    report = start(study({"command": LAUNCHERS[launcher], "read": PRINTED})).report
    assert report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert report.versions["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert report.device_kind == "cpu"
    assert report.packages is not None
    assert (Path(report.packages).expanduser() / "jaxlib").is_dir()


def test_the_hook_tells_it_too(start: Start) -> None:
    report = start(study({"command": [sys.executable, "hooked.py"], "hook": True})).report
    assert report.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert report.packages is not None
