"""Finds one trial of a run, and says how to run its program by hand."""

from __future__ import annotations

import shlex

from autotune.machine.environment import child_environment
from autotune.model.errors import AutotuneError
from autotune.model.records import TrialResult
from autotune.rundir.store import Store


def find_trial(store: Store, number: int) -> TrialResult:
    """Returns one trial's result; numbers start at 1. Raises AutotuneError if there is none."""
    results = store.of(TrialResult)
    for result in results:
        if result.number == number:
            return result
    raise AutotuneError(
        f"a trial's number must be between 1 and {len(results)} but got {number}; see `autotune "
        f"show {store.path}`"
    )


def by_hand(store: Store, result: TrialResult) -> list[str]:
    """Returns lines of a shell that run a trial's program under its settings, secrets redacted."""
    spec = store.spec.under(result.settings)
    device = spec.device
    environment = child_environment(
        {},
        store.spec.baseline.merge(result.settings),
        platform_name=device.platform,
        virtual_devices=(device.count or 1) if device.platform == "cpu" else None,
    )
    command = spec.workload.command_line()
    if spec.workload.command is not None:
        folder = store.path / (result.directory or ".")
        command = shlex.join(spec.workload.arguments(str(folder)))
    exports = [
        f"export {n}={shlex.quote(v)}" for n, v in environment.items() if n != "PYTHONUNBUFFERED"
    ]
    return [f"cd {shlex.quote(store.study_dir)}", *exports, command]
