"""Asks new releases of jaxlib and NCCL, and writes `autotune/data/asked/*.json`.

For maintainers, one command when something new is out; nothing of what it writes is edited by
hand::

    # Install the release in a folder of its own, for this Python.
    python docs/ask_builds.py --jaxlib 0.13.0
    # Lines and help texts, from a clone of openxla/xla.
    python docs/ask_builds.py --xla CLONE COMMIT
    # All releases, from a clone of NVIDIA/nccl with its tags.
    python docs/ask_builds.py --nccl CLONE

A flag has a type, its default by release, the release that it came or went with, and the line that
defines it. A variable of NCCL has the first release that reads it, the first that no longer does,
where the newest of them does so, and the default there if it is a number. A help text is written of
flags that nobody described.
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from autotune.settings.catalog import DATA, load_catalog, older, read_asked, release_of
from autotune.settings.known import UNSET
from autotune.settings.probe import FlagInfo, probe_build

Settings = dict[str, dict[str, Any]]
"""Name of a flag or variable to keys of its `autotune.settings.catalog.Setting`."""

_MARK = "python docs/ask_builds.py: generated, never edited by hand"
_UNDESCRIBED = "that nobody described"  # of `names.toml`
_DEFINED = "xla/debug_options_flags.cc"
_FIELDS = "xla/xla.proto"
_READ = (
    re.compile(r'\bNCCL_PARAM\(\w+,\s*"(?P<bare>[A-Z0-9_]+)",\s*(?P<default>.*)\);?$'),
    re.compile(
        r"\bDEFINE_NCCL_PARAM\(\w+,\s*[\w *]+,\s*(?P<name>NCCL_[A-Z0-9_]+),\s*(?P<default>[^,\\]*)"
    ),
    re.compile(r'\b(?:getenv|ncclGetEnv\w*)\("(?P<name>NCCL_[A-Z0-9_]+)"\)'),
    re.compile(r'\bncclGetLevel\(.*"(?P<name>NCCL_[A-Z0-9_]+)"\)'),
    re.compile(r'\bncclGetLevel\(&\w+,\s*"(?P<name>NCCL_[A-Z0-9_]+)"'),
)
_COMMENT = re.compile(r"/\*.*?\*/|//.*")
_OPERATORS = {ast.LShift: operator.lshift, ast.Mult: operator.mul}


def main() -> None:
    """One or several of the commands above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jaxlib", metavar="RELEASE")
    parser.add_argument("--xla", nargs=2, metavar=("CLONE", "COMMIT"))
    parser.add_argument("--nccl", metavar="CLONE")
    given = parser.parse_args()
    if given.jaxlib:
        ask_jaxlib(given.jaxlib)
    if given.xla:
        ask_xla(*given.xla)
    if given.nccl:
        ask_nccl(given.nccl)


