"""Packages of a Python and their versions. Standard library only.

Run by another Python as ``python -P -c TEXT '{"versions": [NAME, ...], "folders": [MODULE, ...]}'``
it prints JSON: ``python`` (its version), ``versions`` and ``folders`` of those installed, and
``libraries`` in these folders, by path: bytes, and time of the last change in ns.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")  # in JAX's order
RECORDED = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS)  # of a program
Versions = dict[str, str]  # of distributions, by name


def workloads_root() -> Path:
    """Returns the folder of ``workloads``: beside this package in a clone, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    bundled = package / "bundled"
    return bundled if bundled.is_dir() else package.parent


def installed_versions(names: Iterable[str]) -> Versions:
    """Returns the versions of the installed ones of some distributions, in their order."""
    from importlib.metadata import PackageNotFoundError, version  # slow

    versions = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def loaded_packages() -> dict[str, Any]:
    """Returns the folder of this process's jaxlib, and the versions there; empty without jaxlib."""
    path = getattr(sys.modules.get("jaxlib"), "__file__", None)
    if path is None:
        return {}
    folder = str(Path(path).parent.parent)
    versions = {**versions_in(folder), "python": platform.python_version()}
    return {"packages": near_home(folder), "versions": versions}


def near_home(folder: str) -> str:
    """Replaces the user's home by ``~``, so that records do not hold the user's name."""
    home = str(Path.home())
    if home != "/" and folder.startswith(f"{home}/"):
        return f"~{folder.removeprefix(home)}"
    return folder


def versions_in(folder: str) -> Versions:
    """Returns the versions of `RECORDED` in a folder of packages, and of the folder's Python."""
    path = Path(folder).expanduser()
    present = {}
    try:
        for entry in path.glob("*.dist-info"):
            name, _, version = entry.name.removesuffix(".dist-info").partition("-")
            present[re.sub(r"[-_.]+", "-", name).lower()] = version
    except OSError:
        return {}
    versions = {name: present[name] for name in RECORDED if name in present}
    python = re.search(r"/python(\d+\.\d+)(?:/|$)", str(path))
    if python:
        versions["python"] = python[1]
    return versions


def folder_of(name: str) -> str | None:
    """Returns the folder of an installed package; None if it is missing."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec else None


def main() -> None:
    """Prints the answer to the command line's question."""
    question = json.loads(sys.argv[1])
    folders = {}
    libraries = {}
    for name in question["folders"]:
        folder = folder_of(name)
        if folder is not None:
            folders[name] = folder
            for file in sorted(Path(folder).glob("*.so")):
                status = file.stat()
                libraries[str(file)] = (status.st_size, status.st_mtime_ns)
    answer = {
        "python": platform.python_version(),
        "versions": installed_versions(question["versions"]),
        "folders": folders,
        "libraries": libraries,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
