"""`FlagSet`: settings as plain data; parsed, merged, rendered and hashed, never interpreted.

A setting is a name and a text value. Its name says how it reaches the process:

* ``xla_...`` (lower case) is an XLA flag, passed inside the variable ``XLA_FLAGS``;
* ``jax_...`` (lower case) is a JAX config option, passed as its upper-case environment variable;
* a variable in upper case (``NCCL_PROTO``, ``OMP_NUM_THREADS``) is passed as it stands;
* ``option.NAME`` is an option of the workload, its value JSON; see `autotune.model.options`.

Which names and values there may be is said in `autotune.model.names`; no set holds any other.

The parser follows XLA's own (``xla/parse_flags_from_env.cc``), as seen by asking jaxlib 0.10.2 to 0.12.0.1:
blanks, tabs and line ends separate tokens; quotes group only right behind ``--name=``, and a backslash
escapes only inside double quotes; the last of several equal names wins, except that some lists and maps add
up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autotune.model.errors import SettingError
from autotune.model.names import OPTION, kind_of, refuse_unprintable

LISTS = frozenset(
    {
        "xla_disable_hlo_passes",
        "xla_enable_hlo_passes_only",
        "xla_gpu_hlo_custom_call_allowlist",
        "xla_gpu_llvm_ir_file",
        "xla_gpu_ptx_compiler_extra_flags",
        "xla_gpu_ptx_file",
    }
)
"""Flags whose repetitions add up instead of replacing each other."""

MAPS = frozenset(
    {
        "xla_backend_extra_options",
        "xla_gpu_analytical_latency_estimator_options",
        "xla_gpu_experimental_cost_model_gemm_tiling_options",
    }
)
"""Flags whose repetitions add up key by key."""

EDITABLE = frozenset(
    {
        "xla_cpu_experimental_onednn_fusion_type",
        "xla_cpu_experimental_xnn_fusion_type",
        "xla_cpu_experimental_ynn_fusion_type",
        "xla_gpu_enable_collectives_command_buffer_filter",
        "xla_gpu_enable_command_buffer",
        "xla_gpu_experimental_autotune_backends",
        "xla_gpu_experimental_use_collective_kernels",
        "xla_gpu_unsupported_use_cross_host_one_shot_kernel",
    }
)
"""Flags whose value may be a change of the list so far: ``+COLLECTIVES,-CUDNN``."""

_XLA_NAME = re.compile(r"xla_[a-z0-9_]+")
_SPACE = " \t\r\n"  # other white space is part of a token for XLA
_QUOTED = re.compile(r"""(-[-_A-Za-z0-9]*=)(?:"((?:[^"\\]|\\.|\\\Z)*)"?|'([^']*)'?)""", re.DOTALL)
_DASHES = "‐‑‒–—―−"  # what word processors make of "--"  # noqa: RUF001

Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class FlagToken:
    """One token of an XLA_FLAGS text: `name` without dashes, `value` None if there was no ``=``."""

    name: str
    value: str | None
    text: str
    is_flag: bool = True


def split_tokens(text: str) -> list[str]:
    """Splits as XLA does; an open quote takes the rest, as it does there."""
    tokens: list[str] = []
    i = 0
    while i < len(text):
        if text[i] in _SPACE:
            i += 1
            continue
        if quoted := _QUOTED.match(text, i):
            head, double, single = quoted.groups()
            tokens.append(head + (single if double is None else re.sub(r"\\(.)", r"\1", double, flags=re.DOTALL)))
            i = quoted.end()
            continue
        start = i
        while i < len(text) and text[i] not in _SPACE:
            i += 1
        tokens.append(text[start:i])
    return tokens


def parse_tokens(text: str) -> tuple[FlagToken, ...]:
    """Parses an XLA_FLAGS text into its tokens, in order, nothing merged or judged.

    XLA itself stops, without a word, at the first token that does not start with a dash.
    """
    found = []
    for token in split_tokens(text):
        body = token[2:] if token.startswith("--") else token.lstrip("-" + _DASHES)
        name, equals, value = body.partition("=")
        found.append(FlagToken(name, value if equals else None, token, token.startswith("--")))
    return tuple(found)


