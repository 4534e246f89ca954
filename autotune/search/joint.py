"""A model of whole sets, for spaces where more than two settings act together: a Gaussian process over them.

A sum of effects holds for noise what it cannot express. Where that is alike for like sets it is none: block sizes of a
kernel, say, act all at once. Here two sets' times are the more alike the fewer settings they differ in, each by how
much it matters (exponential kernel with a length for each setting; Rasmussen and Williams, "Gaussian Processes for
Machine Learning", 2006, chapter 5). What is tried next is the set with the largest expected improvement (Jones,
Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998). Which of the two models a
space needs is told by how likely each makes the trials.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.additive import AdditiveModel, chances_before
from autotune.search.factors import Codes, Design, Floats
from autotune.search.posterior import SHARES, SIZES

LEAST_TRIALS = 8
"""Trials before which nothing is told."""

MOST_FACTORS = 12
"""Settings that times may hang on: those that likeliest act."""

LOUD = 2.0
"""How many times the usual trial's standard error what a sum leaves must be, for this model to be asked."""

GROWTH = 1.2
"""Growth of the number of trials from one fit of the kernel to the next."""

WEIGHT, NOISE = 0.0, -5.0
"""Where a fit begins: log of how much a setting matters, and log of the noise's share of the variance."""

LIKELY_NOISE, PRIOR_SD = -6.0, 2.0
"""The noise that is thought likeliest, and the standard deviation of what is thought of all parameters, as logs."""

STEP = 0.5
"""By what each parameter is changed in turn, from one fit to the next."""

STARTS, ROUNDS, ANYWHERE = 6, 3, 300
"""Sets around which better ones are looked for, how often, and sets from anywhere that are looked at besides."""

FAR_ORIGIN = 4.0
"""How far from the middle the default's value may be where it is not known, in usual effects."""

FARTHEST = 1.5
"""Distance of two values that have no order, where the two ends of a scale are 1 apart."""

MOST_FITS = 256
"""Fits that are remembered, so that a study that goes on does not fit what it fitted before."""

_JITTER = 1e-8
_FITS: dict[bytes, Floats] = {}


@dataclass(frozen=True, slots=True)
class Tried:
    """What was tried.

    Attributes:
        codes: Sets, shape (trials, factors).
        values: Logs of their times, shape (trials,); nan for those that failed.
        sds: Standard error of each, shape (trials,).
    """

    codes: Codes
    values: Floats
    sds: Floats


