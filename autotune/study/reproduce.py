"""One trial of a run directory, and what runs its program by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

from autotune.machine import reproduction_environment
from autotune.model import AutotuneError, TrialResult
from autotune.rundir import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How one trial's program is run by hand.

    Attributes:
        environment: Variables to set.
        command: What to call.
        directory: Folder to call it in.
    """

    environment: dict[str, str]
    command: list[str]
    directory: str


def find_trial(store: Store, number: int) -> TrialResult:
    """One trial's result; they count from 1.

    Raises:
        AutotuneError: If there is no such trial.
    """
    results = store.of(TrialResult)
    for result in results:
        if result.number == number:
            return result
    raise AutotuneError(
        f"a trial's number must be between 1 and {len(results)} but got {number}; see `autotune show {store.path}`"
    )


def reproduce_trial(store: Store, result: TrialResult) -> Reproduction:
    """What runs a trial's program by hand, under its settings and the baseline."""
    device, workload = store.spec.device, store.spec.workload
    environment = reproduction_environment(
        store.spec.baseline.merge(result.settings),
        platform_name=device.platform,
        virtual_devices=(device.count or 1) if device.platform == "cpu" else None,
    )
    if workload.command is not None:
        command = [a.replace("{folder}", str(store.path / (result.directory or "."))) for a in workload.command]
    else:
        options = [text for n, v in workload.options.items() for text in ("--set", f"{n}={json.dumps(v)}")]
        command = ["python", "-m", "workloads", str(workload.entry), *options, "--steps", "20"]
    return Reproduction(environment=environment, command=command, directory=store.study_dir)
