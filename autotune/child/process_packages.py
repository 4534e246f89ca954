"""Which packages a running process has its XLA from: seen from outside, whatever started it.

Standard library only. The files that a process has in its memory (``/proc/PID/maps``, see proc(5)) name the folder of
its jaxlib, and the folder names the versions of what lies beside it: so neither the program nor its launcher (a shell
script, ``uv run``, ``srun``) has to be told anything, and nothing of it is started once more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.packages import CUDA_PLUGINS

TOLD = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS)
"""Distributions whose versions are told, as far as they lie there."""

_JAXLIB = re.compile(r"(/[^\n]*?)/jaxlib/[^\n]*\.so", re.MULTILINE)


def packages_in_memory(maps: str) -> dict[str, Any]:
    """The folder from which a process has jaxlib and the versions there; empty if it has none.

    Args:
        maps: What its ``/proc/PID/maps`` holds.
    """
    found = _JAXLIB.search(maps)
    if found is None:
        return {}
    folder = found[1][found[1].index("/") :]
    return {"packages": near_home(folder), "versions": versions_in(folder)}


def own_packages() -> dict[str, Any]:
    """The same of this process, which has imported jaxlib; empty if it has not."""
    path = getattr(sys.modules.get("jaxlib"), "__file__", None)
    if path is None:
        return {}
    folder = str(Path(path).parent.parent)
    version = ".".join(map(str, sys.version_info[:3]))
    return {"packages": near_home(folder), "versions": {**versions_in(folder), "python": version}}


def near_home(folder: str) -> str:
    """A folder without the name of the user whose home it lies in, as `Path.expanduser` takes it."""
    home = str(Path.home())
    return f"~{folder.removeprefix(home)}" if home != "/" and folder.startswith(f"{home}/") else folder


def versions_in(folder: str, names: Iterable[str] = TOLD) -> dict[str, str]:
    """Versions of some distributions in a folder of packages, and of the Python that the folder belongs to."""
    path = Path(folder).expanduser()
    there: dict[str, str] = {}
    try:
        for entry in path.glob("*.dist-info"):
            name, _, version = entry.name.removesuffix(".dist-info").partition("-")
            there[re.sub(r"[-_.]+", "-", name).lower()] = version
    except OSError:
        return {}
    return {**{name: there[name] for name in names if name in there}, **_python_of(path)}


def _python_of(folder: Path) -> Mapping[str, str]:
    """The version of the Python to which a folder of packages belongs, as exactly as its environment tells."""
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
