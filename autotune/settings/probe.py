"""Probes the installed jaxlib for its settings, in a child process.

Three sources: the descriptor of ``xla.DebugOptions`` in the shared library (types, enum names,
removed names), the options as JAX builds them (defaults), and the real XLA_FLAGS parser in forks of
one child process (names, spellings, effects). A JSON file caches the answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from autotune.child.packages import CUDA_PLUGINS
from autotune.child.processes import xla_processes
from autotune.machine.child_process import ChildProcess, format_end
from autotune.machine.environment import (
    Environment,
    caller_environment,
    default_cache_dir,
    driver_python,
)
from autotune.machine.files import replace_file
from autotune.machine.host import Packages, packages_of
from autotune.model.errors import LaunchError, StoppedError
from autotune.model.flags import parse_text_proto
from autotune.settings.catalog import TextMap, Texts, Values

_SCHEMA_VERSION = 7
# What no value means for a flag of a type, which is also a legal value of it.
_UNSET_MEANS = {"bool": "false", "int32": "0", "int64": "0", "float": "0", "string": ""}
Facts = dict[str, Any]


class FlagInfo(BaseModel, frozen=True):
    """One XLA flag of the installed build, or one option of its jax."""

    name: str
    type: str  # one of bool, int32, int64, float, string, enum, message
    repeated: bool = False  # whether it holds a list or a map, comma separated
    values: Texts = ()  # legal ones of an enum, if known, or the only one of a bool
    spellings: TextMap = {}  # each spelling to its value; lower case if the case is ignored
    default: str | None = None  # JAX's default, as XLA_FLAGS spells it; None if unset
    in_xla_flags: bool = True  # whether the XLA_FLAGS parser accepts the name
    any_case: bool = False  # whether the case of an enum's values is ignored
    edits: bool = False  # whether ``+X`` and ``-X`` change a default list
    allows_empty: bool = True  # of enums
    sets: Texts = ()  # options that another value of it changes; empty if it is stored nowhere

    @property
    def effective_default(self) -> str | None:
        """The default, or the value that unset means; None if unknown."""
        if self.default is not None:
            return self.default
        if self.type == "enum" and self.values:
            return self.values[0]
        return _UNSET_MEANS.get(self.type)


Flags = Mapping[str, FlagInfo]


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """All settings of one installed build."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    platform: str
    jax: str | None
    jaxlib: str
    plugin: str | None  # name and version, of CUDA if asked for and installed
    flags: Flags = field(repr=False)  # those of the plugin, too
    removed: frozenset[str] = field(repr=False)  # names that the build reserves
    jax_options: Flags = field(repr=False)  # of ``jax.config``, in lower case
    nccl: str | None = None  # None without a package, as in some containers
    libraries: Texts = ()  # paths of the libraries, which hold the names of the compiler's passes

    @property
    def build(self) -> str:
        """The build for messages: ``jaxlib 0.10.2``."""
        return f"jaxlib {self.jaxlib}" + (f" with {self.plugin}" if self.plugin else "")

    def lacks(self, text: str) -> bool:
        """Returns whether no library holds a text; False if that cannot be told."""
        if self.platform == "cuda" and not self.plugin:
            return False
        return bool(self.libraries) and not any(_may_hold(path, text) for path in self.libraries)


_REPORT = TypeAdapter(ProbeReport)

# Fields 1 (name) and 2 (package) of the file, then 4 (message_type), which begins with its name.
_DEBUG_OPTIONS = re.compile(
    rb"(?s)\x0a\x0dxla/xla\.proto\x12\x03xla.*?"
    rb"\x22(?P<length>[\x80-\xff]{0,4}[\x00-\x7f])\x0a\x0cDebugOptions"
)
# Types of a field to what `FlagInfo.type` calls them, where that differs.
_ALIKE = {"double": "float", "uint32": "int32", "uint64": "int64"}


