"""An Optuna sampler for spaces of flags: many settings of which few act, each trial with its own
standard error.

It works in any Optuna study of positive values such as times::

    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=0))

A study of autotune adds prior knowledge of settings (`Flag`): defaults, groups, conditions, priors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from autotune.search.acquisition import chance_of_gain, propose
from autotune.search.additive import JUMPS, AdditiveModel, Observations
from autotune.search.failures import FailureModel
from autotune.search.memory import MemoryModel, Peaks
from autotune.search.models import Models
from autotune.search.space import (
    FINISHED,
    Coded,
    CodedSpace,
    Codes,
    Design,
    Flag,
    Floats,
    likely_pairs,
)

SD_KEY = "autotune:log_sd"
"""User attribute of a trial: standard error of the log of its value (of the value, if that is a log
ratio).
"""

DUPLICATE_KEY = "autotune:duplicate_of"
"""User attribute of an unmeasured trial: number of the trial with the same program."""

MEMORY_KEY = "autotune:memory"
"""User attribute of a trial: its peak memory over the default's; of a failed one, for want of
memory, a lower bound.
"""

NUMBER_KEY = "autotune:number"
"""User attribute of a trial: its number, if not Optuna's."""

MOST_PAIRS = 240
"""Limit of modelled pairs (those of the likeliest settings), which bounds the time of a
proposal.
"""

USUAL_SD = 0.01
"""Standard error of a trial without `SD_KEY`."""

MANY_JUMPS = 200
"""States of each walk for estimates, which must name both of two settings that were always changed
together.
"""

WORST_SD = 1.0
"""Standard error of a trial with an unbounded interval."""


@dataclass(frozen=True, slots=True)
class Fitted(Models):
    """The models fitted to the trials of a space."""

    coded: CodedSpace

    def may_fit(self, values: Mapping[str, Any]) -> bool:
        """Returns whether a set is more likely than not to fit into memory, by what is known."""
        codes = self.coded.codes(values)
        return codes is None or self.fits(codes)


