"""Packages of a Python and their versions. Standard library only.

Run by another Python as ``python -P packages.py '{"versions": [NAME, ...], "folders": [MODULE, ...]}'`` it answers with
one JSON object: ``python`` (its version), ``versions`` and ``folders`` by name, without what is missing.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGES_PROGRAM = __file__

CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
"""Distributions that bring JAX its CUDA backend, the newest first; of several JAX takes the first."""

TOLD = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS)
"""Distributions whose versions are recorded of the process of a user's program."""


def workloads_root() -> Path:
    """The folder that holds the package ``workloads``: in a clone beside the package, in a wheel inside it."""
    package = Path(__file__).resolve().parents[1]
    bundled = package / "bundled"
    return bundled if bundled.is_dir() else package.parent


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed, in the order of their names."""
    import importlib.metadata  # here, for it takes ten times as long as all else that a reader of output imports

    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def own_packages() -> dict[str, Any]:
    """The folder from which this process has jaxlib, and the versions there; empty if it has not imported jaxlib."""
    path = getattr(sys.modules.get("jaxlib"), "__file__", None)
    if path is None:
        return {}
    folder = str(Path(path).parent.parent)
    version = ".".join(map(str, sys.version_info[:3]))
    return {"packages": near_home(folder), "versions": {**versions_in(folder), "python": version}}


def near_home(folder: str) -> str:
    """A folder with ``~`` for the user's home, so that records do not hold the user's name."""
    home = str(Path.home())
    return f"~{folder.removeprefix(home)}" if home != "/" and folder.startswith(f"{home}/") else folder


def versions_in(folder: str) -> dict[str, str]:
    """Versions of some distributions in a folder of packages, and of the Python that the folder belongs to."""
    path = Path(folder).expanduser()
    there: dict[str, str] = {}
    try:
        for entry in path.glob("*.dist-info"):
            name, _, version = entry.name.removesuffix(".dist-info").partition("-")
            there[re.sub(r"[-_.]+", "-", name).lower()] = version
    except OSError:
        return {}
    return {**{name: there[name] for name in TOLD if name in there}, **_python_of(path)}


def _python_of(folder: Path) -> dict[str, str]:
    """The version of the Python to which a folder of packages belongs, as exactly as its environment says."""
    found = re.search(r"/python(\d+\.\d+)(?:/|$)", str(folder))
    if found is None:
        return {}
    for above in folder.parents[:4]:
        try:
            text = (above / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        told = re.search(rf"^version(?:_info)?\s*=\s*({re.escape(found[1])}\.\d+)", text, re.MULTILINE)
        return {"python": told[1] if told else found[1]}
    return {"python": found[1]}


def _folder(name: str) -> str | None:
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return next(iter(places), None) if places else None


def main() -> None:
    """Prints the answer to the question of the command line."""
    asked = json.loads(sys.argv[1])
    folders = {name: folder for name in asked["folders"] if (folder := _folder(name)) is not None}
    versions = installed_versions(asked["versions"])
    print(json.dumps({"python": platform.python_version(), "versions": versions, "folders": folders}))


if __name__ == "__main__":
    main()
