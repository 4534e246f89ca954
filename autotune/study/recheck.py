"""A winner against the default once more, and nothing else: does it still hold after an upgrade?"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from autotune.machine import describe_machine, utc_now
from autotune.model import (
    Artefact,
    AutotuneError,
    ConclusionRecord,
    FinalistResult,
    FlagSet,
    OnceMore,
    Outcome,
    ProfileRecord,
    StudySpec,
    WorkloadFacts,
    load_study,
)
from autotune.results import Winner, format_estimate, format_finalist, keep_in_run, time_of
from autotune.rundir import Store
from autotune.settings import SearchSpace
from autotune.stats import Estimate, Verdict
from autotune.study.gain import measure_once_more
from autotune.study.library_priors import NO_LESSONS, Lessons
from autotune.study.preflight import make_launcher, refuse_missing_secrets
from autotune.study.proof import most_processes, prove
from autotune.study.run import StudyRun
from autotune.study.stages import noise_floor, probe
from autotune.workers import Launcher

STAGE = "recheck"
FROM_PROOF = "taken over from the proof that is checked"


class NothingToSearch:
    """See `autotune.study.run.Setup`: a set that was proven before needs no space, and no question to the build."""

    first: Sequence[tuple[str, FlagSet]] = ()
    jaxlib: str = ""
    rule_defaults: Mapping[str, str] = MappingProxyType({})

    def space(self, facts: WorkloadFacts | None) -> SearchSpace:
        """An empty one."""
        return SearchSpace(())

    def lessons(self, kind: str | None, count: int | None, note: Callable[[str], None]) -> Lessons:
        """None, for nothing is searched."""
        return NO_LESSONS

    def runtime_settings(self, settings: FlagSet) -> FlagSet:
        """All of them, for nothing is shared between programs."""
        return settings

    def launcher(self, store: Store) -> Launcher:
        """The launcher that the study asks for."""
        return make_launcher(store.spec, store.study_dir)


def recheck_winner(run: StudyRun, winner: Winner, artefacts: Sequence[Artefact] = ()) -> ConclusionRecord:
    """Measures a winner in fresh pairs of processes against the default; the run directory then is its new proof.

    Goes on where it was stopped: the floor and pairs of processes already recorded are not run again.

    Args:
        run: Of the same study, with the same workload, baseline and measuring; made for `NothingToSearch`.
        winner: What was proven before.
        artefacts: Those that its settings stand for.

    Raises:
        LaunchError: If the default itself cannot run.
        RunDirectoryError: If the run directory cannot be written.
    """
    with contextlib.closing(run):
        probe(run)
        noise_floor(run)
        for artefact in artefacts:
            without = winner.settings.without(artefact.setting)
            run.store.append_news(ProfileRecord(settings=without, steps=0, profile=artefact, reason=FROM_PROOF))
        run.begin_stage(STAGE, f"{winner.settings} in up to {most_processes(run)} fresh pairs of processes")
        result = prove(run, [(0, winner.settings)], stage=STAGE)[0]
        after = OnceMore(objection=result.veto)
        if result.verdict is Verdict.FASTER:
            after = measure_once_more(run, result)
        conclusion = _conclusion(winner, result, after)
        run.store.append(conclusion)
        keep_in_run(run.store, winner.settings, None)
    return conclusion


def _conclusion(winner: Winner, result: FinalistResult, after: OnceMore) -> ConclusionRecord:
    holds = result.verdict is Verdict.FASTER and after.objection is None
    if (found := after.estimate) is not None:
        result = result.model_copy(update={"estimate": found, "process_count": found.pair_count})
    return ConclusionRecord(
        outcome=Outcome.WINNER if holds else Outcome.NOTHING_BEATS_THE_DEFAULT,
        sentence=_sentence(winner, result, objection=after.objection),
        settings=winner.settings if holds else None,
        estimate=result.estimate if holds else None,
        trial_count=0,
        ended=utc_now(),
        provenance=describe_machine(),
    )


def _sentence(winner: Winner, result: FinalistResult, *, objection: str | None) -> str:
    """What became of a winner, with both figures."""
    before = _figures(winner.estimate)
    if result.failure is not None:
        return f"{winner.settings} does not run any more: {format_finalist(result)}; it was {before}"
    figures = _figures(result.estimate)
    figures = f"{figures} over {result.process_count} fresh pairs of processes, it was {before}"
    of = time_of(result.work, winner.unit or "token")
    if objection is not None:
        return f"{winner.settings} does not hold any more: {of} ratio {figures}; {objection}"
    verdicts = {
        Verdict.FASTER: "still holds",
        Verdict.SLOWER: "does not hold any more: it is slower than the default",
        Verdict.NO_DIFFERENCE: "does not hold any more: it is no faster than the default",
        Verdict.UNRESOLVED: "is not proven any more: the difference is not resolved",
    }
    return f"{winner.settings} {verdicts[result.verdict]}: {of} ratio {figures}"


def _figures(estimate: Estimate | None) -> str:
    return "not measured" if estimate is None else format_estimate(estimate)


def recheck_directory(runs: Path, name: str) -> Path:
    """Where today's recheck of a study goes: the first such directory whose run has not come to its end.

    Args:
        runs: Folder of run directories.
        name: Of the study.
    """
    first = runs / f"{name}-recheck-{datetime.now(UTC).strftime('%Y%m%d')}"
    path = first
    for number in itertools.count(2):
        if not (path / "study.json").exists() or Store.open(path).last(ConclusionRecord) is None:
            break
        path = first.with_name(f"{first.name}+{number}")
    return path


def recheck_study(file: Path, study: Path | None) -> tuple[StudySpec, Path]:
    """The study that says how a winner is measured again, and its folder: a study file, or a run directory's own.

    Args:
        file: What the winner was read from.
        study: A study file, if the caller names one.

    Raises:
        AutotuneError: If there is none of them.
    """
    if study is not None:
        return load_study(study), study.resolve().parent
    if file.is_dir():
        old = Store.open(file)
        refuse_missing_secrets(old.spec, source=str(file))
        return old.spec, Path(old.study_dir)
    raise AutotuneError(f"a study must say how to measure but {file} is only an export; name one with --study")
