"""Options of a workload in a set: settings ``option.NAME`` whose values are JSON text.

Where a set does not name one, the reference's value holds. An `entry` takes options as they are; a
`command` has ``{NAME}`` in its arguments.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.model.errors import LaunchError, SettingError
from autotune.model.files import Table, TextTable
from autotune.model.flags import OPTION, kind_of

FOLDER = "folder"  # placeholder of the trial's folder; no option may have this name
PROCESS_COUNT = "process_count"  # an option of each `entry`: processes sharing devices

Options = Mapping[str, Any]
Domains = dict[str, list[Any]]  # options with the values that each may have
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def shell_words(text: str | None, name: str) -> list[str]:
    """Splits what is quoted as for a shell; LaunchError, which names it, if that is not closed."""
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise LaunchError(f"{name} must be quoted as for a shell but: {error}") from error


def option_setting(name: str) -> str:
    """Name of an option in a set; SettingError if the option cannot have that name."""
    if name == FOLDER:
        raise SettingError(
            f"an option must not be named {FOLDER!r}, which is the trial's folder; rename it"
        )
    kind_of(OPTION + name)
    return OPTION + name


def option_text(value: Any) -> str:
    """The canonical text of an option's value; SettingError if JSON cannot express it."""
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            "an option's value must be text, number, true, false, list or table but got "
            f"{value!r:.100}"
        ) from error


def options_in(settings: Mapping[str, str]) -> Table:
    """The options of a set, with their values; SettingError if one is not JSON."""
    options = {}
    for name, text in settings.items():
        if name.startswith(OPTION):
            try:
                options[name.removeprefix(OPTION)] = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise SettingError(
                    f"the value of {name} must be JSON but got {text!r:.100}: {error}"
                ) from error
    return options


MOST_NESTED = 32


def is_nested_deeper(data: Any, levels: int = MOST_NESTED) -> bool:
    """Returns whether lists and tables of a user's file are nested in more levels."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if levels < 0 or not isinstance(data, list | tuple):
        return levels < 0
    return any(is_nested_deeper(value, levels - 1) for value in data)


def option_sets(options: Options) -> TextTable:
    """Options as entries of a set."""
    return {option_setting(name): option_text(value) for name, value in options.items()}


def placeholders(texts: Iterable[str]) -> set[str]:
    """Names in braces in some texts."""
    return set(_PLACEHOLDER.findall(" ".join(texts)))


def filled(text: str, options: Options) -> str:
    """A text with each option in its place; other braces stay, and no value is filled in again."""
    return _PLACEHOLDER.sub(lambda match: plain(options.get(match[1], match[0])), text)


def filled_command(command: Sequence[str], options: Options) -> list[str]:
    """A command with each option in its place; SettingError if one in a script needs quotes."""
    for index, word in enumerate(command):
        unsafe = unsafe_for_shells([word], options)
        if unsafe and _is_script(command[:index], word):
            raise SettingError(
                f"an option in a script must be one word without quotes but {unsafe[0]} is "
                f"{plain(options[unsafe[0]])!r} in {word!r:.200}; give it an argument of its own"
            )
    return [filled(word, options) for word in command]


def unsafe_for_shells(texts: Sequence[str], options: Options) -> list[str]:
    """Returns the options named in texts that a shell would not take as one word, sorted."""
    names = placeholders(texts) & options.keys()
    values = {name: plain(options[name]) for name in names}
    return sorted(name for name, value in values.items() if shlex.quote(value) != value)


def has_shell(command: Sequence[str]) -> bool:
    """Returns whether a command starts a shell, on this machine or another."""
    return _names_any(_SHELL, command) or _names_any(_READ_BY_SHELL, command)


# Programs that take a script after ``-c``, and those whose later words a shell reads again.
_SHELL = re.compile(r"(?:ba|da|z|k|a|fi|c|tc)?sh|busybox|su|runuser|script")
_READ_BY_SHELL = re.compile("ssh|rsh|pdsh|clush|eval|watch|parallel|tmux|make|sbatch")
# The end of words after which an interpreter reads code, or another program a line again.
_SCRIPT_NEXT = re.compile(r"(?:^| )(?:-\w*c\w*|--command)(?: -\S*)*$")
_CODE_NEXT = re.compile(
    r"\b(?:python[\d.]*|perl|ruby|node|php|lua\w*|Rscript|julia)(?: -\S+)* "
    r"(?:-\w*[ceEr]|--(?:eval|exec|print))$|(?:^| )(?:-S|--split-string)$"
)


def _names_any(programs: re.Pattern[str], command: Sequence[str]) -> bool:
    """Returns whether a command has a word that is, or is the path of, one of some programs."""
    return any(programs.fullmatch(Path(word).name) for word in command)


def _is_script(before: Sequence[str], argument: str) -> bool:
    """Returns whether it is code: after ``-c`` or ``ssh``, or it has spaces.

    An assignment (``NAME=text``, as for `env`) may have spaces.
    """
    line = " ".join(before)
    if _CODE_NEXT.search(line) or _names_any(_READ_BY_SHELL, before):
        return True
    follows_c = _SCRIPT_NEXT.search(line) is not None
    if follows_c and _names_any(_SHELL, before):
        return True
    is_assignment = re.match(r"[A-Za-z_]\w*=", argument) is not None
    return re.search(r"\s", argument) is not None and (not is_assignment or follows_c)


def dotted(options: Options) -> Table:
    """Flattens tables as Hydra does: ``{"mesh": {"fsdp": 8}}`` to ``{"mesh.fsdp": 8}``."""
    values: Table = {}
    for name, value in options.items():
        if isinstance(value, dict) and value:
            values |= {f"{name}.{key}": inner for key, inner in dotted(value).items()}
        else:
            values[name] = value
    return values


def plain(value: Any) -> str:
    """An option as a program's argument: text as it is, all else as JSON."""
    return value if isinstance(value, str) else option_text(value)


_FACTOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[1-9][0-9]{0,17}")


def factors(product: str) -> list[str]:
    """Splits a product such as ``batch * 512`` into names and whole numbers, or a ValueError."""
    names = [factor.strip() for factor in product.split("*")]
    if not all(map(_FACTOR.fullmatch, names)):
        raise ValueError(
            f"a whole number or a product such as 'batch * seq' but got {product!r:.200}"
        )
    return names


def product_of(product: str, options: Options) -> int:
    """Computes a product from the values of its names, each a whole number above 0."""
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
