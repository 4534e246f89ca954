"""What packages a Python has: imported by this one, run as a program by another.

Run as ``python -P packages.py '{"versions": [NAME, ...], "folders": [MODULE, ...]}'``; answers with one JSON object:
``python`` (its version), ``versions`` and ``folders`` by name, without what is missing. Standard library only, for
nothing else need be installed there.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable

PACKAGES_PROGRAM = __file__

CUDA_PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
"""Distributions that bring JAX its CUDA backend, the newest first; of several JAX takes the first."""


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


def _folder(name: str) -> str | None:
    import importlib.util

    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return next(iter(places), None) if places else None


def main() -> None:
    """Answers the question of the command line."""
    asked = json.loads(sys.argv[1])
    folders = {name: folder for name in asked["folders"] if (folder := _folder(name)) is not None}
    versions = installed_versions(asked["versions"])
    print(json.dumps({"python": platform.python_version(), "versions": versions, "folders": folders}))


if __name__ == "__main__":
    main()
