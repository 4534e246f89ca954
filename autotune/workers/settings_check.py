"""Checks whether settings are in force in a running program, which may change XLA_FLAGS itself."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.child.channel import Message
from autotune.child.fingerprint import KERNELS_FLAG
from autotune.model.errors import SettingError
from autotune.model.files import packaged_table, plain_content
from autotune.model.flags import FlagSet, kind_of

DUMP_FLAG = "xla_dump_to"  # by which `ProgramWatch` sees programs
IN_FORCE = packaged_table("in_force.toml")
TEXT_BYTES = 1_000_000  # of a script that are searched

Clauses = tuple[str, ...]


class SettingsCheck(NamedTuple):
    """Sentences on settings that are not in force, and other remarks."""

    lost: Clauses
    notes: Clauses


def check_environment(settings: FlagSet, values: Mapping[str, str | None]) -> SettingsCheck:
    """Compares settings with a running program's environment; None is a variable not set."""
    present = {name: value for name, value in values.items() if value is not None}
    try:
        in_force = FlagSet.from_environment(present, settings)
    except SettingError as error:
        flags = present.get("XLA_FLAGS")
        sentence = f"XLA_FLAGS: the program made it {flags!r}, which XLA cannot parse ({error})"
        return SettingsCheck((sentence,), ())
    lost = []
    for name, value in settings.items():
        actual = in_force.get(name)
        # A program is called with an option.
        if actual != value and kind_of(name) != "option":
            change = "took it away" if actual is None else f"made it {actual}"
            lost.append(f"{name}={value}: the program {change}")
    notes = [
        f"the program sets {name}={present[name]} itself: its memory is its own affair"
        for name in IN_FORCE["memory_variables"]
        if name in present and name not in settings
    ]
    added = in_force.without(*settings, DUMP_FLAG, KERNELS_FLAG).render_xla_flags()
    if added:
        notes.append(f"the program adds to XLA_FLAGS: {added}")
    return SettingsCheck(tuple(lost), tuple(notes))


def check_options(settings: FlagSet, options: Mapping[str, str]) -> Clauses:
    """Returns a sentence for each JAX option that a program changed by ``jax.config.update``."""
    return tuple(
        f"{name}={settings[name]}: the program made it {actual}"
        for name, actual in options.items()
        if name in settings and not _equal(settings[name], actual)
    )


def check_processes(settings: FlagSet, processes: Sequence[Message]) -> SettingsCheck:
    """Compares settings with the environments of all processes of `child.processes`."""
    checks = [check_environment(settings, p["values"]) for p in processes if "values" in p]
    lost = dict.fromkeys(line for check in checks for line in check.lost)
    notes = dict.fromkeys(note for check in checks for note in check.notes)
    if settings and not checks:
        reasons = (p["unreadable"] for p in processes)
        why = next(reasons, "none of its processes has loaded XLA")
        note = f"it could not be seen whether the settings arrive in the program: {why}"
        notes[note] = None
    return SettingsCheck(tuple(lost), tuple(notes))


def scripts_of(command: Sequence[str], folder: Path) -> dict[str, str]:
    """Returns the text of each script among the words of a command that is run in `folder`."""
    scripts = {}
    for word in command:
        with contextlib.suppress(OSError, ValueError):
            if Path(word).suffix in (".py", ".sh"):
                text = plain_content(folder / word, most=TEXT_BYTES)
                scripts[word] = text.decode(errors="replace")
    return scripts


def files_that_set(variable: str, command: Sequence[str], folder: Path) -> list[str]:
    """Returns the scripts in a command, run in `folder`, that set a variable or take it away."""
    sets = re.compile(
        rf"{variable}[\"']\]\s*[+|]?=(?!=)|(?:^|[\s;]){variable}\+?=|(?:setdefault|putenv|update|pop)\W+{variable}|"
        rf"(?:unset|del) .*{variable}",
        re.M,
    )
    return [word for word, text in scripts_of(command, folder).items() if sets.search(text)]


def check_debug_options(settings: FlagSet, options: Mapping[str, Sequence[str]]) -> Clauses:
    """Returns a clause for each XLA flag that is listed with another switch or number."""
    clauses = []
    for name, value in settings.of_kind("xla").without(*IN_FORCE["set_by_jax"]).items():
        listed = options.get(name, ())
        if len(listed) == 1 and _equal(value, listed[0]) is False:
            clauses.append(f"{name}={value} became {listed[0]}")
    return tuple(clauses)


def _equal(given: str, actual: str) -> bool | None:
    """Returns whether two switches or numbers are equal; None for other texts that differ."""
    switches = {"true": "1", "false": "0", "yes": "1", "no": "0", "on": "1", "off": "0"}
    texts = [text.strip().lower() for text in (given, actual)]
    a, b = (switches.get(text, text) for text in texts)
    try:
        # XLA keeps 32 bits of some numbers and prints six digits
        return a == b or math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-6)
    except ValueError:
        return None
