"""A whole study without a device: sets are proposed and compiled, and a model says what a step would take.

Nothing here is measured, so nothing is confirmed, minimised or proven. A trial has a `prediction` where a measured one
has a `comparison`, so that no figure of a model can be taken for a measurement.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.compiler import (
    CompiledProgram,
    Prediction,
    Screener,
    Target,
    Topology,
    compiler_versions,
    load_target,
    on_cluster,
    parse_topology,
    predict_step,
)
from autotune.model import (
    OPTION,
    PREDICTED,
    PROCESS_COUNT,
    Failed,
    Failure,
    FailureKind,
    FlagSet,
    LaunchError,
    Predicted,
    PredictedStep,
    ScreenRecord,
    StudyFileError,
    StudySpec,
    TrialConfig,
    TrialOutcome,
    TrialResult,
    format_seconds,
    option_setting,
)
from autotune.settings import Catalog, SearchSpace, Stage, load_catalog
from autotune.study.limits import compiled_over_limit, does_not_fit
from autotune.study.run import StudyRun
from autotune.study.screen import StudyScreener
from autotune.study.trial import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a search space is built from, told by a workload that was compiled or built, not run.

    Attributes:
        layer_bytes: ``weights`` and ``gradients`` of one layer.
    """

    device_count: int | None
    mesh: Mapping[str, int] = field(default_factory=dict)
    layer_bytes: Mapping[str, int] = field(default_factory=dict)


def facts_of(program: CompiledProgram, topology: Topology) -> Facts:
    """The facts that a compiled reference tells."""
    return Facts(device_count=topology.device_count, mesh=program.mesh, layer_bytes=program.layer_bytes)


def seen_by_model(space: SearchSpace, catalog: Catalog) -> SearchSpace:
    """The space without settings that leave the program alone by their nature: no model here can see them."""
    reason = "read at run time or by the autotuner on the device: a prediction cannot see it, a measurement can"
    blind = {p.name for p in space.parameters if not _sees(p.name, catalog)}
    kept = tuple(p for p in space.parameters if p.name not in blind and not blind & set(p.condition or {}))
    gone = {p.name: reason for p in space.parameters if p not in kept} | dict(space.left_out)
    return SearchSpace(kept, gone, space.notes)


def _sees(name: str, catalog: Catalog) -> bool:
    """Whether a program tells what a setting does; options make programs, the number of processes does not."""
    if name.startswith(OPTION):
        return name != option_setting(PROCESS_COUNT)
    return name in catalog and catalog[name].stage is Stage.PROGRAM


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
    target = load_target(spec.screen.target).on_network(spec.network.nic_bytes_per_s)
    if target.network is None or not target.flops_per_s:
        raise StudyFileError(
            f"to predict, the rates of {target.name} must be known but its file has none; name one of "
            "`autotune targets list`"
        )
    asked = parse_topology(spec.screen.topology) if spec.screen.topology else None
    return target, on_cluster(spec, target, asked)[1]


def on_its_cluster(spec: StudySpec) -> StudySpec:
    """The study as it would be on the cluster that it predicts for.

    Raises:
        StudyFileError: See `cluster_of`.
    """
    return on_cluster(spec, *cluster_of(spec))[0]


