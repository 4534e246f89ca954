"""A GPU's memory between two processes that take turns: what each gets, and who has to run alone instead.

JAX takes three quarters of a GPU's memory when it starts, so of two the second would find too little. Each gets less
than half, unless the study, or the program itself, says otherwise; what does not fit so is measured alone.
"""

from __future__ import annotations

import re
from pathlib import Path

from autotune.model import TURNS, Failure, FailureKind, FlagSet, StudySpec
from autotune.study.limits import PHASE as LIMIT

MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
SHARED_FRACTION = "0.45"
"""What each of two processes takes of a GPU's memory while they take turns, unless the study says otherwise."""

_REFUSED = re.compile(
    # jaxlib's xla_client.py, 0.10 to 0.12: the program has set the older name of the same
    rf"{MEMORY_FRACTION} is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION"
    # workers/settings_check.py: the program has set this very variable
    rf"|{MEMORY_FRACTION}={SHARED_FRACTION}: the program"
)

MOST_READ = 4_000_000
"""Bytes of a log that are looked through."""


class MemoryShare:
    """What a bench knows of sharing its GPUs.

    Args:
        spec: The study.

    Attributes:
        is_programs_own: Whether the program turned out to set its share itself, so that it is given none.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._alone: set[FlagSet] = set()
        self.is_programs_own = False

    def settings_of(self, settings: FlagSet, *, alone: bool) -> FlagSet:
        """The baseline plus `settings`, plus the share of one of two processes unless it is alone."""
        merged = self._spec.baseline.merge(settings)
        return merged.merge({MEMORY_FRACTION: SHARED_FRACTION}) if self.is_given(settings, alone=alone) else merged

    def is_given(self, settings: FlagSet, *, alone: bool) -> bool:
        """Whether a process is given a share: not if anybody else decides on its memory."""
        if alone or self.is_programs_own or self._spec.device.platform != "cuda":
            return False
        return not any(map(steers_memory, self._spec.baseline.merge(settings)))

    # ------------------------------------------------------------------ who runs alone

    @property
    def is_optional(self) -> bool:
        """Whether processes of this study share a GPU, and may also run alone: the study leaves the choice."""
        return self._spec.device.platform == "cuda" and self._spec.measure.mode == "auto"

    def is_too_small(self, failure: Failure) -> bool:
        """Whether a failure in turns says no more than that two do not fit: alone there is room, perhaps."""
        return (
            self.is_optional
            and failure.kind is FailureKind.OUT_OF_MEMORY
            and failure.phase != LIMIT  # it does not fit alone either
        )

    def remember(self, settings: FlagSet) -> None:
        """Notes that a set does not fit beside another process, so that its next pair does not try again."""
        self._alone.add(settings)

    def is_known_alone(self, *sets: FlagSet) -> bool:
        """Whether one of some sets turned out not to fit beside another process."""
        return self.is_optional and not self._alone.isdisjoint(sets)

    def advice(self, failure: Failure) -> str:
        """What to do about a reference that cannot run, to begin a sentence with."""
        if failure.kind is not FailureKind.OUT_OF_MEMORY or not self.is_given(FlagSet(), alone=False):
            return "mend the workload or the baseline of the study"
        if self._spec.measure.mode == TURNS:
            return (
                f'measure.mode = "{TURNS}" leaves each of two processes {SHARED_FRACTION} of the GPU\'s memory: write '
                '"auto" or "sandwich", and one at a time has more'
            )
        return (
            "it was alone on the GPU, with JAX's own share of the memory: make the workload smaller, or that share "
            f"larger ([baseline] {MEMORY_FRACTION})"
        )

    # ------------------------------------------------------------------ programs that decide for themselves

    def is_refused(self, failure: Failure) -> bool:
        """Whether a process failed because its program, too, says how much memory it takes."""
        if any(map(_REFUSED.search, (failure.message, *failure.last_lines))):
            return True
        # JAX only logs it, far above its last words: that it knows of no such platform.
        return failure.kind is not FailureKind.OUT_OF_MEMORY and _REFUSED.search(_text_of(failure.log)) is not None


def steers_memory(name: str) -> bool:
    """Whether a setting or variable decides how much of a GPU's memory a process takes."""
    return name.endswith(("_MEM_FRACTION", "_PREALLOCATE", "_ALLOCATOR"))


def _text_of(log: str | None) -> str:
    if log is None:
        return ""
    try:
        with Path(log).open("rb") as stream:
            return stream.read(MOST_READ).decode(errors="replace")
    except OSError:
        return ""
