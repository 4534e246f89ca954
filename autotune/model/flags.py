"""Which names and values may be settings, and `FlagSet`, an immutable set of them as plain data.

A setting is a name and a text value. Its name says how it reaches the process:

* ``xla_...`` (lower case) is an XLA flag, passed inside the variable ``XLA_FLAGS``;
* ``jax_...`` (lower case) is a JAX config option, passed as its upper-case environment variable;
* a variable in upper case (``NCCL_PROTO``, ``OMP_NUM_THREADS``) is passed as it stands;
* ``option.NAME`` is an option of the workload, its value JSON; see `autotune.model.options`.

Settings come from other people's files and end in the environment of a process, so a list says
which names are allowed. The parser follows XLA's own (``xla/parse_flags_from_env.cc``), as seen on
jaxlib 0.10.2 to 0.12.0.1.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from autotune.model.errors import SettingError
from autotune.model.files import Texts, TextTable, packaged_table
from autotune.model.redaction import is_secret_name

_XLA_NAME = re.compile(r"xla_[a-z0-9_]+")
_JAX_NAME = re.compile(r"jax_[a-z0-9_]+")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_OPTION_NAME = re.compile(r"option\.[A-Za-z_][A-Za-z0-9_]{0,63}")

OPTION = "option."  # starts the name of an option of the workload: `option.batch`
DEFAULT = "(default)"  # of a setting that is left unset, also if the baseline sets it
# Name of the share of a GPU's memory that JAX takes, and its older name.
MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

_RULES = packaged_table("settings.toml")
_VARIABLE = re.compile("|".join(_RULES["variables"]))
_REACHES_OUT = re.compile(_RULES["variables_reaching_out"])
_FILE_OPTION = re.compile("|".join(_RULES["flags_reaching_out"]))

PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
# Settings that name a file to read: times of instructions, and kernels that were chosen.
READ_FILES = (PROFILE, "xla_gpu_load_autotune_results_from")


def kind_of(name: str) -> str:
    """Returns ``"xla"``, ``"jax"``, ``"env"`` or ``"option"``; SettingError for a refused name."""
    if _XLA_NAME.fullmatch(name):
        return "xla"
    if _JAX_NAME.fullmatch(name):
        return "jax"
    bare = name.removeprefix(OPTION)
    is_option = bare != name
    if is_option and not _OPTION_NAME.fullmatch(name):
        raise SettingError(
            f"an option must be named like a keyword argument, such as batch, but got {bare!r:.100}"
        )
    if not is_option and not _ENV_NAME.fullmatch(name):
        raise SettingError(
            "a setting must be named like xla_gpu_..., jax_... or NCCL_PROTO but got "
            f"{name!r:.200}; write it without dashes and without a value"
        )
    if is_secret_name(bare):
        raise SettingError(
            f"settings are recorded and exported, so none must be a secret, but {name:.200} is "
            "one by its name; set it in the environment of your call instead: programs inherit "
            "it, and it is never recorded"
        )
    if is_option:
        return "option"
    if not is_variable(name):
        raise SettingError(
            "a study may set what is known to steer XLA, JAX, NCCL or the allocator but "
            f"{name:.200} changes which program runs, or is not known to steer them; take it out "
            "of the settings"
        )
    return "env"


def is_variable(name: str) -> bool:
    """Returns whether an environment variable may be a setting."""
    return _VARIABLE.fullmatch(name) is not None and _REACHES_OUT.search(name) is None


def refuse_unprintable(name: str, value: str) -> None:
    """Raises SettingError for control characters in a value, or escaped in an option's JSON."""
    text = value
    if name.startswith(OPTION):
        text += _texts_in(value)
    if not text.isprintable():
        odd = next(character for character in text if not character.isprintable())
        raise SettingError(
            f"the value of {name} must be printable text (no NUL, tab, line end or other control "
            f"character) but holds {odd!a}; write it without"
        )


def _texts_in(value: str) -> str:
    """Joins all texts in a value that is JSON, names in tables included."""
    text = ""
    try:
        nodes = [json.loads(value)]
    except (ValueError, RecursionError):
        return ""
    for data in nodes:  # which grow
        if isinstance(data, str):
            text += data
        elif isinstance(data, list | dict):
            nodes += data
        if isinstance(data, dict):
            nodes += data.values()
    return text


HUNG_AT = 838  # step at which one hung: github.com/marin-community/marin/pull/8277


