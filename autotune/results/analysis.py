"""A run directory as pandas frames: trials, raw steps, what each setting does. Reads records, never measures.

Times are in seconds, sizes in bytes, ratios are candidate over reference step time (below 1 is faster).
"""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from autotune.model import (
    REFERENCE_NUMBER,
    AblationResult,
    ConfirmRun,
    FinalistResult,
    FlagSet,
    FloorResult,
    Objective,
    TrialResult,
    TrialStatus,
    front_estimates,
    front_points,
    proven_front,
)
from autotune.rundir import Store
from autotune.stats import Estimate

ABSENT = "(default)"
"""Stands for a setting that a trial does not set."""

_RESOURCES = ("ratio", "peak_bytes", "compile_s", "energy_ratio")
_ENDS = (("", "ratio"), ("_low", "low"), ("_high", "high"))

LEAST_TRIALS = 8
"""Trials with a ratio below which no importance is given: a handful explains anything."""

_TRIAL_COLUMNS = (
    "trial",
    "origin",
    "status",
    "verdict",
    "ratio",
    "low",
    "high",
    "pair_count",
    "reference_step_s",
    "candidate_step_s",
    "tokens_per_s",
    "compile_s",
    "start_s",
    "peak_bytes",
    "mode",
    "step_j",
    "energy_ratio",
    "energy_low",
    "energy_high",
    "tokens_per_j",
    "failure",
    "message",
    "same_as",
    "duration_s",
    "at_s",
    "by",
    "settings",
    "predicted_ratio",
    "predicted_step_s",
)
_STEP_COLUMNS = ("stage", "trial", "measurement", "pair", "arm", "is_first", "step", "step_s", "at_s")
_EFFECT_COLUMNS = (
    "setting",
    "value",
    "ratio",
    "low",
    "high",
    "how",
    "trials",
    "failed",
    "is_dead",
    "reason",
)


def trials_frame(store: Store) -> pd.DataFrame:
    """One row a trial; a twin of an earlier program has that program's figures and names it in `same_as`.

    Returns:
        Columns trial, origin, status, verdict, ratio, low, high, pair_count, reference_step_s,
        candidate_step_s, tokens_per_s, compile_s, start_s, peak_bytes, mode, step_j, energy_ratio, energy_low,
        energy_high, tokens_per_j, failure, message, same_as, duration_s, at_s, by (the worker, where several
        share the study), settings, predicted_ratio, predicted_step_s (a model's; then nothing in the other columns is
        of a step). Energy is NaN where nothing counted it.
    """
    return pd.DataFrame([_trial_row(r) for r in store.of(TrialResult)], columns=list(_TRIAL_COLUMNS))


