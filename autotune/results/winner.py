"""A proven winner as one record, read from its run; exported files hold it in a comment line."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from autotune.model.errors import AutotuneError, SettingError
from autotune.model.flags import FlagSet, refuse_reaching_out
from autotune.model.measurement import LOSS_NOT_CHECKED, LossBasis, LossCheck, Settings, WorkPerStep
from autotune.model.numbers import Record
from autotune.model.options import options_in
from autotune.model.records import (
    AB,
    CONFIRM,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    ConfirmRun,
    FinalistResult,
    Outcome,
    SoakRecord,
)
from autotune.model.sections import STUDY_NAME
from autotune.model.spec import StudySpec
from autotune.results.audit import PROOFS, disagreements
from autotune.results.conditions import Conditions, conditions_of, versions_of
from autotune.results.format import format_soak
from autotune.rundir.store import Store, StudyLostError
from autotune.stats.estimates import Estimate, Verdict, judge
from autotune.stats.numbers import AtLeastOne, Elapsed

WINNER_VERSION = 2

AT_SCALE = "-larger"  # suffix of the run by `submit --winner` beside one


def refuse_to_hand_on(settings: FlagSet) -> FlagSet:
    """Raises SettingError if settings reach files or code, or are dangerous by the catalogue."""
    from autotune.settings.catalog import load_catalog

    refuse_reaching_out(settings)
    catalog = load_catalog()
    for name, value in settings.items():
        entry = catalog.get(name)
        if entry and entry.danger and value not in entry.defaults.values():
            raise SettingError(
                f"a winner must be safe in training but {name}={value} is dangerous "
                f"({entry.danger}); take it out of the study and prove the rest again"
            )
    return settings


HandedOn = Annotated[Settings, AfterValidator(refuse_to_hand_on)]


class Winner(Record):
    """A proven flag set with its evidence and conditions.

    Attributes:
        settings: The whole measured set, baseline and options included.
        workload_options: Options of the reference; those in `settings` override them.
        further: Its ratio in rechecks with other studies, by their names.
        at_scale: Whether it holds with a larger study, as a sentence; None if that was not tried.
        work: Work of a step where it is not the default's: `estimate` is of time per token then.
        unsettled: Settings of which no ablation showed that the set needs them.
        run: Name of the run directory whose records prove it, without the folder that it lies in.
    """

    winner_version: Annotated[int, Field(ge=WINNER_VERSION, le=WINNER_VERSION)] = WINNER_VERSION
    study: Annotated[str, Field(pattern=STUDY_NAME)]
    ended: str
    settings: HandedOn
    baseline: HandedOn
    estimate: Estimate
    further: dict[str, Estimate] | None = None
    at_scale: str | None = None
    step_s: Elapsed | None = None
    sentence: str
    workload_entry: str
    workload_options: dict[str, Any]
    process_count: AtLeastOne = 1
    node_count: AtLeastOne = 1
    soaked_s: Elapsed | None = None
    soak: str | None = None
    work: WorkPerStep | None = None
    unsettled: tuple[str, ...] | None = None
    loss: LossCheck | None = None
    conditions: Conditions
    versions: dict[str, str] = Field(default_factory=dict)
    machine: str = ""
    run: str

    @property
    def options(self) -> dict[str, Any]:
        """Options of the workload that are part of this winner, which no variable holds."""
        return options_in(self.settings)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of this winner, without options of the program."""
        return self.settings.to_environment()


def winner_of(store: Store, *, even_unjudged: bool = False) -> Winner:
    """Returns the winner of a run directory, or with `even_unjudged` one of unjudged loss.

    Raises:
        AutotuneError: If it has none, if its records contradict it, or if it may not be handed on.
    """
    conclusion = store.last(ConclusionRecord)
    if not conclusion:
        raise AutotuneError(
            f"a run must have ended to be exported but {store.path} has not; "
            "run the same `autotune run` command again to finish it"
        )
    if conclusion.outcome is not Outcome.WINNER or not conclusion.settings:
        until = ""
        if conclusion.outcome is Outcome.INCONCLUSIVE:
            until = "until a study settles that, "
        raise AutotuneError(
            f"only a proven winner is exported, and {store.path} has none: {conclusion.sentence}; "
            f"{until}the default settings are what to use here"
        )
    if any(r.stage == AB for r in store.of(FinalistResult)):
        raise AutotuneError(
            f"only settings are exported but {store.path} compares two variants; tune the one "
            "that you keep: autotune tune -- COMMAND"
        )
    lines = disagreements(store, conclusion)
    if lines:
        raise AutotuneError(
            f"a proof must follow from the records of its run but in {store.path}\n"
            + "".join(f"  - {line}\n" for line in lines)
            + "  restore the run from a copy, or prove its set again: autotune recheck FILE "
            "--study STUDY.toml"
        )
    winner = winner_at(store, conclusion)
    loss = winner.loss
    if loss and not (loss.is_ok or loss.is_silent or even_unjudged):
        raise AutotuneError(
            f"a winner must be seen to train as the default does but of {winner.settings}: "
            f"{loss.words}; have it soaked (confirm.soak, run the same command again) with a "
            "program that reports its loss, or write it all the same with --force"
        )
    return winner.model_copy(update={"at_scale": verdict_at_scale(store)})


