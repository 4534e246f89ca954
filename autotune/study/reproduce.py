"""Builds the command that runs one trial's program by hand."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from autotune.child.packages import workloads_root
from autotune.machine.environment import reproduction_environment
from autotune.model.errors import AutotuneError
from autotune.model.records import TrialResult
from autotune.model.redaction import REDACTED, redacted_names
from autotune.rundir.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Environment, command and working folder that run one trial's program by hand.

    Attributes:
        secrets: Names of the secrets that are not recorded; the command has ``***`` in their place.
    """

    environment: dict[str, str]
    command: list[str]
    secrets: tuple[str, ...]
    directory: str


def find_trial(store: Store, number: int) -> TrialResult:
    """Returns one trial's result; numbers start at 1.

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
    """Returns how to run a trial's program by hand, under its settings and the baseline."""
    under = store.spec.under(result.settings)
    device, workload = under.device, under.workload
    environment = reproduction_environment(
        store.spec.baseline.merge(result.settings),
        platform_name=device.platform,
        virtual_devices=(device.count or 1) if device.platform == "cpu" else None,
    )
    if workload.command is not None:
        command = workload.arguments(str(store.path / (result.directory or ".")))
    else:
        options = [text for n, v in workload.options.items() for text in ("--set", f"{n}={json.dumps(v)}")]
        if (root := workloads_root()).name == "bundled":  # an installed package: `-m` does not find it by itself
            environment["PYTHONPATH"] = str(root)
        command = ["python", "-m", "workloads", str(workload.entry), *options, "--steps", "20"]
    return Reproduction(
        environment=environment, command=command, secrets=redacted_names(command), directory=store.study_dir
    )


def shell_lines(found: Reproduction) -> list[str]:
    """Formats a reproduction as lines of a shell, which stops with a message if a secret is not set."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in found.environment.items()]
    if not found.secrets:
        return [*lines, shlex.join(found.command)]
    return [
        f"# secrets are not recorded ({', '.join(found.secrets)}): give them again, as in the study file",
        *lines,
        " ".join(_shell_word(part, found.command[:i]) for i, part in enumerate(found.command)),
    ]


def _shell_word(part: str, before: list[str]) -> str:
    """Quotes one word of a command, with a variable named after its option in place of a secret."""
    if REDACTED not in part:
        return shlex.quote(part)
    names = redacted_names([*before[-1:], part])
    variable = re.sub(r"\W", "_", names[-1].upper())
    hole = '"${' + variable + ':?is a secret and was not recorded: set it first}"'
    return hole.join(shlex.quote(text) if text else "" for text in part.split(REDACTED))