def captures_collectives(settings: Mapping[str, str]) -> bool:
    """Returns whether a set itself puts NCCL's collectives into command buffers."""
    commands = settings.get("xla_gpu_enable_command_buffer", "").upper()
    return "COLLECTIVES" in re.split(r"[,+]", commands)


def reaches_out(name: str) -> bool:
    """Returns whether a setting writes or reads files or loads code, by its name."""
    return kind_of(name) in ("xla", "jax") and _FILE_OPTION.search(name) is not None


def refuse_reaching_out(names: Iterable[str]) -> None:
    """Raises SettingError if settings that others are to use write or read files or load code."""
    if refused := ", ".join(filter(reaches_out, names)):
        raise SettingError(
            f"what is handed on must not write or read files or load code but {refused} can; "
            "take it out of the study and prove the rest again"
        )


# White space other than blanks, tabs and line ends is part of a token for XLA.
_TOKEN = re.compile(
    r"""(-[-_A-Za-z0-9]*=)(?:"((?:[^"\\]|\\.|\\\Z)*)"?|'([^']*)'?)|[^ \t\r\n]+""", re.DOTALL
)
_DASHES = "‐‑‒–—―−"  # what word processors make of "--"  # noqa: RUF001

Value = str | bool | int | float


class FlagToken(NamedTuple):
    """One token of an XLA_FLAGS text: `name` without dashes, `value` None if there was no ``=``."""

    name: str
    value: str | None
    text: str
    is_flag: bool


def split_tokens(text: str) -> list[str]:
    """Splits as XLA does; an open quote takes the rest, as it does there."""
    tokens = []
    for match in _TOKEN.finditer(text):
        head, double, single = match.groups("")
        quoted = head + single + re.sub(r"(?s)\\(.)", r"\1", double)
        tokens.append(quoted or match[0])
    return tokens


def parse_tokens(text: str) -> list[FlagToken]:
    """Parses an XLA_FLAGS text; XLA stops silently at the first token without a dash."""
    tokens = []
    for token in split_tokens(text):
        is_flag = token.startswith("--")
        body = token[2:] if is_flag else token.lstrip("-" + _DASHES)
        name, equals, value = body.partition("=")
        tokens.append(FlagToken(name, value if equals else None, token, is_flag))
    return tokens


def render_value(value: Value) -> str:
    """Renders a value as XLA, NCCL and JAX read it: booleans in lower case, integers in decimal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


class FlagSet(Mapping[str, str]):
    """An immutable set of settings, sorted; SettingError for a name or value that is refused."""

    __slots__ = ("_items",)

    def __init__(self, settings: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        self._items: TextTable = {}
        for name, value in sorted(dict(settings).items()):
            kind_of(name)
            text = render_value(value)
            refuse_unprintable(name, text)
            self._items[name] = text

    @classmethod
    def parse(cls, text: str) -> FlagSet:
        """Parses XLA_FLAGS: last wins, some lists and maps add up, bare names are ``true``."""
        items: TextTable = {}
        for token in parse_tokens(text):
            if not token.is_flag or not _XLA_NAME.fullmatch(token.name):
                hint = ""
                if token.text[:1] in _DASHES:
                    hint = " (it starts with a dash that is not ASCII)"
                raise SettingError(
                    f"XLA flags must look like --xla_name=value but got {token.text!r}{hint}"
                )
            value = "true" if token.value is None else token.value
            items[token.name] = combine(token.name, items.get(token.name), value)
        return cls(items)

    def __getitem__(self, name: str) -> str:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlagSet) and self._items == other._items

    def __repr__(self) -> str:
        return f"FlagSet({self._items!r})"

    def __str__(self) -> str:
        """The set as one line for people; ``(default)`` if empty."""
        return " ".join(self.words) or DEFAULT

    @property
    def words(self) -> Texts:
        """Each setting for people: ``xla_a=1``, and an option by its own name, ``remat=dots``."""
        return tuple(
            f"{n.removeprefix(OPTION)}={quote_token(_unquoted(n, v))}"
            for n, v in self._items.items()
        )

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that name this set in any process and on any machine."""
        return digest_of(self._items)

    def of_kind(self, kind: str) -> FlagSet:
        """The settings that reach the process in one way, see `kind_of`."""
        return self.without(*(name for name in self if kind_of(name) != kind))

    def merge(self, other: Mapping[str, Value]) -> FlagSet:
        """Both sets together; `other` wins, and what it has as `DEFAULT` is in neither."""
        merged = {**self._items, **other}
        return FlagSet({n: v for n, v in merged.items() if v != DEFAULT})

    def without(self, *names: str) -> FlagSet:
        """This set less some names."""
        return FlagSet({n: v for n, v in self._items.items() if n not in names})

    def render_xla_flags(self) -> str:
        """The value of XLA_FLAGS that sets exactly the XLA flags of this set."""
        flags = self.of_kind("xla").items()
        return " ".join(f"--{name}={quote_token(value)}" for name, value in flags)

    def to_environment(self) -> TextTable:
        """Variables that set exactly this set, less options; `XLA_FLAGS` only if there are any."""
        env = {name.upper(): value for name, value in self.of_kind("jax").items()}
        env |= self.of_kind("env")
        if flags := self.render_xla_flags():
            env["XLA_FLAGS"] = flags
        return env

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], names: Iterable[str]) -> FlagSet:
        """The settings in an environment: XLA_FLAGS, and those of `names` that are set."""
        settings: TextTable = dict(cls.parse(environment.get("XLA_FLAGS", "")))
        for name in names:
            if kind_of(name) in ("jax", "env") and name.upper() in environment:
                settings[name] = environment[name.upper()]
        return cls(settings)


