"""A sampler of Optuna's for spaces of flags: many settings of which few act, each trial's noise known.

Usable in any Optuna study::

    sampler = AdditiveFlagSampler(seed=0)
    study = optuna.create_study(sampler=sampler)

What autotune adds is what it knows of settings (`Flag`): defaults, groups, conditions, and how likely each acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from autotune.search.additive import AdditiveModel, Observations
from autotune.search.coded import FINISHED, CodedSpace, Flag
from autotune.search.factors import Codes, Design, Floats, likely_pairs
from autotune.search.hazards import Hazards
from autotune.search.joint import JointModel, Tried, joint_model
from autotune.search.policy import IMPROVING_SHARE, key, propose

SD_KEY = "autotune:log_sd"
"""User attribute of a trial: standard error of its value, or of the value's log where values are no log ratios."""

DUPLICATE_KEY = "autotune:duplicate_of"
"""User attribute of a trial: number of the trial whose program it shares, so that it was not measured itself."""

NUMBER_KEY = "autotune:number"
"""User attribute of a trial that was added under another number than Optuna's."""

MOST_PAIRS = 240
"""Pairs that may act, at most; of more those of settings that likeliest act by themselves.

So a proposal takes no longer however many settings have a group in common. Twenty-two settings have that many pairs.
"""

USUAL_SD = 0.01
"""Standard error of a trial that does not tell its own."""

USUAL_SPREAD = 0.1
"""Spread that values without logs are scaled to."""

WORST_SD = 1.0
"""Standard error of a trial whose interval has no end."""


