"""Makes text from outside safe to keep and to show: redacts secrets, escapes control characters.

Programs get arguments and options as they are; what is recorded, exported, shown or hashed goes
through here first. A secret is known by its name (`data/secret_names.toml`) or by its shape: the
rules of gitleaks (`data/secrets.json`, written by `docs/write_secret_rules.py`).
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.model.errors import StudyFileError
from autotune.model.files import Texts, TextTable, packaged_table, packaged_text

REDACTED = "***"

_NAMES = packaged_table("secret_names.toml")
_STRONG = re.compile("|".join(_NAMES["strong"]))

# The user alone may be a token: in a web address always, in others unless it is a plain name.
_URL = re.compile(r"(://[^:/@\s]*:)\S+@|(\bhttps?://|://(?![a-z][a-z_.-]*\d{0,2}@))[^:/@\s]+@")

_VALUE = r"""(?P<value>"[^"]*"|'[^']*'|[^\s"'&]+)"""
_NAME = r"(?P<name>[^\W\d][\w.-]*)"
_ASSIGNED = re.compile(rf"""(?P<head>{_NAME}(?:=|["']\s*[:=]\s*|["']\]\s*=\s*(?=["']))){_VALUE}""")
_OPTION = re.compile(rf"""(?P<head>(?<![\w-])--?{_NAME}(?:\s+|["'],\s*))(?!-){_VALUE}""")
_HEADER = re.compile(
    r"(?P<head>\b(?P<name>[\w-]*(?:authorization|password|passwd|secret|api[-_]?key|(?:x-[\w-]+|private|access|auth|api|job|deploy)-token)):\s*(?:(?:bearer|basic|token)\s+)?"
    rf"|\bbearer\s+){_VALUE}",
    re.IGNORECASE,
)
_WHOLE = re.compile(rf"(?P<head>-{{0,2}}{_NAME}=)(?P<value>.*)", re.DOTALL)
_BARE_OPTION = re.compile(rf"--?{_NAME}")
# Values that hold none: nothing, a switch, or a variable that stands for it.
_NO_SECRET = re.compile(
    r"(?i:|none|null|true|false|yes|no|on|off|auto)|\$\(\w+\)|\$\{\w+[^}]*\}|\$[A-Z_][A-Z0-9_]*"
)
# Values that a text may hold by chance: short ones, words, numbers; and paths (of PWD).
_EVERYDAY_VALUE = re.compile(r".{0,5}|[a-z]{6,7}|[\d.]{6,7}|/.*", re.DOTALL)
_COUNT = re.compile(r"[\d.+-]{1,6}")  # no secret even under a weak name
_SHORT = "p"  # a password's option in many programs, unless it is a number or a path
_SHORT_VALUE = re.compile(r"[\d:]*|.*/.*|" + re.escape(REDACTED))
_BEFORE = "|".join(_NAMES["before"])
# Secrets by the words before: ``login``, ``-u USER:``, a joined ``-p``, the name of NGC's key.
_LOGIN = re.compile(rf"(?P<head>{_BEFORE})(?P<value>(?![-*\s$])[^\s;&|]+)")
# Keys in base64: long words of both cases and digits, as no program has.
_BASE64 = re.compile(
    r"(?<![\w/+.-])(?=\w*[a-z])(?=\w*[A-Z])(?=\w*\d)[A-Za-z0-9+]{40,}={0,2}(?![\w/+.-])"
)

_COMMAND_END = re.compile(r"[;&|]")
# Programs whose `-p` is something else: a partition, a port.
_OTHERWISE = re.compile(r"\b(?:srun|sbatch|salloc|mkdir|docker|podman|ssh|ps|tar|cp|rsync)\b")


def is_secret_name(name: str) -> bool:
    """Returns whether an option, variable or key of this name holds a secret."""
    name_words = ["", *_words(name)]
    if name_words[-1] in _NAMES["about"]:
        return False
    is_weak = name_words[-1] in _NAMES["weak"] and name_words[-2] not in _NAMES["everyday"]
    return is_weak or _is_strong(name)


def secret_variables(environment: Mapping[str, str]) -> TextTable:
    """Returns variables with a secret, by name or as a URL's, unless everyday text may hold it."""
    return {
        name: value
        for name, value in environment.items()
        if (is_secret_name(name) or _URL.search(value))
        and not _NO_SECRET.fullmatch(value)
        and not _EVERYDAY_VALUE.fullmatch(value)
    }


def strike(data: Any, values: Sequence[str]) -> Any:
    """Redacts some values in plain data, but for keys and the kinds of records."""
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
    rules = json.loads(packaged_text("secrets.json"))["rules"]
    return [(rule["keywords"], rule["regex"]) for rule in rules.values()]


def _without_secret(match: re.Match[str]) -> str:
    """Redacts a match from its first group on, which is the secret; what is before names it."""
    start = match.start(1) if match.re.groups else -1
    return match[0][: max(0, start - match.start())] + REDACTED