class JointModel:
    """Times of whole sets; what failed counts as the slowest that ran.

    Args:
        design: The space.
        tried: What was tried; some of it ran.
        factors: Settings that times may hang on.
    """

    def __init__(self, design: Design, tried: Tried, factors: Sequence[int]) -> None:
        self.design, self.tried, self.factors = design, tried, tuple(factors)
        self._far = [_distances(design, i) for i in self.factors]
        values = np.where(np.isnan(tried.values), np.nanmax(tried.values), tried.values)
        data = _Data(self._apart(tried.codes), values, tried.sds)
        self._logs = _fit(data.first(_milestone(len(values))))
        self._fitted = _Fitted(data, self._logs)
        self._middle, self._unit = data.middle, data.unit

    def _apart(self, codes: Codes) -> Floats:
        """Distances of tried sets to others by each setting, shape (settings, trials, sets)."""
        mine = self.tried.codes
        return np.stack([t[mine[:, [i]], codes[None, :, i]] for i, t in zip(self.factors, self._far, strict=True)])

    @property
    def log_evidence(self) -> float:
        """Log of how likely the values are, less what the fitted parameters cost (Schwarz's criterion)."""
        count = len(self.tried.values)
        cost = 0.5 * (len(self._logs) + 2) * math.log(count)
        return self._fitted.log_likelihood - count * math.log(self._unit) - cost

    def expect(self, codes: Codes) -> tuple[Floats, Floats]:
        """Mean and standard deviation of sets' values without noise, shape (sets,) each."""
        cross = self._fitted.whitened(_kernel(self._apart(codes), self._logs))
        left = np.maximum(1.0 - (cross**2).sum(axis=0), _JITTER) * self._fitted.variance
        return self._middle + self._unit * (cross.T @ self._fitted.white), self._unit * np.sqrt(left)

    def believing(self, codes: Codes) -> JointModel:
        """The model as if sets were as fast as it expects, shape of codes (sets, factors)."""
        tried, (values, _) = self.tried, self.expect(codes)
        more = Tried(
            np.concatenate([tried.codes, codes]),
            np.concatenate([tried.values, values]),
            np.concatenate([tried.sds, np.zeros(len(codes))]),
        )
        return JointModel(self.design, more, self.factors)

    def promising(
        self, rng: np.random.Generator, *, chance: Callable[[Codes], float], is_open: Callable[[Codes], bool]
    ) -> Codes | None:
        """The set with the most expected improvement over what was tried; None if none that was looked at is open.

        Args:
            rng: Draws where else to look.
            chance: Of a set to run.
            is_open: Whether a set may be tried and was not.
        """
        from scipy.special import ndtr  # 0.2 s to import, so not before it is needed

        at_tried, _ = self.expect(self.tried.codes)
        order = np.argsort(at_tried, kind="stable")
        least = float(at_tried[order[0]])
        starts: list[Codes] = list(self.tried.codes[order[:STARTS]])
        near = self._anywhere(starts[0], rng)
        looked: set[bytes] = set()
        found: list[tuple[float, int, Codes]] = []  # least first; numbered, for sets have no order
        for _ in range(ROUNDS):
            near += [c for start in starts for c in self._neighbours(start)]
            fresh = {k: c for c in near if (k := c.tobytes()) not in looked}
            looked.update(fresh)
            if table := [c for c in fresh.values() if is_open(c)]:
                mean, sd = self.expect(np.array(table))
                z = (least - mean) / sd
                gains = sd * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))
                at = len(looked)
                found += [
                    (-g * chance(c), at + k, c) for k, (g, c) in enumerate(zip(gains.tolist(), table, strict=True))
                ]
                found = sorted(found, key=lambda f: f[:2])[:STARTS]
            near, starts = [], [c for _, _, c in found]
        return found[0][2] if found else None

    def _anywhere(self, codes: Codes, rng: np.random.Generator) -> list[Codes]:
        """Sets with any values of what matters, else like one."""
        found = np.repeat(codes[None, :], ANYWHERE, axis=0)
        for i in self.factors:
            found[:, i] = rng.integers(self.design.sizes[i], size=ANYWHERE)
        return [self.design.settle(c) for c in found]

    def _neighbours(self, codes: Codes) -> list[Codes]:
        """Sets that differ in one setting."""
        found = []
        for i in self.factors:
            for code in range(self.design.sizes[i]):
                if code != codes[i]:
                    other = codes.copy()
                    other[i] = code
                    found.append(self.design.settle(other))
        return found


def joint_model(model: AdditiveModel, tried: Tried, *, has_origin: bool) -> JointModel | None:
    """The model of whole sets, where it makes the trials likelier than a sum of effects does; else None.

    Args:
        model: The sum of effects.
        tried: What was tried.
        has_origin: Whether the default's value is 0.
    """
    ran = ~np.isnan(tried.values)
    if ran.sum() < LEAST_TRIALS or model.spread <= LOUD * float(np.median(tried.sds[ran])):
        return None
    factors = np.sort(np.argsort(-model.acts(), kind="stable")[:MOST_FACTORS]).tolist()
    measured = Tried(tried.codes[ran], tried.values[ran], tried.sds[ran])
    likely = JointModel(model.design, measured, factors)
    # Who takes some of many settings pays for having had the choice.
    choices = math.log(math.comb(len(model.design.factors), len(factors)))
    if likely.log_evidence - choices <= _log_evidence(model, measured, has_origin=has_origin):
        return None
    return likely if ran.all() else JointModel(model.design, tried, factors)


def _log_evidence(model: AdditiveModel, tried: Tried, *, has_origin: bool) -> float:
    """Log of how likely values are by a sum of effects, those that likeliest act, less what finding these cost."""
    state, starts = model.likeliest, model.design.starts
    widths = [SIZES[size] for block, size in state.sizes.items() for _ in range(starts[block], starts[block + 1])]
    rows = model.scale * model.design.features(tried.codes)[:, state.columns] * np.array(widths)
    base = 0.0 if has_origin else (FAR_ORIGIN * model.scale) ** 2
    values = tried.values if has_origin else tried.values - np.median(tried.values)
    cov = rows @ rows.T + base + np.diag(tried.sds**2 + model.spread**2)
    lower = np.linalg.cholesky(cov)
    white = np.linalg.solve(lower, values)
    count = len(values)
    likely = -0.5 * float(white @ white + count * math.log(2 * math.pi)) - float(np.log(np.diag(lower)).sum())
    before = chances_before(model.design)
    chosen = float(np.log1p(-before).sum())
    chosen += sum(math.log(before[b] / (1 - before[b]) * SHARES[size]) for b, size in state.sizes.items())
    return likely + chosen - math.log(count)  # of two fitted parameters, the spread and the scale