def render_value(value: Value) -> str:
    """The text of a value as XLA, NCCL and JAX read it: booleans in lower case, integers in decimal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


class FlagSet(Mapping[str, str]):
    """An immutable set of settings, in canonical (sorted) order; equal sets compare and hash equal.

    Args:
        settings: Name to value; values are rendered to text.

    Raises:
        SettingError: If a name is not one that may be set, or a value is not printable text.
    """

    __slots__ = ("_items",)

    def __init__(self, settings: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        pairs = settings.items() if isinstance(settings, Mapping) else settings
        items: dict[str, str] = {}
        for name, value in pairs:
            kind_of(name)
            text = render_value(value)
            refuse_unprintable(name, text)
            items[name] = text
        self._items = dict(sorted(items.items()))

    @classmethod
    def parse(cls, text: str) -> FlagSet:
        """Settings of an XLA_FLAGS text: last wins, some lists and maps add up, a bare name is ``true``.

        Raises:
            SettingError: If a token is not of the form ``--name`` or ``--name=value``.
        """
        items: dict[str, str] = {}
        for token in parse_tokens(text):
            if not token.is_flag or not _XLA_NAME.fullmatch(token.name):
                raise SettingError(
                    f"XLA flags must look like --xla_name=value but got {token.text!r}"
                    + (" (it starts with a dash that is not ASCII)" if token.text[:1] in _DASHES else "")
                )
            value = "true" if token.value is None else token.value
            items[token.name] = combine(token.name, items[token.name], value) if token.name in items else value
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
        return " ".join(self.words) or "(default)"

    @property
    def words(self) -> tuple[str, ...]:
        """Each setting for people: ``xla_a=1``, and an option by its own name, ``remat=dots``."""
        return tuple(f"{n.removeprefix(OPTION)}={quote_token(_unquoted(n, v))}" for n, v in self._items.items())

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that name this set in any process and on any machine."""
        return hashlib.sha256(json.dumps(self._items, sort_keys=True).encode()).hexdigest()[:12]

    def of_kind(self, kind: str) -> FlagSet:
        """The settings that reach the process in one way: ``"xla"``, ``"jax"``, ``"env"`` or ``"option"``."""
        return FlagSet({n: v for n, v in self._items.items() if kind_of(n) == kind})

    def merge(self, other: Mapping[str, Value]) -> FlagSet:
        """Both sets together; where both name a setting, `other` wins."""
        return FlagSet({**self._items, **other})

    def without(self, *names: str) -> FlagSet:
        """This set less some names."""
        return FlagSet({n: v for n, v in self._items.items() if n not in names})

    def render_xla_flags(self) -> str:
        """The value of XLA_FLAGS that sets exactly the XLA flags of this set."""
        return " ".join(f"--{n}={quote_token(v)}" for n, v in self.of_kind("xla").items())

    def to_environment(self) -> dict[str, str]:
        """Variables that set exactly this set, options excepted; `XLA_FLAGS` only if there are XLA flags."""
        env = {n.upper(): v for n, v in self.of_kind("jax").items()} | dict(self.of_kind("env"))
        if flags := self.render_xla_flags():
            env["XLA_FLAGS"] = flags
        return env

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], names: Iterable[str] = ()) -> FlagSet:
        """The settings that an environment holds: XLA_FLAGS, and those of `names` that are set."""
        found: dict[str, str] = dict(cls.parse(environment.get("XLA_FLAGS", "")))
        for name in names:
            variable = name.upper() if kind_of(name) == "jax" else name
            if kind_of(name) in ("jax", "env") and variable in environment:
                found[name] = environment[variable]
        return cls(found)


def _unquoted(name: str, value: str) -> str:
    """The value of a setting; of an option that is text, without the quotes of JSON."""
    if not name.startswith(OPTION) or not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def combine(name: str, earlier: str, later: str) -> str:
    """The one value that acts as two of the same flag, one after the other."""
    if name in LISTS:
        return ",".join(v for v in (earlier, later) if v)
    if name in MAPS:
        entries = [e.partition("=") for e in f"{earlier},{later}".split(",") if e]
        return ",".join(f"{key}={value}" for key, value in {k: v for k, _, v in entries}.items())
    if name not in EDITABLE or not _is_edit(later):
        return later
    if _is_edit(earlier):
        return f"{earlier},{later}"
    items = [e for e in earlier.split(",") if e]
    for edit in later.split(","):
        items = [e for e in items if e.lower() != edit[1:].lower()] + ([edit[1:]] if edit[0] == "+" else [])
    return ",".join(items)


def _is_edit(value: str) -> bool:
    return bool(value) and all(v[:1] in ("+", "-") for v in value.split(","))


def quote_token(value: str) -> str:
    """A value quoted so that XLA's tokenizer (and `split_tokens`) gives it back unchanged."""
    if value and not any(c.isspace() or c in "'\"" for c in value):
        return value
    if not value:
        return ""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_set(text: str) -> FlagSet:
    """A set as people type it: ``--xla_...=value`` tokens, and ``NAME=VALUE`` for variables and JAX options.

    Raises:
        SettingError: If a token has neither form.
    """
    found = FlagSet()
    for token in split_tokens(text):
        name, equals, value = token.partition("=")
        if token.startswith("--"):
            found = found.merge(FlagSet.parse(f"{name}={quote_token(value)}" if equals else name))
        elif equals:
            found = found.merge({name: value})
        else:
            raise SettingError(f"a set must hold --xla_name=value or NAME=VALUE but got {token!r}")
    return found


def format_set(settings: FlagSet) -> str:
    """A set as `parse_set` reads it."""
    return " ".join(f"{'--' if n.startswith('xla_') else ''}{n}={quote_token(v)}" for n, v in settings.items())
