"""Makes text from outside safe to keep and to show: redacts secrets, spells out control characters.

A program gets its arguments and options as they are. What is recorded, exported, shown or hashed
goes through here first, so a secret's value is no part of a study's identity. A secret is known by
its name (`data/secret_names.toml`) or by its shape: the rules of gitleaks (`data/secrets.json`,
written by `docs/write_secret_rules.py`).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from autotune.model.errors import StudyFileError
from autotune.model.files import packaged_table

REDACTED = "***"

_NAMES = packaged_table("secret_names.toml")
_STRONG, _EVERYDAY, _ABOUT = (
    re.compile("|".join(_NAMES[key])) for key in ("strong", "everyday", "about")
)

_URL = re.compile(r"(://[^:/@\s]*:)\S+@|(\bhttps?://|://(?![a-z][a-z_.-]*\d{0,2}@))[^:/@\s]+@")
"""The user alone may be a token: of a web address always, of others if it is no plain name."""

_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s"'&]+)"""
_ASSIGNED = re.compile(rf"""(?P<head>(?P<name>[A-Za-z_][\w.-]*)(?:=|["']\s*[:=]\s*)){_VALUE}""")
_OPTION = re.compile(
    rf"""(?P<head>(?<![\w-])--?(?P<name>[A-Za-z][\w.-]*)(?:\s+|["'],\s*))(?!-){_VALUE}"""
)
_HEADER = re.compile(
    r"(?P<head>\b(?P<name>[\w-]*(?:authorization|password|passwd|secret|api[-_]?key)):\s*(?:bearer\s+|basic\s+)?"
    rf"|\bbearer\s+){_VALUE}",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"(?P<head>-{0,2}(?P<name>[A-Za-z_][\w.-]*)=)(?P<value>.*)", re.DOTALL)
_BARE_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)")
_NO_SECRET = re.compile(
    r"(?i:|none|null|true|false|yes|no|on|off|auto)|\$\(\w+\)|\$\{\w+[^}]*\}|\$[A-Z_][A-Z0-9_]*"
)
"""Values that hold none: nothing, a switch, or a variable that stands for it."""

_EVERYDAY_VALUE = re.compile(r".{0,5}|[a-z]{6,7}|[\d.]{6,7}|/.*", re.DOTALL)
"""Values that a text may hold by chance: short ones, words, numbers; and paths, for PWD is a
folder.
"""

_SHORT = "p"
"""A password's option in many programs, unless its value is a number, a port or a path."""

_LOGIN = re.compile(
    r"(?P<head>\b(?:wandb|huggingface-cli|hf "
    r"auth|comet|ngc|clearml|neptune)\s+(?:relogin|login)\s+(?:--?\w[\w-]*\s+)*"
    r"|\bcurl\b[^;&|\n]*?\s(?:-u|--user)[\s=]*[^\s:;&|]*:|\b(?:mysql|mysqldump|mariadb)\b[^;&|\n]*?\s-p"
    r"|\b(?:sshpass)\s+-p)"
    r"(?P<value>(?![-*\s$])[^\s;&|]+)"
)
"""Secrets that are words of a program: of its ``login``, behind ``-u USER:``, joined to ``-p``."""

_BASE64 = re.compile(
    r"(?<![\w/+.-])(?=\w*[a-z])(?=\w*[A-Z])(?=\w*\d)[A-Za-z0-9+]{40,}={0,2}(?![\w/+.-])"
)
"""Keys in base64, which are of no known shape: words of lower and upper case and digits that no
program has.
"""

_COMMAND_END = re.compile(r"[;&|]")
_OTHERWISE = re.compile(r"\b(?:srun|sbatch|salloc|mkdir|docker|podman|ssh|ps|tar|cp|rsync)\b")
"""Programs whose `-p` is something else: a partition, a port."""


def is_secret_name(name: str) -> bool:
    """Returns whether an option, variable or key of this name holds a secret."""
    words = _words(name)
    if not words or _ABOUT.fullmatch(words[-1]):
        return False
    if _STRONG.search("".join(words)):
        return True
    return words[-1] in _NAMES["weak"] and (len(words) == 1 or not _EVERYDAY.fullmatch(words[-2]))


def secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables whose names say that their values are secrets, unless everyday text may
    hold the value.
    """
    return {
        name: value
        for name, value in environment.items()
        if is_secret_name(name)
        and not _NO_SECRET.fullmatch(value)
        and not _EVERYDAY_VALUE.fullmatch(value)
    }


def strike(data: Any, values: Sequence[str]) -> Any:
    """Returns plain data in whose texts no such value is left, but for keys and the kinds of
    records.
    """
    if isinstance(data, str):
        for value in values:
            data = data.replace(value, REDACTED)
        return data
    if isinstance(data, Mapping):
        return {
            key: value if key == "kind" else strike(value, values) for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [strike(value, values) for value in data]
    return data


@functools.lru_cache(maxsize=4096)  # records of many trials hold the same lines
def redact_text(text: str) -> str:
    """Redacts the secrets in a text, such as a URL, a message or a shell's command."""
    text = _URL.sub(lambda m: f"{m[1] or m[2]}{REDACTED}@", text)
    low = text.lower()
    for keywords, regex in _rules():
        if any(word in low for word in keywords):
            text = re.sub(regex, _without_secret, text)
    text = _LOGIN.sub(lambda match: match["head"] + REDACTED, text)
    for pattern in (_HEADER, _ASSIGNED, _OPTION):
        text = _redact_values(pattern, text)
    return text


