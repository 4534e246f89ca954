"""Which settings a program sets itself, and whether given ones arrive in it, by the first look at it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine.environment import steering_settings
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet, kind_of, parse_tokens, reaches_out
from autotune.programs.probe import Probe
from autotune.workers.programs import dump_flag
from autotune.workers.settings_check import files_that_name

MARK = "--xla_dump_max_hlo_modules=-1"
"""XLA's default, given to a probed program as a flag: it shows whether XLA_FLAGS arrive in the program."""

DEVICE_COUNT = "xla_force_host_platform_device_count"
"""Flag that makes virtual CPU devices; a study has `device.count`."""

_UNKNOWN = "the program, or a script that starts it,"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """The settings that a program sets itself."""

    settings: FlagSet = field(default_factory=FlagSet)
    """They become the baseline of its study; without those that name files."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Its variables that steer performance or choose devices."""
    warnings: tuple[str, ...] = ()
    """Reasons why a trial may be unable to change some of them, with the line to write instead."""


def marks_of(dump: Path | None) -> str:
    """Returns the XLA_FLAGS of a probed program.

    Args:
        dump: An empty folder to which XLA writes what it compiles under these flags; None for no dump.
    """
    return f"{MARK} {dump_flag(dump) if dump is not None else ''}".strip()


def own_settings(probe: Probe, command: Sequence[str], folder: Path) -> OwnSettings:
    """Compares the environments of a program's processes with the one that it was given.

    Args:
        folder: In which the command ran.

    Raises:
        LaunchError: If XLA_FLAGS do not arrive, with the line to write instead.
        SettingError: If the program's XLA_FLAGS cannot be parsed.
    """
    seen = [p["values"] for p in probe.processes.values() if "values" in p]
    who = next(iter(files_that_name("XLA_FLAGS", command, folder)), _UNKNOWN)
    is_unseen = not seen and bool(probe.processes) and probe.has_dumped is False
    for given in seen or ([{}] if is_unseen else []):
        _refuse_lost(who, given.get("XLA_FLAGS", ""))
    values = seen[0] if seen else {}
    marks, flags = probe.environment["XLA_FLAGS"].split(), values.get("XLA_FLAGS", "")
    is_last = bool(flags.partition(marks[-1])[2].strip())
    for mark in marks:
        flags = flags.replace(mark, "")
    flags = " ".join(flags.split())
    if seen and not flags and who.endswith(".py") and probe.has_dumped is False:  # it sets its own while it runs
        line = _line(who, "XLA_FLAGS", "--xla_...")
        raise _lost(f"{who} sets XLA_FLAGS itself", f"write `{line}` there instead, before JAX is imported")
    changed = {n: v for n, v in values.items() if probe.environment.get(n) != v}
    found = steering_settings({**changed, "XLA_FLAGS": flags})
    settings = FlagSet({n: v for n, v in found.items() if n != DEVICE_COUNT and not reaches_out(n)})
    warnings = []
    if is_last:
        line = _line(who, "XLA_FLAGS", flags)
        warnings.append(f"{who} puts its own flags last, so no trial can change them: write `{line}`")
    for name, value in settings.items():
        if kind_of(name) == "env":
            who = next(iter(files_that_name(name, command, folder)), _UNKNOWN)
            warnings.append(f"{who} sets {name}: write `{_line(who, name, value)}`, or no trial can change it")
    return OwnSettings(settings=settings, environment=values, warnings=tuple(warnings))


def _refuse_lost(who: str, flags: str) -> None:
    """Refuses a program whose XLA_FLAGS do not hold `MARK`."""
    if MARK in [token.text for token in parse_tokens(flags)]:
        return
    if not flags:
        raise _lost(f"{who} takes XLA_FLAGS away", "let it pass XLA_FLAGS on (no `env -i`, no `unset`)")
    line = _line(who, "XLA_FLAGS", flags)
    raise _lost(f"{who} sets XLA_FLAGS to {flags} in place of those given", f"write `{line}` there instead")


def _lost(why: str, advice: str) -> LaunchError:
    return LaunchError(
        f"the settings of a study must arrive in the program but {why}; {advice}, and call this again. "
        "Nothing was written"
    )


def _line(who: str, name: str, value: str) -> str:
    """Returns the line of a shell script, or of Python, by which a given value wins over the program's own."""
    if who.endswith(".py"):
        if name == "XLA_FLAGS":
            return f'os.environ["XLA_FLAGS"] = {value + " "!r} + os.environ.get("XLA_FLAGS", "")'
        return f"os.environ.setdefault({name!r}, {value!r})"
    quoted = re.sub(r'(["$`\\])', r"\\\1", value)
    if name == "XLA_FLAGS":
        return f'export XLA_FLAGS="{quoted} $XLA_FLAGS"'
    return f'export {name}="${{{name}:-{quoted}}}"'
