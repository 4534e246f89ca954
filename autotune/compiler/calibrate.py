"""Predictions held against measured steps: a factor for each class of work, and how well the ranks agree.

A model's seconds are off by a factor that depends on what the time goes into: kernels, waiting for collectives,
launches. Measured programs give those factors. What cannot be in a prediction (settings that are read at run time or
decide the on-device autotuner) must not differ between the sets that are used.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.compiler.job import Progress
from autotune.compiler.open import cluster_that_ran, open_screener
from autotune.compiler.predict import Calibration, predict_step
from autotune.compiler.program import CompiledProgram
from autotune.compiler.targets import Target, Topology
from autotune.compiler.verdicts import Screener
from autotune.model import FlagSet, FloorResult, LaunchError, StudyFileError, TrialResult, TrialStatus
from autotune.rundir import Store

Floats = npt.NDArray[np.float64]

LEAST_FOR_CLASSES = 6
"""Measured programs from which on each class of work may have a factor of its own."""

LEAST_FOR_RANKS = 4
BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Measured:
    """One program that was both compiled and measured.

    Attributes:
        step_s: Seconds of a step: the reference's, times the paired ratio.
    """

    settings: FlagSet
    program: CompiledProgram
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well predicted step times order the measured ones.

    Attributes:
        count: Programs.
        spearman: Rank correlation, 1 for equal orders; None where too few differ.
        low: Lower end of its 95 % interval, by bootstrap over programs.
        high: Upper end.
        kendall: Kendall's tau-b.
        error: Median relative error of the calibrated step, each program predicted from the others; None for one.
    """

    count: int
    spearman: float | None = None
    low: float | None = None
    high: float | None = None
    kendall: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """What a run with measurements says of the model."""

    calibration: Calibration
    agreement: Agreement
    measured: tuple[Measured, ...]
    predicted_s: tuple[float, ...]
    target: str
    topology: str


def check_predictions(
    store: Store, *, cache_dir: Path | None = None, progress: Progress = lambda what: None
) -> PredictionCheck:
    """Compiles what a run measured, and holds the predictions against the measurements.

    Args:
        store: A run on GPUs.
        cache_dir: Where compiled programs are kept.
        progress: Told what is under way.

    Raises:
        StudyFileError: If the run was not measured on a GPU that is described.
        LaunchError: If nothing of it compiles here.
    """
    target, topology = _cluster(store)
    with open_screener(
        store.spec, study_dir=Path(store.study_dir), target=target, topology=topology, cache_dir=cache_dir,
        progress=progress,
    ) as (_, screen):  # fmt: skip
        found = measured_programs(store, screen)
    if not found:
        raise LaunchError(f"a run must have measured a program that compiles here but of {store.path} none does")
    source = f"{len(found)} programs of {store.path.name}, measured on {topology} {target.title}"
    calibration, error = fit(found, target, topology, source=source)
    raw = [predict_step(m.program, target, topology).step_s for m in found]
    ranks = agreement(raw, [m.step_s for m in found], error=error)
    return PredictionCheck(
        calibration=calibration, agreement=ranks, measured=tuple(found), predicted_s=tuple(raw),
        target=target.name, topology=str(topology),
    )  # fmt: skip


def _cluster(store: Store) -> tuple[Target, Topology]:
    """Where a run was measured."""
    spec, floor = store.spec, store.last(FloorResult)
    if floor is None or spec.device.platform != "cuda":
        raise StudyFileError(
            f"to calibrate, a run must be measured on GPUs but {store.path} has no measurement on a GPU"
        )
    target, topology = cluster_that_ran(spec, floor.reference)
    if target is None or target.network is None or not target.flops_per_s:
        raise StudyFileError(
            f"to calibrate, the GPU must be one of `autotune targets list` but {store.path} ran on "
            f"{floor.reference.device_kind!r}"
        )
    return target, topology


