"""Estimated effects of settings, as a record: a model's, no proof; see `docs/search.md`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autotune.model.base import Record
from autotune.model.flags import FlagSet
from autotune.model.measurement import Settings, Stamped
from autotune.model.numbers import Count, Ratio

Chance = Annotated[float, Field(ge=0, le=1)]
"""A probability."""

INERT = 0.2
"""Chance to act below which a setting counts as inert: sets that differ by such settings alone are one finalist, and a
winner's are left out together by one measurement. That measurement decides, so that the bound need not be strict."""


class Believed(Record):
    """An expected ratio of step times with its 95 % interval."""

    ratio: Ratio
    low: Ratio
    high: Ratio


class ValueEffect(Believed):
    """What one value does beside the defaults of all other settings.

    Attributes:
        trials: How many had it and ran.
    """

    value: str
    trials: Count


class SettingEffect(Record):
    """One setting.

    Attributes:
        chance: That it acts, alone or together with another.
        values: Those that were tried, but for the default.
        needs: Other settings that decide whether this one can act.
    """

    name: str
    chance: Chance
    values: tuple[ValueEffect, ...] = ()
    needs: tuple[str, ...] = ()

    def is_useless(self, value: str, *, least: float) -> bool:
        """Whether it counts as inert, or this value of it cannot better a set by a share of `least`."""
        found = next((v for v in self.values if v.value == value), None)
        return self.chance < INERT or (found is not None and found.low > 1.0 - least)


class PairEffect(Record):
    """Two settings that may act together.

    Attributes:
        chance: That they do.
    """

    names: tuple[str, str]
    chance: Chance


class BestPredicted(Believed):
    """The best expected set, tried or not, of settings alone that are expected to better it."""

    settings: Settings


class EffectsRecord(Stamped):
    """Estimates when the search of a session ended; the same whichever sampler proposed the trials.

    Attributes:
        trials: Trials that the study had then.
        measured: Of these, how many the model could learn speed from.
        settings: All that are searched, likeliest first.
        pairs: Those that act together with some chance, likeliest first.
        best: The best expected set; empty where that is the default.
    """

    kind: Literal["effects"] = "effects"
    trials: Count
    measured: Count
    settings: tuple[SettingEffect, ...]
    pairs: tuple[PairEffect, ...] = ()
    best: BestPredicted

    def useful(self, settings: FlagSet, *, least: float) -> FlagSet:
        """A set without what is believed to be of no use in it.

        That is what counts as inert, and values of settings that do act of which the whole interval promises less than
        `least`, unless another that stays needs them or acts together with them. Settings that were not searched stay:
        nothing is known of them.

        Args:
            settings: The set.
            least: Smallest gain of interest, as a share.
        """
        known = {s.name: s for s in self.settings}
        kept = {n for n, v in settings.items() if n not in known or not known[n].is_useless(v, least=least)}
        for pair in self.pairs:
            if pair.chance >= INERT and set(pair.names) <= set(settings):
                kept |= set(pair.names)
        grown = True
        while grown:
            needed = {other for n in kept if n in known for other in known[n].needs if other in settings}
            grown = not needed <= kept
            kept |= needed
        return settings.without(*(n for n in settings if n not in kept))