def digest_of(data: Any) -> str:
    """Twelve hexadecimal digits that name plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _unquoted(name: str, value: str) -> str:
    """The value of a setting; of an option that is text, without JSON's quotes."""
    if not name.startswith(OPTION) or not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def combine(name: str, earlier: str | None, later: str) -> str:
    """Returns the one value that acts as two of the same flag, of which the first may be None."""
    if earlier is None:
        return later
    if name in _RULES["lists"]:
        return ",".join(filter(None, (earlier, later)))
    if name in _RULES["maps"]:
        entries = filter(None, f"{earlier},{later}".split(","))
        values = dict(entry.partition("=")[::2] for entry in entries)
        return ",".join(map("=".join, values.items()))
    if name not in _RULES["editable"] or not _is_edit(later):
        return later
    if _is_edit(earlier):
        return f"{earlier},{later}"
    items = [item for item in earlier.split(",") if item]
    for edit in later.split(","):
        items = [item for item in items if item.lower() != edit[1:].lower()]
        if edit.startswith("+"):
            items.append(edit[1:])
    return ",".join(items)


def _is_edit(value: str) -> bool:
    return all(item.startswith(("+", "-")) for item in value.split(","))


def quote_token(value: str) -> str:
    """Quotes a value so that XLA's tokenizer (and `split_tokens`) gives it back unchanged."""
    if re.search(r"""[\s'"]""", value) is None:
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_set(text: str) -> FlagSet:
    """Parses ``--xla_...=value`` tokens, and ``NAME=VALUE`` for variables and JAX options."""
    settings = FlagSet()
    for token in split_tokens(text):
        name, equals, value = token.partition("=")
        if token.startswith("--"):
            settings = settings.merge(FlagSet.parse(f"{name}{equals}{quote_token(value)}"))
        elif equals:
            settings = settings.merge({name: value})
        else:
            raise SettingError(f"a set must hold --xla_name=value or NAME=VALUE but got {token!r}")
    return settings


_PROTO_ENTRY = re.compile(
    r"^(\w+)(?:: (.*\S)| \{\n((?:[ \t].*\n|\w+: .*\n)*)\}[ \t]*$)", re.MULTILINE
)
_PROTO_FIELD = re.compile(r"^[ \t]*(\w+): (.*\S)", re.MULTILINE)


def parse_text_proto(text: str) -> dict[str, list[str]]:
    """Parses a text proto: field to its values; an entry of a block is ``key=value``."""
    fields: dict[str, list[str]] = {}
    for name, value, block in _PROTO_ENTRY.findall(text):
        entries = [(key, _without_quotes(raw)) for key, raw in _PROTO_FIELD.findall(block)]
        if dict(entries).keys() == {"key", "value"}:
            value = "=".join(plain for _, plain in sorted(entries))
        elif entries:
            value = ";".join(map("=".join, entries))
        fields.setdefault(name, []).append(_without_quotes(value))
    return fields


def _without_quotes(value: str) -> str:
    """Decodes a quoted value, whose bytes beyond ASCII are octal."""
    if not value.startswith('"'):
        return value
    try:
        return str(ast.literal_eval(f"b{value}").decode(errors="replace"))
    except (SyntaxError, ValueError):
        return value
