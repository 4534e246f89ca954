"""Options of a workload as part of a set.

An option is a setting named ``option.NAME`` whose value is JSON text; where a set does not name it,
the reference's value holds (`workload.options`, else the first that `search.options` lists). An
`entry` takes options as they are. A `command` has ``{NAME}`` where they go in its arguments.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.model.errors import SettingError
from autotune.model.flags import OPTION, kind_of

FOLDER = "folder"
"""The placeholder that stands for the folder of the trial; no option may have its name."""

PROCESS_COUNT = "process_count"
"""The option of an `entry` that is no option of its workload: processes that share the devices."""

Options = Mapping[str, Any]
"""Values of options, by name."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def option_setting(name: str) -> str:
    """Name of an option in a set; SettingError if the option cannot have that name."""
    if name == FOLDER:
        raise SettingError(
            f"an option must not be named {FOLDER!r}, which stands for the trial's folder; "
            "rename it"
        )
    kind_of(OPTION + name)
    return OPTION + name


def option_text(value: Any) -> str:
    """The canonical text of an option's value; SettingError if JSON cannot express it."""
    try:
        return json.dumps(
            value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":")
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            "an option's value must be text, number, true, false, list or table but got "
            f"{value!r:.100}"
        ) from error


def options_in(settings: Mapping[str, str]) -> dict[str, Any]:
    """The options of a set, with their values; SettingError if one is not JSON."""
    found = {}
    for name, text in settings.items():
        if name.startswith(OPTION):
            try:
                found[name.removeprefix(OPTION)] = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise SettingError(
                    f"the value of {name} must be JSON but got {text!r:.100}: {error}"
                ) from error
    return found


MOST_NESTED = 32


def is_nested_deeper(data: Any, most: int = MOST_NESTED) -> bool:
    """Returns whether lists and tables of a user's file lie deeper in each other than so often."""
    inner = (
        data.values()
        if isinstance(data, Mapping)
        else data
        if isinstance(data, list | tuple)
        else ()
    )
    return most < 0 or any(is_nested_deeper(value, most - 1) for value in inner)


def option_sets(options: Options) -> dict[str, str]:
    """Options as entries of a set."""
    return {option_setting(name): option_text(value) for name, value in options.items()}


def placeholders(parts: Iterable[str]) -> set[str]:
    """Names in braces in some texts."""
    return {name for part in parts for name in _PLACEHOLDER.findall(part)}


def filled(part: str, options: Options) -> str:
    """A text with each option in its place; other braces stay, and no value is substituted
    again.
    """

    def value(match: re.Match[str]) -> str:
        return plain(options[match[1]]) if match[1] in options else match[0]

    return _PLACEHOLDER.sub(value, part)


def filled_command(command: Sequence[str], options: Options) -> list[str]:
    """A command with each option in its place.

    Raises:
        SettingError: If a value in a script (see `_is_script`) is not one word of it without
            quotes.
    """
    for index, part in enumerate(command):
        unsafe = unsafe_for_shells([part], options) if _is_script(command[:index], part) else []
        for name in unsafe:
            raise SettingError(
                f"an option in a script must be one word without quotes but {name} is "
                f"{plain(options[name])!r} in "
                f"{part!r:.200}; give it an argument of its own"
            )
    return [filled(part, options) for part in command]


def unsafe_for_shells(parts: Sequence[str], options: Options) -> list[str]:
    """Returns the options named in texts whose values a shell would not take as one word,
    sorted.
    """
    used = sorted(placeholders(parts) & options.keys())
    return [name for name in used if shlex.quote(plain(options[name])) != plain(options[name])]


def has_shell(command: Sequence[str]) -> bool:
    """Returns whether a command starts a shell, on this machine or another."""
    return any(Path(word).name in (*_SHELLS, *_READ_BY_SHELL) for word in command)


_SHELLS = (
    "sh",
    "bash",
    "dash",
    "zsh",
    "ksh",
    "ash",
    "fish",
    "csh",
    "tcsh",
    "busybox",
    "su",
    "runuser",
    "script",
)
"""Programs that take a script after ``-c``."""

_READ_BY_SHELL = ("ssh", "rsh", "pdsh", "clush", "eval", "watch", "parallel")
"""Programs whose later words a shell reads again."""


def _is_script(before: Sequence[str], part: str) -> bool:
    """Returns whether an argument is read by a shell, as far as the words before it tell.

    It is if it has spaces and is no assignment (``NAME=text``, as for `env`), if it is a shell's
    word after ``-c``, or any word after ``ssh`` or ``eval``.
    """
    names = [Path(word).name for word in before]
    if any(name in _READ_BY_SHELL for name in names):
        return True
    dashed = itertools.takewhile(
        lambda word: word.startswith("-"), reversed(before)
    )  # -c, and options behind it
    follows_c = any(map(_SCRIPT_NEXT.fullmatch, dashed))
    if follows_c and any(name in _SHELLS for name in names):
        return True
    is_assignment = re.match(r"[A-Za-z_]\w*=", part) is not None
    return re.search(r"\s", part) is not None and (not is_assignment or follows_c)


_SCRIPT_NEXT = re.compile(r"-\w*c\w*|--command")


def dotted(options: Options, above: str = "") -> dict[str, Any]:
    """Flattens tables of options: ``{"mesh": {"fsdp": 8}}`` to ``{"mesh.fsdp": 8}``, as Hydra and
    MaxText do.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= (
            dotted(value, f"{above}{name}.")
            if isinstance(value, dict) and value
            else {f"{above}{name}": value}
        )
    return found


def plain(value: Any) -> str:
    """An option as a program's argument: text as it is, all else as JSON."""
    return value if isinstance(value, str) else option_text(value)


_FACTOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[1-9][0-9]{0,17}")


def factors(product: str) -> list[str]:
    """Splits a product such as ``batch * 512`` into names and whole numbers; ValueError if it is
    none.
    """
    parts = [part.strip() for part in product.split("*")]
    if not all(map(_FACTOR.fullmatch, parts)):
        raise ValueError(
            f"a whole number or a product such as 'batch * seq' but got {product!r:.200}"
        )
    return parts


def product_of(product: str, options: Options) -> int:
    """Computes a product from the values of its names; ValueError unless each is a whole number
    above 0.
    """
    total = 1
    for factor in factors(product):
        value = int(factor) if factor.isdecimal() else options[factor]
        if type(value) is not int or value < 1:
            raise ValueError(
                f"{product!r} must be of whole numbers above 0 but {factor} is {value!r:.60}"
            )
        total *= value
    return total


def plain_value(text: str) -> object:
    """Reads a setting's text as a study file would write it: switches and numbers, else text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
