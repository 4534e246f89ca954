"""Whether the installed packages can compile for a GPU that is not here: XLA's CUDA plugin, whole."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.machine import CUDA_PLUGINS, installed_versions

EXTRA = ".[screen]"
_WHOLE = tuple((plugin, plugin.replace("-plugin", "-pjrt")) for plugin in CUDA_PLUGINS)
_NAMES = ("jax", "jaxlib", *(part for parts in _WHOLE for part in parts))


def compiler_versions() -> dict[str, str]:
    """Versions of jax, jaxlib and the plugin's parts, as far as they are installed."""
    return installed_versions(_NAMES)


def compiler_problem(versions: Mapping[str, str]) -> str | None:
    """Why nothing can be compiled for a described GPU, and what to install; None if it can.

    Args:
        versions: What is installed; see `compiler_versions`.
    """
    jaxlib = versions.get("jaxlib")
    parts = {n: v for n, v in versions.items() if n not in ("jax", "jaxlib")}
    if not any(all(part in parts for part in whole) for whole in _WHOLE):
        got = f"only {', '.join(parts)} is installed" if parts else "none is installed"
        return (
            f"compiling for a GPU needs XLA's CUDA plugin but {got}; in autotune's folder run: pip install -e '{EXTRA}'"
        )
    wrong = [f"{name} {version}" for name, version in parts.items() if version != jaxlib]
    if wrong:
        fix = " ".join(f"{name}=={jaxlib}" for name in parts)
        return (
            f"the CUDA plugin must be of jaxlib's version {jaxlib} but got {', '.join(wrong)}; run: pip install {fix}"
        )
    return None
