"""Finds, proves and exports the fastest XLA / NCCL / JAX settings for LLM training.

In a script or notebook: ``import autotune; s = autotune.run("study.toml")`` runs a study,
``autotune.load("runs/x")`` reads one; then `s.trials`, `s.winner`, `s.plot.forest()`, and
``autotune.compare([a, b])``. ``autotune.ab(a, b)`` compares two variants of a program. All are
fetched when first used, so that importing the package stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.cli.called import ab as ab
    from autotune.model.errors import NotComparableError as NotComparableError
    from autotune.results.api import Study as Study
    from autotune.results.api import compare as compare
    from autotune.results.api import load as load
    from autotune.study.start import run as run

__version__ = "0.1.0"

_OFFERED = {
    "NotComparableError": "model.errors",
    "Study": "results.api",
    "ab": "cli.called",
    "compare": "results.api",
    "load": "results.api",
    "run": "study.start",
}


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"autotune.{_OFFERED[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_OFFERED])