def verdict_at_scale(store: Store) -> str | None:
    """Says whether the newest winner of a run holds with the larger study beside it, if tried."""
    path = store.path.resolve()
    try:
        larger = Store.open(path.with_name(path.name + AT_SCALE))
    except StudyLostError:
        return None
    conclusion = store.last(ConclusionRecord)
    if not conclusion or conclusion.settings is None:
        return None
    winner = store.spec.baseline.merge(conclusion.settings)
    verdict = "not proven there yet"
    at_scale = larger.last(ConclusionRecord)
    if at_scale and any(run.settings == winner for run in larger.of(ConfirmRun)):
        verdict = at_scale.sentence
    count = larger.spec.device.node_count
    return f"with {larger.spec.name} on {count} node(s): {verdict}"


def with_rechecks(winner: Winner, runs: Sequence[Store]) -> Winner:
    """Adds the ratios of rechecks by study; AutotuneError for another set or one without gain."""
    further = {}
    for run in runs:
        proven = winner_of(run)
        if proven.settings != winner.settings:
            raise AutotuneError(
                f"a recheck must be of the set that is exported but {run.path} proves "
                f"{proven.settings}; run autotune recheck with the winner {winner.settings}"
            )
        further[proven.study] = proven.estimate
    return winner.model_copy(update={"further": further or None})


def winner_at(store: Store, conclusion: ConclusionRecord) -> Winner:
    """Builds the winner of one recorded conclusion."""
    evidence = store.before(conclusion)
    settings = conclusion.settings or FlagSet()
    report = evidence.of(AaRecord)[-1].reference
    facts = conclusion.provenance
    spec = store.spec
    runs = [r for r in evidence.of(ConfirmRun) if r.settings == settings]
    proofs = [r for r in runs if r.stage in PROOFS]
    soaks = [s for s in evidence.of(SoakRecord) if s.settings == settings]
    soak = None
    if soaks and conclusion.soaked_s is not None:
        soak = format_soak(soaks[-1])
    steps = [r.candidate_step_s for r in proofs if r.candidate_step_s]
    assert conclusion.estimate  # or it would disagree with its proof
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
        process_count=report.process_count,
        node_count=spec.device.node_count,
        soaked_s=conclusion.soaked_s,
        soak=soak,
        work=next((r.work for r in proofs if r.work), None),
        unsettled=_unsettled(evidence, proofs) or None,
        loss=loss_of(runs, soaks),
        conditions=conditions_of(spec, report, facts),
        versions=versions_of(report, facts),
        machine=f"{facts.get('cpu')}, {facts.get('cpus_usable')} CPUs, {facts.get('system')}",
        run=store.path.resolve().name,
    )


def _unsettled(evidence: Store, proofs: Sequence[ConfirmRun]) -> tuple[str, ...]:
    """Returns the settings of a finalist of several that no ablation showed to be needed."""
    settings = next((p.settings for p in proofs if p.stage == CONFIRM), FlagSet())
    if len(settings) < 2:
        return ()
    min_effect = evidence.spec.measure.min_effect
    needed = {
        a.left_out
        for a in evidence.of(AblationResult)
        if settings.items() <= a.settings.items()
        if a.failure
        or (a.comparison and judge(a.comparison.estimate, min_effect=min_effect) is Verdict.SLOWER)
    }
    return tuple(name for name in settings if name not in needed)


def workload_name(spec: StudySpec) -> str:
    """Returns the entry of the workload, or the user's command without its secrets."""
    return spec.workload.entry or shlex.join(spec.workload.shown.command or ())


def loss_of(runs: Sequence[ConfirmRun], soaks: Sequence[SoakRecord]) -> LossCheck | None:
    """Returns the final loss check of a set; first steps with another batch decide nothing."""
    for soak in reversed(soaks):
        if soak.loss:
            return soak.loss
    checks = [r.loss for r in runs if r.loss]
    if not checks:
        return None
    check = next((c for c in checks if not c.is_ok), checks[-1])
    if check.is_final or not check.is_ok:
        return check
    reason = f"inconclusive: it was never soaked; {check.words}"
    return check.model_copy(update={"is_ok": None, "words": reason})


def loss_addition(runs: Sequence[ConfirmRun], soaks: Sequence[SoakRecord]) -> str:
    """Adds to a conclusion that the loss was not checked, or the result of the soak's check."""
    check = loss_of(runs, soaks)
    if not check:
        return ""
    if check.basis in (LossBasis.STEPS, LossBasis.ROUNDING):
        return f"; {LOSS_NOT_CHECKED}" if check.is_ok is None else ""
    return f"; {check.words}" if any(soak.loss for soak in soaks) else ""


def require_loss(winner: Winner) -> None:
    """Raises AutotuneError if the loss of a winner was not compared with the default's."""
    reason = f"{LOSS_NOT_CHECKED}: its records do not say how"
    if winner.loss:
        if winner.loss.is_ok:
            return
        reason = winner.loss.words
    raise AutotuneError(
        "--require-loss wants a winner whose loss was compared with the default's but of "
        f"{winner.settings}: {reason}; have the program report its loss and use a new run "
        "directory, or leave --require-loss out"
    )
