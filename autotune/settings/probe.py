"""Probes the installed jaxlib for its settings, in a child process.

Three sources: the descriptor of ``xla.DebugOptions`` in the shared library (types, enum names,
removed names), the options as JAX builds them (defaults), and the real XLA_FLAGS parser in forks of
one child process (names, spellings, effects). The answers are cached in a JSON file, named by
versions and the library's size and date.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import mmap
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from autotune.child.packages import CUDA_PLUGINS
from autotune.child.processes import xla_processes
from autotune.machine.child_process import ChildProcess, format_end
from autotune.machine.environment import caller_environment, default_cache_dir, driver_python
from autotune.machine.files import replace_file
from autotune.machine.host import Packages, cuda_plugin, packages_of
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.flags import parse_text_proto

SCHEMA_VERSION = 5
_UNSET_MEANS = {"bool": "false", "int32": "0", "int64": "0", "float": "0", "string": ""}
"""What no value means for a flag of a type, which is also a legal value of it."""


Spellings = Mapping[str, str]
"""Ways to write values, each with the value."""


class FlagInfo(BaseModel, frozen=True):
    """One XLA flag of the installed build, or one option of its jax."""

    name: str
    type: str
    """One of bool, int32, int64, float, string, enum, message."""
    repeated: bool = False
    """Whether it holds a list (comma separated in XLA_FLAGS) or a map (``key=value,...``)."""
    values: tuple[str, ...] = ()
    """Legal values of an enum, as XLA_FLAGS spells them; may be unknown. Of a bool that refuses
    one, the other.
    """
    spellings: Spellings = {}
    """Every accepted spelling to its value; lower case if the case is ignored."""
    default: str | None = None
    """JAX's default, as XLA_FLAGS spells it; None if unset."""
    in_xla_flags: bool = True
    """Whether the XLA_FLAGS parser accepts the name."""
    any_case: bool = False
    """Whether the case of an enum's values is ignored."""
    edits: bool = False
    """Whether ``+X`` and ``-X`` change a default list."""
    allows_empty: bool = True
    """Whether an enum may be empty."""
    sets: tuple[str, ...] = ()
    """Options that another value of the flag changes; empty if it is stored nowhere."""

    @property
    def effective_default(self) -> str | None:
        """The default, or the value that unset means; None if unknown."""
        if self.default is not None:
            return self.default
        if self.type == "enum":
            return self.values[0] if self.values else None
        return _UNSET_MEANS.get(self.type)


Flags = Mapping[str, FlagInfo]
"""Flags or options of a build, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """All settings of one installed build."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    platform: str
    python: str
    jax: str | None
    jaxlib: str
    plugin: str | None
    """Name and version of the CUDA plugin; None on the CPU, or if it is not installed. The flags
    are then those of the CPU library: both libraries of a release register the same flags.
    """
    flags: Flags = field(repr=False)
    removed: frozenset[str] = field(repr=False)
    """Names that the build reserves because they were removed."""
    jax_options: Flags = field(repr=False)
    """Options of ``jax.config``; each is set by the environment variable of the same name in upper
    case.
    """
    nccl: str | None = None
    """Release of the package of NCCL; None without one, as where a container brings the library."""

    @property
    def build(self) -> str:
        """The build for messages: ``jaxlib 0.10.2``."""
        return f"jaxlib {self.jaxlib}" + (f" with {self.plugin}" if self.plugin else "")


_REPORT = TypeAdapter(ProbeReport)

# Field 1 (name) "xla/xla.proto", then field 2 (package) "xla".
_FILE_START = b"\x0a\x0dxla/xla.proto\x12\x03xla"
# Field 4 (message_type), whose own field 1 (name) is "DebugOptions".
_MESSAGE_START = re.compile(rb"\x22(?P<length>[\x80-\xff]{0,4}[\x00-\x7f])\x0a\x0cDebugOptions")
_ALIKE = {"double": "float", "uint32": "int32", "uint64": "int64"}
"""Types of a field to what `FlagInfo.type` calls them, where that differs."""


