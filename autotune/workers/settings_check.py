"""Checks whether settings are in force in a running program, which may change XLA_FLAGS itself."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child.fingerprint import KERNELS_FLAG
from autotune.model.errors import SettingError
from autotune.model.files import packaged_table, plain_content
from autotune.model.flags import FlagSet, kind_of

DUMP_FLAG = "xla_dump_to"
"""Flag by which `ProgramWatch` sees the programs of a process."""

IN_FORCE = packaged_table("in_force.toml")
"""Settings of which something is known that matters to a check."""

TEXT_BYTES = 1_000_000
"""Bytes of a script that are searched."""


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """Result of a check."""

    lost: tuple[str, ...]
    """One sentence for each setting that is not in force."""
    notes: tuple[str, ...]
    """Other remarks."""


def check_environment(settings: FlagSet, values: Mapping[str, str | None]) -> SettingsCheck:
    """Compares settings with the present environment of a running program; None for a variable that is not set."""
    lost: list[str] = []
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
    own = {n: values[n] for n in IN_FORCE["memory_variables"] if values.get(n) is not None and n not in settings}
    notes = [f"the program sets {n}={value} itself: its memory is its own affair" for n, value in own.items()]
    if more := sorted(set(in_force) - {*settings, DUMP_FLAG, KERNELS_FLAG}):
        notes.append(f"the program adds to XLA_FLAGS: {' '.join(f'--{n}={in_force[n]}' for n in more)}")
    return SettingsCheck(tuple(lost), tuple(notes))


def check_options(settings: FlagSet, options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each JAX option that a program changed by ``jax.config.update``."""
    return tuple(
        f"{name}={settings[name]}: the program made it {got}"
        for name, got in options.items()
        if name in settings and not _equal(settings[name], got)
    )


def check_processes(settings: FlagSet, processes: Iterable[Mapping[str, Any]]) -> SettingsCheck:
    """Compares settings with the environments of all processes of `autotune.child.processes.xla_processes`."""
    found = list(processes)
    seen = [check_environment(settings, p["values"]) for p in found if "values" in p]
    notes = dict.fromkeys(note for s in seen for note in s.notes)
    if settings and not seen:
        why: Sequence[str] = [str(p["unreadable"]) for p in found] or ["none of its processes has loaded XLA"]
        notes[f"it could not be seen whether the settings arrive in the program: {why[0]}"] = None
    return SettingsCheck(tuple(dict.fromkeys(line for s in seen for line in s.lost)), tuple(notes))


def scripts_of(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Returns the text of each script among the words of a command that is run in `folder`."""
    scripts = {}
    for word in command:
        with contextlib.suppress(OSError, ValueError):
            if Path(word).suffix in (".py", ".sh"):
                scripts[word] = plain_content(folder / word, most=TEXT_BYTES).decode(errors="replace")
    return scripts


def files_that_set(variable: str, command: Sequence[str], folder: Path) -> list[str]:
    """Returns the scripts among the words of a command, run in `folder`, that set a variable, or take it away."""
    sets = re.compile(
        rf"{variable}[\"']\]\s*[+|]?=(?!=)|(?:^|[\s;]){variable}\+?=|(?:setdefault|putenv|update|pop)\W+{variable}|"
        rf"(?:unset|del) .*{variable}",
        re.M,
    )
    return [word for word, text in scripts_of(command, folder).items() if sets.search(text)]


def check_debug_options(settings: FlagSet, options: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns a clause for each XLA flag that is listed with another switch or number than given.

    Flags that are not listed may have their default, and lists and enumerations have several spellings: not compared.
    """
    given = [(n, v) for n, v in settings.of_kind("xla").items() if n not in IN_FORCE["set_by_jax"]]
    listed = ((n, v, options.get(n, ())) for n, v in given)
    return tuple(f"{n}={v} became {got[0]}" for n, v, got in listed if len(got) == 1 and _equal(v, got[0]) is False)


def _equal(wanted: str, got: str) -> bool | None:
    """Whether two switches or numbers are equal; None for other texts, unless they are the same."""
    words = {"true": "1", "false": "0", "yes": "1", "no": "0", "on": "1", "off": "0"}
    one, two = (words.get(x, x) for x in (wanted.strip().lower(), got.strip().lower()))
    try:
        # XLA keeps 32 bits of some numbers and prints six digits
        return one == two or math.isclose(float(one), float(two), rel_tol=1e-5, abs_tol=1e-6)
    except ValueError:
        return None
