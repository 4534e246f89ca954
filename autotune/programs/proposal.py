"""Proposes how the steps of a program are read that no known rule fits: by its output, or a file that it writes."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.child.output import LONGEST_LINE, lines_of
from autotune.child.recognise import FEWEST_LINES, Recognised, propose, recognise, shape_of

STUCK_S = 20.0
"""Seconds of lines of one shape, or of a file that grows, after which a look without a step ends."""

_STEP_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".log", ".txt")
_MOST_FILES, _DEEPEST, _READ_BYTES = 5_000, 3, 1 << 18
_OPTIONS = {
    "preset": "--step-preset", "pattern": "--step-pattern", "json_key": "--step-json", "unit": "--step-unit",
    "file": "--step-file", "loss": "--loss",
}  # fmt: skip


class Shapes:
    """The shapes of the lines of a running program, and how long each has come."""

    def __init__(self) -> None:
        self._seen = 0
        self._came: dict[str, list[float]] = {}

    def add(self, lines: Sequence[str], at_s: Sequence[float]) -> None:
        """Adds the lines after those of the last call, given all of them with their times in seconds."""
        for line, now_s in zip(lines[self._seen :], at_s[self._seen :], strict=True):
            self._came.setdefault(shape_of(line), []).append(now_s)
        self._seen = len(lines)

    def are_one(self) -> bool:
        """Whether lines of one shape have come for `STUCK_S`."""
        return any(len(came) >= FEWEST_LINES and came[-1] - came[0] >= STUCK_S for came in self._came.values())


def proposed(lines: Sequence[str], at_s: Sequence[float], files: Mapping[str, Sequence[str]]) -> Recognised | None:
    """Returns rules for the steps in files that a program writes, or else in its lines; None if none fit."""
    for path, written in files.items():
        if found := next((fit for fit in recognise(written) if not fit.needs_tokens), None):
            return replace(found, rules={**found.rules, "file": path})
    if found := propose(lines, at=at_s):
        return found
    other = ((path, propose(written)) for path, written in files.items())
    return next((replace(fit, rules={**fit.rules, "file": path}) for path, fit in other if fit is not None), None)


def options_of(rules: Mapping[str, Any]) -> str:
    """Returns the options of `autotune tune` that say how steps are read."""
    return " ".join(f"{option} {shlex.quote(str(rules[key]))}" for key, option in _OPTIONS.items() if key in rules)


def written_lines(folder: Path, since: float) -> dict[str, list[str]]:
    """Returns the last lines of files that changed after a time (seconds since 1970), the newest first.

    Rows of a table are JSON. The names are relative to the folder.
    """
    found = {}
    for path in _files_in(folder):
        with contextlib.suppress(OSError):
            if path.suffix in _STEP_FILES and (status := path.stat()).st_mtime >= since and status.st_size:
                found[path.relative_to(folder).as_posix()] = status.st_mtime
    return {path: _lines_in(folder / path) for path in sorted(found, key=lambda path: -found[path])}


def _files_in(folder: Path) -> Iterator[Path]:
    """Yields the files of a folder and those below it, within bounds; links and hidden folders are left out."""
    count = 0
    for here, folders, names in os.walk(folder):
        depth = len(Path(here).relative_to(folder).parts)
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and depth < _DEEPEST]
        for name in names:
            if (count := count + 1) > _MOST_FILES:
                return
            yield Path(here) / name


def _lines_in(path: Path) -> list[str]:
    """Returns the last lines of a file."""
    cutter = lines_of(path.name)
    try:
        with path.open("rb") as stream:
            head = stream.readline(LONGEST_LINE)
            if (size := path.stat().st_size) > _READ_BYTES:
                stream.seek(size - _READ_BYTES)
                stream.readline()
            return list(cutter.feed(head + stream.read(_READ_BYTES)))
    except (OSError, ValueError):
        return []
