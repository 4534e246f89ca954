"""Estimates the effects of a study's settings from all its trials, by a model; no proof."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from optuna.trial import FrozenTrial

from autotune.model.records import (
    BestPredicted,
    EffectsRecord,
    PairEffect,
    SettingEffect,
    ValueEffect,
)
from autotune.results.effects import LIKELY
from autotune.search.effects import SURELY_ACTS, Change, Effects, as_ratio
from autotune.search.sampler import NUMBER_KEY, SD_KEY, USUAL_SD, AdditiveFlagSampler
from autotune.search.space import Codes
from autotune.study.samplers import Points

LIKELY_PAIR = 0.05  # least probability of an interaction that is recorded


class StudyEffects(Effects):
    """The model fitted to all trials; each setting of the best set must gain the share `least`.

    Attributes:
        best_set: The best expected set, tried or not.
    """

    def __init__(
        self,
        points: Points,
        sampler: AdditiveFlagSampler,
        trials: Sequence[FrozenTrial],
        *,
        least: float,
    ) -> None:
        super().__init__(sampler.fit(trials), seed=0)
        self._points = points
        self._trial_count = len(trials)
        coded = self._models.coded
        self._ran = list(zip(*coded.ran, strict=True))
        self._best_codes = self.best(coded.ran.codes, least=-math.log1p(-least))
        self.best_set = points.point(coded.values(self._best_codes))

    def record(self) -> EffectsRecord | None:
        """Returns all estimates; None if no trial has a step time."""
        if not self._ran:
            return None
        names = self._models.coded.names
        settings = [self._setting(i, name) for i, name in enumerate(names)]
        pairs = [
            PairEffect(names=(names[i], names[j]), chance=round(chance, 3))
            for (i, j), chance in self.pairs()
            if chance >= LIKELY_PAIR
        ]
        return EffectsRecord(
            trials=self._trial_count,
            measured=len(self._ran),
            settings=tuple(sorted(settings, key=lambda s: (-s.chance, s.name))),
            pairs=tuple(sorted(pairs, key=lambda p: (-p.chance, p.names))),
            best=BestPredicted(settings=self.best_set, **_figures(self.forecast(self._best_codes))),
            expected=tuple(
                (t.user_attrs[NUMBER_KEY], self._expected(codes, t)) for codes, t in self._ran
            ),
        )

    def _expected(self, codes: Codes, trial: FrozenTrial) -> float:
        """Returns a trial's ratio by model and trial; half of their scatter counts as the set's."""
        mean = self.model.mean.total(codes)
        error = trial.user_attrs.get(SD_KEY, USUAL_SD)
        weight = 0.5 / (1.0 + (error / self.model.spread) ** 2)
        return as_ratio(mean + weight * ((trial.value or 0.0) - mean))

    def _setting(self, i: int, name: str) -> SettingEffect:
        parameter = self._points.parameters[name]
        neutral = self.design.neutral[i]
        changing = [(codes[i], t) for codes, t in self._ran if codes[i] != neutral]
        counts = Counter((str(t.params[name]), code) for code, t in changing)
        changes = self.of(i)
        values = [
            ValueEffect(value=text, trials=counts[text, code], **_figures(changes[code]))
            for text, code in sorted(counts)
            if text != parameter.default_choice
        ]
        chance = float(self.p_active[i])
        if chance < SURELY_ACTS and not any(_is_clear(t) for _, t in changing):
            chance = min(chance, LIKELY)  # more of it is the prior's
        return SettingEffect(
            name=name,
            chance=round(chance, 3),
            values=tuple(values),
            needs=tuple(parameter.condition or ()),
        )


def _figures(change: Change) -> dict[str, float]:
    return {
        "ratio": as_ratio(change.mean),
        "low": as_ratio(change.low),
        "high": as_ratio(change.high),
    }


def _is_clear(trial: FrozenTrial) -> bool:
    error: float = trial.user_attrs.get(SD_KEY, math.inf)
    return abs(trial.value or 0.0) > 1.96 * error
