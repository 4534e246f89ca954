"""Which settings a program sets itself, and whether given ones arrive in it, by a first look."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.machine.environment import Environment, steering_settings
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet, parse_tokens, reaches_out
from autotune.programs.probe import MARK, Probe
from autotune.workers.settings_check import DUMP_FLAG, IN_FORCE, files_that_set, scripts_of

DEVICE_COUNT = "xla_force_host_platform_device_count"  # a study has `device.count`

# A line of Python that sets flags in front of given ones, or where none are given.
_GIVES_WAY = re.compile(r"=[^=\n]*--xla[^\n]*environ|setdefault\([^\n]*")

_UNKNOWN = "the program, or a script that starts it,"


class OwnSettings(NamedTuple):
    """The settings that a program sets itself."""

    settings: FlagSet  # the baseline of its study, without those that name files
    environment: Environment  # variables that steer performance or choose devices
    held: Mapping[str, str]  # flags set while it runs: no trial can change them
    warnings: Sequence[str]


def own_settings(probe: Probe, command: Sequence[str], folder: Path) -> OwnSettings:
    """Compares the environments of a command's processes with the one that it was given.

    LaunchError if XLA_FLAGS do not arrive, SettingError if they cannot be parsed.
    """
    environments = [p["values"] for p in probe.processes.values() if "values" in p]
    script = _script_that_sets("XLA_FLAGS", command, folder)
    for environment in environments:
        _refuse_lost(script, environment.get("XLA_FLAGS", ""))
    values = environments[0] if environments else {}
    marks = probe.environment["XLA_FLAGS"].split()
    tokens = values.get("XLA_FLAGS", "").split()
    flags = " ".join(token for token in tokens if token not in marks)
    has_missed = probe.has_dumped is False
    if environments and not flags and script.endswith(".py") and has_missed:
        line = _line(script, "XLA_FLAGS", "--xla_...")  # it sets its own while it runs
        raise _lost(
            f"{script} sets XLA_FLAGS itself",
            f"write `{line}` there instead, before JAX is imported",
        )
    changed = {n: v for n, v in values.items() if probe.environment.get(n) != v}
    steering = steering_settings({**changed, "XLA_FLAGS": flags})
    settings = FlagSet(
        {n: v for n, v in steering.items() if n != DEVICE_COUNT and not reaches_out(n)}
    )
    warnings = []
    if has_missed:
        warnings.append(
            "XLA has compiled nothing under the flags that the program was given: unless it trains "
            "with JAX in a container or on another machine, let it take no XLA_FLAGS from a file "
            "such as .env, and no programs from a compilation cache, or no trial can change it"
        )
    if tokens and tokens[-1] not in marks:
        line = _line(script, "XLA_FLAGS", flags)
        warnings.append(
            f"{script} puts its own flags last, so no trial can change them: write `{line}`"
        )
    held = _held_flags(probe, values, scripts_of(command, folder).get(script, ""))
    if held:
        held_flags = " ".join(f"--{name}={value}" for name, value in held.items())
        line = _line(script, "XLA_FLAGS", held_flags)
        warnings.append(
            f"{script} sets {held_flags} while it runs, so no trial can change that: not "
            f"searched; write `{line}`"
        )
    for name, value in settings.of_kind("env").items():
        script = _script_that_sets(name, command, folder)
        line = _line(script, name, value)
        warnings.append(f"{script} sets {name}: write `{line}`, or no trial can change it")
    count = probe.options.get(DEVICE_COUNT) or str(probe.partitions)
    if count != "1":
        arrived = values.get("XLA_FLAGS", "")
        values = {**values, "XLA_FLAGS": f"{arrived} --{DEVICE_COUNT}={count}"}
    return OwnSettings(settings, values, held, warnings)


def _script_that_sets(name: str, command: Sequence[str], folder: Path) -> str:
    return next(iter(files_that_set(name, command, folder)), _UNKNOWN)


def _held_flags(probe: Probe, values: Environment, text: str) -> Environment:
    """Returns the flags that a program with a script of this text adds behind given ones."""
    given_flags = {token.name for token in parse_tokens(values.get("XLA_FLAGS", ""))}
    script_flags = set(re.findall(r"--(xla_\w+)", text))
    gives_way = re.findall(r"--(xla_\w+)", " ".join(_GIVES_WAY.findall(text)))
    doubtful = {*IN_FORCE["set_by_jax"], *given_flags} - (script_flags - given_flags)
    if probe.opens_gpu:
        doubtful |= probe.options.keys() - script_flags  # what JAX sets is unknown
    doubtful.update(gives_way, (DUMP_FLAG, DEVICE_COUNT))
    options = probe.options.items()
    return {n: v for n, v in options if n not in doubtful and not reaches_out(n)}


def _refuse_lost(script: str, flags: str) -> None:
    """Refuses a program whose XLA_FLAGS do not hold `MARK`."""
    if MARK in [token.text for token in parse_tokens(flags)]:
        return
    if not flags:
        raise _lost(
            f"{script} takes XLA_FLAGS away", "let it pass XLA_FLAGS on (no `env -i`, no `unset`)"
        )
    line = _line(script, "XLA_FLAGS", flags)
    raise _lost(
        f"{script} sets XLA_FLAGS to {flags} in place of those given",
        f"write `{line}` there instead",
    )


def _lost(why: str, advice: str) -> LaunchError:
    return LaunchError(
        f"the settings of a study must arrive in the program but {why}; {advice}, and call this "
        "again. Nothing was written"
    )


def _line(script: str, name: str, value: str) -> str:
    """Returns the line of a script by which a given value wins over the program's own."""
    if script.endswith(".py"):
        if name == "XLA_FLAGS":
            return f'os.environ["XLA_FLAGS"] = {value + " "!r} + os.environ.get("XLA_FLAGS", "")'
        return f"os.environ.setdefault({name!r}, {value!r})"
    quoted = re.sub(r'(["$`\\])', r"\\\1", value)
    if name == "XLA_FLAGS":
        return f'export XLA_FLAGS="{quoted} $XLA_FLAGS"'
    return f'export {name}="${{{name}:-{quoted}}}"'
