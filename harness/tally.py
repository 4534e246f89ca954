"""Checks that every trial is there once and whole, in run directory and Optuna storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autotune.model.errors import RunDirectoryError
from autotune.model.measurement import log_ratio
from autotune.model.records import (
    CONFIRM,
    ISOLATED,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    SoakRecord,
    TrialResult,
    TrialStatus,
)
from autotune.rundir.optuna_study import NUMBER_KEY
from autotune.rundir.store import Store
from harness.sandbox import Postgres

STAGES = (
    "before the A/A run",
    "before the first trial",
    "search",
    "minimise",
    "confirm",
    "isolated runs",
    "soak",
    "conclude",
    "after the conclusion",
)
"""Where a study can be when something is killed, in order."""


def stage_of(run: Path) -> str:
    """At which of `STAGES` a study is, from its records alone."""
    try:
        store = Store.open(run)
        if not store.of(AaRecord):
            return STAGES[0]
    except RunDirectoryError:
        return STAGES[0]
    trials = store.of(TrialResult)
    if not trials:
        return STAGES[1]
    if store.of(ConclusionRecord):
        return STAGES[-1]
    if len(trials) < store.spec.search.trials:
        return "search"
    if not any(r.stage == CONFIRM for r in store.of(ConfirmRun)):
        return "minimise"
    if not any(f.stage == CONFIRM for f in store.of(FinalistResult)):
        return "confirm"
    if store.spec.confirm.isolated and not any(
        f.stage == ISOLATED for f in store.of(FinalistResult)
    ):
        return "isolated runs"
    return "conclude" if store.of(SoakRecord) or not store.spec.confirm.soak else "soak"


def tally_of(run: Path) -> dict[str, Any]:
    """What a finished run directory holds, and whether it agrees with itself."""
    store = Store.open(run)
    results = store.of(TrialResult)
    confirmations = [(r.stage, r.settings, r.repeat) for r in store.of(ConfirmRun)]
    ablations = [(r.settings, r.left_out) for r in store.of(AblationResult)]
    soaks = [r.settings for r in store.of(SoakRecord) if r.failure is None]
    proofs = [(f.stage, f.settings, f.trial) for f in store.of(FinalistResult)]
    aa_runs = [f.by for f in store.of(AaRecord)]
    numbers = [r.number for r in results]
    return {
        "trials": len(results),
        "lost": len(set(range(1, len(results) + 1)) - set(numbers)),
        "doubled": sum(
            len(seen) - len(set(seen))
            for seen in (numbers, confirmations, ablations, soaks, proofs)
        ),
        "aa_runs_measured_again": len(aa_runs) - len(set(aa_runs)),
        "sets_measured_twice": len(results) - len({r.settings for r in results}),
        "trials_with_wrong_samples": sum(not _is_whole(store, r) for r in results),
        "conclusions": len(store.of(ConclusionRecord)),
    }


def _is_whole(store: Store, result: TrialResult) -> bool:
    """Whether the raw samples of a trial are those of which its figures tell."""
    pairs = list(store.pairs(result.directory)) if result.directory else []
    for pair in pairs:
        log_ratio(pair)
    if result.status is not TrialStatus.MEASURED or result.comparison is None:
        return True
    return [p.index for p in pairs] == list(range(result.comparison.pair_count))


def tally_in(database: Postgres, asked: int) -> dict[str, int]:
    """What the one study of a database holds."""
    import optuna
    from optuna.trial import TrialState

    storage = optuna.storages.RDBStorage(database.url)
    (study,) = optuna.get_all_study_names(storage)
    found = optuna.load_study(study_name=study, storage=storage).get_trials(
        states=(TrialState.COMPLETE,)
    )
    numbers = [t.user_attrs[NUMBER_KEY] for t in found]
    storage.engine.dispose()
    return {
        "trials": len(numbers),
        "lost": len(set(range(1, asked + 1)) - set(numbers)),
        "doubled": len(numbers) - len(set(numbers)),
    }
