"""What a library of earlier winners teaches a search: sets to try first, and settings that are likelier to act.

A winner of another GPU, model or release is a hint, never a fact: its set is a trial like any other, and what it says
of settings is washed out by what is measured. So a library that is wrong costs some trials, never a verdict.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.machine import processor_name
from autotune.model import AutotuneError, FlagSet, StudyFileError, StudySpec, artefacts_of, kind_of
from autotune.results import Entry, LibraryQuery, Match, library_entries, nearest_known
from autotune.settings import KnownSettings, for_build
from autotune.study.priors import MOST, Prior

MOST_TRIED = 3
"""Winners of a library that are tried before the sampler proposes: the nearest ones that are distinct here."""

PROVEN, HALVES_AT = 3.0, 4.0
"""How much likelier a winner makes its settings, beside what is thought anyway; at what distance half of that is left:
that of another workload (`autotune.results.library`)."""


def entries_for(spec: StudySpec, study_dir: Path) -> tuple[Entry, ...]:
    """The winners of the library that a study names; none where it names none.

    Args:
        spec: The study.
        study_dir: Folder of its file, from which the library's is named.

    Raises:
        StudyFileError: If there is no such folder, or a file in it is no winner.
    """
    if spec.search.learn_from is None:
        return ()
    folder = study_dir / spec.search.learn_from
    if not folder.is_dir():
        raise StudyFileError(
            f"search.learn_from must be the folder of a library of winners but {folder} is none; fill one "
            "(`autotune library add runs/NAME --library FOLDER`), or leave the key out"
        )
    try:
        found = library_entries(folder)
    except AutotuneError as error:
        raise StudyFileError(f"search.learn_from must hold winners only but {error}") from error
    return tuple(e for e in found if e.winner.conditions.platform == spec.device.platform)


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a library teaches a study.

    Attributes:
        winners: Those proven for what is most like the study first.
        first: The sets of the nearest, as far as the build acts on them, with their names.
    """

    winners: tuple[Match, ...] = ()
    first: tuple[tuple[str, FlagSet], ...] = ()


NO_LESSONS = Lessons()


def lessons_of(
    entries: Sequence[Entry],
    spec: StudySpec,
    known: KnownSettings,
    *,
    device_kind: str | None,
    device_count: int | None,
    note: Callable[[str], None] = lambda text: None,
) -> Lessons:
    """What the winners of a library teach a study.

    Args:
        entries: The library.
        spec: The study.
        known: What is known of settings on its build.
        device_kind: Its device, as JAX names it; None if nobody knows.
        device_count: Devices of all its nodes; None likewise.
        note: Told what is left out of sets.
    """
    if not entries:
        return NO_LESSONS
    workload = spec.workload.entry or spec.workload_hash
    name = processor_name() if device_kind == "cpu" else device_kind  # as winners are kept
    query = LibraryQuery(gpu=name, count=device_count, jaxlib=known.build.jaxlib or None, workload=workload)
    winners = tuple(nearest_known(entries, query))
    return Lessons(winners, tuple(_sets_to_try(winners, spec, known, note)))


def _sets_to_try(
    found: Sequence[Match], spec: StudySpec, known: KnownSettings, note: Callable[[str], None]
) -> list[tuple[str, FlagSet]]:
    """The nearest winners' sets, as far as the build acts on them, with their names."""
    tried: dict[FlagSet, str] = {}
    for match in found:
        name = f"library {match.entry.path.parent.parent.name}/{match.entry.path.parent.name}"
        settings = for_build(_own(match), known, over=spec.baseline, note=functools.partial(_tell, note, name))
        if settings and settings not in tried:
            tried[settings] = name
        if len(tried) == MOST_TRIED:
            break
    return [(name, settings) for settings, name in tried.items()]


def _tell(note: Callable[[str], None], name: str, text: str) -> None:
    note(f"{name}: {text}")


def by_library(priors: Mapping[str, Prior], winners: Sequence[Match]) -> dict[str, Prior]:
    """Priors with what winners of a library say; how many settings are thought to act in all stays.

    Args:
        priors: Parameter to what is thought of it.
        winners: Nearest first: of each setting the nearest one that holds it counts.
    """
    told: dict[str, tuple[float, str]] = {}
    for match in winners:
        factor = 1.0 + PROVEN / (1.0 + match.cost / HALVES_AT)
        where = "for just this" if match.is_tested else f"on {match.entry.count} x {match.entry.gpu}"
        for name in _own(match):
            told.setdefault(name, (factor, f"a winner that is proven {where} holds it"))
    raised = {
        name: replace(p, act=p.act * told[name][0], why=(*p.why, told[name][1])) if name in told else p
        for name, p in priors.items()
    }
    scale = sum(p.act for p in priors.values()) / (sum(p.act for p in raised.values()) or 1.0)
    return {name: replace(p, act=min(MOST, p.act * scale)) for name, p in raised.items()}


def _own(match: Match) -> FlagSet:
    """What of a winner's set is more than its baseline, and means something in another study."""
    winner = match.entry.winner
    artefacts = artefacts_of(winner.settings)
    return FlagSet(
        {
            n: v
            for n, v in winner.settings.items()
            if winner.baseline.get(n) != v and n not in artefacts and kind_of(n) != "option"
        }
    )
