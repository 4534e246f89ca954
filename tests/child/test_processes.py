"""Which packages a process has its XLA from: told by what is mapped into it, whatever started it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from autotune.child import processes
from autotune.child.packages import near_home, versions_in
from autotune.child.processes import xla_processes


def test_another_environment_is_told_with_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    for name in ("jax-0.6.2", "jaxlib-0.6.2", "jax_cuda12_plugin-0.6.2", "other-1"):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    proc = tmp_path / str(os.getpid())
    (proc / "fd").mkdir(parents=True)
    (proc / "fd" / "3").symlink_to("/dev/nvidia0")
    (proc / "exe").symlink_to(Path(sys.executable).resolve())
    (proc / "root").symlink_to("/")
    (proc / "environ").write_bytes(b"PATH=/bin\0XLA_FLAGS=--xla_a=1\0")
    (proc / "maps").write_text(
        f"7f00-7f01 r-xp 0 08:01 1   /usr/lib/libc.so.6\n7f02-7f03 r-xp 0 08:01 2   {folder}/jaxlib/_jax.so\n"
    )
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(processes, "descendants", lambda root: [])
    (told,) = xla_processes(os.getpid(), ["XLA_FLAGS", "NCCL_PROTO"])
    assert told["packages"] == "~/env/lib/python3.12/site-packages", "the name of a user is not told"
    assert told["versions"] == {"jax": "0.6.2", "jaxlib": "0.6.2", "jax-cuda12-plugin": "0.6.2", "python": "3.12"}
    assert versions_in(told["packages"]) == told["versions"]
    assert told["python"] == str(tmp_path / "env" / "bin" / "python")
    assert told["values"] == {"XLA_FLAGS": "--xla_a=1", "NCCL_PROTO": None}
    assert told["opens_gpu"]
    (proc / "environ").write_bytes(b"\0" * 20)
    assert "overwritten" in xla_processes(os.getpid())[0]["unreadable"]
    (proc / "maps").write_text("7f00-7f01 r-xp 0 08:01 1  /usr/lib/libc.so.6\n")
    assert xla_processes(os.getpid()) == []
    assert versions_in(str(tmp_path / "gone")) == {}
    assert near_home(f"{tmp_path}x/lib") == f"{tmp_path}x/lib"
