"""Asks releases of NCCL which variables they read, and writes what the catalogue is held to.

For maintainers, when a new NCCL is out, with a clone of github.com/NVIDIA/nccl and its tags::

    python docs/ask_nccl.py CLONE    # writes tests/settings/nccl_parameters.json, tells the commit for sources.toml

Of each variable: the first and the last release that reads it, where the newest of these releases does so, and the
default there (the source's own text where it is no plain number).
"""

from __future__ import annotations

import argparse
import ast
import json
import operator
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).resolve().parent.parent / "tests" / "settings" / "nccl_parameters.json"
_READ = (
    re.compile(r'\bNCCL_PARAM\(\w+,\s*"(?P<bare>[A-Z0-9_]+)",\s*(?P<default>.*)\);?$'),
    re.compile(r"\bDEFINE_NCCL_PARAM\(\w+,\s*[\w *]+,\s*(?P<name>NCCL_[A-Z0-9_]+),\s*(?P<default>[^,\\]*)"),
    re.compile(r'\b(?:getenv|ncclGetEnv\w*)\("(?P<name>NCCL_[A-Z0-9_]+)"\)'),
    re.compile(r'\bncclGetLevel\(.*"(?P<name>NCCL_[A-Z0-9_]+)"\)'),
    re.compile(r'\bncclGetLevel\(&\w+,\s*"(?P<name>NCCL_[A-Z0-9_]+)"'),
)
_COMMENT = re.compile(r"/\*.*?\*/|//.*")
_OPERATORS = {ast.LShift: operator.lshift, ast.Mult: operator.mul}


class Parameter(NamedTuple):
    """What the source says of one variable: releases such as ``2.28.3``, and ``FILE:LINE`` of the last."""

    first: str
    last: str
    line: str
    default: str


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone")
    git = ["git", f"--git-dir={parser.parse_args().clone}"]
    tags = sorted(re.findall(r"^v2[\d.]+-\d+$", _run([*git, "tag"]), re.MULTILINE), key=_numbers)
    found: dict[str, Parameter] = {}
    for tag in tags:
        release = tag[1:].partition("-")[0]
        text = _run([*git, "grep", "-nE", "NCCL_|getenv", tag, "--", "src/*.cc", "src/*.h", "src/*.cu"])
        for name, line, default in parameters(text):
            first = found[name].first if name in found else release
            found[name] = Parameter(first, release, line, default)
    rows = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    print(f"{len(found)} variables in {len(tags)} releases; {tags[-1]}: {_run([*git, 'rev-parse', tags[-1] + '^{}'])}")


def parameters(text: str) -> list[tuple[str, str, str]]:
    """Name, ``FILE:LINE`` and default of each variable that lines of ``git grep -n`` read.

    Of several places the one with the default counts, else the last: earlier ones tell of errors.
    """
    found: dict[str, tuple[str, str]] = {}
    for row in text.splitlines():
        _, file, number, source = row.split(":", 3)
        bare = _COMMENT.sub("", source).rstrip()
        for match in filter(None, (pattern.search(bare) for pattern in _READ)):
            parts = match.groupdict()
            name = parts.get("name") or f"NCCL_{parts['bare']}"
            if not found.get(name, ("", ""))[1]:
                found[name] = (f"{file}:{number}", plain_value(parts.get("default") or ""))
    return [(name, *place) for name, place in found.items()]


def plain_value(text: str) -> str:
    """A default of the source, calculated if it consists of numbers: ``131072`` for ``(1 << 17)``."""
    bare = text.strip()
    try:
        return str(_calculated(ast.parse(re.sub(r"(?<=\d)U?LL\b", "", bare), mode="eval").body))
    except (SyntaxError, KeyError, ValueError):
        return bare


def _calculated(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        calculate = _OPERATORS[type(node.op)]  # type: ignore[index]
        return int(calculate(_calculated(node.left), _calculated(node.right)))
    return int(ast.literal_eval(node))


def _numbers(tag: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", tag)]


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
