"""Says where two variants of a program differ: a short trace of each, made once their comparison is
over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.records import ProfileRecord, ProfileRow
from autotune.study.run import StudyRun
from autotune.workers.base import WorkerFailed
from autotune.workers.tracing import NoTrace, traced_step

MOST_ROWS = 10

Step = Mapping[str, Mapping[str, tuple[float, float]]]
"""See `autotune.child.tracer`."""


def profile_once(run: StudyRun, names: tuple[str, str], settings: Sequence[FlagSet]) -> None:
    """Records traces of two sides, unless the newest ones are of them; see `profile`."""
    newest = run.store.last(ProfileRecord)
    if newest is None or newest.names != names:
        run.store.append(profile(run, names, settings))


def profile(run: StudyRun, names: tuple[str, str], settings: Sequence[FlagSet]) -> ProfileRecord:
    """Traces two sides, each the study's reference with some settings; both alone, one by one."""
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
            return ProfileRecord(names=names, problem=f"there is no trace of {name}: {error}")
    return ProfileRecord(names=names, rows=rows_of(*steps))


def rows_of(a: Step, b: Step) -> tuple[ProfileRow, ...]:
    """Returns the kinds of work in a step of two programs, and the kernels that differ most; most
    changed first.
    """
    rows = list[ProfileRow]()
    for part in ("kinds", "kernels"):
        pairs = {
            n: [step[part].get(n, (0.0, 0.0)) for step in (a, b)]
            for n in sorted({*a[part], *b[part]})
        }
        found = [
            ProfileRow(name=name, seconds=(one[0], two[0]), counts=(one[1], two[1]))
            for name, (one, two) in pairs.items()
        ]
        rows += sorted(found, key=lambda row: -abs(row.seconds[1] - row.seconds[0]))[:MOST_ROWS]
    return tuple(rows)