def measured_programs(store: Store, screen: Screener) -> list[Measured]:
    """The reference and every measured set that differs from it in its program alone; equal programs once."""
    floor = store.last(FloorResult)
    assert floor is not None
    reference_s = floor.comparison.reference_step_s
    times: dict[str, list[tuple[FlagSet, float]]] = {}
    rows = [(FlagSet(), reference_s)]
    rows += [
        (r.settings, reference_s * r.comparison.estimate.ratio)
        for r in store.of(TrialResult)
        if r.status is TrialStatus.MEASURED and r.comparison is not None
    ]
    programs: dict[str, CompiledProgram] = {}
    for settings, step_s in rows:
        program = screen.result(settings).program if screen.is_all_program(settings) else None
        if program is not None:
            programs[program.fingerprint] = program
            times.setdefault(program.fingerprint, []).append((settings, step_s))
    return [Measured(t[0][0], programs[key], statistics.median(s for _, s in t)) for key, t in times.items()]


def fit(
    measured: Sequence[Measured], target: Target, topology: Topology, *, source: str
) -> tuple[Calibration, float | None]:
    """Factors under which predictions meet measurements, and their error on programs that were left out.

    One factor for all work, or one for each class of it where that predicts left out programs better.

    Args:
        measured: At least one program.
        target: The GPU they ran on.
        topology: The cluster they ran on.
        source: Where the measurements are from.
    """
    parts = np.array([_parts(m.program, target, topology) for m in measured])
    times = np.array([m.step_s for m in measured])
    methods = [_one_factor, _a_factor_each] if len(measured) >= LEAST_FOR_CLASSES else [_one_factor]
    errors = [_left_out_error(method, parts, times) for method in methods]
    best = int(np.argmin([np.inf if e is None else e for e in errors]))
    compute, exposed, idle = (float(x) for x in methods[best](parts, times))
    return Calibration(compute_scale=compute, exposed_scale=exposed, idle_scale=idle, source=source), errors[best]


def _parts(program: CompiledProgram, target: Target, topology: Topology) -> tuple[float, float, float]:
    found = predict_step(program, target, topology)
    return found.compute_s, found.exposed_s, found.idle_s


def _one_factor(parts: Floats, times: Floats) -> Floats:
    return np.full(3, float(np.median(times / parts.sum(axis=1))))


def _a_factor_each(parts: Floats, times: Floats) -> Floats:
    """Non-negative least squares of relative errors; a class without a figure keeps the factor of all."""
    from scipy.optimize import nnls  # slow to import: commands that do not calibrate go without

    factors = nnls(parts / times[:, None], np.ones(len(times)))[0]
    return np.where(factors > 0, factors, _one_factor(parts, times))


def _left_out_error(method: Callable[[Floats, Floats], Floats], parts: Floats, times: Floats) -> float | None:
    """Median relative error of each program's prediction from all others; None without others."""
    if len(times) < 2:
        return None
    errors = []
    for i in range(len(times)):
        others = np.arange(len(times)) != i
        errors.append(abs(float(parts[i] @ method(parts[others], times[others])) / times[i] - 1))
    return float(statistics.median(errors))


def agreement(predicted_s: Sequence[float], measured_s: Sequence[float], *, error: float | None = None) -> Agreement:
    """Rank correlation of predictions with measurements, with a bootstrap interval.

    Args:
        predicted_s: Predicted seconds of a step, one for each program.
        measured_s: Measured seconds, in the same order.
        error: Left-out error of a calibration, to be kept beside it.
    """
    x, y = np.asarray(predicted_s, dtype=float), np.asarray(measured_s, dtype=float)
    if len(x) < LEAST_FOR_RANKS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Agreement(count=len(x), error=error)
    from scipy.stats import kendalltau, spearmanr

    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(BOOTSTRAPS):
        i = rng.integers(0, len(x), len(x))
        if np.ptp(x[i]) > 0 and np.ptp(y[i]) > 0:
            drawn.append(float(spearmanr(x[i], y[i]).statistic))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Agreement(
        count=len(x), spearman=float(spearmanr(x, y).statistic), low=float(low), high=float(high),
        kendall=float(kendalltau(x, y).statistic), error=error,
    )  # fmt: skip