class AdditiveFlagSampler(BaseSampler):
    """Proposes by a sparse additive model: few settings act, each by its own, some with another of their group.

    Failed trials (infeasible by a constraint, pruned or failed) teach which values fail, not what is slow. Equal seeds
    and histories give equal proposals.

    Args:
        space: What is searched; None for all that finished trials of the study had.
        flags: What is known of its settings; each is searched after those that it needs.
        seed: Of the draws; None for any.
        is_log_ratio: Whether values are logs of ratios to the default's, as autotune tells them. Else logs of the
            values are modelled, or, where some are not positive, their distances from the middle, large ones as logs.
        with_pairs: Whether two settings may act together.
        with_whole_sets: Whether a model of whole sets proposes where it tells more than these effects.
        improving_share: Chance that a proposal is, of several draws, the one of which the most improvement is
            expected, from 0 to 1; else there is one draw.

    Raises:
        ValueError: If `improving_share` is none.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution] | None = None,
        flags: Mapping[str, Flag] | None = None,
        *,
        seed: int | None = None,
        is_log_ratio: bool = False,
        with_pairs: bool = True,
        with_whole_sets: bool = True,
        improving_share: float = IMPROVING_SHARE,
    ) -> None:
        if not 0.0 <= improving_share <= 1.0:
            raise ValueError(
                f"improving_share must be from 0 to 1 but got {improving_share!r}; 0 takes every draw as it comes"
            )
        self._given = dict(space) if space is not None else None
        self._flags = dict(flags or {})
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(1 << 31))
        self._is_log_ratio = is_log_ratio
        self._with_pairs, self._with_whole_sets = with_pairs, with_whole_sets
        self._improving_share = improving_share
        self._asked: dict[tuple[int, int], int] = {}
        self._learnt: tuple[object, tuple[AdditiveModel, Hazards, JointModel | None]] | None = None
        self._refused: set[bytes] = set()
        self._independent = RandomSampler(seed=seed)
        self.culprits: list[Mapping[str, Any]] = []
        """Combinations of values that are known to fail."""
        self.is_allowed: Callable[[Mapping[str, Any]], bool] | None = None
        """Whether a set keeps the rules of its space, where it has any; others are proposed if none is found alone."""

    def reseed_rng(self) -> None:
        """See `optuna.samplers.BaseSampler`: draws in parallel processes differ by their trials' numbers."""
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All settings; of a space that is not given, those of finished trials."""
        if self._given is not None:
            return dict(self._given)
        found: dict[str, BaseDistribution] = {}
        for past in study.get_trials(deepcopy=False, states=FINISHED):
            found.update({n: d for n, d in past.distributions.items() if n not in found})
        return found

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next set."""
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        coded = CodedSpace(search_space, self._flags)
        trials = study.get_trials(deepcopy=False)
        # Asked again, as for a set that a study's rules forbid, it draws anew from what it has learnt.
        self._asked = {(n := (trial.number, len(trials))): self._asked.get(n, -1) + 1}
        rng = np.random.default_rng([self._seed, trial.number + 1, len(trials), self._asked[n]])
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        kept, failed = coded.split(trials)
        state = study.study_name, len(kept), len(failed), self.culprits.copy()
        if self._asked[n] == 0 or self._learnt is None or self._learnt[0] != state:
            learnt = self._learn(coded, kept, failed, sign, rng)
            self._learnt = state, (*learnt, self._jointly(coded, learnt[0], kept, failed, sign))
            self._refused = set()
        model, hazards, joint = self._learnt[1]
        under_way = [
            c for t in trials if t.state not in FINISHED and t.params and (c := coded.codes(t.params)) is not None
        ]
        known = {key(c) for c in (*(c for c, _ in kept), *failed, *under_way)} | self._refused
        if self._is_log_ratio:  # the default's value is known
            known.add(key(hazards.design.neutral))

        def is_open(codes: Codes) -> bool:
            return key(codes) not in known and (self.is_allowed is None or self.is_allowed(coded.values(codes)))

        share = 0.0 if self._asked[n] else self._improving_share  # what is expected was refused, perhaps
        ran = [*(c for c, _ in kept), *([hazards.design.neutral] if self._is_log_ratio else [])]
        codes = propose(
            model,
            hazards,
            rng,
            is_open,
            tried=coded.table(ran),
            improving_share=share,
            joint=joint,
            under_way=under_way,
        )
        self._refused.add(key(codes))
        return coded.values(codes)

    def learn(
        self, study: Study, search_space: Mapping[str, BaseDistribution] | None = None
    ) -> tuple[CodedSpace, AdditiveModel, Hazards]:
        """What the trials of a study taught.

        Args:
            study: With its trials.
            search_space: What is searched; None for what is proposed.
        """
        space = search_space or self.infer_relative_search_space(study, optuna.trial.create_trial(value=0.0))
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        return self.learn_from(study.get_trials(deepcopy=False), space, sign=sign)

    def learn_from(
        self, trials: Sequence[FrozenTrial], search_space: Mapping[str, BaseDistribution], *, sign: float = 1.0
    ) -> tuple[CodedSpace, AdditiveModel, Hazards]:
        """What trials taught, whoever proposed them.

        Args:
            trials: Finished and failed ones.
            search_space: What is searched.
            sign: 1 where less is better, -1 where more is.
        """
        coded = CodedSpace(search_space, self._flags)
        rng = np.random.default_rng([self._seed, len(trials)])
        return coded, *self._learn(coded, *coded.split(trials), sign, rng)

    def acts_together(
        self, coded: CodedSpace, model: AdditiveModel, trials: Sequence[FrozenTrial], *, sign: float = 1.0
    ) -> bool:
        """Whether settings act together by more than what single ones and pairs do tells.

        Args:
            coded: What is searched.
            model: What the trials taught of single settings and pairs.
            trials: Finished and failed ones.
            sign: 1 where less is better, -1 where more is.
        """
        return self._jointly(coded, model, *coded.split(trials), sign) is not None

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value of a setting that no trial had yet."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _learn(
        self,
        coded: CodedSpace,
        kept: Sequence[tuple[Codes, FrozenTrial]],
        failed: Sequence[Codes],
        sign: float,
        rng: np.random.Generator,
    ) -> tuple[AdditiveModel, Hazards]:
        """Models of what was measured, and of what failed."""
        rows = coded.table([codes for codes, _ in kept])
        bad = coded.table(failed)
        seen = self._observe(coded, [t for _, t in kept], rows, sign)

        def fit(design: Design, *, walks: bool = True) -> AdditiveModel:
            seed = int(rng.integers(1 << 31))
            return AdditiveModel(design, seen, seed=seed, has_origin=self._is_log_ratio, walks=walks)

        pairs = likely_pairs(coded.factors) if self._with_pairs else []
        if len(pairs) > MOST_PAIRS:
            acts = fit(Design(coded.factors, []), walks=False).acts()
            pairs = sorted(sorted(pairs, key=lambda p: -min(acts[list(p)]))[:MOST_PAIRS])
        design = Design(coded.factors, pairs)
        known = [c for culprit in self.culprits if (c := coded.part(culprit)) is not None]
        return fit(design), Hazards(design, rows, bad, known)

    def _jointly(
        self,
        coded: CodedSpace,
        model: AdditiveModel,
        kept: Sequence[tuple[Codes, FrozenTrial]],
        failed: Sequence[Codes],
        sign: float,
    ) -> JointModel | None:
        """The model of whole sets, where that tells more than a sum of effects."""
        if not self._with_whole_sets:
            return None
        own = [(codes, t) for codes, t in kept if DUPLICATE_KEY not in t.user_attrs]  # copies tell nothing more
        values = sign * self._as_logs(np.array([t.value for _, t in own], dtype=float))
        tried = Tried(
            coded.table([*(codes for codes, _ in own), *failed]),
            np.concatenate([values, np.full(len(failed), np.nan)]),
            np.concatenate([np.array([_sd(t) for _, t in own]), np.full(len(failed), USUAL_SD)]),
        )
        return joint_model(model, tried, has_origin=self._is_log_ratio)

    def _observe(self, coded: CodedSpace, kept: Sequence[FrozenTrial], rows: Codes, sign: float) -> Observations:
        """What was measured, and what was expected before."""
        sds = np.array([_sd(t) for t in kept])
        places = {t.user_attrs.get(NUMBER_KEY, t.number): at for at, t in enumerate(kept)}
        duplicates = tuple(
            (at, places[of])
            for at, t in enumerate(kept)
            if (of := t.user_attrs.get(DUPLICATE_KEY)) in places and places[of] != at
        )
        values = sign * self._as_logs(np.array([t.value for t in kept], dtype=float))
        lean_rows, lean_values, lean_sds = coded.lean()
        return Observations(
            np.concatenate([rows, lean_rows]),
            np.concatenate([values, lean_values]),
            np.concatenate([sds, lean_sds]),
            duplicates,
        )

    def _as_logs(self, values: Floats) -> Floats:
        if self._is_log_ratio or not len(values):
            return values
        if (values <= 0).any():
            return _squeezed(values)
        return np.asarray(np.log(values))


def _squeezed(values: Floats) -> Floats:
    """Values that have no logs, in units in which they spread as logs of times may; what is far off counts as its log.

    Median and usual distance from it move little with one trial more, whatever its value, and no value outdoes all.
    """
    middle = float(np.median(values))
    away = values / 2 - middle / 2  # halves, lest the largest numbers have no difference
    usual = float(np.median(np.abs(away))) or float(np.abs(away).max()) or 1.0
    return np.asarray(USUAL_SPREAD * np.arcsinh(away / usual))


def _sd(trial: FrozenTrial) -> float:
    """Standard error of a trial's value; the worst where it says none that can be."""
    told = float(trial.user_attrs.get(SD_KEY, USUAL_SD))
    return min(told, WORST_SD) if told >= 0 else WORST_SD
