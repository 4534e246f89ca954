"""Library of winners: a plain folder by GPU, count, jaxlib and workload, made for git."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.model.errors import AutotuneError
from autotune.model.texts import Note
from autotune.model.units import format_ratio
from autotune.results.export import read_winner, render_winner
from autotune.results.format import time_of
from autotune.results.winner import Winner
from autotune.rundir.files import write_atomically

_WORD = re.compile(r"[a-z0-9]+")


class Match(NamedTuple):
    """One winner of a library with its differences from a query."""

    path: Path
    winner: Winner
    distance: tuple[str, ...]

    @property
    def is_tested(self) -> bool:
        """Whether the winner was proven under the conditions of the query."""
        return not self.distance


def count_of(winner: Winner) -> int:
    """Returns the devices of a winner's workload on all nodes."""
    return (winner.conditions.device_count or 1) * winner.node_count


def add_to_library(winner: Winner, folder: Path) -> Path:
    """Adds a winner, unless there is a later proof; returns its file."""
    c = winner.conditions
    name = f"{count_of(winner)}x-jaxlib-{_slug(c.jaxlib)}-{_slug(c.workload)}.json"
    path = folder / _slug(c.gpu) / _slug(winner.workload_entry) / name
    ended = read_winner(path).ended if path.exists() else ""
    if ended > winner.ended:
        raise AutotuneError(
            f"a library keeps the newest proof but {path} is of {ended}, later than "
            f"{winner.ended}; remove it first if it is wrong"
        )
    write_atomically(path, render_winner(winner, "json"))
    return path


def library_entries(folder: Path, note: Note) -> dict[Path, Winner]:
    """Reads all winners of a library by path, sorted; `note` is told of files that hold none."""
    winners = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            winners[path] = read_winner(path)
        except AutotuneError as error:
            note(f"left out of the library: {error}")
    return winners


def best_known(
    winners: Mapping[Path, Winner],
    *,
    gpu: str | None = None,
    count: int | None = None,
    jaxlib: str | None = None,
    workload: str | None = None,
) -> Match:
    """Returns the winner nearest to some conditions; AutotuneError if the library is empty.

    GPU matters most, then workload (name or hash), count of devices, and jaxlib (a version or its
    beginning); of equally near ones it is the one with the smallest ratio.
    """
    if not winners:
        raise AutotuneError(
            "a library must hold a winner but it is empty; fill it: autotune library add RUN"
        )
    matches = []
    for path, winner in winners.items():
        c = winner.conditions
        entry = winner.workload_entry
        devices = count_of(winner)
        is_other_gpu = gpu is not None and not _same_name(gpu, c.gpu)
        is_other_workload = workload not in (None, entry, c.workload)
        version = f"{c.jaxlib}."
        is_other_version = jaxlib is not None and not version.startswith(f"{jaxlib}.")
        differs = {
            f"on {c.gpu}, not on {gpu}": is_other_gpu,
            f"for {entry}, not for {workload}": is_other_workload,
            f"on {devices} devices, not on {count}": count not in (None, devices),
            f"with jaxlib {c.jaxlib}, not with {jaxlib}": is_other_version,
        }
        distance = tuple(f"proven {where}" for where, is_so in differs.items() if is_so)
        size = abs(math.log2((count or devices) / devices))
        key = (*differs.values(), size, winner.estimate.ratio)
        matches.append((key, Match(path, winner, distance)))
    _, nearest = min(matches, key=operator.itemgetter(0))
    return nearest


def format_match(match: Match) -> list[str]:
    """Formats a match as lines."""
    winner = match.winner
    head = "proven for just this" if match.is_tested else "nearest match, untested here"
    ratio = f"{time_of(winner.work)} ratio {format_ratio(winner.estimate.ratio)}"
    where = f"{count_of(winner)} x {winner.conditions.gpu}"
    lines = [f"{head}: {winner.settings}", f"{ratio} on {where}"]
    if winner.at_scale:
        lines.append(winner.at_scale)
    return [*lines, *match.distance, f"file: {match.path}"]


def _same_name(query: str, device: str) -> bool:
    """Returns whether a query matches a device: H200 is an NVIDIA H200, A100-40GB no A100-80GB."""
    names = set(_WORD.findall(query.lower()))
    return bool(names) and names.issubset(_WORD.findall(device.lower()))


def _slug(text: object) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", str(text).lower()).strip("-.") or "unknown"
