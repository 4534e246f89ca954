"""Asks releases of jaxlib which flags they have, and holds `since` and `removed` of the catalogue to that.

For maintainers, when a new jaxlib is out. Each release lies in an environment of its own, outside of this repository::

    python -m venv --without-pip /tmp/builds/0.13.0
    python -m pip --python /tmp/builds/0.13.0/bin/python install --no-deps jaxlib==0.13.0 numpy ml_dtypes
    python docs/ask_builds.py ask /tmp/builds/*/bin/python    # adds to tests/settings/flags_by_build.json
    python docs/ask_builds.py write                           # since and removed of autotune/data/flags/*.toml
    python docs/ask_builds.py lines CLONE COMMIT              # source_line, from a clone of openxla/xla

A flag is there if the library's XLA_FLAGS parser takes it or its DebugOptions hold it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from autotune.machine.host import packages_of
from autotune.settings.probe import ParserProcess, library_strings, read_debug_options

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "settings" / "flags_by_build.json"
FLAGS = ROOT / "autotune" / "data" / "flags"
_LIBRARIES = ("libjax_common.so", "xla_extension.so")  # the second up to jaxlib 0.5
_DEFINED = "xla/debug_options_flags.cc"
_FIELDS = "xla/xla.proto"
_FOLLOWS = ("stage", "scopes", "type")  # keys of an entry after which a new key is written


def ask_build(python: str) -> tuple[str, set[str]]:
    """Release of the jaxlib that an interpreter has, and the flags of that build.

    Raises:
        SystemExit: If the interpreter has no jaxlib whose library is known.
    """

    def run(command: Iterable[str]) -> str:
        return subprocess.run(list(command), capture_output=True, text=True, check=True).stdout

    here = packages_of(python, ("jaxlib",), folders=("jaxlib",), run=run)
    found = [p for name in _LIBRARIES if (p := Path(here.folders["jaxlib"]) / name).is_file()]
    if not found:
        raise SystemExit(f"{python} must have a jaxlib with one of {', '.join(_LIBRARIES)} but has none")
    fields = {f.name for f in read_debug_options(found[0])[0]}
    words = library_strings(found[0], b"xla_[a-z0-9_]+") - fields
    with ParserProcess(python, timeout_s=300) as parser:
        # One by one: old parsers tell of no unknown flag beside a refused value. What is refused is known.
        aliases = {name for name in sorted(words) if name not in parser.ask(f"--{name}=1").unknown}
    return here.versions["jaxlib"], fields | aliases


def read_table(path: Path = TABLE) -> dict[str, set[str]]:
    """Flags of every release that was asked, oldest first."""
    builds: dict[str, set[str]] = {}
    names: set[str] = set()
    for version, change in json.loads(path.read_text("utf-8")).items():
        names = (names - {*change["gone"]}) | {*change["new"]}
        builds[version] = names
    return builds


def write_table(builds: Mapping[str, set[str]], path: Path = TABLE) -> None:
    """Keeps of each release only what is new and what is gone since the one before."""
    before: set[str] = set()
    changes = {}
    for version in sorted(builds, key=lambda v: [int(p) for p in v.split(".")]):
        now = builds[version]
        changes[version] = {"new": sorted(now - before), "gone": sorted(before - now)}
        before = now
    path.write_text(json.dumps(changes, indent=0) + "\n", "utf-8")


def life(name: str, builds: Mapping[str, set[str]]) -> tuple[str, str]:
    """`since` and `removed` of a flag; what no release has was removed before the oldest of them.

    A flag that went and came back counts from its return.
    """
    versions = list(builds)
    there = [v for v in versions if name in builds[v]]
    if not there:
        return "", versions[0]
    last = versions.index(there[-1])
    first = last
    while first > 0 and name in builds[versions[first - 1]]:
        first -= 1
    return versions[first] if first else "", "" if last == len(versions) - 1 else versions[last + 1]


def set_key(text: str, name: str, key: str, value: str) -> str:
    """One key of an entry of a TOML text, written, replaced, or left out if the value is empty."""
    entry = re.compile(rf"^\[{re.escape(name)}\]\n(?:.+\n)*", re.MULTILINE)

    def change(found: re.Match[str]) -> str:
        lines = [line for line in found.group().splitlines() if not line.startswith(f"{key} = ")]
        if value:
            after = next(i for k in _FOLLOWS for i, line in enumerate(lines) if line.startswith(f"{k} = "))
            lines.insert(after + 1, f"{key} = {json.dumps(value)}")
        return "\n".join(lines) + "\n"

    return entry.sub(change, text)


def write_lives(builds: Mapping[str, set[str]]) -> None:
    """Corrects `since` and `removed` of every XLA flag of the catalogue."""
    for path, name in _entries():
        if name.startswith("xla_"):
            text = path.read_text("utf-8")
            since, removed = life(name, builds)
            path.write_text(set_key(set_key(text, name, "removed", removed), name, "since", since), "utf-8")


def write_lines(clone: str, commit: str) -> None:
    """Writes where the source defines each flag: the file, and the line at `commit`.

    Of a flag that this commit no longer has, the last commit that had it is named too. A line of another file, written
    by hand because the definition says too little, stays. A flag newer than the source gets none.
    """
    git = ["git", f"--git-dir={clone}"]
    now = {_DEFINED: _show(git, commit, _DEFINED), _FIELDS: _show(git, commit, _FIELDS)}
    for path, name in _entries():
        text = path.read_text("utf-8")
        kept = tomllib.loads(text)[name].get("source_line", "")
        if not name.startswith("xla_") or (kept and not kept.startswith((_DEFINED, _FIELDS))):
            continue
        line = next((f"{f}:{n}" for f, source in now.items() if (n := defining_line(source, name))), "")
        path.write_text(set_key(text, name, "source_line", line or _last_line(git, commit, name)), "utf-8")


def defining_line(source: str, name: str) -> int:
    """Line that defines a flag or a field, from 1; 0 if there is none. A reserved name defines nothing."""
    named = re.compile(rf'^(?!\s*reserved ).*"{name}"|^\s*[\w<>., ]+ {name} = \d+')
    return next((n for n, line in enumerate(source.splitlines(), 1) if named.search(line)), 0)


def _last_line(git: list[str], commit: str, name: str) -> str:
    command = [*git, "log", "-1", "--format=%P", f'-S"{name}"', commit, "--", _DEFINED]
    before = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    line = before and defining_line(_show(git, before, _DEFINED), name)
    return f"{_DEFINED}:{line}@{before[:12]}" if line else ""


def _show(git: list[str], commit: str, file: str) -> str:
    return subprocess.run([*git, "show", f"{commit}:{file}"], capture_output=True, text=True, check=True).stdout


def _entries() -> Iterator[tuple[Path, str]]:
    for path in sorted(FLAGS.glob("*.toml")):
        for name in tomllib.loads(path.read_text("utf-8")):
            yield path, name


def main() -> None:
    """One of the commands above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["ask", "write", "lines"])
    parser.add_argument("argument", nargs="*", help="interpreters, or clone and commit")
    given = parser.parse_args()
    if given.command == "ask":
        builds = read_table() if TABLE.is_file() else {}
        for python in given.argument:
            version, names = ask_build(python)
            builds[version] = names
            print(f"jaxlib {version}: {len(names)} flags", flush=True)
        write_table(builds)
    elif given.command == "write":
        write_lives(read_table())
    else:
        write_lines(*given.argument)


if __name__ == "__main__":
    main()
