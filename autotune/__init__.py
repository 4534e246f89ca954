"""Finds, proves and exports the fastest XLA / NCCL / JAX settings for LLM training.

In a notebook: ``import autotune; s = autotune.load("runs/x")``, then `s.trials`, `s.winner`, `s.plot.forest()`, and
``autotune.compare([a, b])``; ``autotune.atlas()`` is the table of what settings do. All are fetched when first used, so
that importing the package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.model import NotComparableError as NotComparableError
    from autotune.results import Study as Study
    from autotune.results import atlas as atlas
    from autotune.results import compare as compare
    from autotune.results import load as load

__version__ = "0.1.0"

_OFFERED = ("NotComparableError", "Study", "atlas", "compare", "load")


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autotune import model, results

    return getattr(model if name == "NotComparableError" else results, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_OFFERED])
