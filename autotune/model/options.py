"""Options of a workload as part of a set: choices that are no flags, such as the batch or the kind of attention.

An option is a setting named ``option.NAME`` whose value is JSON text; where a set does not name it, the reference's
value holds (`workload.options`, else the first that `search.options` lists). An `entry` takes options as they are. A
`command` has ``{NAME}`` where they go: in its arguments, or in `workload.environment`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.model.errors import SettingError
from autotune.model.names import OPTION, kind_of

FOLDER = "folder"
"""The placeholder that stands for the folder of the trial; no option may have its name."""

PROCESS_COUNT = "process_count"
"""The option of an `entry` that is no option of its workload: processes that share the devices."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def option_setting(name: str) -> str:
    """Under which name an option is part of a set.

    Raises:
        SettingError: If the option cannot have that name.
    """
    if name == FOLDER:
        raise SettingError(f"an option must not be named {FOLDER!r}, which stands for the trial's folder; rename it")
    try:
        kind_of(OPTION + name)
    except SettingError as error:
        if "secret" in str(error):
            raise
        raise SettingError(
            f"an option must be named like a keyword argument, such as batch, but got {name!r:.100}"
        ) from error
    return OPTION + name


def option_text(value: Any) -> str:
    """The value of an option as it stands in a set: equal values have equal texts.

    Raises:
        SettingError: If it is nothing that JSON can say.
    """
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"an option's value must be text, number, true, false, list or table but got {value!r:.100}"
        ) from error


def options_in(settings: Mapping[str, str]) -> dict[str, Any]:
    """The options that a set names, with their values.

    Raises:
        SettingError: If one is no JSON.
    """
    found = {}
    for name, text in settings.items():
        if name.startswith(OPTION):
            try:
                found[name.removeprefix(OPTION)] = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise SettingError(f"the value of {name} must be JSON but got {text!r:.100}: {error}") from error
    return found


def option_sets(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as entries of a set."""
    return {option_setting(name): option_text(value) for name, value in options.items()}


def placeholders(parts: Iterable[str]) -> set[str]:
    """Names that stand in braces in some texts."""
    return {name for part in parts for name in _PLACEHOLDER.findall(part)}


def filled(part: str, options: Mapping[str, Any]) -> str:
    """A text with each option in its place; what else stands in braces stays, and no value is looked at again."""

    def value(match: re.Match[str]) -> str:
        return plain(options[match[1]]) if match[1] in options else match[0]

    return _PLACEHOLDER.sub(value, part)


def plain(value: Any) -> str:
    """An option as a program's argument: text as it is, all else as JSON."""
    return value if isinstance(value, str) else option_text(value)
