"""Whether the installed packages can compile for a GPU that is not here: XLA's CUDA plugin, whole."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

EXTRA = "xla-autotune[screen]"
_PARTS = ("plugin", "pjrt")
_CUDA = ("cuda13", "cuda12")
NAMES = ("jax", "jaxlib", *(f"jax-{cuda}-{part}" for cuda in _CUDA for part in _PARTS))


def compiler_versions() -> dict[str, str]:
    """Versions of jax, jaxlib and the plugin's parts, as far as they are installed."""
    found = {}
    for name in NAMES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def compiler_problem(versions: Mapping[str, str]) -> str | None:
    """Why nothing can be compiled for a described GPU, and what to install; None if it can.

    Args:
        versions: What is installed; see `installed_versions`.
    """
    jaxlib = versions.get("jaxlib")
    parts = {n: v for n, v in versions.items() if n not in ("jax", "jaxlib")}
    whole = any(all(f"jax-{cuda}-{part}" in parts for part in _PARTS) for cuda in _CUDA)
    if not whole:
        got = f"only {', '.join(parts)} is installed" if parts else "none is installed"
        return f"compiling for a GPU needs XLA's CUDA plugin but {got}; run: pip install '{EXTRA}'"
    wrong = [f"{name} {version}" for name, version in parts.items() if version != jaxlib]
    if wrong:
        fix = " ".join(f"{name}=={jaxlib}" for name in parts)
        return (
            f"the CUDA plugin must be of jaxlib's version {jaxlib} but got {', '.join(wrong)}; run: pip install {fix}"
        )
    return None
