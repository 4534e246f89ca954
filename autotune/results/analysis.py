"""A run directory as pandas frames: trials, raw steps, what each setting does. Reads records, never measures."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from autotune.model import REFERENCE_NUMBER, AblationResult, Arm, ConfirmRun, FloorResult, TrialResult
from autotune.results.rows import (
    EFFECT_COLUMNS,
    TRIAL_COLUMNS,
    effect_rows,
    log_ratio_of,
    pareto_rows,
    trial_rows,
)
from autotune.results.taught import BELIEF_COLUMNS, belief_rows
from autotune.rundir import Store

ABSENT = "(default)"
"""Stands for a setting that a trial does not set."""

LEAST_TRIALS = 8
"""Trials with a ratio below which no importance is given: a handful explains anything."""

_STEP_COLUMNS = ("stage", "trial", "measurement", "pair", "arm", "is_first", "step", "step_s", "at_s", "is_counted")
_PARETO_COLUMNS = ("trial", "ratio", "peak_bytes", "compile_s", "step_j", "settings")


def _frame(rows: Iterable[object], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame([[getattr(row, c) for c in columns] for row in rows], columns=list(columns))


def trials_frame(store: Store) -> pd.DataFrame:
    """One row a trial; its columns are the fields of `rows.TrialRow`, NaN where a figure is not known."""
    return _frame(trial_rows(store), TRIAL_COLUMNS)


def settings_frame(store: Store) -> pd.DataFrame:
    """Trials by settings: the value of each setting in each trial, `ABSENT` where it is not set."""
    results = store.of(TrialResult)
    names = sorted({n for r in results for n in r.settings})
    rows = [[r.settings.get(n, ABSENT) for n in names] for r in results]
    return pd.DataFrame(rows, columns=names, index=pd.Index([r.number for r in results], name="trial"))


def steps_frame(store: Store) -> pd.DataFrame:
    """Every measured step, in the order in which blocks ran: long form, raw, nothing dropped.

    Returns:
        Columns stage (floor, trial, confirm, final, full, minimise, recheck), trial, measurement (its
        folder), pair, arm, is_first (its block ran before the other arm's), step (within the block), step_s,
        at_s (of the pair, since the study began), is_counted (no figure has the steps in it that settle a device).
    """
    rows = []
    for stage, trial, directory in measurements(store):
        for pair in store.pairs(directory):
            for arm in Arm:
                settling_s = pair.reference_settling_s if arm is Arm.REFERENCE else pair.candidate_settling_s
                first, base = len(settling_s or ()), (stage, trial, directory, pair.index, arm.value, pair.first == arm)
                rows += [(*base, i, step_s, pair.at_s, i >= first) for i, step_s in enumerate(pair.ran_s(arm))]
    return pd.DataFrame(rows, columns=list(_STEP_COLUMNS))


def measurements(store: Store) -> Iterator[tuple[str, int, str]]:
    """Stage, trial number (0 for the reference itself) and folder of each measurement of a run."""
    for record in store.records():
        if isinstance(record, FloorResult):
            yield "floor", REFERENCE_NUMBER, record.directory
        elif isinstance(record, TrialResult) and record.directory is not None:
            yield "trial", record.number, record.directory
        elif isinstance(record, ConfirmRun) and record.directory is not None:
            yield record.stage, record.trial, record.directory
        elif isinstance(record, AblationResult) and record.directory is not None:
            yield "minimise", REFERENCE_NUMBER, record.directory


def effects_frame(store: Store) -> pd.DataFrame:
    """What each value of each setting does; its columns are the fields of `rows.EffectRow`."""
    return _frame(effect_rows(store), EFFECT_COLUMNS)


# ---------------------------------------------------------------------- importance


def beliefs_frame(store: Store) -> pd.DataFrame:
    """What the trials taught of each value; its columns are the fields of `taught.BeliefRow`."""
    return _frame(belief_rows(store), BELIEF_COLUMNS)


def importance_frame(store: Store) -> pd.DataFrame:
    """Share of the spread of log ratios that each setting explains over the trials of the search.

    By fANOVA (a random forest, Optuna's) where scikit-learn is installed, else by the analysis of variance of
    one setting at a time, less what chance alone would give. Empty below `LEAST_TRIALS` trials with a ratio.

    Returns:
        Columns setting, importance (0 to 1), method; most important first.

    References:
        Hutter, Hoos, Leyton-Brown, ICML 2014 (functional ANOVA). Kelley 1935 (epsilon squared).
    """
    columns = ["setting", "importance", "method"]
    settings, logs = _rated(store)
    if len(logs) < LEAST_TRIALS or not settings or float(np.ptp(logs)) == 0.0:
        return pd.DataFrame(columns=columns)
    if importlib.util.find_spec("sklearn") is not None:
        shares, method = _fanova(settings, logs), "fANOVA"
    else:
        shares, method = {n: _explained([v], logs) for n, v in settings.items()}, "variance explained"
    rows = sorted(((n, s, method) for n, s in shares.items()), key=lambda r: -r[1])
    return pd.DataFrame(rows, columns=columns)


def interactions_frame(store: Store) -> pd.DataFrame:
    """Pairs of settings that do not simply add up: what both together explain beyond each alone.

    Returns:
        Columns first, second, interaction (share of the spread of log ratios); strongest first, no zeros.
    """
    settings, logs = _rated(store)
    rows: list[tuple[str, str, float]] = []
    if len(logs) >= LEAST_TRIALS and float(np.ptp(logs)) > 0.0:
        main = {n: _explained([v], logs) for n, v in settings.items()}
        for a, b in combinations(settings, 2):
            joint = _explained([settings[a], settings[b]], logs) - main[a] - main[b]
            if joint > 0.0:
                rows.append((a, b, joint))
    frame = pd.DataFrame(rows, columns=["first", "second", "interaction"])
    return frame.sort_values("interaction", ascending=False, ignore_index=True)


def _rated(store: Store) -> tuple[dict[str, list[str]], list[float]]:
    """Values of the settings that vary over the trials with a ratio, and the logs of those ratios."""
    rated = [(r, x) for r in store.of(TrialResult) if (x := log_ratio_of(r)) is not None]
    names = sorted({n for r, _ in rated for n in r.settings})
    values = {n: [r.settings.get(n, ABSENT) for r, _ in rated] for n in names}
    return {n: v for n, v in values.items() if len(set(v)) > 1}, [x for _, x in rated]


def _explained(factors: Sequence[Sequence[str]], logs: Sequence[float]) -> float:
    """Share of variance between the cells of some factors, less what random cells would explain."""
    y = np.asarray(logs)
    cells: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, key in enumerate(zip(*factors, strict=True)):
        cells[key].append(i)
    free = len(y) - len(cells)
    if free < 1:
        return 0.0
    total = float(((y - y.mean()) ** 2).sum())
    within = float(sum(((y[c] - y[c].mean()) ** 2).sum() for c in cells.values()))
    between = total - within - (len(cells) - 1) * within / free
    return max(0.0, between / total)


def _fanova(settings: dict[str, list[str]], logs: Sequence[float]) -> dict[str, float]:
    """Optuna's fANOVA over the trials, with "not set" as one more value of each setting."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    choices = {n: sorted(set(v)) for n, v in settings.items()}
    space: dict[str, optuna.distributions.BaseDistribution] = {
        n: optuna.distributions.CategoricalDistribution(c) for n, c in choices.items()
    }
    for i, value in enumerate(logs):
        params = {n: v[i] for n, v in settings.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator, params=list(settings)))


# ---------------------------------------------------------------------- what trials cost


def pareto_frame(store: Store) -> pd.DataFrame:
    """The trials that no other beats in step time, peak memory, compile time and energy at once, fastest first.

    Returns:
        Columns trial, ratio, peak_bytes, compile_s, step_j, settings.
    """
    return _frame(pareto_rows(trial_rows(store)), _PARETO_COLUMNS)