def _trial_row(result: TrialResult) -> dict[str, Any]:
    found, worker = result.comparison, result.worker
    estimate = found.estimate if found else None
    tokens = worker.tokens_per_step if worker else None
    energy = found.energy if found else None
    return {
        "trial": result.number,
        "origin": result.origin,
        "status": str(result.status),
        "verdict": str(found.verdict) if found else None,
        "ratio": estimate.ratio if estimate else 1.0 if result.is_the_default else math.nan,
        "low": estimate.low if estimate else math.nan,
        "high": estimate.high if estimate else math.nan,
        "pair_count": estimate.pair_count if estimate else 0,
        "reference_step_s": found.reference_step_s if found else math.nan,
        "candidate_step_s": found.candidate_step_s if found else math.nan,
        "tokens_per_s": tokens / found.candidate_step_s if tokens and found else math.nan,
        "compile_s": _number(worker.compile_s if worker else None),
        "start_s": _number(worker.start_s if worker else None),
        "peak_bytes": _number(worker.peak_bytes if worker else None),
        "mode": found.mode if found else None,
        "step_j": energy.candidate_step_j if energy else math.nan,
        "energy_ratio": energy.estimate.ratio if energy else math.nan,
        "energy_low": energy.estimate.low if energy else math.nan,
        "energy_high": energy.estimate.high if energy else math.nan,
        "tokens_per_j": _number(result.tokens_per_j),
        "failure": str(result.failure.kind) if result.failure else None,
        "message": result.failure.message if result.failure else None,
        "same_as": result.same_as,
        "duration_s": result.duration_s,
        "at_s": result.at_s,
        "by": result.by,
        "settings": str(result.settings),
        "predicted_ratio": result.prediction.ratio if result.prediction else math.nan,
        "predicted_step_s": result.prediction.step_s if result.prediction else math.nan,
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


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
        at_s (of the pair, since the study began).
    """
    rows = []
    for stage, trial, directory in measurements(store):
        for pair in store.pairs(directory):
            for arm, times in (("reference", pair.reference_s), ("candidate", pair.candidate_s)):
                base = (stage, trial, directory, pair.index, arm, pair.first == arm)
                rows += [(*base, i, step_s, pair.at_s) for i, step_s in enumerate(times)]
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


def finalists(store: Store) -> list[FinalistResult]:
    """The newest verdict of each stage and set: a study that went on judges its finalists anew."""
    return list({(f.stage, f.settings): f for f in store.of(FinalistResult)}.values())


# ---------------------------------------------------------------------- effect of each setting


def effects_frame(store: Store) -> pd.DataFrame:
    """What each value of each setting does, from the best evidence there is.

    In `how`, best first: ``left out`` (the paired measurement without it, inverted: the ratio that the
    setting brings inside the winner), ``fresh processes`` (confirmed or refuted as a finalist of its own),
    ``alone`` (a trial of that setting only), ``same program`` (a trial that had it was the reference's own
    program: it changes nothing), ``among others`` (median ratio of the trials with it over the median of those
    without: other settings are mixed in, no interval).

    Returns:
        Columns setting, value, ratio, low, high, how, trials (that had it), failed (of those), is_dead,
        reason.
    """
    results = store.of(TrialResult)
    pairs = sorted({(n, v) for r in results for n, v in r.settings.items()})
    ablations = {a.left_out: a for a in store.of(AblationResult)}
    proven = {f.settings: f.corrected for f in finalists(store) if f.corrected is not None}
    rows = [
        _effect(name, value, results, ablations.get(name), proven.get(FlagSet({name: value}))) for name, value in pairs
    ]
    return pd.DataFrame(rows, columns=list(_EFFECT_COLUMNS))


def _effect(
    name: str,
    value: str,
    results: Sequence[TrialResult],
    ablation: AblationResult | None,
    proof: Estimate | None,
) -> dict[str, Any]:
    having = [r for r in results if r.settings.get(name) == value]
    row: dict[str, Any] = {
        "setting": name,
        "value": value,
        "ratio": math.nan,
        "low": math.nan,
        "high": math.nan,
        "how": "",
        "trials": len(having),
        "failed": sum(r.failure is not None for r in having),
        "is_dead": any(r.is_the_default for r in having),
        "reason": "",
    }
    if ablation is not None and ablation.settings.get(name) == value:
        row["reason"] = ("kept: " if ablation.kept else "dropped: ") + ablation.reason
        if ablation.comparison is not None:
            e = ablation.comparison.estimate
            return row | {"ratio": 1 / e.ratio, "low": 1 / e.high, "high": _inverse(e.low), "how": "left out"}
        if not ablation.kept:
            return row | {"ratio": 1.0, "how": "same program"}
    if proof is not None:
        return row | {"ratio": proof.ratio, "low": proof.low, "high": proof.high, "how": "fresh processes"}
    alone = next((r for r in having if len(r.settings) == 1), None)
    if alone is not None and alone.comparison is not None:
        e = alone.comparison.estimate
        return row | {"ratio": e.ratio, "low": e.low, "high": e.high, "how": "alone"}
    if alone is not None and alone.failure is not None:
        return row | {"how": "alone", "reason": f"failed: {alone.failure.kind}"}
    if row["is_dead"]:
        return row | {"ratio": 1.0, "how": "same program"}
    mine = [x for r in having if (x := _log_ratio(r)) is not None]
    others = [x for r in results if r.settings.get(name) != value and (x := _log_ratio(r)) is not None]
    if mine and others:
        ratio = math.exp(float(np.median(mine)) - float(np.median(others)))
        return row | {"ratio": ratio, "how": "among others"}
    return row


def _inverse(x: float) -> float:
    return 1 / x if x > 0 else math.inf


def _log_ratio(result: TrialResult) -> float | None:
    if result.is_the_default:
        return 0.0
    return math.log(result.comparison.estimate.ratio) if result.comparison is not None else None


# ---------------------------------------------------------------------- importance


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
    rated = [(r, x) for r in store.of(TrialResult) if (x := _log_ratio(r)) is not None]
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


# ---------------------------------------------------------------------- several objectives


def pareto_frame(store: Store) -> pd.DataFrame:
    """The trials that no other beats in step time, peak memory and compile time at once.

    Energy counts where it is known.

    Returns:
        Columns trial, ratio, peak_bytes, compile_s, energy_ratio, settings; fastest first. Objectives that no
        trial recorded are left out of the comparison.
    """
    frame = trials_frame(store)
    frame = frame[(frame["status"] == str(TrialStatus.MEASURED))]
    known = [c for c in _RESOURCES if frame[c].notna().any()]
    points = frame[known].fillna(math.inf).to_numpy(dtype=float)
    best = [not np.any(np.all(points <= p, axis=1) & np.any(points < p, axis=1)) for p in points]
    shown = frame.loc[best, ["trial", *_RESOURCES, "settings"]]
    return shown.sort_values("ratio").reset_index(drop=True)


def front_frame(store: Store) -> pd.DataFrame:
    """The sets that better the default in one of the study's objectives and that no other beats in all, fastest first.

    Those that fresh processes proved have intervals widened for all that were proven together. The others are figures
    of the search: they were not measured again (yet).

    Returns:
        Columns trial, settings, is_proven; then for each objective its ratio over the default, under its name
        (step_time, memory, compile_time, energy), and `<name>_low`, `<name>_high`.
    """
    wanted, sesoi = store.spec.search.objectives, store.spec.measure.smallest_effect
    columns = ["trial", "settings", "is_proven", *(f"{o}{end}" for o in wanted for end in ("", "_low", "_high"))]
    floor = store.last(FloorResult)
    if floor is None:
        return pd.DataFrame(columns=columns)
    judged = [f for f in finalists(store) if f.stage == "confirm"]
    rows = []
    for member in proven_front(judged, wanted, sesoi=sesoi):
        row = {"trial": member.trial, "settings": str(member.settings), "is_proven": True}
        rows.append(row | _ratios(front_estimates(member, wanted) or {}))
    tried = {f.trial for f in judged}
    for point in front_points(store.of(TrialResult), wanted, floor.reference, tolerance=sesoi):
        if point.result.number in tried:
            continue
        found = point.result.comparison
        known = {Objective.STEP_TIME: found.estimate} if found else {}
        if found and found.energy:
            known[Objective.ENERGY] = found.energy.estimate
        row = {"trial": point.result.number, "settings": str(point.result.settings), "is_proven": False}
        row |= {str(o): math.exp(v) for o, v in zip(wanted, point.values, strict=True)}
        rows.append(row | _ratios({o: e for o, e in known.items() if o in wanted}))
    frame = pd.DataFrame(rows, columns=columns)
    return frame.sort_values(["is_proven", "step_time"], ascending=[False, True], ignore_index=True)


def _ratios(estimates: Mapping[Objective, Estimate]) -> dict[str, float]:
    named = {(o, end): getattr(e, name) for o, e in estimates.items() for end, name in _ENDS}
    return {f"{o}{end}": value for (o, end), value in named.items()}
