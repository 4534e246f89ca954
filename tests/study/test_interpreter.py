"""The build that is asked is the build that is measured: the interpreter of a command, however it is started."""

from __future__ import annotations

import subprocess
import sys
import time
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.machine import driver_python
from autotune.model import StudyFileError, StudySpec, parse_study
from autotune.study.interpreter import program_python, refuse_other_build

VERSION = "9.9.9"
PROGRAM = """
import jaxlib, sys, time
open("started", "a").write("x")
for step in range(10_000):
    print("step", step, flush=True)
    time.sleep(0.02)
"""
MAPS = "import mmap, pathlib\nwith (pathlib.Path(__file__).parent / 'lib.so').open('rb') as f:\n"
MAPS += "    kept = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment whose jaxlib is of a version of its own, and in memory once it is imported."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "jaxlib").mkdir()
    (packages / "jaxlib" / "lib.so").write_bytes(b"x" * 4096)
    (packages / "jaxlib" / "__init__.py").write_text(MAPS)
    (told := packages / f"jaxlib-{VERSION}.dist-info").mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jaxlib\nVersion: {VERSION}\n")
    return folder / "bin" / "python"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def study(*command: str, **workload: Any) -> StudySpec:
    read = {"pattern": r"step (?P<step>\d+)"}
    return parse_study({"name": "other", "workload": {"command": command, "read": read, **workload}})


LAUNCHERS = {
    "bash run.sh": ("bash", "run.sh"),
    "a script of its own": ("./go",),
    "env": ("env", "A=b", "{other}", "train.py"),
    "uv run, which execs": ("./uv", "run", "train.py"),
    "torchrun, which starts ranks": ("./torchrun", "--nproc=2", "train.py"),
    "a launcher that leaves a daemon": ("./daemon", "train.py"),
    "one named python that is a script": ("./bin/python", "train.py"),
}
SCRIPTS = {
    "run.sh": '"{other}" train.py "$@"\n',
    "go": '#!/bin/sh\nexec "{other}" -m train\n',
    "uv": '#!/bin/sh\nshift\nexec "{other}" "$@"\n',
    "torchrun": "#!{driver}\nimport subprocess, sys\n"
    'ranks = [subprocess.Popen(["{other}", *sys.argv[2:]]) for _ in range(2)]\n[r.wait() for r in ranks]\n',
    "daemon": '#!/bin/sh\n(setsid "{other}" "$@" &)\nsleep 60\n',
    "bin/python": '#!/bin/sh\nexec "{other}" "$@"\n',
}


def put_scripts(folder: Path, other: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "train.py").write_text(PROGRAM)
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text.format(other=other, driver=sys.executable))
        (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    "kind",
    [
        k if k == "env" or k.startswith(("torchrun", "a launcher")) else pytest.param(k, marks=pytest.mark.gate)
        for k in LAUNCHERS
    ],
)
def test_an_interpreter_is_seen_through_whatever_starts_it(kind: str, tmp_path: Path, other: Path) -> None:
    put_scripts(tmp_path, other)
    spec = study(*(word.format(other=other) for word in LAUNCHERS[kind]))
    told: list[str] = []
    found = program_python(spec, tmp_path, note=told.append)
    version = subprocess.run(
        [found, "-c", "from importlib.metadata import version; print(version('jaxlib'))"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert version.strip() == VERSION
    if told:
        assert found == str(other)
        assert f"{other}, with jaxlib {VERSION}" in told[-1]
        time.sleep(0.2)
        assert not [p for p in psutil.process_iter(["exe", "cwd"]) if p.info["cwd"] == str(tmp_path)]


def test_what_was_seen_is_kept_until_the_command_is_another(tmp_path: Path, other: Path) -> None:
    put_scripts(tmp_path, other)
    spec = study("bash", "run.sh")
    assert program_python(spec, tmp_path, note=None) == driver_python(), "nothing is started where nobody may be told"
    assert not (tmp_path / "started").exists()
    assert program_python(spec, tmp_path, note=lambda text: None) == str(other)
    started = (tmp_path / "started").read_text()
    assert program_python(spec, tmp_path, note=pytest.fail) == str(other)
    assert program_python(spec, tmp_path, note=None) == str(other)
    assert (tmp_path / "started").read_text() == started
    (tmp_path / "run.sh").write_text(f"{sys.executable} -c 'import jaxlib.xla_client, time; time.sleep(60)'\n")
    assert program_python(spec, tmp_path, note=lambda text: None) == sys.executable


def test_a_program_that_runs_elsewhere_is_not_guessed_at(tmp_path: Path, other: Path) -> None:
    """As under a cluster's daemon: what runs is below nobody here; its steps tell that waiting is of no use."""
    (tmp_path / "srun").write_text('#!/bin/sh\ni=0\nwhile :; do i=$((i+1)); echo "step $i"; sleep 0.05; done\n')
    (tmp_path / "srun").chmod(0o755)
    told: list[str] = []
    began = time.monotonic()
    assert program_python(study("./srun", "train.py"), tmp_path, note=told.append) == driver_python()
    assert time.monotonic() - began < 30
    assert "it could not be seen" in told[-1]
    assert "[workload] python =" in told[-1]


def test_a_named_interpreter_or_one_in_the_command_starts_nothing(tmp_path: Path, other: Path) -> None:
    (tmp_path / "env").symlink_to(other.parents[1])
    assert program_python(study("bash", "x.sh", python=str(other)), tmp_path, note=pytest.fail) == str(other)
    relative = program_python(study("env/bin/python", "train.py"), tmp_path, note=pytest.fail)
    assert Path(relative).parent.samefile(other.parent), "found from the study's folder, not from ours"
    assert program_python(study("bash", "x.sh", python="env/bin/python"), tmp_path, note=pytest.fail) == relative
    with pytest.raises(StudyFileError, match=r"workload\.python"):
        program_python(study("bash", "x.sh", python="no/such/python"), tmp_path, note=pytest.fail)


def test_a_reference_that_ran_on_another_build_ends_the_study_with_the_key_that_mends_it(other: Path) -> None:
    spec, packages = study("bash", "run.sh"), next(other.parents[1].glob("lib/python*/site-packages"))
    facts: Any = SimpleNamespace(versions={"jaxlib": VERSION}, packages=str(packages))
    with pytest.raises(
        StudyFileError, match=f'jaxlib 0.1.0 .*ran on jaxlib {VERSION}.*python = "{other.parent}/python'
    ):
        refuse_other_build("0.1.0", "/some/python", spec, facts)
    refuse_other_build(VERSION, str(other), spec, facts)
    refuse_other_build("0.1.0", str(other), spec, None)
    refuse_other_build("0.1.0", str(other), spec, SimpleNamespace(versions={}))
