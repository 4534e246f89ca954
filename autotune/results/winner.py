"""A proven winner as one record: its settings, its evidence, and the conditions under which it was proven.

Every exported file carries this record in one comment line, so that `verify` and `exec` can say of any of
them whether this machine is one on which it was proven, and whether somebody changed the file since.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from autotune.machine import foreign_owner, is_this_host
from autotune.model import (
    KERNELS,
    STUDY_NAME,
    AtLeastOne,
    AutotuneError,
    ConclusionRecord,
    ConfirmRun,
    Elapsed,
    FinalistResult,
    FlagSet,
    FloorResult,
    LossCheck,
    Outcome,
    Record,
    RunDirectoryError,
    SessionRecord,
    SettingError,
    Settings,
    SoakRecord,
    StudySpec,
    WorkPerStep,
    artefacts_of,
    file_name,
    in_folder,
    options_in,
    reference_to,
    refuse_reaching_out,
)
from autotune.results.conditions import Conditions, Difference, conditions_of, versions_of
from autotune.results.losses import loss_of
from autotune.results.recompute import LAST_PROOFS, disagreements, evidence_of
from autotune.results.soak_words import describe_soak
from autotune.results.words import one_line
from autotune.rundir import Store
from autotune.stats import Estimate

WINNER_VERSION = 2
# 1: first published form (2026-11). 2: `run`, `hosts`.

RUNS = "runs"
"""Folder of run directories."""

RECHECK_DAYS = 180
"""Days after which a proof should be repeated though no version changed: firmware is patched quietly."""


def refuse_to_hand_on(settings: FlagSet) -> FlagSet:
    """Refuses what no winner may hold, whoever proved it: what reaches files or code, or is known to be dangerous.

    Raises:
        SettingError: If there is such a setting.
    """
    from autotune.settings import load_catalog  # read where a winner is, and nowhere before

    refuse_reaching_out(settings)
    catalog = load_catalog()
    for name, value in settings.items():
        entry = catalog.get(name)
        if entry is not None and entry.danger and value not in entry.defaults.values():
            raise SettingError(
                f"a winner must be safe in training but {name}={value} is dangerous ({entry.danger}); "
                "take it out of the study and prove the rest again"
            )
    return settings


HandedOn = Annotated[Settings, AfterValidator(refuse_to_hand_on)]


class Winner(Record):
    """A proven flag set and all that is needed to judge whether the proof holds elsewhere.

    Attributes:
        settings: The whole set, baseline and options included: exactly what was measured.
        baseline: The part of it that the study's reference had too.
        workload_options: Options of the reference; those in `settings` go before them.
        step_s: Median step of the winner in its final proof, seconds; None where it was not kept.
        node_count: Machines that the workload spans.
        soaked_s: Seconds of the long run before the export; None if there was none.
        soak: What that run showed, in words; None in files of older versions.
        work: What a step does where it differs from the default's: then `estimate` is of time per token.
        loss: How its loss was compared with the default's, or that it was not; None in files of older versions.
        run: Name of the run directory whose records prove it, without the folder that it lies in.
        hosts: Machines on which the driver of that ran.
        kernels: SHA-256 of the autotuner's results of its soak; None where none were kept.
        loads_kernels: Whether they are loaded, so that the same kernels run; the proof let each process choose.
    """

    winner_version: Annotated[int, Field(ge=WINNER_VERSION, le=WINNER_VERSION)] = WINNER_VERSION
    study: Annotated[str, Field(pattern=STUDY_NAME)]
    ended: str
    settings: HandedOn
    baseline: HandedOn
    estimate: Estimate | None = None
    step_s: Elapsed | None = None
    sentence: str
    workload_entry: str
    workload_options: dict[str, Any]
    mesh: dict[str, int] = Field(default_factory=dict)
    process_count: AtLeastOne = 1
    node_count: AtLeastOne = 1
    soaked_s: Elapsed | None = None
    soak: str | None = None
    work: WorkPerStep | None = None
    loss: LossCheck | None = None
    conditions: Conditions
    versions: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    run: str
    hosts: tuple[str, ...] = ()
    kernels: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    loads_kernels: bool = False

    @model_validator(mode="after")
    def _has_what_it_loads(self) -> Winner:
        if self.loads_kernels and self.kernels is None:
            raise ValueError("a winner that loads results of the autotuner must have some")
        return self

    @property
    def recheck_by(self) -> str:
        """The day after which the proof counts as old, ISO 8601; empty if the end is not dated."""
        try:
            return (datetime.fromisoformat(self.ended) + timedelta(days=RECHECK_DAYS)).date().isoformat()
        except (ValueError, OverflowError):
            return ""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the workload that are part of this winner: what no variable carries."""
        return options_in(self.settings)

    @property
    def in_force(self) -> FlagSet:
        """The set that a program is started under, its artefacts still to be put in place."""
        kernels = {KERNELS: reference_to(self.kernels)} if self.loads_kernels and self.kernels else {}
        return self.settings.merge(kernels)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that set exactly this winner, its options excepted, if it has no artefacts.

        Raises:
            AutotuneError: If it has.
        """
        return self.settings_in(None).to_environment()

    def settings_in(self, folder: Path | None) -> FlagSet:
        """The set with the paths of its artefacts in a folder; that they lie there is for others to look at.

        Raises:
            AutotuneError: If it has artefacts but no folder.
        """
        if needed := artefacts_of(self.in_force):
            if folder is None:
                names = ", ".join(file_name(n, digest) for n, digest in needed.items())
                raise AutotuneError(
                    f"this winner needs what lies beside its file ({names}): autotune export RUN -o FILE, and use that"
                )
            return in_folder(self.in_force, folder)
        return self.in_force


def winner_of(store: Store, *, even_unjudged: bool = False) -> Winner:
    """The winner of a run directory.

    Args:
        store: The run directory.
        even_unjudged: Take even a winner whose loss could not be judged.

    Raises:
        AutotuneError: If the run is not finished or has none, if what it says of it does not follow from its records,
            or if it holds what is not handed on.
    """
    recorded = store.last(ConclusionRecord)
    if recorded is None:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if recorded.outcome is not Outcome.WINNER or not recorded.settings:
        until = "until a study settles that, " if recorded.outcome is Outcome.INCONCLUSIVE else ""
        raise AutotuneError(
            f"only a proven winner is exported but of {store.path}: {recorded.sentence}; {until}"
            "the default settings are what to use here"
        )
    if wrong := disagreements(store, recorded):
        raise AutotuneError(
            f"a proof must follow from the records of its run but in {store.path}\n"
            + "\n".join(f"  - {line}" for line in wrong)
            + "\n  restore the run from a copy, or prove its set again: autotune recheck FILE --study STUDY.toml"
        )
    winner = _winner_at(store, recorded)
    if winner.loss is not None and not (winner.loss.is_ok or winner.loss.is_silent or even_unjudged):
        raise AutotuneError(
            f"a winner must be seen to train as the default does but of {winner.settings}: {winner.loss.words}; "
            "have it soaked (confirm.soak, run the same command again) with a program that tells its loss, or write it "
            "all the same with --force"
        )
    return winner


def _winner_at(store: Store, conclusion: ConclusionRecord) -> Winner:
    """The winner of one recorded conclusion, as it is exported."""
    evidence, settings = evidence_of(store, conclusion), conclusion.settings or FlagSet()
    floor = next((r for r in reversed(evidence) if isinstance(r, FloorResult)), None)
    facts, spec = conclusion.provenance, store.spec
    report = floor.reference if floor is not None else None
    kinds = ConfirmRun | FinalistResult | SoakRecord
    mine = [r for r in evidence if isinstance(r, kinds) and r.settings == settings]
    proofs = [r for r in mine if isinstance(r, ConfirmRun) and r.stage in LAST_PROOFS]
    work = next((r.work for r in proofs if r.work is not None), None)
    soaks = [r for r in mine if isinstance(r, SoakRecord)]
    steps = [r.candidate_step_s for r in proofs if r.candidate_step_s is not None]
    return Winner(
        study=spec.name,
        ended=conclusion.ended,
        settings=refuse_to_hand_on(spec.baseline.merge(settings)),
        baseline=spec.baseline,
        estimate=conclusion.estimate,
        step_s=statistics.median(steps) if steps else None,
        sentence=conclusion.sentence,
        workload_entry=workload_name(spec),
        workload_options=spec.under(FlagSet()).workload.shown.options,
        mesh=report.mesh if report else {},
        process_count=report.process_count if report else spec.device.process_count,
        node_count=spec.device.node_count,
        soaked_s=conclusion.soaked_s,
        soak=describe_soak(soaks[-1]) if soaks and conclusion.soaked_s is not None else None,
        work=work,
        loss=loss_of(mine),
        conditions=conditions_of(spec, floor, facts),
        versions=versions_of(report, facts),
        machine=f"{facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}",
        run=store.path.resolve().name,
        hosts=_hosts_of(store),
        kernels=soaks[-1].kernels.digest if soaks and soaks[-1].kernels else None,
    )


def workload_name(spec: StudySpec) -> str:
    """What a study runs, in a few words: its workload, or the user's own command, less the secrets in it."""
    return spec.workload.entry or shlex.join(spec.workload.shown.command or ())