def ask_jaxlib(release: str) -> None:
    """Installs a release of jaxlib and adds what it has to `asked/xla.json`."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        _run([sys.executable, "-m", "venv", "--without-pip", folder])
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
        _run([*pip, f"jaxlib=={release}", "numpy", "ml_dtypes"])
        flags = probe_build(python).flags
    asked = read_asked("xla")
    if older(release, asked["releases"][-1]):
        raise SystemExit(
            f"--jaxlib must not be older than {asked['releases'][-1]}, the last that was asked"
        )
    asked["releases"] = list(dict.fromkeys([*asked["releases"], release]))
    add_release(asked["settings"], release, flags)
    _write("xla", asked)
    print(f"jaxlib {release}: {len(flags)} flags")


def add_release(settings: Settings, release: str, flags: Mapping[str, FlagInfo]) -> None:
    """Adds what a newer release has. A flag that went and came back counts from its return.

    A new one counts as read at run time, so that it is measured, until its written entry says
    otherwise.
    """
    for name, flag in flags.items():
        entry = settings.setdefault(name, {"since": release, "stage": "runtime"})
        if entry.pop("removed", ""):
            entry["since"] = release
        entry["type"] = flag.type
        if flag.repeated:
            entry["repeated"] = True
        default = UNSET if flag.default is None else flag.default
        defaults = entry.get("default", default)
        if isinstance(defaults, str):
            defaults = {"": defaults}
        if defaults[max(defaults, key=release_of)] != default:
            defaults = {**defaults, release: default}
        entry["default"] = defaults if len(defaults) > 1 else default
    for name, entry in settings.items():
        if name not in flags:
            entry.setdefault("removed", release)


def ask_xla(clone: str, commit: str) -> None:
    """Writes the source line of each flag at a commit, and help texts of undescribed flags.

    The line of a flag that this commit no longer has stays, with the commit that had it.
    """
    sources = {
        file: _run(["git", f"--git-dir={clone}", "show", f"{commit}:{file}"])
        for file in (_DEFINED, _FIELDS)
    }
    asked, catalog = read_asked("xla"), load_catalog()
    for name, entry in asked["settings"].items():
        lines = [
            f"{file}:{number}"
            for file, source in sources.items()
            if (number := defining_line(source, name))
        ]
        line = entry.get("source_line", "")
        if lines:
            entry["source_line"] = lines[0]
        elif line and "@" not in line:
            entry["source_line"] = f"{line}@{asked['commit'][:12]}"
        is_described = name not in catalog or _UNDESCRIBED not in catalog[name].summary
        if not is_described and (text := help_text(sources[_DEFINED], name)):
            entry["summary"] = text
    _write("xla", {**asked, "commit": commit})


def defining_line(source: str, name: str) -> int:
    """Number of the line that defines a flag or a field, 0 if none does; reserved names do not."""
    definition = re.compile(rf'^(?!\s*reserved ).*"{name}"|^\s*[\w<>., ]+ {name} = \d+')
    return next((n for n, line in enumerate(source.splitlines(), 1) if definition.search(line)), 0)


def help_text(source: str, name: str) -> str:
    """Help text of a flag: the string literals that end its definition; empty if there are none."""
    definition = re.search(rf'Flag\(\s*"{name}",(.*?)(?:Flag\(|\Z)', source, re.DOTALL)
    literals = re.search(r'((?:"(?:[^"\\]|\\.)*"\s*)+)\)\);', definition[1]) if definition else None
    return " ".join(ast.literal_eval(f"({literals[1]})").split()) if literals else ""


def ask_nccl(clone: str) -> None:
    """Writes `asked/nccl-source.json` anew, from all tags of a clone."""
    git = ["git", f"--git-dir={clone}"]
    tags = sorted(
        re.findall(r"^v2[\d.]+-\d+$", _run([*git, "tag"]), re.MULTILINE),
        key=lambda t: release_of(t[1:]),
    )
    releases = [tag[1:].partition("-")[0] for tag in tags]
    settings: Settings = {}
    for tag, release in zip(tags, releases, strict=True):
        came = f"NCCL {release} or older" if release == releases[0] else f"NCCL {release}"
        text = _run(
            [*git, "grep", "-nE", "NCCL_|getenv", tag, "--", "src/*.cc", "src/*.h", "src/*.cu"]
        )
        present = read_variables(text)
        for name, keys in present.items():
            settings[name] = {"since": settings.get(name, {}).get("since", came), **keys}
        for name, entry in settings.items():
            if name not in present:
                entry.setdefault("removed", f"NCCL {release}")
    commit = _run([*git, "rev-parse", f"{tags[-1]}^{{}}"]).strip()
    _write(
        "nccl-source",
        {"releases": [releases[0], releases[-1]], "commit": commit, "settings": settings},
    )
    print(f"NCCL {releases[-1]}: {len(present)} variables, {len(settings)} in {len(tags)} releases")


def read_variables(text: str) -> Settings:
    """Type, line and default of each variable that lines of ``git grep -n`` read.

    Of several places the one with the default counts, else the last: earlier ones tell of errors.
    """
    places: dict[str, tuple[str, str, str]] = {}
    for row in text.splitlines():
        _, file, number, source = row.split(":", 3)
        bare = _COMMENT.sub("", source).rstrip()
        for match in filter(None, (pattern.search(bare) for pattern in _READ)):
            parts = match.groupdict()
            name = parts.get("name") or f"NCCL_{parts['bare']}"
            if not places.get(name, ("", "", ""))[2]:
                kind = "int" if parts.get("bare") else "string"
                places[name] = (kind, f"{file}:{number}", parts.get("default") or "")
    return {
        n: {"type": kind, **plain_default(text), "source_line": line}
        for n, (kind, line, text) in places.items()
    }


def plain_default(text: str) -> dict[str, str]:
    """A source's default, calculated: ``131072`` for ``(1 << 17)``; "" for none or a mark (-2)."""
    try:
        number = _calculated(
            ast.parse(re.sub(r"(?<=\d)U?LL\b", "", text.strip()), mode="eval").body
        )
    except (SyntaxError, KeyError, ValueError):
        return {}
    return {"default": str(number)} if number >= 0 else {}


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        calculate = _OPERATORS[type(node.op)]  # type: ignore[index]
        return int(calculate(_calculated(node.left), _calculated(node.right)))
    return int(ast.literal_eval(node))


def _write(source: str, asked: Mapping[str, Any]) -> None:
    """Writes the answers, one line for each setting."""
    settings = ",\n".join(
        f"{json.dumps(n)}: {json.dumps(asked['settings'][n])}" for n in sorted(asked["settings"])
    )
    head = "".join(
        f"{json.dumps(key)}: {json.dumps(asked[key])},\n" for key in ("releases", "commit")
    )
    text = f'{{\n"written_by": {json.dumps(_MARK)},\n{head}"settings": {{\n{settings}\n}}}}\n'
    (DATA / "asked" / f"{source}.json").write_text(text, "utf-8")  # type: ignore[attr-defined]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command[:4])} ... must succeed but said: {done.stderr.strip()[-500:]}"
        )
    return done.stdout


if __name__ == "__main__":
    main()