@functools.cache
def _rules() -> list[tuple[list[str], str]]:
    """Returns the known shapes: words without which a text holds none, and a regular expression."""
    data = json.loads(
        (resources.files("autotune") / "data" / "secrets.json").read_text(encoding="utf-8")
    )
    return [(rule["keywords"], rule["regex"]) for rule in data["rules"].values()]


def _without_secret(match: re.Match[str]) -> str:
    """Redacts a match from its first group on, which is the secret; what is before names it."""
    start = match.start(1) if match.re.groups else -1
    return match[0][: max(0, start - match.start())] + REDACTED


def redact_command(command: Sequence[str]) -> tuple[str, ...]:
    """Redacts the secrets in a program's arguments: ``--key=abc``, ``--token abc``,
    ``API_KEY=abc``.
    """
    redacted = []
    before = ""
    for i, part in enumerate(command):
        whole = _WHOLE.fullmatch(part)
        option = _BARE_OPTION.fullmatch(before)
        if (
            option
            and not part.startswith("-")
            and _is_secret(option["name"], part, " ".join(command[:i]))
        ):
            redacted.append(REDACTED)
        elif whole and _is_secret(whole["name"], whole["value"]):
            redacted.append(whole["head"] + REDACTED)
        else:
            redacted.append(
                _BASE64.sub(
                    REDACTED, _without_login(command[max(0, i - _NEAR) : i], redact_text(part))
                )
            )
        before = part
    return tuple(redacted)


def _without_login(before: Sequence[str], part: str) -> str:
    """Redacts an argument, or its end, that is the secret of the program some words before it."""
    start = " ".join([*before, ""])
    for match in _LOGIN.finditer(start + part):
        if match.end() == len(start + part) and match.start("value") >= len(start):
            return part[: match.start("value") - len(start)] + REDACTED
    return part


_NEAR = 8
"""Words before an argument in which the program is looked for whose secret it may be."""


def redact_data(data: Any, name: str = "") -> Any:
    """Redacts the secrets in plain data, such as a workload's options, which lies under the key
    `name`.
    """
    if isinstance(data, Mapping):
        return {k: redact_data(v, _nearer(str(k), name)) for k, v in data.items()}
    if isinstance(data, str):
        return REDACTED if name and _is_secret(name, data) else redact_text(data)
    if isinstance(data, list | tuple):
        if all(isinstance(v, str) for v in data) and not is_secret_name(name):
            return type(data)(redact_command(data))
        return type(data)(redact_data(v, name) for v in data)
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    return REDACTED if is_number and _is_secret(name, str(data)) else data


def refuse_redacted(*parts: Any, source: str, advice: str) -> None:
    """Raises StudyFileError if a command or options have placeholders where secrets were; `source`
    is their origin.
    """
    for part in parts:
        shown = json.dumps(redact_data(part), default=str)
        if REDACTED in json.dumps(part, default=str):
            raise StudyFileError(
                f"the workload must get its secrets but {source} has {REDACTED} in their place "
                f"({shown}), for they are "
                f"never recorded; {advice}, or let the program read them from environment variables"
            )


def _nearer(key: str, outer: str) -> str:
    """The name that judges a value in a table: its own key, or that of a table of secrets."""
    return key if is_secret_name(key) or not _STRONG.search("".join(_words(outer))) else outer


def _words(name: str) -> list[str]:
    """Words of a name in snake, kebab or camel case, in lower case, without a number at the end."""
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    while words and words[-1].isdigit():
        words.pop()
    return words


def _is_secret(name: str, value: str, before: str = "") -> bool:
    """Whether a value under a name is a secret, after some words; a short number under a weak one
    is a count.
    """
    if name == _SHORT:
        is_plain = re.fullmatch(r"[\d:]*|.*/.*|" + re.escape(REDACTED), value) is not None
        return not is_plain and not _OTHERWISE.search(_COMMAND_END.split(before)[-1])
    if not is_secret_name(name) or _NO_SECRET.fullmatch(value.strip("\"' ")):
        return False
    return _STRONG.search("".join(_words(name))) is not None or not re.fullmatch(
        r"[\d.+-]{1,6}", value
    )


def _redact_values(pattern: re.Pattern[str], text: str) -> str:
    """Redacts the values of secret names; what is not secret may hold one:
    ``--env=API_KEY=abc``.
    """
    done = []
    at = 0
    while (match := pattern.search(text, at)) is not None:
        done.append(text[at : match.end("head")])
        at = match.end("head")
        if _is_secret(match["name"] or "bearer", value := match["value"], text[: match.start()]):
            quote = value[0] if value[0] in "\"'" else ""
            done.append(f"{quote}{REDACTED}{quote}")
            at = match.end()
    return "".join([*done, text[at:]])


_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 less tab and line end, DEL, C1
    # Marks, overrides and isolates of direction.
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"
    # Line ends of Unicode's own; halves of pairs, which no encoding takes.
    "\\u2028\\u2029\\ud800-\\udfff]"
)
_ENDS = re.compile(r"[\t\n]")


def visible(text: str) -> str:
    r"""Spells out control characters as ``\u001b``; tabs and line ends stay. Of JSON it makes equal
    JSON.
    """
    return _OBEYED.sub(_spell, text)


def visible_line(text: str) -> str:
    """Spells out tabs and line ends, too: several lines would pass for the program's own."""
    return _ENDS.sub(_spell, visible(text))


def _spell(match: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\u{ord(match[0]):04x}")
