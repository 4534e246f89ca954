"""Options of a workload as part of a set, and rules between options and settings.

An option is a setting named ``option.NAME`` whose value is JSON text; where a set does not name it, the reference's
value holds (`workload.options`, else the first that `search.options` lists). An `entry` takes options as they are. A
`command` has ``{NAME}`` where they go in its arguments. A rule such as ``batch * accumulate == 16`` names options as
they are and settings in full.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.model.errors import SettingError, StudyFileError, close_matches
from autotune.model.expressions import CONSTANTS, Expression
from autotune.model.flags import OPTION, kind_of

FOLDER = "folder"
"""The placeholder that stands for the folder of the trial; no option may have its name."""

PROCESS_COUNT = "process_count"
"""The option of an `entry` that is no option of its workload: processes that share the devices."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def option_setting(name: str) -> str:
    """Name of an option in a set; SettingError if the option cannot have that name."""
    if name == FOLDER:
        raise SettingError(f"an option must not be named {FOLDER!r}, which stands for the trial's folder; rename it")
    kind_of(OPTION + name)
    return OPTION + name


def option_text(value: Any) -> str:
    """The canonical text of an option's value; SettingError if JSON cannot express it."""
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError(
            f"an option's value must be text, number, true, false, list or table but got {value!r:.100}"
        ) from error


def options_in(settings: Mapping[str, str]) -> dict[str, Any]:
    """The options of a set, with their values; SettingError if one is not JSON."""
    found = {}
    for name, text in settings.items():
        if name.startswith(OPTION):
            try:
                found[name.removeprefix(OPTION)] = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                raise SettingError(f"the value of {name} must be JSON but got {text!r:.100}: {error}") from error
    return found


MOST_NESTED = 32


def is_nested_deeper(data: Any, most: int = MOST_NESTED) -> bool:
    """Whether lists and tables of a user's file lie deeper in each other than so often."""
    inner = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ()
    return most < 0 or any(is_nested_deeper(value, most - 1) for value in inner)


def option_sets(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as entries of a set."""
    return {option_setting(name): option_text(value) for name, value in options.items()}


def placeholders(parts: Iterable[str]) -> set[str]:
    """Names in braces in some texts."""
    return {name for part in parts for name in _PLACEHOLDER.findall(part)}


def filled(part: str, options: Mapping[str, Any]) -> str:
    """A text with each option in its place; other braces stay, and no value is substituted again."""

    def value(match: re.Match[str]) -> str:
        return plain(options[match[1]]) if match[1] in options else match[0]

    return _PLACEHOLDER.sub(value, part)


def filled_command(command: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """A command with each option in its place.

    Raises:
        SettingError: If a value in a script (see `_is_script`) is not one word of it without quotes.
    """
    for index, part in enumerate(command):
        unsafe = unsafe_for_shells([part], options) if _is_script(command[:index], part) else []
        for name in unsafe:
            raise SettingError(
                f"an option in a script must be one word without quotes but {name} is {plain(options[name])!r} in "
                f"{part!r:.200}; give it an argument of its own"
            )
    return [filled(part, options) for part in command]


def unsafe_for_shells(parts: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Returns the options named in texts whose values a shell would not take as one word, sorted."""
    used = sorted(placeholders(parts) & options.keys())
    return [name for name in used if shlex.quote(plain(options[name])) != plain(options[name])]


def has_shell(command: Sequence[str]) -> bool:
    """Whether a command starts a shell, on this machine or another."""
    return any(_name_of(word) in (*_SHELLS, *_READ_BY_SHELL) for word in command)


_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "busybox", "su", "runuser", "script")
"""Programs that take a script after ``-c``."""

_READ_BY_SHELL = ("ssh", "rsh", "pdsh", "clush", "eval", "watch", "parallel")
"""Programs whose later words a shell reads again."""


def _name_of(word: str) -> str:
    return word.rpartition("/")[2]