def redact_command(command: Sequence[str]) -> Texts:
    """Redacts secrets in a program's arguments: ``--key=abc``, ``--token abc``, ``API_KEY=abc``."""
    return tuple(_redact_argument(command[:i], argument) for i, argument in enumerate(command))


def _redact_argument(before: Sequence[str], argument: str) -> str:
    option = _BARE_OPTION.fullmatch("".join(before[-1:]))
    is_option = argument.startswith("-")
    line = " ".join(before)
    if option and not is_option and _is_secret(option["name"], argument, line):
        return REDACTED
    assigned = _WHOLE.fullmatch(argument)
    if assigned and _is_secret(assigned["name"], assigned["value"]):
        return assigned["head"] + REDACTED
    start = " ".join([*before[-_NEAR:], ""])
    text = start + redact_text(argument)
    for match in _LOGIN.finditer(text):
        if match.end() == len(text) and match.start("value") >= len(start):
            text = text[: match.start("value")] + REDACTED
    return _BASE64.sub(REDACTED, text[len(start) :])


_NEAR = 8  # words before an argument among which its program is looked for


def redact_data(data: Any, name: str = "") -> Any:
    """Redacts the secrets in plain data, such as a workload's options, under the key `name`."""
    if isinstance(data, Mapping):
        # A value is judged by its own key, or by that of a table of secrets.
        outer = _is_strong(name)
        return {
            key: redact_data(v, name if outer and not is_secret_name(str(key)) else str(key))
            for key, v in data.items()
        }
    if isinstance(data, list | tuple):
        if all(isinstance(v, str) for v in data) and not is_secret_name(name):
            return type(data)(redact_command(data))
        return type(data)(redact_data(v, name) for v in data)
    if type(data) in (str, int, float) and _is_secret(name, str(data)):
        return REDACTED
    return redact_text(data) if isinstance(data, str) else data


def refuse_redacted(*given: Any, source: str, advice: str) -> None:
    """Raises StudyFileError if a command or options from `source` have redacted secrets."""
    for data in given:
        if REDACTED in json.dumps(data, default=str):
            raise StudyFileError(
                f"the workload must get its secrets but {source} has {REDACTED} in their place "
                f"({json.dumps(redact_data(data), default=str)}), for they are never recorded; "
                f"{advice}, or let the program read them from environment variables"
            )


_LOOK_ALIKES = str.maketrans(
    "авекмнорстухіјѕԁһԛԝαικνορτυχıɡАВЕКМНОРСТУХІЈЅԀҺԚԜΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "abekmhopctyxijsdhqwaikvoptuxigABEKMHOPCTYXIJSDHQWABEZHIKMNOPTYX",
)


def _words(name: str) -> list[str]:
    """Splits a name in snake, kebab or camel case into words of lower case; no number is last."""
    if not name.isascii():
        letters = unicodedata.normalize("NFKD", name.translate(_LOOK_ALIKES))
        name = letters.encode("ascii", "ignore").decode()
    name_words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    while name_words and name_words[-1].isdigit():
        name_words.pop()
    return [word.lower() for word in name_words]


def _is_strong(name: str) -> bool:
    return _STRONG.search("".join(_words(name))) is not None


def _is_secret(name: str, value: str, before: str = "") -> bool:
    """Whether a value is a secret, by its name and the words before it."""
    if name == _SHORT:
        program = _COMMAND_END.split(before)[-1]
        return not _SHORT_VALUE.fullmatch(value) and not _OTHERWISE.search(program)
    if not is_secret_name(name) or _NO_SECRET.fullmatch(value.strip("\"' ")):
        return False
    return _is_strong(name) or not _COUNT.fullmatch(value)


def _redact_values(pattern: re.Pattern[str], text: str) -> str:
    """Redacts the values of secret names, also within other values: ``--env=API_KEY=abc``."""
    at = 0
    while (match := pattern.search(text, at)) is not None:
        at = match.end("head")
        value = match["value"]
        if _is_secret(match["name"] or "bearer", value, text[: match.start()]):
            quote = value[0] if value[0] in "\"'" else ""
            text = f"{text[:at]}{quote}{REDACTED}{quote}{text[match.end() :]}"
            at += len(f"{quote}{REDACTED}{quote}")
    return text


_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 less tab and line end, DEL, C1
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # direction of text
    "\\u2028\\u2029\\ud800-\\udfff]"  # line ends; halves of pairs, which no encoding takes
)
_ENDS = re.compile(r"[\t\n]")


def visible(text: str) -> str:
    r"""Spells out control characters as ``\u001b``, but no tabs and line ends; JSON stays equal."""
    return _OBEYED.sub(_spell, text)


def visible_line(text: str) -> str:
    """Spells out tabs and line ends, too: several lines would pass for the program's own."""
    return _ENDS.sub(_spell, visible(text))


def _spell(match: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\u{ord(match[0]):04x}")
