"""What compiled programs need of a GPU's memory, before anything is started on it: who is not to share it."""

from __future__ import annotations

from typing import NamedTuple

from autotune.model import TURNS, FlagSet, FloorResult
from autotune.study.run import StudyRun
from autotune.study.screen import StudyScreener
from autotune.study.share import SHARED_FRACTION, MemoryShare
from autotune.study.units import AblationUnit, AnyUnit, FloorUnit, PairUnit, TrialUnit


class ForeseenShares:
    """Tells lanes which sets do not fit beside another process, as far as programs that are compiled already show.

    Args:
        run: The study.
        screener: Its screen.
    """

    def __init__(self, run: StudyRun, screener: StudyScreener) -> None:
        self._run = run
        self._screener = screener
        self._share = MemoryShare(run.spec)

    def must_be_alone(self, unit: AnyUnit) -> bool:
        """Whether a unit is known not to fit beside another process; compiles nothing."""
        needs = [self._need_above_share(s) for s in sets_of(unit)]
        floor = self._run.store.last(FloorResult)
        if floor is not None and floor.comparison.mode == TURNS and self._need_above_share(FlagSet()) is not None:
            return False  # the default was not to fit, and did: what is compiled here is not what runs
        return any(needs)

    def _need_above_share(self, settings: FlagSet) -> _Need | None:
        """What a set needs of each GPU, if that is known to be more than it is given in turns."""
        screen = self._screener.believed
        if screen is None or screen.job.target is None or not self._share.is_optional:
            return None
        if not self._share.is_given(settings, alone=False):  # the study has shares of its own: trying tells
            return None
        peak, room = screen.known_peak(settings), int(float(SHARED_FRACTION) * screen.job.target.memory_bytes)
        return _Need(peak, room) if peak is not None and peak > room else None


class _Need(NamedTuple):
    """Bytes of each GPU that a set needs, and those that it is given."""

    peak: int
    room: int


def sets_of(unit: AnyUnit) -> list[FlagSet]:
    """The sets whose processes a unit starts; of a soak or a profile none, for they are alone anyway."""
    if isinstance(unit, TrialUnit):
        return [FlagSet(), unit.config.settings]
    if isinstance(unit, PairUnit):
        return [unit.against or FlagSet(), unit.settings]
    if isinstance(unit, AblationUnit):
        return [unit.settings, unit.rest]
    return [FlagSet()] if isinstance(unit, FloorUnit) else []