def _is_script(before: Sequence[str], part: str) -> bool:
    """Whether an argument is read by a shell, as far as the words before it tell.

    It is if it has spaces and is no assignment (``NAME=text``, as for `env`), if it is a shell's word after ``-c``, or
    any word after ``ssh`` or ``eval``.
    """
    names = [_name_of(word) for word in before]
    if any(name in _READ_BY_SHELL for name in names):
        return True
    *earlier, last = ["", *before]
    while last.startswith("-") and not _SCRIPT_NEXT.fullmatch(last) and earlier:  # options between -c and its script
        *earlier, last = earlier
    follows_c = _SCRIPT_NEXT.fullmatch(last) is not None
    if follows_c and any(name in _SHELLS for name in names):
        return True
    is_assignment = re.match(r"[A-Za-z_]\w*=", part) is not None
    return re.search(r"\s", part) is not None and (not is_assignment or follows_c)


_SCRIPT_NEXT = re.compile(r"-\w*c\w*|--command")


def dotted(options: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flattens tables of options: ``{"mesh": {"fsdp": 8}}`` to ``{"mesh.fsdp": 8}``, as Hydra and MaxText do."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= dotted(value, f"{above}{name}.") if isinstance(value, dict) and value else {f"{above}{name}": value}
    return found


def plain(value: Any) -> str:
    """An option as a program's argument: text as it is, all else as JSON."""
    return value if isinstance(value, str) else option_text(value)


MOST_COMBINATIONS = 10_000


def broken_rule(settings: Mapping[str, str], rules: Iterable[str], options: Mapping[str, Any]) -> str | None:
    """The first rule that a set, merged into what holds without it, breaks; options are those of the reference.

    Raises:
        StudyFileError: If a rule cannot be evaluated for this set, such as a sum over text.
    """
    values = {n: plain_value(v) for n, v in settings.items() if not n.startswith(OPTION)}
    values |= {**options, **options_in(settings)}
    return next((text for text in rules if not _holds(Expression(text), values)), None)


def check_rules(rules: Iterable[str], domains: Mapping[str, Sequence[Any]]) -> None:
    """Refuses rules that are malformed, name an unknown option or setting, or hold for no candidate.

    Args:
        domains: Values of each option, the reference's included.

    Raises:
        ValueError: With the rule and what is wrong with it.
    """
    for text in rules:
        try:
            rule = Expression(text)
        except ValueError as error:
            raise ValueError(f"`limits.rules` must be: {error}") from None
        for name in rule.names:
            if name not in domains and not _is_setting(name):
                hint = close_matches(name, [*domains, *CONSTANTS])
                raise ValueError(
                    f"`limits.rules`: {text!r} names {name!r}, which is neither a setting nor an option in "
                    f"`workload.options` or `search.options`; write it there{hint}"
                )
        if not set(rule.names) <= set(domains):
            continue
        truths = {_holds(rule, values) for values in combinations(rule.names, domains)}  # none may fail in a study
        if truths == {False}:
            raise ValueError(f"`limits.rules`: nothing that is searched keeps {rule.text!r}")


def combinations(names: Sequence[str], domains: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The first `MOST_COMBINATIONS` combinations of some options' values."""
    for values in itertools.islice(itertools.product(*(domains[n] for n in names)), MOST_COMBINATIONS):
        yield dict(zip(names, values, strict=True))


def _holds(rule: Expression, values: Mapping[str, object]) -> bool:
    known = {name: values.get(name) for name in rule.names}
    shown = ", ".join(f"{n} = {v!r:.40}" for n, v in known.items())
    try:
        found = rule.value(known)
    except ValueError as error:
        raise StudyFileError(f"`limits.rules` must be true or false of every candidate but {error} ({shown})") from None
    if not isinstance(found, bool):
        raise StudyFileError(f"`limits.rules` must be true or false but {rule.text!r} is {found!r:.60} ({shown})")
    return found


def _is_setting(name: str) -> bool:
    try:
        return kind_of(name) != "option"
    except SettingError:
        return False


def plain_value(text: str) -> object:
    """A setting's text as a rule means it: ``true`` and numbers are that, all else is text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