class _Data:
    """What a kernel is fitted to, values in units of their spread.

    Args:
        apart: Distances of sets by each setting, shape (settings, trials, trials).
        values: Shape (trials,).
        sds: Their standard errors, shape (trials,).
    """

    def __init__(self, apart: Floats, values: Floats, sds: Floats) -> None:
        self.apart, self._given, self._sds = apart, values, sds
        self.middle, self.unit = float(values.mean()), float(values.std()) or 1.0
        self.values, self.noise = (values - self.middle) / self.unit, (sds / self.unit) ** 2

    @functools.cached_property
    def digest(self) -> bytes:
        """By which it is known again; the numbers themselves take megabytes for hundreds of trials."""
        arrays = (self.apart, self._given, self._sds)
        return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).digest()

    def first(self, count: int) -> _Data:
        """The first trials of it."""
        return _Data(self.apart[:, :count, :count], self._given[:count], self._sds[:count])


class _Fitted:
    """The process, given its kernel; its variance is the likeliest."""

    def __init__(self, data: _Data, logs: Floats) -> None:
        count = len(data.values)
        cov = _kernel(data.apart, logs)
        cov[np.diag_indices(count)] += math.exp(logs[-1]) + data.noise + _JITTER
        self.lower = np.linalg.cholesky(cov)
        self.white = self.whitened(data.values)
        self.variance = max(float(self.white @ self.white) / count, _JITTER)
        determinant = float(np.log(np.diag(self.lower)).sum())
        self.log_likelihood = -0.5 * count * (math.log(2 * math.pi * self.variance) + 1) - determinant

    def whitened(self, columns: Floats) -> Floats:
        """Columns as the trials' covariance makes them independent, shape as they have."""
        from scipy.linalg import solve_triangular  # 0.1 s to import, so not before it is needed

        return np.asarray(solve_triangular(self.lower, columns, lower=True, check_finite=False))


def _kernel(apart: Floats, logs: Floats) -> Floats:
    """Correlation of sets, shape (trials, sets)."""
    return np.asarray(np.exp(-np.tensordot(np.exp(logs[:-1]), apart, axes=1)))


def _milestone(count: int) -> int:
    """The last number of trials, up to this, after which the kernel is fitted.

    So equal histories have equal kernels, though each fit begins where the one before ended, and all fits of a study
    that goes on take no longer than a few.
    """
    at = LEAST_TRIALS
    while (after := math.ceil(at * GROWTH)) <= count:
        at = after
    return min(at, count)


def _fit(data: _Data) -> Floats:
    """The kernel's parameters as logs (how much each setting matters, the noise): what fewer trials told, improved."""
    if (known := _FITS.get(data.digest)) is not None:
        return known
    if (count := len(data.values)) <= LEAST_TRIALS:
        here = np.append(np.full(len(data.apart), WEIGHT), NOISE)
    else:
        here = _fit(data.first(_milestone(count - 1)))
    middle = np.append(np.full(len(data.apart), WEIGHT), LIKELY_NOISE)

    def score(logs: Floats) -> float:
        return _Fitted(data, logs).log_likelihood - 0.5 * float((((logs - middle) / PRIOR_SD) ** 2).sum())

    best = score(here)
    for at in range(len(here)):
        for step in (-STEP, STEP):
            there = here.copy()
            there[at] += step
            if (found := score(there)) > best:
                here, best = there, found
    while len(_FITS) >= MOST_FITS:
        _FITS.pop(next(iter(_FITS)), None)
    _FITS[data.digest] = here
    return here


def _distances(design: Design, i: int) -> Floats:
    """How far values of a setting are apart, shape (values + 1, values + 1)."""
    size, scale = design.sizes[i], design.factors[i].scale
    table = FARTHEST * (1.0 - np.eye(size + 1))
    if scale is not None and not np.isnan(scale).any():
        places = np.array(scale)
        table[:size, :size] = np.abs(places[:, None] - places[None, :]) / (float(np.ptp(places)) or 1.0)
    return table
