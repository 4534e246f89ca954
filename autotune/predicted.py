"""A whole study without a device: sets are proposed and compiled, and a model says what a step would take.

Nothing here is measured, so nothing is confirmed, minimised or proven. A trial has a `prediction` where a measured one
has a `comparison`, so that no figure of a model can be taken for a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune import environment
from autotune.catalog import Stage
from autotune.errors import StudyFileError
from autotune.flags import FlagSet
from autotune.parameters import SearchSpace
from autotune.records import (
    PREDICTED,
    REFERENCE_NUMBER,
    ConclusionRecord,
    Outcome,
    PredictedStep,
    ScreenRecord,
    TrialConfig,
    TrialResult,
    TrialStatus,
)
from autotune.screen import plugin
from autotune.screen.classify import Screen
from autotune.screen.predict import Prediction, predict
from autotune.screen.program import CompiledProgram
from autotune.screen.study import on_cluster
from autotune.screen.targets import Target, Topology, load_target, parse_topology
from autotune.screening import Screening, does_not_fit
from autotune.search import Proposer
from autotune.session import session
from autotune.spec import StudySpec
from autotune.store import Store
from autotune.told import View
from autotune.units import format_ratio, format_seconds, format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a search space is built from, told by a workload that was compiled, not run.

    Attributes:
        layer_bytes: ``weights`` and ``gradients`` of one layer.
    """

    device_count: int
    mesh: Mapping[str, int] = field(default_factory=dict)
    layer_bytes: Mapping[str, int] = field(default_factory=dict)


def facts_of(program: CompiledProgram, topology: Topology) -> Facts:
    """The facts that a compiled reference tells."""
    return Facts(device_count=topology.device_count, mesh=program.mesh, layer_bytes=program.layer_bytes)


Narrow = Callable[[SearchSpace, Mapping[str, FlagSet]], SearchSpace]
"""Takes out of a space, with the sets that are tried first, what need not be searched."""


def cluster_of(spec: StudySpec) -> tuple[Target, Topology]:
    """The GPU and the cluster that a study predicts for.

    Raises:
        StudyFileError: If the study does not name them, or the model does not know the GPU's rates.
    """
    if spec.screen.target is None:
        raise StudyFileError(
            "to predict, the GPU must be named: add --target, such as --target h100-sxm "
            "(see `autotune targets list`), or `screen.target` to the study"
        )
    target = load_target(spec.screen.target)
    if target.network is None or not target.flops_per_s:
        raise StudyFileError(
            f"to predict, the rates of {target.name} must be known but its file has none; name one of "
            "`autotune targets list`"
        )
    asked = parse_topology(spec.screen.topology) if spec.screen.topology else None
    return target, on_cluster(spec, target, asked)[1]


def moved(spec: StudySpec) -> StudySpec:
    """The study as it would be on the cluster that it predicts for.

    Raises:
        StudyFileError: See `cluster_of`.
    """
    return on_cluster(spec, *cluster_of(spec))[0]


def run_predicted(
    store: Store,
    screening: Screening,
    make_proposer: Callable[[Facts, Narrow], Proposer],
    *,
    trials: int,
    time_budget_s: float | None,
    view: View,
    command: Sequence[str] = (),
) -> ConclusionRecord:
    """Takes a predicted study from where it is to its conclusion.

    Args:
        store: The run directory, locked.
        screening: Compiles; closed by the caller.
        make_proposer: Makes who proposes, from facts of the workload and what narrows the space.
        trials: How many trials the study shall have, those of earlier sessions included.
        time_budget_s: Wall seconds for the whole study.
        view: Told what happens.
        command: How the driver was called, for the record.

    Raises:
        StudyFileError: If the cluster is not named or does not fit the workload.
        LaunchError: If nothing compiles with what is installed, or the reference does not.
        RunDirectoryError: If the run directory cannot be written.
    """
    with session(store, trials=trials, command=command):
        target, topology = cluster_of(store.spec)
        model = _Model(screening, screening.open(target, topology), target, topology)
        view.stage("reference", f"compiled for {topology} {target.title}; {PREDICTED}")
        reference = model.reference()
        _record_reference(store, model, reference, view)
        proposer = make_proposer(facts_of(model.program, topology), model.narrow)
        results = _search(store, model, proposer, trials=trials, time_budget_s=time_budget_s, view=view)
        conclusion = _conclusion(store, reference, results)
        last = store.last(ConclusionRecord)
        same = {"at_s": 0.0, "ended": conclusion.ended, "provenance": conclusion.provenance}
        if last is None or last.model_copy(update=same) != conclusion:
            store.append(conclusion)
        return conclusion


