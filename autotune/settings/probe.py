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
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from autotune.machine import caller_environment, default_cache_dir
from autotune.model import LaunchError
from autotune.settings.build import SCHEMA_VERSION, FlagInfo, JaxOption, ProbeReport
from autotune.settings.descriptor import library_strings, read_debug_options
from autotune.settings.parser import Answer, ParserProcess, quiet_environment

Platform = Literal["cpu", "cuda"]

_LOCATE = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def folder(name):
    try: spec = u.find_spec(name)
    except ModuleNotFoundError: return None
    return list(spec.submodule_search_locations or [])[0] if spec else None
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "jax": version("jax"),
  "jaxlib": version("jaxlib"), "folder": folder("jaxlib"),
  "plugins": [[c, version("jax-%s-plugin" % c),
  folder("jax_plugins.xla_" + c)] for c in ("cuda13", "cuda12")]}))
"""


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
    place = _locate(python, timeout_s)
    plugin = _find_plugin(place) if platform == "cuda" else None
    libraries = [Path(place["folder"]) / "libjax_common.so"]
    if plugin:
        libraries.append(Path(plugin[2]) / "xla_cuda_plugin.so")
    path = (cache_dir or default_cache_dir(caller_environment())) / _cache_name(place, libraries)
    try:
        report = ProbeReport.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):  # absent, or torn by a killed process: ask
        with ParserProcess(python, timeout_s=timeout_s) as parser:
            flags, removed = _ask_flags(parser, libraries)
            options = {n: _jax_option(d) for n, d in parser.jax_options().items()} if place["jax"] else {}
        report = ProbeReport(
            platform=platform,
            python=place["python"],
            jax=place["jax"],
            jaxlib=place["jaxlib"],
            plugin=f"jax-{plugin[0]}-plugin {plugin[1]}" if plugin else None,
            flags=flags,
            removed=removed,
            jax_options=options,
        )
        _write(path, json.dumps(report.to_json()))
    # Without a plugin both platforms ask one library and share one file.
    return dataclasses.replace(report, platform=platform)


def _find_plugin(place: Mapping[str, Any]) -> tuple[str, str, str] | None:
    return next(((name, version, d) for name, version, d in place["plugins"] if version and d), None)


def _cache_name(place: Mapping[str, Any], libraries: Sequence[Path]) -> str:
    """A file name that changes with the versions and with the libraries themselves."""
    stamp: list[Any] = [SCHEMA_VERSION, place]
    for library in libraries:
        if not library.is_file():
            raise LaunchError(f"{library.name} must be part of the packages but is not at {library}")
        stamp.append((str(library), library.stat().st_size, library.stat().st_mtime_ns))
    digest = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:16]
    return f"probe-{place['jaxlib']}-{digest}.json"


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError:  # a read-only home costs the next call some seconds, nothing else
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _locate(python: str, timeout_s: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [python, "-P", "-c", _LOCATE],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=quiet_environment(caller_environment()),
            check=True,
        )
        place: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise LaunchError(f"{python} must be a working Python but could not be asked: {error}") from error
    if not place["folder"] or not place["jaxlib"]:
        raise LaunchError(f"jaxlib must be installed for {python} but is not; run: {python} -m pip install jax")
    return place


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
