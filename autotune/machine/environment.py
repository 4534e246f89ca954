"""Environments of child processes; the only reader of `os.environ`.

A worker gets the caller's environment without everything that steers performance, plus exactly the
settings under trial. Only allow-listed variables are ever stored.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.model.files import packaged_table
from autotune.model.flags import FlagSet, is_variable, kind_of
from autotune.model.redaction import secret_variables, strike

Environment = Mapping[str, str]
Variables = dict[str, str]  # a copy of an environment, which may be changed

ROOT = Path(__file__).resolve().parents[2]  # folder of these packages
_KNOWN = packaged_table("environment.toml")

# Variables that change speed or results.
STEERING = re.compile("|".join(_KNOWN["steering"]))
# Variables that may be kept in a run directory.
STORED = re.compile("|".join([*_KNOWN["steering"], *_KNOWN["storable"]]))
_NOT_FOR_TRIALS = re.compile("|".join([*_KNOWN["steering"], *_KNOWN["not_for_trials"]]))


def caller_environment() -> Variables:
    """Copies this process's environment."""
    return dict(os.environ)


def without_secrets(data: Any) -> Any:
    """Strikes the caller's variables with secrets, which programs may print, out of plain data."""
    return strike(data, list(secret_variables(caller_environment()).values()))


def steering_settings(environment: Environment) -> FlagSet:
    """Returns the settings that steer performance; SettingError if XLA cannot parse XLA_FLAGS."""
    skip = {"JAX_PLATFORMS", "JAX_PLATFORM_NAME", "JAX_NUM_CPU_DEVICES"}
    names = [n for n in environment if n not in skip and STEERING.fullmatch(n) and is_variable(n)]
    return FlagSet.from_environment(environment, names)


def child_environment(
    base: Environment, settings: FlagSet, *, platform_name: str, virtual_devices: int | None = None
) -> Variables:
    """Returns a worker's environment: `base` without what steers performance, plus `settings`."""
    env = {n: v for n, v in base.items() if not _NOT_FOR_TRIALS.fullmatch(n)}
    if virtual_devices is not None:
        env["JAX_NUM_CPU_DEVICES"] = str(virtual_devices)
    return env | {
        # Host callbacks of GPU programs need the CPU, too.
        "JAX_PLATFORMS": "cuda,cpu" if platform_name == "cuda" else platform_name,
        # A cache of the program's own would hand one set's compilation to another (caches.py).
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "PYTHONUNBUFFERED": "1",
        **settings.to_environment(),
    }


def with_packages(env: Environment) -> Variables:
    """Adds the folder of these packages to a child's PYTHONPATH, unless they are installed."""
    if ROOT.name == "site-packages":
        return dict(env)
    folders = filter(None, [str(ROOT), env.get("PYTHONPATH")])
    return {**env, "PYTHONPATH": os.pathsep.join(folders)}


def driver_python() -> str:
    """Returns the interpreter that workers run under."""
    return sys.executable


def merge_for_exec(
    environment: Environment, settings: FlagSet, baseline: FlagSet
) -> tuple[Variables, list[str]]:
    """Merges a winner, whose values count, into the caller's environment; adds a line on each.

    The reference had the settings of `baseline`, too. SettingError if XLA_FLAGS cannot be parsed.
    """
    callers = steering_settings(environment)
    lines = []
    merged = callers.merge(settings)
    for name, value in merged.items():
        if name in settings:
            source = "baseline of the study" if baseline.get(name) == value else "winner"
            yours = callers.get(name, value)
            if yours != value:
                source += f", in place of your {yours!r}"
            lines.append(f"{name}={value} ({source})")
        elif kind_of(name) == "xla":
            lines.append(f"{name}={value} (your XLA_FLAGS, kept)")
    return {**environment, **merged.to_environment()}, lines


def default_cache_dir() -> Path:
    """Returns ``$XDG_CACHE_HOME/autotune``, or ``~/.cache/autotune``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "autotune")
