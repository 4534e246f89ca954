"""The stages of a study in order; each goes on where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from autotune import objectives
from autotune.blame import remembered
from autotune.conclude import conclude
from autotune.evaluate import Bench
from autotune.floor import measure_floor
from autotune.records import (
    ConclusionRecord,
    WorkerReport,
)
from autotune.search import Proposer
from autotune.session import session
from autotune.stats import SequentialPlan
from autotune.store import Store
from autotune.told import View
from autotune.trials import search_trials


def run_study(
    store: Store,
    bench: Bench,
    make_proposer: Callable[[WorkerReport], Proposer],
    *,
    trials: int,
    time_budget_s: float | None,
    view: View,
    command: Sequence[str] = (),
) -> ConclusionRecord:
    """Takes a study from where it is to its conclusion.

    Args:
        store: The run directory, locked.
        bench: Where comparisons are made.
        make_proposer: Makes who proposes, from what the reference said of itself.
        trials: How many trials the study shall have, those of earlier sessions included.
        time_budget_s: Wall seconds for the whole study, earlier sessions included; it ends the search, not the proof.
        view: Told what happens.
        command: How the driver was called, for the record.

    Raises:
        LaunchError: If the reference cannot run.
        RunDirectoryError: If the run directory cannot be written.
    """
    with session(store, trials=trials, command=command), contextlib.closing(bench):
        plan = SequentialPlan(cap=store.spec.measure.pairs_cap)
        floor = measure_floor(store, bench, plan, view)
        bench.loss_tolerance = floor.loss_tolerance
        objectives.refuse_unknown(store.spec.search.objectives, floor.reference, floor.comparison.energy)
        proposer = make_proposer(floor.reference)
        if store.spec.search.known_failures and store.spec.replay is None:
            proposer.bad = remembered(floor.reference)
            if proposer.bad:
                view.note(
                    f"left out: {len(proposer.bad)} combinations that crashed or hung in earlier studies on this build "
                    "and device (search.known_failures = false tries them again)"
                )
        results = search_trials(
            store, bench, proposer, plan,
            trials=trials, time_budget_s=time_budget_s, view=view, reference=floor.reference,
        )  # fmt: skip
        bench.close()  # proofs start fresh processes of both arms
        return conclude(store, bench, plan, results, view)
