"""Delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002."""

from __future__ import annotations

from collections.abc import Callable

from autotune.model.flags import FlagSet


def shrink(settings: FlagSet, fails: Callable[[FlagSet], bool | None]) -> tuple[FlagSet, bool]:
    """Finds a minimal failing part of a failing set, and tells whether it is minimal.

    Args:
        fails: Whether a part does; None if no more may be asked.
    """
    current, pieces = list(settings), 2
    while len(current) > 1:
        size = -(-len(current) // pieces)
        chunks = [current[i : i + size] for i in range(0, len(current), size)]
        rests = [[n for n in current if n not in chunk] for chunk in chunks] if len(chunks) > 2 else []
        for names in (*chunks, *rests):
            verdict = fails(FlagSet({n: settings[n] for n in names}))
            if verdict is None:
                return FlagSet({n: settings[n] for n in current}), False
            if verdict:
                pieces = 2 if names in chunks else max(2, pieces - 1)
                current = names
                break
        else:
            if size == 1:
                break
            pieces = min(len(current), 2 * pieces)
    return FlagSet({n: settings[n] for n in current}), True
