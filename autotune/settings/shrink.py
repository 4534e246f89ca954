"""Finds the smallest part of a failing set that still fails."""

from __future__ import annotations

from collections.abc import Callable

from autotune.model.flags import FlagSet


def shrink(settings: FlagSet, fails: Callable[[FlagSet], bool | None]) -> tuple[FlagSet, bool]:
    """Finds a minimal failing part of a failing set, and tells whether it is minimal.

    Pieces are left out that the failure does not need, first halves, at last single settings until
    none can go.

    Args:
        fails: Whether a part does; None if no more may be asked.
    """
    part = settings
    size = max(1, len(settings) // 2)
    while True:
        names = list(part)
        for start in range(0, len(names), size):
            rest = part.without(*names[start : start + size])
            verdict = bool(rest) and fails(rest)
            if verdict is None:
                return part, False
            if verdict:
                part = rest
        if size == 1 and len(part) == len(names):
            return part, True
        size = max(1, size // 2)
