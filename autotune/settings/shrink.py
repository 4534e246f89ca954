"""Finds the smallest part of a failing set that still fails."""

from __future__ import annotations

from collections.abc import Callable

from autotune.model.flags import FlagSet


def shrink(settings: FlagSet, fails: Callable[[FlagSet], bool | None]) -> tuple[FlagSet, bool]:
    """Finds a minimal failing part of a failing set, and tells whether it is minimal.

    Leaves out pieces that the failure does not need, first halves, at last single settings. `fails`
    gives None if no more may be asked.
    """
    failing = settings
    size = max(1, len(settings) // 2)
    while True:
        names = list(failing)
        for start in range(0, len(names), size):
            smaller = failing.without(*names[start : start + size])
            verdict = bool(smaller) and fails(smaller)
            if verdict is None:
                return failing, False
            if verdict:
                failing = smaller
        if size == 1 and len(failing) == len(names):
            return failing, True
        size = max(1, size // 2)
