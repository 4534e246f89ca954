"""Which versions of what a measurement depends on are installed: for this Python, or for another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.child import CUDA_PLUGINS, PACKAGES_PROGRAM, installed_versions
from autotune.machine.gpus import Runner, run_program

_MEASURED = ("jax", "jaxlib", "flax", "optax", "optuna", "numpy", *CUDA_PLUGINS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What some Python has.

    Attributes:
        python: Its version.
        versions: Of the distributions asked for, as far as they are installed.
        folders: Of the packages asked for, likewise.
    """

    python: str
    versions: Mapping[str, str]
    folders: Mapping[str, str]


def packages_of(
    python: str, names: Sequence[str], *, folders: Sequence[str] = (), run: Runner = run_program
) -> Packages:
    """Asks another Python for its own version, versions of distributions, and folders of packages.

    Raises:
        ValueError: If it gives no answer.
    """
    question = json.dumps({"versions": list(names), "folders": list(folders)})
    return Packages(**json.loads(run([python, "-P", PACKAGES_PROGRAM, question])))


def measured_versions() -> dict[str, str]:
    """Versions of what decides how fast a step is, and of what measures it, as far as they are installed here."""
    return installed_versions(_MEASURED)


def cuda_plugin(versions: Mapping[str, str]) -> str | None:
    """The CUDA plugin among some versions, such as ``jax-cuda12-plugin 0.10.2``; None without one."""
    return next((f"{name} {versions[name]}" for name in CUDA_PLUGINS if name in versions), None)