def _hosts_of(store: Store) -> tuple[str, ...]:
    """The machines on which a run was recorded, each once."""
    return tuple(dict.fromkeys(s.host for s in store.of(SessionRecord)))


# ---------------------------------------------------------------------- a file and its run


Status = Literal["holds", "unchecked", "differs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCheck:
    """What the records of a run say of a file that was exported from it.

    Attributes:
        differences: In what the file is not what its records give.
        unchecked: That nothing was compared, and why, in one sentence; None if it was.
    """

    differences: tuple[Difference, ...] = ()
    unchecked: str | None = None

    @property
    def status(self) -> Status:
        """The same in one word."""
        return "differs" if self.differences else "holds" if self.unchecked is None else "unchecked"


def check_records(winner: Winner, file: Path, *, run: Path | None = None) -> RecordCheck:
    """Compares an exported file with what the records of its run give, if that is here.

    Args:
        winner: What the file holds.
        file: Where it lies; its run is looked for beside it, in `runs/` beside it, and in `runs/` here.
        run: The run directory, if the caller names one.

    Raises:
        RunDirectoryError: If `run` is not a run directory.
    """
    if (path := run or _find_run(winner.run, file)) is None:
        return _unchecked(f"its run {winner.run!r} is not here; name it (autotune verify FILE --run RUN)")
    try:
        store = Store.open(path)
        conclusion = next((c for c in store.of(ConclusionRecord) if c.ended == winner.ended), None)
        if conclusion is None:
            return _unchecked(f"{path} is of another proof; name its own (autotune verify FILE --run RUN)")
        wrong = disagreements(store, conclusion)
    except RunDirectoryError as error:
        if run is not None:
            raise
        conclusion, wrong = None, [str(error)]
    if conclusion is None or wrong:
        found = [Difference(field="records", proven="what was recorded", here=line) for line in wrong]
        return RecordCheck(differences=tuple(found))
    ours, theirs = (dict(w) for w in (_winner_at(store, conclusion), winner))
    return RecordCheck(
        differences=tuple(
            Difference(field=name, proven=f"{ours[name]} in its records", here=f"{theirs[name]} in the file")
            for name in ours
            if name not in ("run", "hosts", "loads_kernels") and ours[name] != theirs[name]
        )
    )


def _unchecked(why: str) -> RecordCheck:
    return RecordCheck(unchecked=f"unchecked, so nothing here shows that it was proven: {why}")


def _find_run(name: str, file: Path) -> Path | None:
    """The run directory of that name nearest to a file that was exported from it."""
    if Path(name).name != name:  # it could lead anywhere
        return None
    beside = file.resolve().parent
    found = [beside if beside.name == name else beside / name, beside / RUNS / name, Path(RUNS) / name]
    return next((path for path in found if (path / "study.json").is_file()), None)


def origin_line(path: Path, hosts: Sequence[str]) -> str | None:
    """Who recorded something and where, if it was another user or another machine; None for one's own.

    Args:
        path: The run directory or file.
        hosts: The machines on which it was recorded, as far as they are known.
    """
    owner, far = foreign_owner(path), [h for h in hosts if not is_this_host(h)]
    if owner is None and not far:
        return None
    said = [*([f"by user {owner}"] if owner is not None else []), *([f"on host {', '.join(far)}"] if far else [])]
    return one_line(f"{path} was recorded {' '.join(said)}")


def origin_of_run(store: Store) -> str | None:
    """Who recorded a run and where; see `origin_line`."""
    return origin_line(store.path, _hosts_of(store))
