"""Asks the installed jaxlib which settings it has; the driver never imports it.

Three sources, each the sturdiest for what it gives: the descriptor of ``xla.DebugOptions`` that lies inside
the shared library (types, enum names, removed names), the resolved options as JAX builds them (defaults), and
the real XLA_FLAGS parser, asked in forks of one child process (names, spellings, effect). The
answers of one build are cached in one JSON file, named by versions and the library's size and date.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from autotune.machine import (
    CUDA_PLUGINS,
    Packages,
    caller_environment,
    cuda_plugin,
    default_cache_dir,
    packages_of,
    replace_file,
)
from autotune.model import LaunchError
from autotune.settings.build import SCHEMA_VERSION, FlagInfo, JaxOption, ProbeReport
from autotune.settings.descriptor import library_strings, read_debug_options
from autotune.settings.parser import Answer, ParserProcess, quiet_environment

Platform = Literal["cpu", "cuda"]

_PLUGIN_FOLDERS = {name: f"jax_plugins.xla_{name.split('-')[1]}" for name in CUDA_PLUGINS}

_SOME_VALUE = {"bool": "false", "int32": "1", "int64": "1", "float": "1", "string": ""}


def probe_build(
    python: str = sys.executable,
    *,
    platform: Platform = "cpu",
    cache_dir: Path | None = None,
    timeout_s: float = 60.0,
) -> ProbeReport:
    """What the build installed for `python` says about its settings; from the cache if it was asked before.

    Args:
        python: Interpreter whose packages are meant.
        platform: ``"cuda"`` also reads the CUDA plugin, if it is installed.
        cache_dir: Folder of the cache; default ``$XDG_CACHE_HOME/autotune``.
        timeout_s: Longest time for the questions.

    Raises:
        LaunchError: If the interpreter cannot be started, has no jaxlib, or does not answer in time.
    """
    here = _locate(python, timeout_s)
    whole = {n: v for n, v in here.versions.items() if _PLUGIN_FOLDERS.get(n) in here.folders}
    plugin = cuda_plugin(whole) if platform == "cuda" else None
    libraries = [Path(here.folders["jaxlib"]) / "libjax_common.so"]
    if plugin is not None:
        libraries.append(Path(here.folders[_PLUGIN_FOLDERS[plugin.split()[0]]]) / "xla_cuda_plugin.so")
    path = (cache_dir or default_cache_dir(caller_environment())) / _cache_name(here, libraries)
    try:
        report = ProbeReport.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):  # absent, or torn by a killed process: ask
        with ParserProcess(python, timeout_s=timeout_s) as parser:
            flags, removed = _ask_flags(parser, libraries)
            options = {n: _jax_option(d) for n, d in parser.jax_options().items()} if "jax" in here.versions else {}
        report = ProbeReport(
            platform=platform,
            python=here.python,
            jax=here.versions.get("jax"),
            jaxlib=here.versions["jaxlib"],
            plugin=plugin,
            flags=flags,
            removed=removed,
            jax_options=options,
        )
        with contextlib.suppress(OSError):  # a read-only home costs the next call some seconds, nothing else
            replace_file(path, json.dumps(report.to_json()))
    # Without a plugin both platforms ask one library and share one file.
    return dataclasses.replace(report, platform=platform)


def _cache_name(here: Packages, libraries: Sequence[Path]) -> str:
    """A file name that changes with the versions and with the libraries themselves."""
    stamp: list[Any] = [SCHEMA_VERSION, dataclasses.asdict(here)]
    for library in libraries:
        if not library.is_file():
            raise LaunchError(f"{library.name} must be part of the packages but is not at {library}")
        stamp.append((str(library), library.stat().st_size, library.stat().st_mtime_ns))
    digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]
    return f"probe-{here.versions['jaxlib']}-{digest}.json"


def _locate(python: str, timeout_s: float) -> Packages:
    """Where the packages of an interpreter lie.

    Raises:
        LaunchError: If it cannot be asked, or has no jaxlib.
    """

    def run(command: Sequence[str]) -> str:
        environment = quiet_environment(caller_environment())
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=True)
        return done.stdout

    folders = ("jaxlib", *_PLUGIN_FOLDERS.values())
    try:
        here = packages_of(python, ("jax", "jaxlib", *_PLUGIN_FOLDERS), folders=folders, run=run)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise LaunchError(f"{python} must be a working Python but could not be asked: {error}") from error
    if not {"jaxlib"} <= here.folders.keys() & here.versions.keys():
        raise LaunchError(f"jaxlib must be installed for {python} but is not; run: {python} -m pip install jax")
    return here


def _jax_option(data: Mapping[str, Any]) -> JaxOption:
    default = data["default"]
    if data["type"] == "bool" and default is not None:
        default = default.lower()
    return JaxOption(type=data["type"], values=tuple(data["values"]), default=default)


def _ask_flags(parser: ParserProcess, libraries: list[Path]) -> tuple[dict[str, FlagInfo], frozenset[str]]:
    """All flags of the build, each asked for its name, spelling and effect."""
    fields, removed = read_debug_options(libraries[0])
    base = parser.ask("")
    if not base.starts:
        raise LaunchError(f"jaxlib must start without any flag but said: {base.log.strip()}")
    # Enums and maps need a word each; all else is sorted out together, by a value that its type takes.
    plain = {f.name: f"--{f.name}={_SOME_VALUE[f.type]}" for f in fields if f.type in _SOME_VALUE}
    missing, refused = parser.sort_out(plain)
    for field in fields:
        if field.name not in plain and field.name in parser.ask(f"--{field.name}=?").unknown:
            missing.add(field.name)
    flags = {f.name: _from_field(f, base, parser, known=f.name not in missing) for f in fields}
    for name in refused:  # a text that must not be empty, such as a duration
        flags[name] = dataclasses.replace(flags[name], allows_empty=False)
    aliases = sorted(set(library_strings(libraries[0], b"xla_[a-z0-9_]+")) - set(flags))
    unknown, bad = parser.sort_out({n: f"--{n}=1" for n in aliases})
    for name in set(aliases) - unknown:
        flags[name] = FlagInfo(name=name, type=_alias_type(name, name in bad, parser), in_compiler_options=False)
    if len(libraries) > 1:  # a flag that the plugin does not hold does nothing there
        held = {f.name for f in read_debug_options(libraries[1])[0]}
        flags = {n: i for n, i in flags.items() if n in held or not i.in_compiler_options}
    effects = _ask_effects(flags, base, parser)
    return {n: _with_effect(i, effects.get(n, ()), flags) for n, i in sorted(flags.items())}, removed


def _with_effect(info: FlagInfo, sets: tuple[str, ...], flags: Mapping[str, FlagInfo]) -> FlagInfo:
    """Adds the effect; an alias of unclear number type takes that of the option it sets."""
    target = flags.get(sets[0]) if len(sets) == 1 else None
    kind = info.type
    if target is not None and kind == "int64" and target.name != info.name:
        kind = "string" if target.type == "message" else target.type
    return dataclasses.replace(info, sets=sets, type=kind)


def _alias_type(name: str, refuses_one: bool, parser: ParserProcess) -> str:
    if refuses_one:
        return "string"
    if parser.ask(f"--{name}").starts:  # only booleans may stand without a value
        return "bool"
    return "string" if parser.ask(f"--{name}=x").starts else "int64"


def _from_field(field: FlagInfo, base: Answer, parser: ParserProcess, *, known: bool) -> FlagInfo:
    default = base.options.get(field.name, "" if field.repeated else None)
    info = dataclasses.replace(
        field,
        default=default,
        values=(),
        in_xla_flags=known,
        in_compiler_options=field.type != "message",  # a map has no spelling there (seen on 0.10.2 to 0.12.0.1)
    )
    if not known or field.type in _SOME_VALUE:
        return dataclasses.replace(info, allows_empty=field.type == "string")
    info = dataclasses.replace(info, allows_empty=parser.ask(f"--{field.name}=").starts)
    # An enum defined in another file shows its names only in the default list.
    is_list = field.repeated and field.type == "enum" and default
    names = field.values or (tuple(default.split(",")) if is_list and default else ())
    return _with_spelling(info, names, parser) if names else info


def _with_spelling(info: FlagInfo, names: tuple[str, ...], parser: ParserProcess) -> FlagInfo:
    """Finds how XLA_FLAGS spells the values of an enum: some flags want the full name, some a short one."""
    legal = [n for n in names if not n.endswith("INVALID")]
    prefix = _common_prefix(legal)
    short = [n.removeprefix(prefix) for n in legal]
    styles = [legal] if not prefix else []
    styles += [[s.lower() for s in short], short, legal, [s.lower().removesuffix("_memory") for s in short]]
    taken = [style for style in styles if _takes(parser, info.name, style[-1:])]
    if not taken:
        return info
    best = taken[0]
    refused = set() if _takes(parser, info.name, best) else {s for s in best if not _takes(parser, info.name, [s])}
    any_case = _takes(parser, info.name, [best[-1].swapcase()])
    meaning = {
        (spelled.lower() if any_case else spelled): value
        for style in taken
        for spelled, value in zip(style, best, strict=True)
        if value not in refused
    }
    by_name = dict(zip(legal, best, strict=True))
    return dataclasses.replace(
        info,
        values=tuple(v for v in best if v not in refused),
        spellings=meaning,
        default=info.default and ",".join(by_name.get(d, d) for d in info.default.split(",")),
        any_case=any_case,
        edits=info.repeated and _takes(parser, info.name, ["+" + best[-1]]),
    )


def _common_prefix(names: Sequence[str]) -> str:
    words = zip(*(n.split("_")[:-1] for n in names), strict=False)
    shared = itertools.takewhile(lambda group: len(set(group)) == 1, words)
    return "".join(f"{group[0]}_" for group in shared)


def _takes(parser: ParserProcess, name: str, values: Sequence[str]) -> bool:
    return parser.ask(" ".join(f"--{name}={v}" for v in values)).starts


def _other_values(info: FlagInfo) -> list[str]:
    """Legal values of which at least one is not the present one."""
    if info.values:
        return [v for v in info.values if v != info.default] or list(info.values)
    if info.type == "bool":
        return {"true": ["false"], "false": ["true"]}.get(info.default or "", ["true", "false"])
    if info.type == "float" or info.type.startswith("int"):
        return ["2" if info.default == "1" else "1"]
    return ["autotune=1" if info.type == "message" else "autotune"]


def _ask_effects(flags: Mapping[str, FlagInfo], base: Answer, parser: ParserProcess) -> dict[str, tuple[str, ...]]:
    """Which options each flag of the parser changes."""
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
            changed |= {k for k in {*alone, *base.options} if alone and alone.get(k) != base.options.get(k)}
        effects[name] = tuple(sorted(changed))
    return effects
