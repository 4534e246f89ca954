"""autotune comes to a machine without a network as wheels, and leaves that machine's own jax as it is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
STACK = ("jax", "jaxlib", "flax", "optax")
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
HAS_NAMESPACES = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0


TINY = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")


def offline(command: Sequence[str], cwd: Path = Path("/"), **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that cannot reach anything: in a network of its own where that may be made."""
    nowhere = "http://127.0.0.1:9"
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PIP_", "PYTHON", "VIRTUAL"))}
    env = {**kept, "http_proxy": nowhere, "https_proxy": nowhere, "PIP_NO_INDEX": "1", **more}
    shut = ["unshare", "-rn"] if HAS_NAMESPACES else []
    return subprocess.run([*shut, *command], env=env, capture_output=True, text=True, check=False, cwd=cwd)


def own_of(names: Sequence[str]) -> set[str]:
    """These packages and all that they need, as installed here."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [r.name for r in map(Requirement, needs) if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def machine_with_jax(folder: Path) -> Path:
    """An environment that has pip and a jax of its own, and nothing that is autotune's; gives its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in own_of(STACK):
        files = importlib.metadata.files(name) or ()
        for top in {f.parts[0] for f in files if f.parts[0] not in ("..", "__pycache__")}:
            source = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if not (site / top).exists():
                (site / top).symlink_to(source)
    return folder / "bin" / "python"


def wheelhouse(folder: Path) -> Path:
    """Wheels for this very Python; skips where the network is not there to gather them."""
    glibc = platform.libc_ver()[1].split(".")[1]
    machine = sysconfig.get_platform().rpartition("-")[2]
    command = ["make", "-C", str(ROOT), "wheelhouse", f"PYTHON={VERSION}", f"WHEELHOUSE={folder}"]
    command.append(f"PLATFORM=manylinux_2_{glibc}_{machine}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and re.search(r"Temporary failure|No matching distribution|Network|proxy", done.stderr):
        pytest.skip("wheels can only be gathered with a network")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.gate
def test_its_wheel_works_in_an_environment_that_has_only_what_it_needs(tmp_path: Path) -> None:
    clone, machine = tmp_path / "clone", tmp_path / "machine"
    for folder in ("autotune", "workloads"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = offline([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(clone)])
    assert built.returncode == 0, built.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(machine)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = offline([*pip, "--python", str(machine / "bin/python"), "install", "--no-deps", str(wheel)])
    assert installed.returncode == 0, installed.stderr
    site = next(machine.glob("lib/python*/site-packages"))
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))  # .pth files there, as this clone's, are not read
    it_works_away_from_the_repository(site, tmp_path / "away")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_installs_beside_a_foreign_jax_without_a_network_and_without_touching_it(tmp_path: Path) -> None:
    wheels, python = wheelhouse(tmp_path / "wheels"), machine_with_jax(tmp_path / "machine")
    site = next((tmp_path / "machine").glob("lib/python*/site-packages"))
    before = {p.name: p.readlink() for p in site.iterdir() if p.is_symlink()}
    gathered = {canonicalize_name(w.name.split("-")[0]) for w in wheels.glob("*.whl")}
    assert "optuna" in gathered
    assert not gathered & own_of(STACK)
    # A newer numpy that somebody put into the folder is not what this machine measures with.
    (wheels / "numpy-99.0-py3-none-any.whl").write_bytes(b"no wheel at all")
    without = tmp_path / "without"
    shutil.copytree(wheels, without, ignore=shutil.ignore_patterns("optuna*"))
    said = offline(["make", "-C", str(ROOT), "offline", f"PYTHON={python}", f"WHEELHOUSE={without}"])
    assert said.returncode != 0
    assert "needs optuna>=5," in said.stderr
    done = offline(["make", "-C", str(ROOT), "offline", f"PYTHON={python}", f"WHEELHOUSE={wheels}"])
    assert done.returncode == 0, done.stderr
    after = {p.name: p.readlink() for p in site.iterdir() if p.is_symlink()}
    assert after == before
    autotune = python.parent / "autotune"
    shown = offline([str(autotune), "--help"])
    assert shown.returncode == 0, shown.stderr
    doctor = offline([str(autotune), "doctor"], XDG_CACHE_HOME=str(tmp_path))
    assert doctor.returncode == 0, doctor.stderr
    assert re.search(rf"jax\s+{re.escape(importlib.metadata.version('jax'))}", doctor.stdout)
    place = offline([str(python), "-c", "import autotune, optuna; print(autotune.__file__, optuna.__file__)"])
    assert place.stdout.count(str(site)) == 2
    it_works_away_from_the_repository(site, tmp_path / "away")("run", "tiny.toml")
    assert '"kind":"aa_run"' in (tmp_path / "away/runs/tiny/records.jsonl").read_text()  # its reference has run


LOAD = """
import sys
from autotune.child.packages import workloads_root
sys.path.insert(0, str(workloads_root()))
from workloads.loading import load
load("llama", {"size": "tiny", "layers": 1})
"""


def it_works_away_from_the_repository(site: Path, folder: Path) -> Callable[..., str]:
    """Gives a call of `autotune` where no clone is; the workloads lie in the package, not beside it as anybody's."""
    assert not (site / "workloads").exists()
    assert next(site.glob("xla_autotune-*.dist-info/top_level.txt")).read_text().split() == ["autotune"]
    assert {p.name for p in (site / "autotune/bundled/workloads").glob("*.py")} == {
        p.name for p in (ROOT / "workloads").glob("*.py")
    }
    folder.mkdir()
    (folder / "tiny.toml").write_text(TINY)
    programs = site.parents[2] / "bin"

    def call(*words: str, program: str = "autotune") -> str:
        done = offline([str(programs / program), *words], folder, XDG_DATA_HOME=str(folder), XDG_CACHE_HOME=str(folder))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert call("--version").startswith("autotune ")
    assert "Usage: autotune" in call("--help")
    assert "xla_gpu_autotune_level" in call("flags", "list")
    assert "xla_gpu_autotune_level" in call("flags", "show", "xla_gpu_autotune_level")
    assert call("submit", "tiny.toml", "--dry-run").startswith("#!")
    call("-c", LOAD, program="python")
    return call


def test_a_folder_without_wheels_is_told_of(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "offline.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "hold wheels" in done.stderr
    assert "make wheelhouse" in done.stderr
