"""Packages of a Python and their versions. Standard library only.

Run by another Python as ``python -P -c TEXT '{"versions": [NAME, ...], "folders": [MODULE, ...]}'``
it prints a JSON object: ``python`` (its version), ``versions`` and ``folders`` by name, without
missing ones, and ``libraries`` in these folders: path to size in bytes and time of the last change
in ns.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
"""Distributions with JAX's CUDA backend, in JAX's order of preference."""

TOLD = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS)
"""Distributions whose versions are recorded for a user's program."""


def workloads_root() -> Path:
    """The folder of the package ``workloads``: beside this package in a clone, inside it in a
    wheel.
    """
    package = Path(__file__).resolve().parents[1]
    bundled = package / "bundled"
    return bundled if bundled.is_dir() else package.parent


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones of some distributions, in their order."""
    import importlib.metadata  # slow: ten times all other imports of a reader of output

    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def own_packages() -> dict[str, Any]:
    """The folder of this process's jaxlib, and the versions there; empty if it has not imported
    jaxlib.
    """
    path = getattr(sys.modules.get("jaxlib"), "__file__", None)
    if path is None:
        return {}
    folder = str(Path(path).parent.parent)
    version = ".".join(map(str, sys.version_info[:3]))
    return {"packages": near_home(folder), "versions": {**versions_in(folder), "python": version}}


def near_home(folder: str) -> str:
    """Replaces the user's home by ``~``, so that records do not hold the user's name."""
    home = str(Path.home())
    return (
        f"~{folder.removeprefix(home)}" if home != "/" and folder.startswith(f"{home}/") else folder
    )


def versions_in(folder: str) -> dict[str, str]:
    """Versions of `TOLD` in a folder of packages, and of the folder's Python."""
    path = Path(folder).expanduser()
    there: dict[str, str] = {}
    try:
        for entry in path.glob("*.dist-info"):
            name, _, version = entry.name.removesuffix(".dist-info").partition("-")
            there[re.sub(r"[-_.]+", "-", name).lower()] = version
    except OSError:
        return {}
    python = re.search(r"/python(\d+\.\d+)(?:/|$)", str(path))
    return {
        **{name: there[name] for name in TOLD if name in there},
        **({"python": python[1]} if python else {}),
    }


def folder_of(name: str) -> str | None:
    """The folder of an installed package; None if it is missing."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return next(iter(places), None) if places else None


def main() -> None:
    """Prints the answer to the command line's question."""
    asked = json.loads(sys.argv[1])
    folders = {name: folder for name in asked["folders"] if (folder := folder_of(name)) is not None}
    files = {
        str(file): file.stat()
        for folder in folders.values()
        for file in sorted(Path(folder).glob("*.so"))
    }
    libraries = {path: (status.st_size, status.st_mtime_ns) for path, status in files.items()}
    versions = installed_versions(asked["versions"])
    found = {
        "python": platform.python_version(),
        "versions": versions,
        "folders": folders,
        "libraries": libraries,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
