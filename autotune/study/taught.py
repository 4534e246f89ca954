"""What the trials of a study taught: the model's answers in the words of its settings."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from autotune.model import (
    BestPredicted,
    EffectsRecord,
    FlagSet,
    PairEffect,
    PairValueEffect,
    SettingEffect,
    Suspect,
    ValueEffect,
)
from autotune.search import AdditiveFlagSampler, Change, Taught, as_ratio
from autotune.settings import SearchSpace
from autotune.study.samplers import distribution_of, to_text

LIKELY_PAIR = 0.05
"""Chance to act together from which a pair of settings is told."""

_SEED = 0


class Lesson:
    """What was learned from trials.

    Args:
        space: What is searched.
        sampler: Has what is known of its settings.
        trials: As they were told, failed ones included, each with its parameters.
        is_allowed: Whether a set keeps the study's rules.
        least: Smallest gain of interest, as a share: what betters a set by less is not in the best one.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: AdditiveFlagSampler,
        trials: Sequence[FrozenTrial],
        *,
        is_allowed: Callable[[FlagSet], bool],
        least: float,
    ) -> None:
        self._space = space
        self._trials = trials
        self._is_allowed, self._least = is_allowed, -math.log1p(-least)
        distributions = {p.name: distribution_of(p) for p in space.parameters}
        self._coded, model, hazards = sampler.learn_from(trials, distributions)
        self.acts_together = sampler.acts_together(self._coded, model, trials)
        """Whether a model of whole sets makes the trials likelier than effects of single settings and pairs do."""
        self._taught = Taught(model, hazards, seed=_SEED)
        told = ((self._coded.codes(t.params), t) for t in trials if t.params and t.constraints["failure"] <= 0)
        self._ran = [(codes, t) for codes, t in told if codes is not None]
        self._parameters = {p.name: p for p in space.parameters}

    @functools.cached_property
    def _best(self) -> Any:
        ran = [codes for codes, _ in self._ran]
        return self._taught.best(ran, least=self._least, is_allowed=lambda codes: self._is_allowed(self._set(codes)))

    @property
    def measured(self) -> int:
        """Trials that told a speed."""
        return len(self._ran)

    @property
    def best(self) -> FlagSet:
        """The set that promises most, without settings that are not believed to better it."""
        return self._set(self._best)

    def record(self) -> EffectsRecord:
        """All that was learned."""
        taught, forecast = self._taught, self._taught.forecast(self._best)
        settings = [self._setting(i, name) for i, name in enumerate(self._coded.names)]
        pairs = [
            self._pair(block, pair) for block, pair in taught.pairs() if taught.model.chances[block] >= LIKELY_PAIR
        ]
        suspects = [
            Suspect(settings=FlagSet({self._coded.names[i]: self._text(i, code) for i, code in places}), chance=chance)
            for places, chance in self._suspects()
        ]
        return EffectsRecord(
            trials=len(self._trials),
            measured=self.measured,
            settings=tuple(sorted(settings, key=lambda s: (-s.chance, s.name))),
            pairs=tuple(sorted(pairs, key=lambda p: (-p.chance, p.names))),
            suspects=tuple(suspects),
            best=BestPredicted(settings=self.best, **_believed(forecast)),
            left=as_ratio(taught.left(self._best)),
            together=self.acts_together,
        )

    def _suspects(self) -> list[tuple[tuple[tuple[int, int], ...], float]]:
        return [(places, round(chance, 3)) for places, chance in self._taught.suspects()]

    def _setting(self, i: int, name: str) -> SettingEffect:
        default = self._parameters[name].default_choice
        counts = Counter(t.params[name] for codes, t in self._ran if name in t.params and self._acts_in(i, codes))
        texts = {to_text(self._parameters[name], value): (value, count) for value, count in counts.items()}
        changes, values = self._taught.effect(i), []
        for text in sorted(texts, key=_natural):
            value, count = texts[text]
            code = self._coded.part({name: value})
            if text != default and code is not None:
                values.append(ValueEffect(value=text, trials=count, **_believed(changes[code[0][1]])))
        chance, needs = round(float(self._taught.acts[i]), 3), tuple(self._parameters[name].condition or ())
        return SettingEffect(name=name, chance=chance, values=tuple(values), needs=needs)

    def _acts_in(self, i: int, codes: Any) -> bool:
        """Whether a set has a value of a setting other than that of the default."""
        return bool(codes[i] != self._taught.design.neutral[i])

    def _pair(self, block: int, pair: tuple[int, int]) -> PairEffect:
        i, j = pair
        chance, change = self._taught.pair_effect(block)
        counts = Counter(
            (int(codes[i]), int(codes[j]))
            for codes, _ in self._ran
            if self._acts_in(i, codes) and self._acts_in(j, codes)
        )
        values = tuple(
            PairValueEffect(values=(self._text(i, a), self._text(j, b)), trials=count, **_believed(change(a, b)))
            for (a, b), count in sorted(counts.items())
        )
        names = (self._coded.names[i], self._coded.names[j])
        return PairEffect(names=names, chance=round(chance, 3), values=values)

    def _text(self, i: int, code: int) -> str:
        """A value as it is written."""
        return to_text(self._parameters[self._coded.names[i]], self._coded.choices[i][code])

    def _set(self, codes: Any) -> FlagSet:
        """A set as it is tried."""
        values = self._coded.values(codes)
        return self._space.suggest(lambda p: to_text(p, values[p.name]))


def _believed(change: Change) -> dict[str, float]:
    return {"ratio": as_ratio(change.mean), "low": as_ratio(change.low), "high": as_ratio(change.high)}


def _natural(text: str) -> tuple[int, int, str]:
    """Numbers by their size, before words."""
    return (0, int(text), "") if text.lstrip("-").isdigit() else (1, 0, text)
