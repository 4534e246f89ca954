"""How long a study that runs will go on: what its own estimates and budgets say, as whoever looks on can read them."""

from __future__ import annotations

from autotune.model import ConfirmRun, FloorResult, LedgerRecord, SessionRecord, TrialResult
from autotune.rundir import Store
from autotune.stats import proof_pairs
from autotune.study.durations import RECENT, durations_of
from autotune.study.time_left import minimising_s

_SEARCHES = ("noise floor", "screen", "search")
_PROVES = ("confirm", "minimise", "pgle", "final proof")
_LAST = "soak"


def seconds_to_go(store: Store, stage: str, *, used_s: float, stage_s: float) -> float | None:
    """Seconds until a study ends at the latest, about: by its trials and proofs, or by a budget if that ends sooner.

    A search that has nothing left to try, or a proof that is clear, ends sooner still.

    Args:
        store: The run directory, which somebody else may be writing.
        stage: That it is in.
        used_s: Of the study's time.
        stage_s: Of the stage.

    Returns:
        None where nothing tells: no budget, and the noise floor is not known yet or the stage is none of a search.
    """
    known = [s for s in (_planned_s(store, stage, used_s, stage_s), *_budgets_s(store, used_s)) if s is not None]
    return max(0.0, min(known)) if known else None


def _budgets_s(store: Store, used_s: float) -> list[float]:
    """What is left of each budget, in seconds of wall time."""
    search, found = store.spec.search, []
    if search.time_budget is not None:
        found.append(search.time_budget - used_s)
    ledger, floor = store.last(LedgerRecord), store.last(FloorResult)
    if search.gpu_hours is not None and ledger is not None and floor is not None:
        devices = floor.reference.device_count * max(1, len(ledger.lanes))
        found.append((3600 * search.gpu_hours - ledger.device_s) / devices)
    return found


def _planned_s(store: Store, stage: str, used_s: float, stage_s: float) -> float | None:
    """What is left of trials, proofs and soak, if each takes what those before it took or the noise floor foretold."""
    spec, floors, runs = store.spec, store.of(FloorResult), store.of(ConfirmRun)
    takes = durations_of(spec, floors[0], runs) if floors else None
    if takes is None or stage not in (*_SEARCHES, *_PROVES, _LAST):
        return None
    if stage == _LAST:
        return takes.soak_s - stage_s
    trials, ledger, session = store.of(TrialResult), store.last(LedgerRecord), store.last(SessionRecord)
    lanes = max(1, len(ledger.lanes)) if ledger else 1
    promise = floors[0].promise
    pairs = proof_pairs(spec.confirm.finalists, most=spec.confirm.processes)
    proofs_s = promise.proof_s if promise is not None and promise.proof_s is not None else pairs * takes.pair_s
    proofs_s = proofs_s / lanes + minimising_s(spec, takes)
    if stage in _PROVES:
        spent_s = used_s - max((t.at_s for t in trials), default=used_s)
        return max(0.0, proofs_s - spent_s) + takes.soak_s
    ends_s = [t.at_s for t in trials[-RECENT:]]  # of all lanes together
    each_s = (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) if len(ends_s) > 1 else takes.trial_s / lanes
    asked = session.asked_trials if session else spec.search.trials
    return max(0, asked - len(trials)) * each_s + proofs_s + takes.soak_s