def read_debug_options(library: Path) -> tuple[tuple[FlagInfo, ...], frozenset[str]]:
    """Reads the fields of DebugOptions and its removed names from a library; LaunchError without a
    descriptor.

    Only type, `repeated` and the full names of an enum (empty if it is defined in another file) are
    filled.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_FILE_START)
        found = _MESSAGE_START.search(data, start) if start >= 0 else None
        if found is None:
            raise LaunchError(
                f"{library} must hold the descriptor of xla.DebugOptions but does not"
            )
        length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(found["length"]))
        text = data[found.end("length") : found.end("length") + length]
    try:
        message = DescriptorProto.FromString(text)
    except DecodeError as error:
        raise LaunchError(
            f"{library} must hold the descriptor of xla.DebugOptions but it is torn: {error}"
        ) from error
    enums = {e.name: tuple(v.name for v in e.value) for e in message.enum_type}
    flags = []
    for option in message.field:
        kind = FieldDescriptorProto.Type.Name(option.type).removeprefix("TYPE_").lower()
        is_repeated = option.label == FieldDescriptorProto.LABEL_REPEATED
        values = enums.get(option.type_name.rpartition(".")[2], ())
        flags.append(
            FlagInfo(
                name=option.name, type=_ALIKE.get(kind, kind), repeated=is_repeated, values=values
            )
        )
    return tuple(flags), frozenset(message.reserved_name)


def library_strings(library: Path) -> set[str]:
    """Finds the whole NUL-terminated strings of a library that may be names of XLA's flags."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {m.decode() for m in re.findall(rb"\x00(xla_[a-z0-9_]+)(?=\x00)", data)}


_CHILD = Path(__file__).parents[1] / "child" / "flag_parser.py"
ANSWER_LIMIT_S, STOP_PATIENCE_S = 60.0, 1.0
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_BAD_VALUE = re.compile(r"Couldn't interpret value .* for flag (xla_\w+)")
_PARSER = "jaxlib's flag parser"
_TRIES = 3
"""Of a probe whose processes are killed from outside."""

# jaxlib cuts what it logs at 15,000 characters: the names of unknown flags, and the text of --help.
_BATCH = 100


class Answer(NamedTuple):
    """The parser's answer to one text."""

    starts: bool
    """Whether a process with this text in XLA_FLAGS would start."""
    unknown: tuple[str, ...]
    """Unknown names; the parser lists them only if it refused no value."""
    refused: tuple[str, ...]
    """Names of flags whose value was refused, as far as the parser lists them."""
    options: Mapping[str, str]
    """Every resolved option as text, lists joined by commas; empty if the process would not
    start.
    """
    log: str


