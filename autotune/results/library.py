"""Library of winners: a plain folder by GPU, count, jaxlib and workload, made for git."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.model.errors import AutotuneError
from autotune.model.units import format_ratio
from autotune.results.export import read_winner, render_winner
from autotune.results.format import time_of
from autotune.results.winner import Winner
from autotune.rundir.files import write_atomically

_WORD = re.compile(r"[a-z0-9]+")


class Match(NamedTuple):
    """One winner of a library with its file, and its differences from a query."""

    path: Path
    winner: Winner
    distance: tuple[str, ...] = ()

    @property
    def is_tested(self) -> bool:
        """Whether the winner was proven under the conditions of the query."""
        return not self.distance


def count_of(winner: Winner) -> int:
    """Returns the devices of a winner's workload on all nodes."""
    return (winner.conditions.device_count or 1) * winner.node_count


def add_to_library(winner: Winner, folder: Path) -> Path:
    """Adds a winner to a library, replacing an older one of the same conditions; returns its file.

    Raises:
        AutotuneError: If the library holds a later proof, or the winner is not proven faster.
        RunDirectoryError: If it cannot be written.
    """
    if winner.estimate.high >= 1.0:
        raise AutotuneError(
            "a library keeps what is proven faster than the default but this set is not: "
            f"{winner.sentence}; keep the exported file itself"
        )
    c = winner.conditions
    name = f"{count_of(winner)}x-jaxlib-{_slug(str(c.jaxlib))}-{_slug(str(c.workload))}.json"
    path = folder / _slug(c.gpu) / _slug(winner.workload_entry) / name
    if path.exists():
        ended = read_winner(path).ended
        if ended > winner.ended:
            raise AutotuneError(
                f"a library keeps the newest proof but {path} is of {ended}, later than "
                f"{winner.ended}; remove it first if it is wrong"
            )
    write_atomically(path, render_winner(winner, "json"))
    return path


def library_entries(folder: Path, note: Callable[[str], None]) -> dict[Path, Winner]:
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
    """Returns the winner nearest to some conditions.

    A winner is nearer if it differs in less that matters: GPU most, then workload, count of
    devices, version; of equally near ones the one with the smallest ratio.

    Args:
        jaxlib: A version or a prefix: ``0.11`` matches ``0.11.1``.
        workload: Name or hash.

    Raises:
        AutotuneError: If the library is empty.
    """
    if not winners:
        raise AutotuneError(
            "a library must hold a winner but it is empty; fill it: autotune library add RUN"
        )
    matches = []
    for path, winner in winners.items():
        c = winner.conditions
        devices = count_of(winner)
        differs = {
            f"proven on {c.gpu}, not on {gpu}": gpu is not None and not _same_name(gpu, c.gpu),
            f"proven for {winner.workload_entry}, not for {workload}": workload
            not in (None, winner.workload_entry, c.workload),
            f"proven on {devices} devices, not on {count}": count not in (None, devices),
            f"proven with jaxlib {c.jaxlib}, not with {jaxlib}": jaxlib is not None
            and not f"{c.jaxlib}.".startswith(f"{jaxlib}."),
        }
        distance = tuple(difference for difference, is_so in differs.items() if is_so)
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


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unknown"
