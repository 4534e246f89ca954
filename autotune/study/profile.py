"""Says where two variants of a program differ, by a short trace of each after their comparison."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.child.tracer import Step
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.records import ProfileRecord, ProfileRow
from autotune.study.run import StudyRun
from autotune.workers.base import WorkerFailed
from autotune.workers.tracing import NoTrace, traced_step

MOST_ROWS = 10

Names = tuple[str, str]  # of two sides, in a sentence


def profile_once(run: StudyRun, names: Names, settings: Sequence[FlagSet]) -> None:
    """Records traces of two sides, each run alone, unless the newest traces are of them."""
    newest = run.store.last(ProfileRecord)
    if newest and newest.names == names:
        return
    run.lanes.engine.close()  # a living reference would share the device
    steps = []
    for name, letter, changed in zip(names, "ab", settings, strict=True):
        run.begin_stage("profile", f"a short trace of {name}")
        try:
            folder = run.store.folder("profile", letter)
            launcher = run.setup.launcher(run.store)
            merged = run.spec.baseline.merge(changed)
            steps.append(traced_step(launcher, merged, folder, progress=run.view.phase))
        except (NoTrace, WorkerFailed, LaunchError) as error:
            problem = f"there is no trace of {name}: {error}"
            run.store.append(ProfileRecord(names=names, problem=problem))
            return
    run.store.append(ProfileRecord(names=names, rows=rows_of(*steps)))


def rows_of(a: Step, b: Step) -> tuple[ProfileRow, ...]:
    """Returns kinds of work and kernels in a step of both, each time those that differ most."""
    rows = list[ProfileRow]()
    for table in ("kinds", "kernels"):
        differing = []
        for name in sorted({*a[table], *b[table]}):
            a_s, a_count = a[table].get(name, (0.0, 0.0))
            b_s, b_count = b[table].get(name, (0.0, 0.0))
            differing.append(ProfileRow(name=name, seconds=(a_s, b_s), counts=(a_count, b_count)))
        differing.sort(key=lambda row: -abs(row.seconds[1] - row.seconds[0]))
        rows += differing[:MOST_ROWS]
    return tuple(rows)
