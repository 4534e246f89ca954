"""An Optuna sampler for spaces of flags: many settings of which few act, each trial with its own standard error.

Usable in any Optuna study of positive values such as times::

    study = optuna.create_study(sampler=AdditiveFlagSampler(seed=0))

A study of autotune adds what it knows of settings (`Flag`): defaults, groups, conditions, priors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

from autotune.search.acquisition import IMPROVING_SHARE, propose
from autotune.search.additive import AdditiveModel, Observations
from autotune.search.failures import FailureModel
from autotune.search.space import FINISHED, CodedSpace, Codes, Design, Flag, Floats, likely_pairs

SD_KEY = "autotune:log_sd"
"""User attribute of a trial: standard error of its value, or of the value's log where values are no log ratios."""

DUPLICATE_KEY = "autotune:duplicate_of"
"""User attribute of a trial: number of the trial whose program it shares, so that it was not measured itself."""

NUMBER_KEY = "autotune:number"
"""User attribute of a trial that was added under another number than Optuna's."""

MOST_PAIRS = 240
"""Most pairs that may act, those of settings that likeliest act by themselves: this bounds the time of a proposal."""

USUAL_SD = 0.01
"""Standard error of a trial that has none of its own."""

WORST_SD = 1.0
"""Standard error of a trial whose interval has no end."""


class Fitted(NamedTuple):
    """The models of some trials, and the space that they are of."""

    coded: CodedSpace
    model: AdditiveModel
    failures: FailureModel


