"""Which settings a program sets itself, and whether given ones arrive in it, by a first look."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine.environment import Environment, steering_settings
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet, kind_of, parse_tokens, reaches_out
from autotune.programs.probe import Probe
from autotune.workers.programs import dump_flag
from autotune.workers.settings_check import DUMP_FLAG, IN_FORCE, files_that_set, scripts_of

MARK = "--xla_dump_max_hlo_modules=-1"
"""XLA's default, given to a probed program as a flag: it shows whether XLA_FLAGS arrive in the
program.
"""

DEVICE_COUNT = "xla_force_host_platform_device_count"
"""Flag that makes virtual CPU devices; a study has `device.count`."""

_GIVES_WAY = re.compile(r"=[^=\n]*--xla[^\n]*environ|setdefault\([^\n]*")
"""A line of Python that sets flags in front of given ones, or where none are given."""

_UNKNOWN = "the program, or a script that starts it,"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSettings:
    """The settings that a program sets itself."""

    settings: FlagSet = field(default_factory=FlagSet)
    """They become the baseline of its study; without those that name files."""
    environment: Environment = field(default_factory=dict)
    """Its variables that steer performance or choose devices."""
    held: Mapping[str, str] = field(default_factory=dict)
    """The flags that it sets while it runs, and no trial can change."""
    warnings: tuple[str, ...] = ()
    """Reasons why a trial may be unable to change some of them, with the line to write instead."""


def marks_of(dump: Path) -> str:
    """Returns the XLA_FLAGS of a probed program, with an empty folder to which XLA dumps what it
    compiles.
    """
    return f"{MARK} {dump_flag(dump)}"


def own_settings(probe: Probe, command: Sequence[str], folder: Path) -> OwnSettings:
    """Compares the environments of the processes of a command, run in `folder`, with the one that
    it was given.

    Raises:
        LaunchError: If XLA_FLAGS do not arrive, with the line to write instead.
        SettingError: If the program's XLA_FLAGS cannot be parsed.
    """
    seen = [p["values"] for p in probe.processes.values() if "values" in p]
    who = next(iter(files_that_set("XLA_FLAGS", command, folder)), _UNKNOWN)
    for given in seen:
        _refuse_lost(who, given.get("XLA_FLAGS", ""))
    values = seen[0] if seen else {}
    marks = probe.environment["XLA_FLAGS"].split()
    words = values.get("XLA_FLAGS", "").split()
    flags = " ".join(word for word in words if word not in marks)
    is_last = bool(words) and words[-1] not in marks
    if (
        seen and not flags and who.endswith(".py") and probe.has_dumped is False
    ):  # it sets its own while it runs
        line = _line(who, "XLA_FLAGS", "--xla_...")
        raise _lost(
            f"{who} sets XLA_FLAGS itself", f"write `{line}` there instead, before JAX is imported"
        )
    changed = {n: v for n, v in values.items() if probe.environment.get(n) != v}
    found = steering_settings({**changed, "XLA_FLAGS": flags})
    settings = FlagSet({n: v for n, v in found.items() if n != DEVICE_COUNT and not reaches_out(n)})
    warnings = []
    if probe.processes and probe.has_dumped is False:
        warnings.append(
            "XLA has compiled nothing under the flags that the program was given: let it take no "
            "XLA_FLAGS from a file "
            "such as .env, and no programs from a compilation cache, or no trial can change its "
            "settings"
        )
    if is_last:
        line = _line(who, "XLA_FLAGS", flags)
        warnings.append(
            f"{who} puts its own flags last, so no trial can change them: write `{line}`"
        )
    held = _held_flags(probe, values, scripts_of(command, folder).get(who, ""))
    count = probe.options.get(DEVICE_COUNT) or str(probe.partitions)
    if count != "1":
        values = {**values, "XLA_FLAGS": f"{values.get('XLA_FLAGS', '')} --{DEVICE_COUNT}={count}"}
    if held:
        own = " ".join(f"--{name}={value}" for name, value in held.items())
        line = _line(who, "XLA_FLAGS", own)
        warnings.append(
            f"{who} sets {own} while it runs, so no trial can change that: not searched; write "
            f"`{line}`"
        )
    for name, value in settings.items():
        if kind_of(name) == "env":
            who = next(iter(files_that_set(name, command, folder)), _UNKNOWN)
            warnings.append(
                f"{who} sets {name}: write `{_line(who, name, value)}`, or no trial can change it"
            )
    return OwnSettings(settings=settings, environment=values, held=held, warnings=tuple(warnings))


def _held_flags(probe: Probe, values: Mapping[str, str], text: str) -> dict[str, str]:
    """Returns the flags that a program, whose script has this text, adds behind those that it was
    started with.
    """
    given = {token.name for token in parse_tokens(values.get("XLA_FLAGS", ""))}
    named = set(re.findall(r"--(xla_\w+)", text))
    gives_way = set(re.findall(r"--(xla_\w+)", " ".join(_GIVES_WAY.findall(text))))
    doubtful = {*IN_FORCE["set_by_jax"], *given} - (named - given)
    if probe.opens_gpu:
        doubtful |= probe.options.keys() - named  # what JAX sets on GPUs is not known
    return {
        name: value
        for name, value in probe.options.items()
        if name not in doubtful | gives_way | {DUMP_FLAG}
        and name != DEVICE_COUNT
        and not reaches_out(name)
    }


def _refuse_lost(who: str, flags: str) -> None:
    """Refuses a program whose XLA_FLAGS do not hold `MARK`."""
    if MARK in [token.text for token in parse_tokens(flags)]:
        return
    if not flags:
        raise _lost(
            f"{who} takes XLA_FLAGS away", "let it pass XLA_FLAGS on (no `env -i`, no `unset`)"
        )
    line = _line(who, "XLA_FLAGS", flags)
    raise _lost(
        f"{who} sets XLA_FLAGS to {flags} in place of those given", f"write `{line}` there instead"
    )


def _lost(why: str, advice: str) -> LaunchError:
    return LaunchError(
        f"the settings of a study must arrive in the program but {why}; {advice}, and call this "
        "again. "
        "Nothing was written"
    )


def _line(who: str, name: str, value: str) -> str:
    """Returns the line of a shell script, or of Python, by which a given value wins over the
    program's own.
    """
    if who.endswith(".py"):
        if name == "XLA_FLAGS":
            return f'os.environ["XLA_FLAGS"] = {value + " "!r} + os.environ.get("XLA_FLAGS", "")'
        return f"os.environ.setdefault({name!r}, {value!r})"
    quoted = re.sub(r'(["$`\\])', r"\\\1", value)
    if name == "XLA_FLAGS":
        return f'export XLA_FLAGS="{quoted} $XLA_FLAGS"'
    return f'export {name}="${{{name}:-{quoted}}}"'