@contextlib.contextmanager
def _mapped(library: Path) -> Iterator[mmap.mmap]:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def read_debug_options(library: Path) -> tuple[tuple[FlagInfo, ...], frozenset[str]]:
    """Reads the fields of DebugOptions and its removed names; LaunchError without a descriptor.

    Of a field: type, `repeated` and an enum's full names, none if another file defines it.
    """
    with _mapped(library) as data:
        head = _DEBUG_OPTIONS.search(data)
        if not head:
            raise LaunchError(
                f"{library} must hold the descriptor of xla.DebugOptions but does not"
            )
        length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(head["length"]))
        text = data[head.end("length") : head.end("length") + length]
    message = DescriptorProto.FromString(text)
    enums = {enum.name: tuple(value.name for value in enum.value) for enum in message.enum_type}
    flags = []
    for option in message.field:
        kind = FieldDescriptorProto.Type.Name(option.type).removeprefix("TYPE_").lower()
        flags.append(
            FlagInfo(
                name=option.name,
                type=_ALIKE.get(kind, kind),
                repeated=option.label == FieldDescriptorProto.LABEL_REPEATED,
                values=enums.get(option.type_name.rpartition(".")[2], ()),
            )
        )
    return tuple(flags), frozenset(message.reserved_name)


@functools.cache
def _may_hold(library: str, text: str) -> bool:
    try:
        with _mapped(Path(library)) as data:
            return data.find(f"{text}\0".encode()) >= 0
    except OSError:
        return True


def library_strings(library: Path) -> set[str]:
    """Finds the whole NUL-terminated strings of a library that may be names of XLA's flags."""
    with _mapped(library) as data:
        return {m.decode() for m in re.findall(rb"\x00(xla_[a-z0-9_]+)(?=\x00)", data)}


_CHILD = Path(__file__).parents[1] / "child" / "flag_parser.py"
_ANSWER_LIMIT_S = 60.0
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_TRIES = 3  # of a probe whose processes are killed from outside


class Answer(NamedTuple):
    """The parser's answer to one text."""

    starts: bool  # whether a process with this text in XLA_FLAGS would start
    unknown: Texts  # unknown names; the parser lists them only if it refused no value
    options: TextMap  # resolved, lists joined by commas; empty if the process would not start
    log: str


