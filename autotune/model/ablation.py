"""What leaving settings out of a set does: of one setting, or of several together."""

from __future__ import annotations

from typing import Literal

from autotune.model.measurement import Comparison, Failure, Settings, Stamped
from autotune.model.numbers import Elapsed

LeftOut = str | tuple[str, ...]
"""Name of the setting that is left out, or of several that are left out together."""


def names_left_out(left_out: LeftOut) -> tuple[str, ...]:
    """All names."""
    return (left_out,) if isinstance(left_out, str) else left_out


class AblationResult(Stamped):
    """One setting left out of the winner, or several together, measured against the whole winner: do they pay?"""

    kind: Literal["ablation"] = "ablation"
    settings: Settings
    left_out: LeftOut
    comparison: Comparison | None = None
    failure: Failure | None = None
    kept: bool
    reason: str
    duration_s: Elapsed = 0.0
    directory: str | None = None

    @property
    def is_group(self) -> bool:
        """Whether several settings were left out together."""
        return not isinstance(self.left_out, str)

    @property
    def what(self) -> str:
        """What was left out, for people."""
        if isinstance(self.left_out, str):
            return self.left_out
        return f"{len(self.left_out)} settings together ({', '.join(self.left_out)})"
