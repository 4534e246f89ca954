"""Checks whether settings are in force in a running program, which may set XLA_FLAGS itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.model import DUMP_HERE, FlagSet, SettingError, kind_of

MEMORY_VARIABLES = (
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
"""What decides how much of a GPU's memory JAX takes: told where a program sets it itself."""


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """Which settings are in force in a program.

    Attributes:
        lost: One sentence for each setting that is not in force.
        notes: What else is worth knowing; the settings are in force all the same.
    """

    lost: tuple[str, ...]
    notes: tuple[str, ...]


def check_environment(settings: FlagSet, values: Mapping[str, str | None]) -> SettingsCheck:
    """Compares settings with the environment that a running program has now.

    Args:
        values: The variables through which they travel, as the program has them; None for one that is not set.
    """
    lost: list[str] = []
    notes: list[str] = []
    flags = values.get("XLA_FLAGS") or ""
    try:
        in_force = FlagSet.parse(flags)
    except SettingError as error:
        return SettingsCheck((f"XLA_FLAGS: the program made it {flags!r}, which XLA cannot parse ({error})",), ())
    for name, wanted in settings.items():
        kind = kind_of(name)
        if kind == "option":  # the program was called with it
            continue
        got = in_force.get(name) if kind == "xla" else values.get(name.upper() if kind == "jax" else name)
        if got != wanted:
            lost.append(f"{name}={wanted}: the program {'took it away' if got is None else f'made it {got}'}")
    own = {n: values[n] for n in MEMORY_VARIABLES if values.get(n) is not None and n not in settings}
    notes += [f"the program sets {n}={value} itself: its memory is its own affair" for n, value in own.items()]
    ours = {n for n, v in DUMP_HERE.items() if in_force.get(n) == v}
    if more := sorted(set(in_force) - set(settings) - ours):
        notes.append(f"the program adds to XLA_FLAGS: {' '.join(f'--{n}={in_force[n]}' for n in more)}")
    return SettingsCheck(tuple(lost), tuple(notes))


def check_options(settings: FlagSet, options: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each JAX option that a program changed by ``jax.config.update``."""
    return tuple(
        f"{name}={settings[name]}: the program made it {got}"
        for name, got in options.items()
        if name in settings and not _equal(settings[name], got)
    )


def check_processes(settings: FlagSet, processes: Iterable[Mapping[str, Any]]) -> SettingsCheck:
    """Compares settings with the environments of all processes of a program that have loaded XLA.

    Args:
        processes: As `autotune.child.processes.xla_processes` gives them.
    """
    found = list(processes)
    seen = [check_environment(settings, p["values"]) for p in found if "values" in p]
    notes = dict.fromkeys(note for s in seen for note in s.notes)
    if settings and not seen:
        why: Sequence[str] = [str(p["unreadable"]) for p in found] or ["none of its processes has loaded XLA"]
        notes[f"it could not be seen whether the settings arrive in the program: {why[0]}"] = None
    return SettingsCheck(tuple(dict.fromkeys(line for s in seen for line in s.lost)), tuple(notes))


def _equal(wanted: str, got: str) -> bool:
    words = {"true": "1", "false": "0", "yes": "1", "no": "0", "on": "1", "off": "0"}
    one, two = (words.get(x.strip().lower(), x.strip().lower()) for x in (wanted, got))
    try:
        return one == two or float(one) == float(two)
    except ValueError:
        return False
