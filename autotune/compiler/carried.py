"""A screen that is carried from one machine to another: made where time costs little, used where a GPU waits.

It lies in a folder, the programs that it compiled beside it. It is believed where it was made of the same: workload and
its source, GPU and topology, versions, baseline, at least the settings that are searched, and, compiled once more here,
the reference's program. What differs is told, and then nothing of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from autotune.compiler.job import CompileJob
from autotune.compiler.reports import ScreenReport
from autotune.compiler.verdicts import Screener
from autotune.machine import replace_file
from autotune.model import Record, RunDirectoryError, Settings

SCHEMA_VERSION = 1
PREFIX = "screen-"

WORDS = {"entry": "workload", "options": "its options", "source": "its source", "target": "GPU", "topology": "topology"}


class CarriedScreen(Record):
    """A screen with all that it was made of.

    Attributes:
        known: What was compiled, by name; see `CompileJob.known`.
        job: Digest of that: the name of the folder with its programs.
        baseline: The reference's settings.
        domains: Settings that were screened, with their values.
        report: What came out.
    """

    schema_version: int = SCHEMA_VERSION
    known: dict[str, Any]
    job: str
    baseline: Settings
    domains: dict[str, list[str]]
    report: ScreenReport


class Carried(NamedTuple):
    """What a folder has for a study.

    Attributes:
        screen: One that was made of the same; None if there is none.
        path: Its file.
        differences: What is different of the nearest, in words, where there is one and it is not the same.
    """

    screen: CarriedScreen | None = None
    path: Path | None = None
    differences: tuple[str, ...] = ()


def keep_screen(folder: Path, screener: Screener, domains: Mapping[str, Sequence[str]], report: ScreenReport) -> Path:
    """Writes a screen to be carried; gives its file.

    Raises:
        RunDirectoryError: If the folder cannot be written.
    """
    job: CompileJob = screener.job
    carried = CarriedScreen(
        known=_plain(job.known), job=job.digest, baseline=screener.baseline,
        domains={n: list(v) for n, v in domains.items()}, report=report,
    )  # fmt: skip
    path = folder / f"{PREFIX}{job.digest}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, carried.model_dump_json(indent=1))
    except OSError as error:
        raise RunDirectoryError(f"the folder of a screen must be writable but {path}: {error.strerror}") from error
    return path


def find_screen(folder: Path, screener: Screener, domains: Mapping[str, Sequence[str]]) -> Carried:
    """A screen of a folder that holds for what is screened here; compiles the reference where all else is the same.

    Args:
        folder: With screens; one that is not there has none.
        screener: Of the study, nothing compiled yet.
        domains: Settings that are searched, with their values.

    Raises:
        LaunchError: If the reference does not compile here.
    """
    nearest: Carried | None = None
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        try:
            screen = CarriedScreen.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            found = Carried(None, path, ("it cannot be read, or is of another version of autotune",))
        else:
            found = Carried(screen, path, tuple(_differences(screen, screener, domains)))
        if not found.differences:
            return found
        if nearest is None or len(found.differences) < len(nearest.differences):
            nearest = found
    return nearest._replace(screen=None) if nearest is not None else Carried()


def _differences(screen: CarriedScreen, screener: Screener, domains: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a screen was made of that is other here, in words."""
    told = False
    for said in _differences_of_job(screen, screener, domains):
        told = True
        yield said
    if not told and screener.reference().fingerprint != screen.report.reference.fingerprint:
        yield "the reference's program, compiled here once more, is another one"


def _differences_of_job(
    screen: CarriedScreen, screener: Screener, domains: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    here, there, report = _plain(screener.job.known), screen.known, screen.report
    if screen.schema_version != SCHEMA_VERSION:
        yield f"its form is of version {screen.schema_version}, here {SCHEMA_VERSION}"
    for name, words in WORDS.items():
        if here[name] != there.get(name):
            yield f"{words}: {there.get(name)!s:.80}, here {here[name]!s:.80}"
    versions = there.get("versions", {})
    for name in sorted({*here["versions"], *versions}):
        if here["versions"].get(name) != versions.get(name):
            yield f"{name} {versions.get(name, 'is not there')}, here {here['versions'].get(name, 'not')}"
    if screen.baseline != screener.baseline:
        yield f"baseline: {screen.baseline}, here {screener.baseline}"
    if report.canary is None or report.choices != tuple(filter(None, screener.choices)):
        yield "it was made without a canary, or under other kernel choices"
    if report.skipped:
        yield f"its time was up before {len(report.skipped)} settings or sets were screened"
    if missing := [n for n, v in domains.items() if not set(v) <= set(screen.domains.get(n, ()))]:
        yield f"{len(missing)} settings that are searched were not screened with all values: {', '.join(missing[:3])}"


def _plain(known: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a file."""
    found: dict[str, Any] = json.loads(json.dumps(known, default=str))
    return found