class AdditiveFlagSampler(BaseSampler):
    """Proposes by a sparse additive model: few settings act, some together with another of their group.

    Failed trials (infeasible by a constraint, pruned or failed) teach which values fail, not what is slow. Equal seeds
    and histories give equal proposals.

    Args:
        space: What is searched; None for all that finished trials of the study had.
        flags: Prior knowledge of settings; each is searched after those that it needs.
        seed: None for any.
        is_log_ratio: Whether values are logs of ratios to the default's; else they are positive and their logs are
            modelled.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution] | None = None,
        flags: Mapping[str, Flag] | None = None,
        *,
        seed: int | None = None,
        is_log_ratio: bool = False,
    ) -> None:
        self._given = dict(space) if space is not None else None
        self._flags = dict(flags or {})
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(1 << 31))
        self._is_log_ratio = is_log_ratio
        self._asked: dict[tuple[int, int], int] = {}
        self._last_fit: tuple[object, AdditiveModel, FailureModel] | None = None
        self._refused: set[bytes] = set()
        self._independent = RandomSampler(seed=seed)
        self.known_failing: list[Mapping[str, Any]] = []
        """Combinations of values that are known to fail."""
        self.is_allowed: Callable[[Mapping[str, Any]], bool] | None = None
        """Whether a set keeps the rules of its space, where it has any; others are proposed if none is found."""

    def reseed_rng(self) -> None:
        """See `optuna.samplers.BaseSampler`: draws in parallel processes differ by their trials' numbers."""
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Returns all settings; of a space that is not given, those of finished trials."""
        return self._space_of(study.get_trials(deepcopy=False, states=FINISHED))

    def _space_of(self, trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
        if self._given is not None:
            return dict(self._given)
        found: dict[str, BaseDistribution] = {}
        for past in trials:
            found.update({n: d for n, d in past.distributions.items() if n not in found})
        return found

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the next set.

        Raises:
            ValueError: If the study has several objectives, or a value that is not positive and no log ratio.
        """
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        coded = CodedSpace(search_space, self._flags)
        trials = study.get_trials(deepcopy=False)
        # Asked again, as for a set that a study's rules forbid, it draws anew from the same models.
        self._asked = {(n := (trial.number, len(trials))): self._asked.get(n, -1) + 1}
        rng = np.random.default_rng([self._seed, trial.number + 1, len(trials), self._asked[n]])
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        kept, failed = coded.split(trials)
        state = study.study_name, len(kept), len(failed), self.known_failing.copy()
        if self._asked[n] == 0 or self._last_fit is None or self._last_fit[0] != state:
            self._last_fit = state, *self._fit(coded, kept, failed, sign, rng)
            self._refused = set()
        _, model, failures = self._last_fit
        under_way = [
            c for t in trials if t.state not in FINISHED and t.params and (c := coded.codes(t.params)) is not None
        ]
        ran = [c for c, _ in kept]
        known = {c.tobytes() for c in (*ran, *failed, *under_way)} | self._refused
        if self._is_log_ratio:  # the default's value is known
            known.add(model.design.neutral.tobytes())
            ran.append(model.design.neutral)

        def is_open(codes: Codes) -> bool:
            is_new = codes.tobytes() not in known
            return is_new and (self.is_allowed is None or self.is_allowed(coded.values(codes)))

        share = 0.0 if self._asked[n] else IMPROVING_SHARE  # what is expected was refused, perhaps
        tried = coded.table([*ran, *under_way])
        codes = propose(model, failures, rng, is_open, tried=tried, improving_share=share)
        self._refused.add(codes.tobytes())
        return coded.values(codes)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Returns a random value of a setting that no trial had yet."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def fit(self, trials: Sequence[FrozenTrial], space: Mapping[str, BaseDistribution] | None = None) -> Fitted:
        """Fits the models to trials, whoever proposed them; less is better.

        Args:
            trials: Finished and failed ones.
            space: What is searched; default: what is proposed.
        """
        coded = CodedSpace(space or self._space_of(trials), self._flags)
        rng = np.random.default_rng([self._seed, len(trials)])
        return Fitted(coded, *self._fit(coded, *coded.split(trials), 1.0, rng))

    def _fit(
        self,
        coded: CodedSpace,
        kept: Sequence[tuple[Codes, FrozenTrial]],
        failed: Sequence[Codes],
        sign: float,
        rng: np.random.Generator,
    ) -> tuple[AdditiveModel, FailureModel]:
        rows = coded.table([codes for codes, _ in kept])
        seen = self._observations(coded, [t for _, t in kept], rows, sign)

        def fit(design: Design, *, walks: bool = True) -> AdditiveModel:
            seed = int(rng.integers(1 << 31))
            return AdditiveModel(design, seen, seed=seed, has_origin=self._is_log_ratio, walks=walks)

        pairs = likely_pairs(coded.factors)
        if len(pairs) > MOST_PAIRS:
            p_active = fit(Design(coded.factors, []), walks=False).p_active()
            pairs = sorted(sorted(pairs, key=lambda p: -min(p_active[list(p)]))[:MOST_PAIRS])
        design = Design(coded.factors, pairs)
        known = [c for part in self.known_failing if (c := coded.part(part)) is not None]
        return fit(design), FailureModel(design, rows, coded.table(failed), known)

    def _observations(self, coded: CodedSpace, kept: Sequence[FrozenTrial], rows: Codes, sign: float) -> Observations:
        """Returns what was measured, and prior knowledge of single values as if it had been."""
        sds = np.array([_sd(t) for t in kept])
        places = {t.user_attrs.get(NUMBER_KEY, t.number): at for at, t in enumerate(kept)}
        duplicates = tuple(
            (at, places[of])
            for at, t in enumerate(kept)
            if (of := t.user_attrs.get(DUPLICATE_KEY)) in places and places[of] != at
        )
        values = sign * self._as_logs(np.array([t.value for t in kept], dtype=float))
        prior_rows, prior_values, prior_sds = coded.expected()
        return Observations(
            np.concatenate([rows, prior_rows]),
            np.concatenate([values, prior_values]),
            np.concatenate([sds, prior_sds]),
            duplicates,
        )

    def _as_logs(self, values: Floats) -> Floats:
        if self._is_log_ratio:
            return values
        if (values <= 0).any():
            raise ValueError(
                f"values must be positive, as times are, but the least of the study is {values.min()!r}; "
                "for logs of ratios make the sampler with is_log_ratio=True"
            )
        return np.asarray(np.log(values))


def _sd(trial: FrozenTrial) -> float:
    """Returns the standard error of a trial's value; the worst where it is none that can be."""
    sd = float(trial.user_attrs.get(SD_KEY, USUAL_SD))
    return min(sd, WORST_SD) if sd >= 0 else WORST_SD