class Predicting:
    """See `autotune.study.run.Evaluator`: compiles sets, and predicts them against the reference."""

    doubt = None
    """No GPU runs: a model sees the very programs that the screen saw."""

    def __init__(self, run: StudyRun) -> None:
        self._run = run
        self._resources = contextlib.ExitStack()
        self._screener = self._resources.enter_context(contextlib.closing(StudyScreener(run.store, run.view)))
        self._target, self._topology = cluster_of(run.spec)
        self._reference: Prediction
        self._reference_tokens: int | None = None
        self._screen: Screener

    def reference(self) -> Facts:
        """Compiles and predicts the reference; a run that goes on with other versions is refused."""
        run, versions = self._run, compiler_versions()
        self._screen = self._screener.open(self._target, self._topology)
        run.begin_stage("reference", f"compiled for {self._topology} {self._target.title}; {PREDICTED}")
        program = self._screener.wait(self._screen.reference)
        if (over := compiled_over_limit(run.spec, self._screen, FlagSet())) is not None:
            raise LaunchError(f"the reference {over.message}")
        found = predict_step(program, self._target, self._topology)
        self._reference, self._reference_tokens = found, self._work(FlagSet(), program)
        last = run.store.last(ScreenRecord)
        if last is not None and last.prediction is not None and last.versions != versions:
            raise StudyFileError(
                f"a predicted study must go on with the versions that it began with but {run.store.path} is of "
                f"{last.versions} and here is {versions}; name another folder with --run-dir"
            )
        if last is None or last.prediction is None:
            step, place = (
                self._step(FlagSet(), program, found),
                {"target": self._target.name, "topology": str(self._topology)},
            )
            run.store.append(ScreenRecord(**place, versions=versions, prediction=step))
        run.view.note(
            f"reference: {PREDICTED}: {format_seconds(found.step_s)} a step, {format_seconds(found.exposed_s)} "
            f"of it exposed communication, program {program.fingerprint}"
        )
        return facts_of(program, self._topology)

    def narrow(self, space: SearchSpace) -> SearchSpace:
        """The space of what a model can see.

        Where the study asks for a screen, what that finds dead goes, too.
        """
        seen = seen_by_model(space, load_catalog())
        if not self._screener.is_asked_for:
            return seen
        return self._screener.screened(self._screen, seen, dict(self._run.first))

    def evaluate(self, config: TrialConfig, known: Known) -> TrialResult:
        """Compiles and predicts one set, unless its program is known."""
        started = time.monotonic()
        outcome, key = self._outcome(config.settings, known)
        return TrialResult(
            **dict(config), outcome=outcome, compiled_key=key, duration_s=round(time.monotonic() - started, 3)
        )

    def _outcome(self, settings: FlagSet, known: Known) -> tuple[TrialOutcome, str | None]:
        """What becomes of a set, and the name of its program."""
        result = self._screener.wait(lambda: self._screen.result(settings))
        if result.program is None:
            assert result.failure is not None
            return Failed(failure=result.failure), None
        # What is read at run time is part of the key: that a model cannot see it does not make it dead.
        key = self._screen.program_key(settings, on_device=False)
        if (over := compiled_over_limit(self._run.spec, self._screen, settings)) is not None:
            return Failed(failure=over), key
        if self._screen.fits(settings) is False:
            return Failed(failure=does_not_fit(self._screen, settings)), key
        found = predict_step(result.program, self._target, self._topology)
        if not found.is_comparable(self._reference):
            return Failed(failure=_uncounted(found, self._reference)), key
        step = self._step(settings, result.program, found)
        reference_key = self._screen.program_key(FlagSet(), on_device=False)
        twin = known.same_program(key, reference_key) if key else None
        if twin is not None:
            return twin.model_copy(update={"prediction": step}), key
        return Predicted(prediction=step), key

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Nothing predicted is minimised, so nobody needs to know."""
        return False

    looks_ahead = False
    """Every trial is a compilation: there is nothing to do meanwhile."""

    def compile_ahead(self, guess: Callable[[], FlagSet | None]) -> None:
        """See `looks_ahead`."""

    def rest(self) -> None:
        """Nothing is compiled ahead."""

    def close(self) -> None:
        """Ends the compile worker."""
        self._resources.close()

    def _work(self, settings: FlagSet, program: CompiledProgram) -> int | None:
        """What a step does: as the study says, else as the program does."""
        return self._run.spec.work_under(settings) or program.tokens_per_step

    def _step(self, settings: FlagSet, program: CompiledProgram, found: Prediction) -> PredictedStep:
        work, reference = self._work(settings, program), self._reference_tokens
        per_step = work / reference if work and reference else 1.0  # where a step has more tokens, it may take longer
        return PredictedStep(
            target=self._target.name,
            topology=str(self._topology),
            ratio=found.step_s / self._reference.step_s / per_step,
            step_s=found.step_s,
            low_s=found.interval_s[0],
            high_s=found.interval_s[1],
            published=found.published,
            compute_s=found.compute_s,
            communication_s=found.communication_s,
            exposed_s=found.exposed_s,
            idle_s=found.idle_s,
            mfu=found.mfu,
            tokens_per_s=found.tokens_per_s,
            peak_bytes=program.memory.peak_bytes if program.memory else None,
            compile_s=program.compile_s,
        )


def _uncounted(found: Prediction, reference: Prediction) -> Failure:
    """A loop that is counted once makes a program look far faster than one whose loops are known."""
    one, other = (", ".join(side.unknown_loops) or "none" for side in (found, reference))
    message = (
        "to predict a set, how often each loop of its program runs must be known as far as of the reference's, but not "
        f"known are {one} here and {other} there; measure this set on a GPU"
    )
    return Failure(kind=FailureKind.NO_RESULT, message=message, phase="predict")
