"""An Optuna sampler for spaces of flags: many settings of which few act, trials of known error.

It works in any Optuna study of positive values such as times::

    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=0))

A study of autotune adds prior knowledge of settings (`Flag`): defaults, groups, conditions, priors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from autotune.search.acquisition import chance_of_gain, propose
from autotune.search.additive import JUMPS, AdditiveModel, Observations
from autotune.search.failures import FailureModel
from autotune.search.memory import MemoryModel, Peak
from autotune.search.models import Models
from autotune.search.space import (
    FINISHED,
    CodedSpace,
    Codes,
    Design,
    Flags,
    Params,
    Rng,
    Space,
    Values,
    likely_pairs,
)

Trials = Sequence[FrozenTrial]
Distributions = dict[str, BaseDistribution]

# User attributes of a trial.
SD_KEY = "autotune:log_sd"  # standard error of the log of its value (or of a log ratio)
DUPLICATE_KEY = "autotune:duplicate_of"  # number of the measured trial of its program
MEMORY_KEY = "autotune:memory"  # peak over the default's; a lower bound if it failed
NUMBER_KEY = "autotune:number"  # its number, if not Optuna's
MOST_PAIRS = 240  # limit of modelled pairs: it bounds the time of a proposal
USUAL_SD = 0.01  # standard error of a trial without `SD_KEY`
MANY_JUMPS = 200  # states of each walk for estimates, which name aliased settings
WORST_SD = 1.0  # standard error of a trial with an unbounded interval


class AdditiveFlagSampler(RandomSampler):
    """Proposes by a sparse additive model: few settings act, some in pairs of their group.

    A setting without finished trials gets a random value. Failed trials (infeasible by a
    constraint, pruned or failed) inform the failure model only. Equal seeds and histories give
    equal proposals.

    Args:
        space: None for the distributions of finished trials.
        is_log_ratio: Whether values are logs of ratios to the default's; else their logs are taken.
    """

    def __init__(
        self,
        space: Space | None = None,
        flags: Flags | None = None,
        *,
        seed: int | None = None,
        is_log_ratio: bool = False,
    ) -> None:
        super().__init__(seed)
        self._space = space
        self._flags = dict(flags or {})
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(1 << 31))
        self._is_log_ratio = is_log_ratio
        self.known_failing: list[Values] = []
        """Known failing combinations of values."""
        self.memory_limit: float | None = None
        """Peak memory that a set may need, over the default's."""
        self.known_peaks: list[tuple[Values, float]] = []
        """Peaks of combinations of values over the default's, known without a trial."""
        self.expected: list[tuple[Values, float, float]] = []
        """Combinations of values with expected log ratios and standard deviations: a prior."""
        self.is_allowed: Callable[[Values], bool] | None = None
        """Whether a set keeps the rules of its space; others are proposed only for want of one."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        """Returns all settings; without a given space, those of finished trials."""
        return self._space_of(study.get_trials(deepcopy=False, states=FINISHED))

    def _space_of(self, trials: Trials) -> Distributions:
        if self._space is not None:
            return dict(self._space)
        space: Distributions = {}
        for trial in trials:
            for name, distribution in trial.distributions.items():
                space.setdefault(name, distribution)
        return space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> Params:
        """Proposes the next set.

        Raises:
            ValueError: For several objectives, or values neither positive nor a log ratio.
        """
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        trials = study.get_trials(deepcopy=False)
        return self._propose(search_space, trials, sign, turn=trial.number + 1)

    def propose(self, trials: Trials) -> Params:
        """Proposes the next set after trials of any sampler; smaller values are better."""
        return self._propose(self._space_of(trials), trials, 1.0, turn=0)

    def _propose(self, space: Space, trials: Trials, sign: float, *, turn: int) -> Params:
        coded = CodedSpace(space, self._flags, trials)
        rng = np.random.default_rng([self._seed, turn, len(trials)])
        fitted = self._fit(coded, sign, rng)
        tried = [*coded.ran.codes, *coded.running.codes]
        if self._is_log_ratio:  # the default's value is known
            tried.append(coded.design.neutral)
        closed = {codes.tobytes() for codes in (*tried, *coded.failed.codes)}

        def is_open(codes: Codes) -> bool:
            if codes.tobytes() in closed or fitted.failures.is_known_failing(codes):
                return False
            return self.is_allowed is None or self.is_allowed(coded.values(codes))

        return coded.values(propose(fitted, rng, is_open, tried=coded.table(tried)))

    def fit(self, trials: Trials) -> Models:
        """Fits the models to trials of any sampler; smaller values are better."""
        coded = CodedSpace(self._space_of(trials), self._flags, trials)
        rng = np.random.default_rng([self._seed, len(trials)])
        return self._fit(coded, 1.0, rng, MANY_JUMPS)

    def chance_of_gain(self, trials: Trials, *, least: float) -> float:
        """Returns the probability that another set gains `least` (a log ratio) over those tried."""
        rng = np.random.default_rng([self._seed, len(trials)])
        return chance_of_gain(self.fit(trials), rng, least)

    def _fit(self, coded: CodedSpace, sign: float, rng: Rng, jumps: int = JUMPS) -> Models:
        observed = self._observations(coded, sign)

        def fit(design: Design) -> AdditiveModel:
            seed = int(rng.integers(1 << 31))
            return AdditiveModel(
                design, observed, seed=seed, has_origin=self._is_log_ratio, jumps=jumps
            )

        pairs = likely_pairs(coded.factors)
        if len(pairs) > MOST_PAIRS:
            p_active = fit(coded.design).p_active()
            pairs = sorted(sorted(pairs, key=lambda p: -min(p_active[list(p)]))[:MOST_PAIRS])
        design = Design(coded.factors, pairs)
        causes = [cause for cause in map(coded.part, self.known_failing) if cause is not None]
        ran, failed = (coded.table(group.codes) for group in (coded.ran, coded.failed))
        failures = FailureModel(design, ran, failed, causes)
        memory = MemoryModel(coded.design, self._peaks(coded), self.memory_limit)
        return Models(fit(design), failures, memory, coded)

    def _peaks(self, coded: CodedSpace) -> list[Peak]:
        peaks = []
        for values, ratio in self.known_peaks:
            codes = coded.codes(values)
            if codes is not None:
                peaks.append((codes, ratio, False))
        for group in (coded.ran, coded.failed):
            for codes, trial in zip(*group, strict=True):
                if MEMORY_KEY in trial.user_attrs:
                    peaks.append((codes, trial.user_attrs[MEMORY_KEY], group is coded.failed))
        return peaks

    def _observations(self, coded: CodedSpace, sign: float) -> Observations:
        trials = coded.ran.trials
        rows = coded.ran.codes.copy()
        values = np.array([t.value for t in trials], dtype=float)
        if not self._is_log_ratio:
            if (values <= 0).any():
                raise ValueError(
                    "values must be positive, as times are, but the least of the study is "
                    f"{values.min()!r}; for logs of ratios make the sampler with is_log_ratio=True"
                )
            values = np.log(values)
        values = sign * values
        sds = [_sd(t) for t in trials]
        places = {t.user_attrs.get(NUMBER_KEY, t.number): at for at, t in enumerate(trials)}
        duplicates = []
        for at, trial in enumerate(trials):
            original = places.get(trial.user_attrs.get(DUPLICATE_KEY), at)
            if original != at:
                duplicates.append((at, original))
        # Expectations count as if they had been observed, so that trials soon outweigh them.
        for settings, log_ratio, sd in self.expected:
            codes = coded.codes(settings)
            if codes is not None:
                rows.append(codes)
                values = np.append(values, log_ratio)
                sds.append(sd)
        return Observations(coded.table(rows), values, np.array(sds), duplicates)


def _sd(trial: FrozenTrial) -> float:
    """Returns the standard error of a trial's value; the worst if it is invalid."""
    sd = float(trial.user_attrs.get(SD_KEY, USUAL_SD))
    return min(sd, WORST_SD) if sd >= 0 else WORST_SD
