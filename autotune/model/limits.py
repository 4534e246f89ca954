"""The section [limits] of a study file."""

from __future__ import annotations

from autotune.model.quantities import Bytes
from autotune.model.sections import Section


class LimitsSpec(Section):
    """What a candidate must keep, whatever its speed.

    Attributes:
        memory: Most bytes that it may need of each device, by its compiled program or as measured: ``"72GiB"``.
        rules: Constraints between options (by name) and settings (by full name), such as
            ``batch * accumulate == 16``; see `autotune.model.rules`.
    """

    memory: Bytes | None = None
    rules: tuple[str, ...] = ()