def quiet_environment() -> dict[str, str]:
    """The caller's environment without variables that steer XLA or hide its messages."""
    steering = ("XLA_", "JAX_", "TF_", "LIBTPU", "NCCL_", "CUDA_")
    kept = {k: v for k, v in caller_environment().items() if not k.startswith(steering)}
    return {**kept, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


class ParserProcess:
    """A child process with jaxlib, which forks for each question (some milliseconds)."""

    def __init__(self, python: str, *, timeout_s: float = ANSWER_LIMIT_S) -> None:
        self._python = python
        self._timeout_s = timeout_s
        # -P: modules in the current folder must not hide others. As a text, for it may be in a
        # container.
        command = [python, "-P", "-c", _CHILD.read_text("utf-8")]
        self._child = ChildProcess(command, quiet_environment(), errors=subprocess.DEVNULL)
        self._deadline = time.monotonic() + timeout_s

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close(STOP_PATIENCE_S)

    def ask(self, text: str) -> Answer:
        """Parses one text; LaunchError if the child does not answer."""
        reply = self._question({"xla_flags": text})
        log = str(reply["log"])
        found = _UNKNOWN.search(log)
        return Answer(
            starts=reply["exit_code"] == 0,
            unknown=tuple(re.findall(r"(?:^|\s)--([^\s=]+)", found.group(1))) if found else (),
            refused=tuple(_BAD_VALUE.findall(log)),
            options={
                n: ",".join(v) for n, v in parse_text_proto(str(reply["options"] or "")).items()
            },
            log=log,
        )

    def sort_out(self, tokens: Mapping[str, str]) -> tuple[set[str], set[str]]:
        """Finds unknown and refused names among many one-flag texts."""
        names = list(tokens)
        unknown: set[str] = set()
        refused: set[str] = set()
        parts = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
        while parts:
            part = parts.pop()
            answer = self.ask(" ".join(tokens[name] for name in part))
            if answer.starts:
                continue
            unknown.update(set(part).intersection(answer.unknown))
            refused.update(set(part).intersection(answer.refused) - unknown)
            rest = [name for name in part if name not in unknown | refused]
            if len(part) == 1:
                refused.update(rest)
            elif len(rest) < len(part):
                parts.append(rest)
            else:
                parts += [rest[: len(rest) // 2], rest[len(rest) // 2 :]]
        return unknown, refused

    def readable(self, path: Path) -> Path:
        """Returns where a file of the interpreter, even in a container, is read from here;
        LaunchError if nowhere.
        """
        self.ask("")  # then it has loaded jaxlib
        inside = next((p["pid"] for p in xla_processes(self._child.pid)), None)
        found = path if inside is None else Path(f"/proc/{inside}/root{path}")
        if not os.access(found, os.R_OK):
            raise LaunchError(
                f"{path} of {self._python} must be readable but is not; run its container as "
                "this user"
            )
        return found

    def jax_options(self) -> dict[str, dict[str, Any]]:
        """Reads type, legal values and present value of every ``jax.config`` option; LaunchError as
        `ask`.
        """
        return self._question({"jax_options": True})

    def _question(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self._child.send(question)
        answer = next(self._child.messages(self._deadline - time.monotonic()), None)
        if answer is not None:
            return answer
        if self._child.was_killed():
            raise StoppedError(
                f"{_PARSER} must answer but {self._child.describe_end()}; run the same command "
                "again"
            )
        raise LaunchError(
            f"{_PARSER} must answer within {self._timeout_s:g} s but {self._child.describe_end()}; "
            f"try: {self._python} -c 'import jaxlib.xla_client'"
        )


Platform = Literal["cpu", "cuda"]

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_PLUGIN_FOLDERS = {name: f"jax_plugins.xla_{name.split('-')[1]}" for name in CUDA_PLUGINS}

_LEGAL = {
    "bool": ("true", "false"),
    "string": ("autotune",),
    "enum": ("autotune",),
    "message": ("autotune=1",),
}
"""Legal values of a type; numbers have others."""


def probe_build(
    python: str = sys.executable, *, platform: Platform = "cpu", cache_dir: Path | None = None
) -> ProbeReport:
    """Probes the build installed for `python`, or reads its cached answers.

    Args:
        platform: ``"cuda"`` also reads the CUDA plugin, if it is installed.
        cache_dir: Default ``$XDG_CACHE_HOME/autotune``.

    Raises:
        LaunchError: If the interpreter cannot be started, has no jaxlib, or does not answer in
            time.
        StoppedError: If it was killed from outside again and again.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StoppedError):
            return _probe(python, platform, cache_dir)
    return _probe(python, platform, cache_dir)


def _probe(python: str, platform: Platform, cache_dir: Path | None) -> ProbeReport:
    here = _locate(python)
    whole = {n: v for n, v in here.versions.items() if _PLUGIN_FOLDERS.get(n) in here.folders}
    plugin = cuda_plugin(whole) if platform == "cuda" else None
    libraries = [Path(here.folders["jaxlib"]) / "libjax_common.so"]
    if plugin is not None:
        libraries.append(
            Path(here.folders[_PLUGIN_FOLDERS[plugin.split()[0]]]) / "xla_cuda_plugin.so"
        )
    path = (cache_dir or default_cache_dir()) / _cache_name(here, libraries)
    try:
        report = _REPORT.validate_json(path.read_bytes())
    except (OSError, ValidationError):  # absent, or torn by a killed process
        with ParserProcess(python) as parser:
            flags, removed = _ask_flags(parser, [parser.readable(library) for library in libraries])
            options = (
                {n: _jax_option(n, d) for n, d in parser.jax_options().items()}
                if "jax" in here.versions
                else {}
            )
        report = ProbeReport(
            platform=platform,
            python=here.python,
            jax=here.versions.get("jax"),
            jaxlib=here.versions["jaxlib"],
            plugin=plugin,
            flags=flags,
            removed=removed,
            jax_options=options,
            nccl=next(
                (here.versions[name] for name in NCCL_PACKAGES if name in here.versions), None
            ),
        )
        with contextlib.suppress(
            OSError
        ):  # a read-only home costs the next call some seconds, nothing else
            replace_file(path, _REPORT.dump_json(report).decode())
    # Without a plugin both platforms ask one library and share one file.
    return dataclasses.replace(report, platform=platform)


def _cache_name(here: Packages, libraries: Sequence[Path]) -> str:
    """A file name that changes with versions and libraries."""
    stamp = [SCHEMA_VERSION, dataclasses.asdict(here), *map(str, libraries)]
    digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]
    return f"probe-{here.versions['jaxlib']}-{digest}.json"


def _locate(python: str) -> Packages:
    """Finds the packages of an interpreter."""

    def run(command: Sequence[str]) -> str:
        env = quiet_environment()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, env=env, check=True
        )
        return done.stdout

    folders = ("jaxlib", *_PLUGIN_FOLDERS.values())
    try:
        here = packages_of(
            python, ("jax", "jaxlib", *_PLUGIN_FOLDERS, *NCCL_PACKAGES), folders=folders, run=run
        )
    except subprocess.CalledProcessError as error:
        kind = StoppedError if error.returncode < 0 else LaunchError
        said = "".join(f": {line}" for line in error.stderr.strip().splitlines()[-1:])
        raise kind(
            f"{python} must be a working Python but {format_end(error.returncode)}{said}"
        ) from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{python} must be a working Python but could not be asked: {error}"
        ) from error
    if not {"jaxlib"} <= here.folders.keys() & here.versions.keys():
        raise LaunchError(
            f"jaxlib must be installed for {python} but is not; run: {python} -m pip install jax"
        )
    return here


def _jax_option(name: str, data: Mapping[str, Any]) -> FlagInfo:
    option = FlagInfo(name=name, in_xla_flags=False, **data)
    if option.type != "bool" or option.default is None:
        return option
    return option.model_copy(update={"default": option.default.lower()})


def _ask_flags(
    parser: ParserProcess, libraries: list[Path]
) -> tuple[dict[str, FlagInfo], frozenset[str]]:
    """Probes name, spelling and effect of all flags of the build."""
    fields, removed = read_debug_options(libraries[0])
    base = parser.ask("")
    if not base.starts:
        raise LaunchError(f"jaxlib must start without any flag but said: {base.log.strip()}")
    # Enums and maps need a question each; others are asked together, with a legal value of their
    # type.
    plain = {f.name: f"--{f.name}={_UNSET_MEANS[f.type]}" for f in fields if f.type in _UNSET_MEANS}
    missing, _ = parser.sort_out(plain)
    for option in fields:
        if option.name not in plain and option.name in parser.ask(f"--{option.name}=?").unknown:
            missing.add(option.name)
    held = {
        f.name for f in read_debug_options(libraries[-1])[0]
    }  # what the plugin does not hold does nothing there
    flags = {
        f.name: _from_field(f, base, parser, known=f.name not in missing)
        for f in fields
        if f.name in held
    }
    aliases = sorted(library_strings(libraries[0]) - {f.name for f in fields})
    unknown, bad = parser.sort_out({n: f"--{n}=1" for n in aliases})
    for name in set(aliases) - unknown:
        flags[name] = FlagInfo(name=name, type=_alias_type(name, name in bad, parser))
    effects, refusing = _ask_effects(flags, base, parser)
    for name in refusing:
        if flags[name].type == "bool":
            only = (flags[name].effective_default or "false",)
            flags[name] = flags[name].model_copy(update={"values": only})
    return {
        n: _with_effect(i, effects.get(n, ()), flags) for n, i in sorted(flags.items())
    }, removed


def _with_effect(info: FlagInfo, sets: tuple[str, ...], flags: Flags) -> FlagInfo:
    """Adds the effect; an alias gets the type of the option it sets."""
    target = flags.get(sets[0]) if len(sets) == 1 else None
    kind = info.type
    if target is not None and kind == "int64" and target.name != info.name:
        kind = "string" if target.type == "message" else target.type
    return info.model_copy(update={"sets": sets, "type": kind})


def _alias_type(name: str, refuses_one: bool, parser: ParserProcess) -> str:
    if refuses_one:
        return "string"
    if parser.ask(f"--{name}").starts:  # only booleans may stand without a value
        return "bool"
    return "string" if parser.ask(f"--{name}=x").starts else "int64"


def _from_field(field: FlagInfo, base: Answer, parser: ParserProcess, *, known: bool) -> FlagInfo:
    default = base.options.get(field.name, "" if field.repeated else None)
    info = field.model_copy(update={"default": default, "values": (), "in_xla_flags": known})
    if not known or field.type in _UNSET_MEANS:
        return info
    info = info.model_copy(update={"allows_empty": parser.ask(f"--{field.name}=").starts})
    names = field.values
    if not names and default and field.repeated and field.type == "enum":
        names = tuple(
            default.split(",")
        )  # an enum defined in another file shows its names only in the default list
    return _with_spelling(info, names, parser)


def _with_spelling(info: FlagInfo, names: Sequence[str], parser: ParserProcess) -> FlagInfo:
    """Finds how XLA_FLAGS spells the values of an enum: by full names, or by short ones."""
    legal = [n for n in names if not n.endswith("INVALID")]
    prefix = "".join(os.path.commonprefix(legal).rpartition("_")[:2])  # noqa: RUF071  # of texts
    spellings: dict[str, str] = {}
    values = {}
    for name in legal:
        short = name.removeprefix(prefix)
        forms = [] if prefix else [name]
        forms += [short.lower(), short, name, short.lower().removesuffix("_memory")]
        accepted = [form for form in dict.fromkeys(forms) if _takes(parser, info.name, form)]
        if accepted:
            values[name] = accepted[0]
            spellings |= dict.fromkeys(accepted, accepted[0])
    if not values:
        return info
    last = values[next(reversed(values))]
    any_case = _takes(parser, info.name, last.swapcase())
    if any_case:
        spellings = {form.lower(): value for form, value in spellings.items()}
    update = {
        "values": tuple(values.values()),
        "spellings": spellings,
        "default": info.default and ",".join(values.get(d, d) for d in info.default.split(",")),
        "any_case": any_case,
        "edits": info.repeated and _takes(parser, info.name, f"+{last}"),
    }
    return info.model_copy(update=update)


def _takes(parser: ParserProcess, name: str, value: str) -> bool:
    return parser.ask(f"--{name}={value}").starts


def _other_values(info: FlagInfo) -> list[str]:
    """Legal values, at least one of them not the default."""
    values = info.values or _LEGAL.get(info.type, ("1", "2"))
    return [v for v in values if v != info.default] or list(values)


def _ask_effects(
    flags: Flags, base: Answer, parser: ParserProcess
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Finds the options that each flag changes, and the flags that refuse what should be a legal
    value.
    """
    asked = {n: i for n, i in flags.items() if i.in_xla_flags}
    tokens = {n: f"--{n}={_other_values(i)[0]}" for n, i in asked.items()}
    _, bad = parser.sort_out(tokens)
    together = parser.ask(" ".join(t for n, t in tokens.items() if n not in bad)).options
    effects: dict[str, tuple[str, ...]] = {}
    for name, info in asked.items():
        # A flag without a second legal value can only be stored as it stands.
        if name in bad or together.get(name) != base.options.get(name):
            effects[name] = (name,)
            continue
        changed: set[str] = set()
        for value in _other_values(info):
            alone = parser.ask(f"--{name}={value}").options
            changed |= {
                k for k in {*alone, *base.options} if alone and alone.get(k) != base.options.get(k)
            }
        effects[name] = tuple(sorted(changed))
    return effects, bad


def probe_named(plugin: str, python: str | None) -> ProbeReport:
    """Probes a build; `plugin` is ``cpu``, ``cuda``, or ``auto`` for the CUDA plugin if it is
    installed.
    """
    report = probe_build(python or driver_python(), platform="cpu" if plugin == "cpu" else "cuda")
    return (
        dataclasses.replace(report, platform="cpu")
        if plugin == "auto" and report.plugin is None
        else report
    )