class AdditiveFlagSampler(RandomSampler):
    """Proposes by a sparse additive model: few settings act, some together with another of their
    group.

    A setting without finished trials gets a random value.

    Failed trials (infeasible by a constraint, pruned or failed) inform the failure model only.
    Equal seeds and histories give equal proposals.

    Args:
        space: None for the distributions of finished trials.
        is_log_ratio: Whether values are logs of ratios to the default's; else they are positive and
            their logs are modelled.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution] | None = None,
        flags: Mapping[str, Flag] | None = None,
        *,
        seed: int | None = None,
        is_log_ratio: bool = False,
    ) -> None:
        super().__init__(seed)
        self._given = dict(space) if space is not None else None
        self._flags = dict(flags or {})
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(1 << 31))
        self._is_log_ratio = is_log_ratio
        self.known_failing: list[Mapping[str, Any]] = []
        """Known failing combinations of values."""
        self.memory_limit: float | None = None
        """Peak memory that a set may need, over the default's."""
        self.known_peaks: list[tuple[Mapping[str, Any], float]] = []
        """Peaks of combinations of values over the default's, known without a trial."""
        self.expected: list[tuple[Mapping[str, Any], float, float]] = []
        """Combinations of values with the log ratio that is expected of them, and its standard
        deviation: a prior.
        """
        self.is_allowed: Callable[[Mapping[str, Any]], bool] | None = None
        """Whether a set keeps the rules of its space; forbidden ones are proposed only if no other
        is found.
        """

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns all settings; without a given space, those of finished trials."""
        return self._space_of(study.get_trials(deepcopy=False, states=FINISHED))

    def _space_of(self, trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
        if self._given is not None:
            return dict(self._given)
        space: dict[str, BaseDistribution] = {}
        for past in trials:
            for name, distribution in past.distributions.items():
                space.setdefault(name, distribution)
        return space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Proposes the next set; ValueError for several objectives, or values neither positive nor
        a log ratio.
        """
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        return self._propose(
            search_space, study.get_trials(deepcopy=False), sign, turn=trial.number + 1
        )

    def propose(self, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Proposes the next set after trials of any sampler; smaller values are better."""
        return self._propose(self._space_of(trials), trials, 1.0, turn=0)

    def _propose(
        self,
        space: Mapping[str, BaseDistribution],
        trials: Sequence[FrozenTrial],
        sign: float,
        *,
        turn: int,
    ) -> dict[str, Any]:
        coded = CodedSpace(space, self._flags)
        rng = np.random.default_rng([self._seed, turn, len(trials)])
        kept, failed = coded.split(trials)
        fitted = self._fit(coded, kept, failed, sign, rng)
        begun = [t.params for t in trials if t.state not in FINISHED and t.params]
        under_way = [codes for params in begun if (codes := coded.codes(params)) is not None]
        tried = [*(c for c, _ in kept), *under_way]
        if self._is_log_ratio:  # the default's value is known
            tried.append(fitted.effects.design.neutral)
        known = {c.tobytes() for c in (*tried, *(c for c, _ in failed))}

        def is_open(codes: Codes) -> bool:
            if codes.tobytes() in known or fitted.failures.known_cause(codes) is not None:
                return False
            return self.is_allowed is None or self.is_allowed(coded.values(codes))

        return coded.values(propose(fitted, rng, is_open, tried=coded.table(tried)))

    def fit(self, trials: Sequence[FrozenTrial]) -> Fitted:
        """Fits the models to finished and failed trials of any sampler; smaller values are
        better.
        """
        coded = CodedSpace(self._space_of(trials), self._flags)
        rng = np.random.default_rng([self._seed, len(trials)])
        return self._fit(coded, *coded.split(trials), 1.0, rng, MANY_JUMPS)

    def chance_of_gain(self, trials: Sequence[FrozenTrial], *, least: float) -> float:
        """Returns the probability that another set gains `least` (a log ratio) over all finished
        trials' sets.
        """
        fitted = self.fit(trials)
        rows = [codes for codes, _ in fitted.coded.split(trials)[0]]
        tried = fitted.coded.table([*rows, fitted.effects.design.neutral])
        rng = np.random.default_rng([self._seed, len(trials)])
        return chance_of_gain(fitted, rng, tried=tried, least=least)

    def _fit(
        self,
        coded: CodedSpace,
        kept: Sequence[Coded],
        failed: Sequence[Coded],
        sign: float,
        rng: np.random.Generator,
        jumps: int = JUMPS,
    ) -> Fitted:
        rows = coded.table([codes for codes, _ in kept])
        seen = self._observations(coded, [t for _, t in kept], rows, sign)

        def fit(design: Design) -> AdditiveModel:
            seed = int(rng.integers(1 << 31))
            return AdditiveModel(
                design, seen, seed=seed, has_origin=self._is_log_ratio, jumps=jumps
            )

        pairs = likely_pairs(coded.factors)
        if len(pairs) > MOST_PAIRS:
            p_active = fit(Design(coded.factors, [])).p_active()
            pairs = sorted(sorted(pairs, key=lambda p: -min(p_active[list(p)]))[:MOST_PAIRS])
        design = Design(coded.factors, pairs)
        known = [c for part in self.known_failing if (c := coded.part(part)) is not None]
        failures = FailureModel(design, rows, coded.table([c for c, _ in failed]), known)
        memory = MemoryModel(design, self._peaks(coded, kept, failed), self.memory_limit)
        return Fitted(fit(design), failures, memory, coded)

    def _peaks(self, coded: CodedSpace, kept: Sequence[Coded], failed: Sequence[Coded]) -> Peaks:
        peaks = [
            (c, peak, False)
            for part, peak in self.known_peaks
            if (c := coded.codes(part)) is not None
        ]
        for trials, is_least in ((kept, False), (failed, True)):
            peaks += [
                (c, t.user_attrs[MEMORY_KEY], is_least)
                for c, t in trials
                if MEMORY_KEY in t.user_attrs
            ]
        return Peaks(
            coded.table([codes for codes, _, _ in peaks]),
            np.array([ratio for _, ratio, _ in peaks], dtype=float),
            np.array([is_least for _, _, is_least in peaks], dtype=bool),
        )

    def _observations(
        self, coded: CodedSpace, kept: Sequence[FrozenTrial], rows: Codes, sign: float
    ) -> Observations:
        sds = np.array([_sd(t) for t in kept])
        places = {t.user_attrs.get(NUMBER_KEY, t.number): at for at, t in enumerate(kept)}
        duplicates = tuple(
            (at, places[of])
            for at, t in enumerate(kept)
            if (of := t.user_attrs.get(DUPLICATE_KEY)) in places and places[of] != at
        )
        values = sign * self._as_logs(np.array([t.value for t in kept], dtype=float))
        for (
            part,
            log_ratio,
            sd,
        ) in self.expected:  # as if it had been observed, so that trials soon outweigh it
            codes = coded.codes(part)
            if codes is not None:
                rows = np.vstack([rows, codes])
                values = np.append(values, log_ratio)
                sds = np.append(sds, sd)
        return Observations(rows, values, sds, duplicates)

    def _as_logs(self, values: Floats) -> Floats:
        if self._is_log_ratio:
            return values
        if (values <= 0).any():
            raise ValueError(
                "values must be positive, as times are, but the least of the study is "
                f"{values.min()!r}; "
                "for logs of ratios make the sampler with is_log_ratio=True"
            )
        return np.asarray(np.log(values))


def _sd(trial: FrozenTrial) -> float:
    """Standard error of a trial's value; the worst if it is invalid."""
    sd = float(trial.user_attrs.get(SD_KEY, USUAL_SD))
    return min(sd, WORST_SD) if sd >= 0 else WORST_SD