def _quiet_environment() -> Environment:
    """The caller's environment without variables that steer XLA or hide its messages."""
    steering = ("XLA_", "JAX_", "TF_", "LIBTPU", "NCCL_", "CUDA_")
    inherited = {n: v for n, v in caller_environment().items() if not n.startswith(steering)}
    return inherited | {
        "JAX_PLATFORMS": "cpu",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


class ParserProcess:
    """A child process with jaxlib, which forks for each question (some milliseconds)."""

    def __init__(self, python: str, *, timeout_s: float = _ANSWER_LIMIT_S) -> None:
        self._python = python
        self._timeout_s = timeout_s
        # -P: modules of the current folder must not hide others. A text reaches into containers.
        command = [python, "-P", "-c", _CHILD.read_text("utf-8")]
        self._child = ChildProcess(command, _quiet_environment(), errors=subprocess.DEVNULL)

    def close(self) -> None:
        """Ends the child."""
        self._child.close(patience_s=1.0)

    def ask(self, text: str) -> Answer:
        """Parses one text; LaunchError if the child does not answer."""
        reply = self._question({"xla_flags": text})
        log = reply["log"]
        return Answer(
            starts=reply["exit_code"] == 0,
            unknown=tuple(re.findall(r"(?:^|\s)--([^\s=]+)", " ".join(_UNKNOWN.findall(log)))),
            options={
                name: ",".join(values)
                for name, values in parse_text_proto(reply["options"] or "").items()
            },
            log=log,
        )

    def readable(self, path: Path) -> Path:
        """Returns where a file of the interpreter, maybe in a container, can be read."""
        self.ask("")  # then it has loaded jaxlib
        readable = path
        for process in xla_processes(self._child.pid)[:1]:
            readable = Path(f"/proc/{process['pid']}/root{path}")
        if not os.access(readable, os.R_OK):
            raise LaunchError(
                f"{path} of {self._python} must be readable but is not; run its container as "
                "this user"
            )
        return readable

    def jax_options(self) -> dict[str, Facts]:
        """Reads type, legal values and present value of every ``jax.config`` option."""
        return self._question({"jax_options": True})

    def _question(self, question: Facts) -> Facts:
        self._child.send(question)
        answer = next(self._child.messages(self._timeout_s), None)
        if answer is not None:
            return answer
        if (self._child.status() or 0) < 0:  # by a signal
            raise StoppedError(
                f"jaxlib's flag parser must answer but {self._child.describe_end()}; run the same "
                "command again"
            )
        raise LaunchError(
            f"jaxlib's flag parser must answer within {self._timeout_s:g} s but "
            f"{self._child.describe_end()}; try: {self._python} -c 'import jaxlib.xla_client'"
        )


Platform = Literal["cpu", "cuda"]

_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_PLUGIN_FOLDERS = {name: f"jax_plugins.xla_{name.split('-')[1]}" for name in CUDA_PLUGINS}

# Legal values of a type; numbers have others.
_LEGAL = {
    "bool": ("true", "false"),
    "string": ("autotune",),
    "enum": ("autotune",),
    "message": ("autotune=1",),
}


def probe_build(python: str = sys.executable, *, platform: Platform = "cpu") -> ProbeReport:
    """Probes the build installed for `python`, for ``"cuda"`` with its plugin, or reads the cache.

    LaunchError if Python does not start, has no jaxlib or does not answer, StoppedError if killed.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(StoppedError):
            return _probe(python, platform)
    return _probe(python, platform)


def _probe(python: str, platform: Platform) -> ProbeReport:
    packages = _locate(python)
    versions = packages.versions
    folders = packages.folders
    libraries = [Path(folders["jaxlib"], "libjax_common.so")]
    plugin = None
    for name, module in _PLUGIN_FOLDERS.items():
        if platform == "cuda" and name in versions and module in folders:
            plugin = f"{name} {versions[name]}"
            libraries.append(Path(folders[module], "xla_cuda_plugin.so"))
            break
    stamp = [_SCHEMA_VERSION, packages._asdict(), *map(str, libraries)]
    digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]
    path = default_cache_dir() / f"probe-{versions['jaxlib']}-{digest}.json"
    try:
        report = _REPORT.validate_json(path.read_bytes())
    except (OSError, ValidationError):  # absent, or torn by a killed process
        with contextlib.closing(ParserProcess(python)) as parser:
            flags, removed = _ask_flags(parser, [parser.readable(library) for library in libraries])
            options = parser.jax_options() if "jax" in versions else {}
        report = ProbeReport(
            platform=platform,
            jax=versions.get("jax"),
            jaxlib=versions["jaxlib"],
            plugin=plugin,
            flags=flags,
            removed=removed,
            jax_options={name: _jax_option(name, facts) for name, facts in options.items()},
            nccl=next(filter(None, map(versions.get, _NCCL_PACKAGES)), None),
            libraries=tuple(map(str, libraries)),
        )
        # A read-only home costs the next call some seconds, nothing else.
        with contextlib.suppress(OSError):
            replace_file(path, _REPORT.dump_json(report).decode())
    # Without a plugin both platforms ask one library and share one file.
    return dataclasses.replace(report, platform=platform)


def _locate(python: str) -> Packages:
    run = functools.partial(
        subprocess.check_output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_ANSWER_LIMIT_S,
        env=_quiet_environment(),
    )
    names = ("jax", "jaxlib", *_PLUGIN_FOLDERS, *_NCCL_PACKAGES)
    try:
        packages = packages_of(
            python, names, folders=("jaxlib", *_PLUGIN_FOLDERS.values()), run=run
        )
    except subprocess.CalledProcessError as error:
        kind = StoppedError if error.returncode < 0 else LaunchError
        last_line = "".join(f": {line}" for line in error.stderr.strip().splitlines()[-1:])
        raise kind(
            f"{python} must be a working Python but {format_end(error.returncode)}{last_line}"
        ) from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"{python} must be a working Python but could not be asked: {error}"
        ) from error
    if "jaxlib" not in packages.folders.keys() & packages.versions.keys():
        raise LaunchError(
            f"jaxlib must be installed for {python} but is not; run: {python} -m pip install jax"
        )
    return packages


def _jax_option(name: str, facts: Facts) -> FlagInfo:
    if facts["type"] == "bool" and facts["default"]:
        facts = {**facts, "default": facts["default"].lower()}
    return FlagInfo(name=name, in_xla_flags=False, **facts)


def _ask_flags(parser: ParserProcess, libraries: list[Path]) -> tuple[Flags, frozenset[str]]:
    fields, removed = read_debug_options(libraries[0])
    base = parser.ask("")
    if not base.starts:
        raise LaunchError(f"jaxlib must start without any flag but said: {base.log.strip()}")
    in_plugin = {option.name for option in read_debug_options(libraries[-1])[0]}
    flags = {}
    for option in fields:
        if option.name in in_plugin:  # others do nothing there
            flags[option.name] = _from_field(option, base, parser)
    for name in library_strings(libraries[0]).difference(option.name for option in fields):
        if kind := _alias_type(name, parser):
            flags[name] = FlagInfo(name=name, type=kind)
    complete = {name: _with_effects(flags[name], flags, base, parser) for name in sorted(flags)}
    return complete, removed


def _alias_type(name: str, parser: ParserProcess) -> str:
    """The type of a flag that is no field of DebugOptions; empty if it is no flag."""
    answer = parser.ask(f"--{name}=1")
    if answer.unknown:
        return ""
    if not answer.starts:
        return "string"
    if parser.ask(f"--{name}").starts:  # only booleans may stand without a value
        return "bool"
    return "string" if parser.ask(f"--{name}=x").starts else "int64"


def _from_field(option: FlagInfo, base: Answer, parser: ParserProcess) -> FlagInfo:
    """Adds default and spelling of an option; enums have full names of values, or short ones."""
    default = base.options.get(option.name, "" if option.repeated else None)
    info = option.model_copy(update={"default": default, "values": ()})
    if option.type in _UNSET_MEANS or parser.ask(f"--{option.name}=?").unknown:
        return info

    def takes(value: str) -> bool:
        return parser.ask(f"--{info.name}={value}").starts

    legal = [name for name in option.values if not name.endswith("INVALID")]
    if not option.values and default and option.repeated and option.type == "enum":
        legal = default.split(",")  # an enum of another file shows its names only there
    prefix = "".join(os.path.commonprefix(legal).rpartition("_")[:2])  # noqa: RUF071  # of texts
    spellings: Values = {}
    values = {}
    for name in legal:
        short = name.removeprefix(prefix)
        forms = [short.lower(), short, name, short.lower().removesuffix("_memory")]
        if not prefix:
            forms.insert(0, name)
        accepted = list(filter(takes, dict.fromkeys(forms)))
        if accepted:
            values[name] = accepted[0]
            spellings |= dict.fromkeys(accepted, accepted[0])
    update: Facts = {"allows_empty": takes("")}
    if values:
        *_, spelling = values.values()
        if takes(spelling.swapcase()):
            spellings = {form.lower(): value for form, value in spellings.items()}
            update["any_case"] = True
        update |= {
            "values": tuple(values.values()),
            "spellings": spellings,
            "edits": info.repeated and takes(f"+{spelling}"),
        }
        if default:
            update["default"] = ",".join(values.get(item, item) for item in default.split(","))
    return info.model_copy(update=update)


def _other_values(info: FlagInfo) -> list[str]:
    """Legal values, at least one of them not the default."""
    values = info.values or _LEGAL.get(info.type, ("1", "2"))
    return [value for value in values if value != info.default] or list(values)


def _with_effects(info: FlagInfo, flags: Flags, base: Answer, parser: ParserProcess) -> FlagInfo:
    """Adds the options that a flag changes; an alias gets the type of the one that it sets."""
    update: Facts = {}
    changed: set[str] = set()
    for value in _other_values(info):
        answer = parser.ask(f"--{info.name}={value}")
        if answer.unknown:
            return info.model_copy(update={"in_xla_flags": False})
        if answer.starts:
            changed.update(name for name, _ in answer.options.items() ^ base.options.items())
        else:  # without a second legal value it can only be stored as it stands
            changed.add(info.name)
            if info.type == "bool":
                update["values"] = (info.effective_default or "false",)
        if info.name in changed:
            changed = {info.name}
            break
    target = flags.get(min(changed, default=""))
    is_alias = len(changed) == 1 and info.name not in changed and info.type == "int64"
    if target and is_alias:
        update["type"] = "string" if target.type == "message" else target.type
    return info.model_copy(update={"sets": tuple(sorted(changed)), **update})


def probe_named(plugin: str, python: str | None) -> ProbeReport:
    """Probes a build; `plugin` is ``cpu``, ``cuda``, or ``auto`` for CUDA if it is installed."""
    report = probe_build(python or driver_python(), platform="cpu" if plugin == "cpu" else "cuda")
    if plugin == "auto" and not report.plugin:
        return dataclasses.replace(report, platform="cpu")
    return report