class _Model:
    """Compiles sets and predicts them against the reference."""

    def __init__(self, screening: Screening, screen: Screen, target: Target, topology: Topology) -> None:
        self._screening = screening
        self._screen = screen
        self._target = target
        self._topology = topology
        self._is_screened = screening.is_asked_for
        self.program: CompiledProgram
        self._reference_s = 0.0

    def reference(self) -> PredictedStep:
        """Compiles and predicts the reference."""
        self.program = self._screening.wait(self._screen.reference)
        found = predict(self.program, self._target, self._topology)
        self._reference_s = found.step_s
        return self._step(self.program, found)

    def narrow(self, space: SearchSpace, named: Mapping[str, FlagSet]) -> SearchSpace:
        """The space without settings that leave the program alone by their nature: no model here can see them.

        Where the study asks for a screen, what that finds dead goes, too.
        """
        reason = "read at run time or by the autotuner on the device: a prediction cannot see it, a measurement can"
        blind = {p.name for p in space.parameters if self._screen.stage(p.name) is not Stage.PROGRAM}
        kept = tuple(p for p in space.parameters if p.name not in blind and not blind & set(p.condition or {}))
        gone = {p.name: reason for p in space.parameters} | dict(space.left_out)
        for parameter in kept:
            gone.pop(parameter.name, None)
        seen = SearchSpace(kept, gone)
        return self._screening.screened(self._screen, seen, named) if self._is_screened else seen

    def evaluate(self, config: TrialConfig, known: Sequence[TrialResult]) -> TrialResult:
        """Compiles and predicts one set, unless its program is known."""
        started = time.monotonic()
        base = TrialResult(
            number=config.number,
            settings=config.settings,
            origin=config.origin,
            params=config.params,
            status=TrialStatus.FAILED,
        )
        update = self._evaluate(config.settings, known)
        return base.model_copy(update={**update, "duration_s": round(time.monotonic() - started, 3)})

    def _evaluate(self, settings: FlagSet, known: Sequence[TrialResult]) -> dict[str, object]:
        result = self._screening.wait(lambda: self._screen.result(settings))
        if result.program is None:
            return {"failure": result.failure}
        # What is read at run time is part of the key: that a model cannot see it does not make it dead.
        program, key = result.program, self._screen.program_key(settings)
        if self._screen.fits(settings) is False:
            return {"failure": does_not_fit(self._screen, settings), "compiled_key": key}
        step = self._step(program, predict(program, self._target, self._topology))
        found: dict[str, object] = {"compiled_key": key, "prediction": step}
        same = {**found, "status": TrialStatus.SAME_PROGRAM}
        if key is not None and key == self._screen.program_key(FlagSet()):
            return {**same, "same_as": REFERENCE_NUMBER}
        for earlier in known:
            if key is not None and earlier.compiled_key == key and earlier.status is TrialStatus.PREDICTED:
                return {**same, "same_as": earlier.number}
        return {**found, "status": TrialStatus.PREDICTED}

    def _step(self, program: CompiledProgram, found: Prediction) -> PredictedStep:
        return PredictedStep(
            target=self._target.name,
            topology=str(self._topology),
            ratio=found.step_s / self._reference_s,
            step_s=found.step_s,
            compute_s=found.compute_s,
            communication_s=found.communication_s,
            exposed_s=found.exposed_s,
            idle_s=found.idle_s,
            mfu=found.mfu,
            tokens_per_s=found.tokens_per_s,
            peak_bytes=program.memory.peak_bytes if program.memory else None,
            compile_s=program.compile_s,
        )


def _record_reference(store: Store, model: _Model, reference: PredictedStep, view: View) -> None:
    """Keeps what the reference is predicted to take, once; a run that goes on with other versions says so."""
    versions = plugin.installed_versions()
    last = store.last(ScreenRecord)
    if last is not None and last.prediction is not None and last.versions != versions:
        raise StudyFileError(
            f"a predicted study must go on with the versions that it began with but {store.path} is of "
            f"{last.versions} and here is {versions}; name another folder with --run-dir"
        )
    if last is None or last.prediction is None:
        store.append(
            ScreenRecord(target=reference.target, topology=reference.topology, versions=versions, prediction=reference)
        )
    view.note(
        f"reference: {PREDICTED}: {format_seconds(reference.step_s)} a step, {format_seconds(reference.exposed_s)} "
        f"of it exposed communication, program {model.program.fingerprint}"
    )


def _search(
    store: Store, model: _Model, proposer: Proposer, *, trials: int, time_budget_s: float | None, view: View
) -> list[TrialResult]:
    """Tries sets until the asked number, the budget or the space is used up."""
    results = store.of(TrialResult)
    for result in results:
        proposer.tell(result)
    view.stage("search", f"{max(0, trials - len(results))} of {trials} trials to go; {PREDICTED}")
    while len(results) < trials:
        if time_budget_s is not None and store.watch.total_s >= time_budget_s:
            view.note(f"time budget used: the search ends after {len(results)} of {trials} trials")
            break
        config = proposer.ask(len(results) + 1, results)
        if config is None:
            view.note(f"the whole space is tried: the search ends after {len(results)} of {trials} trials")
            break
        view.trial_starts(config, trials)
        result = model.evaluate(config, results)
        store.append(result)
        results.append(result)
        proposer.tell(result)
        view.trial_ends(result)
    return results


def _conclusion(store: Store, reference: PredictedStep, results: Sequence[TrialResult]) -> ConclusionRecord:
    """What the model would try first; never a winner."""
    sesoi = store.spec.measure.smallest_effect
    ran = [(r, r.prediction) for r in results if r.failure is None and r.prediction is not None]
    best, step = min(ran, key=lambda found: found[1].ratio, default=(None, None))
    place = f"{reference.topology} {reference.target}"
    if best is not None and step is not None and step.ratio < 1 - sesoi:
        sentence = (
            f"{PREDICTED}: on {place} a model gives {best.settings} {format_ratio(step.ratio)} of the default's step "
            f"time ({format_seconds(step.step_s)} instead of {format_seconds(reference.step_s)}); measure it before "
            "you use it"
        )
    else:
        best, step = None, None
        sentence = (
            f"{PREDICTED}: on {place} a model finds no set tried to beat the default by more than the smallest effect "
            f"of interest ({format_share(sesoi)})"
        )
    return ConclusionRecord(
        outcome=Outcome.PREDICTED if ran else Outcome.NOTHING_RAN,
        sentence=sentence if ran else f"{PREDICTED}: no set tried compiles and fits on {place}",
        settings=best.settings if best else None,
        trial=best.number if best else None,
        prediction=step,
        trial_count=len(results),
        ended=environment.now(),
        provenance=environment.provenance(),
    )
