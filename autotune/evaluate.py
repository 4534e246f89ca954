"""One flag set in, one `TrialResult` out: start it, is it a program already measured, is its loss right, how fast.

A failing trial is data, never an exception; only a reference that cannot run is an error of the study.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from autotune import environment, measure, sandwich
from autotune.claims import attempts
from autotune.energy import open_meter
from autotune.errors import LaunchError, NodeLostError
from autotune.flags import FlagSet
from autotune.launch.base import Launcher, Worker, WorkerFailed
from autotune.records import (
    REFERENCE_NUMBER,
    Failure,
    FailureKind,
    IncidentRecord,
    Pair,
    TrialConfig,
    TrialResult,
    TrialStatus,
    WorkerReport,
)
from autotune.screening import Screening, settle
from autotune.spec import StudySpec
from autotune.stats import Decision, Estimate
from autotune.store import Store, append_synced, write_atomically
from autotune.telemetry import GpuWatch, open_watch
from autotune.told import Watcher
from autotune.traces import compare_traces

INFRASTRUCTURE_RETRIES = 2
REFERENCE_RESTARTS = 3
MEMORY_FRACTION = "XLA_CLIENT_MEM_FRACTION"
SHARED_FRACTION = "0.45"
"""What each of two processes takes of a GPU's memory while they take turns, unless the study says otherwise."""


class Bench:
    """The place where comparisons are made: holds the living reference, starts candidates beside it.

    Args:
        store: The study's run directory.
        launcher: Starts workers.
        runtime_settings: Tells which of some settings are read when the program runs, not when it is compiled:
            programs that are equal but for those must both be measured.
        watcher: The live view.
        screening: Compiles sets before they are launched; None measures whatever comes.
    """

    def __init__(
        self,
        store: Store,
        launcher: Launcher,
        *,
        runtime_settings: Callable[[FlagSet], FlagSet],
        watcher: Watcher,
        screening: Screening | None = None,
    ) -> None:
        self.screening = screening
        self.store = store
        self.spec = store.spec
        self.watcher = watcher
        self.loss_tolerance = 0.0
        self.mode: str = store.spec.measure.mode
        """``turns`` or ``sandwich``; the noise floor may find that two processes do not fit together."""
        if self.mode == "auto":
            self.mode = "turns" if store.spec.workload.takes_turns else "sandwich"
        self.gpus = watch_of(self.spec)
        self.meter = open_meter(self.spec, self.gpus, is_shared=store.claims.worker is not None)
        self._launcher = launcher
        self._runtime_settings = runtime_settings
        self._reference: Worker | None = None
        self._restarts = 0

    # ------------------------------------------------------------------ workers

    def settings_of(self, settings: FlagSet, *, alone: bool) -> FlagSet:
        """The baseline plus `settings`, plus what lets two processes share a GPU unless the process is alone on it.

        JAX takes three quarters of a GPU's memory when it starts, so of two the second would find too little.
        """
        merged = self.spec.baseline.merge(settings)
        if alone or self.spec.device.platform != "cuda" or any(_steers_memory(n) for n in merged):
            return merged
        return merged.merge({MEMORY_FRACTION: SHARED_FRACTION})

    def must_run_alone(self, failure: Failure) -> bool:
        """Whether a failure says that two processes do not fit into the device's memory, and one may be tried."""
        spec = self.spec
        return (
            failure.kind is FailureKind.OUT_OF_MEMORY and spec.device.platform == "cuda"
            and spec.measure.mode == "auto" and self.mode == "turns"
        )  # fmt: skip

    def start(self, settings: FlagSet, folder: Path, *, alone: bool = False) -> Worker:
        """Starts a worker under the baseline plus `settings`; faults of the machine are retried, others never.

        Raises:
            WorkerFailed: If it never became ready.
            NodeLostError: If nodes that it needs are gone.
        """
        merged = self.settings_of(settings, alone=alone)
        for attempt in range(INFRASTRUCTURE_RETRIES + 1):
            try:
                return self._launcher.start(merged, folder, progress=self.watcher.phase)
            except WorkerFailed as error:
                if not error.infrastructure:
                    raise
                if attempt == INFRASTRUCTURE_RETRIES:
                    if error.failure.kind is FailureKind.NODE_LOST:  # no trial can run here any more
                        raise NodeLostError(
                            f"all nodes of this driver must start trials but: {error}; everything so far is in "
                            f"{self.store.path}; run the same command again on other nodes, and it goes on"
                        ) from error
                    raise
                self.store.append(IncidentRecord(what=f"start tried again after: {error}"))
                time.sleep(0.5 * (attempt + 1))
        raise AssertionError("unreachable")

    def reference(self) -> Worker:
        """The living reference; started when first asked for, and again after it died, a bounded number of times.

        Raises:
            LaunchError: If it cannot be started: there is nothing to compare with.
        """
        if self._reference is None:
            folder = self.store.folder(*self.own_floor, "reference")
            try:
                self._reference = self.start(FlagSet(), folder)
            except WorkerFailed as error:
                raise LaunchError(reference_failed(self.spec.baseline, error)) from error
        return self._reference

    @property
    def own_floor(self) -> tuple[str, ...]:
        """Where this worker's reference and noise floor lie, in parts: each compares with its own."""
        worker = self.store.claims.worker
        return ("floor",) if worker is None else ("floor", worker)

    def lose_reference(self, why: str) -> None:
        """Ends the reference, to be started anew when next asked for.

        Raises:
            LaunchError: If that happened too often to go on.
        """
        self.release_reference()
        self._restarts += 1
        self.store.append(IncidentRecord(what=f"reference lost: {why}"))
        if self._restarts > REFERENCE_RESTARTS:
            raise LaunchError(
                f"the reference must stay alive but was lost {self._restarts} times; the last time: {why}. "
                f"Look at {'/'.join(self.own_floor)}/reference/worker.log, then run the same command again"
            )

    def release_reference(self) -> None:
        """Ends the living reference, so that another process is alone; it is started again when next asked for."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def close(self) -> None:
        """Ends every worker."""
        self._launcher.close()
        self._reference = None

    def is_same_program(self, one: FlagSet, other: FlagSet) -> bool:
        """Whether the screen knows, without starting anything, that one measurement serves two sets."""
        if self.screening is None:
            return False
        key = self.screening.look(one).key
        return key is not None and key == self.screening.look(other).key

    # ------------------------------------------------------------------ comparing

    def steps_for(self, worker: Worker) -> int:
        """Steps in a block, from the warm-up of a worker."""
        times = worker.report.warmup_step_times_s
        step_s = sorted(times)[len(times) // 2]
        return measure.block_steps(step_s, block_s=self.spec.measure.block_s, least=self.spec.measure.block_steps)

    def run_turns(
        self,
        reference: Worker,
        candidate: Worker,
        folder: Path,
        *,
        name: str,
        stop: Callable[[list[float]], Decision | None],
    ) -> tuple[list[Pair], str]:
        """Measures two living workers in turns, every pair stored as it comes; `name` seeds the coin."""
        ratios: list[float] = []
        file = folder / "pairs.jsonl"
        file.unlink(missing_ok=True)  # what a killed session left of this measurement

        def keep(pair: Pair) -> None:
            append_synced(file, pair.model_dump_json(exclude_none=True) + "\n", sync=False)
            ratios.append(measure.log_ratio(pair))
            self.watcher.pair(ratios)
            self.gpus.look(folder)  # between two pairs, when nothing is timed

        return measure.measure_pairs(
            reference,
            candidate,
            steps=self.steps_for(reference),
            rng=random.Random(f"{self.spec.seed}/{name}"),
            stop=stop,
            on_pair=keep,
            clock=lambda: self.store.watch.total_s,
            meter=self.meter,
        )

    def check_loss(self, reference: WorkerReport, candidate: WorkerReport) -> str | None:
        """What is wrong with a candidate's loss or gradients, in words, or None."""
        check = compare_traces(
            reference_losses=reference.losses,
            candidate_losses=candidate.losses,
            reference_grad_norms=reference.grad_norms,
            candidate_grad_norms=candidate.grad_norms,
            aa_tolerance=self.loss_tolerance,
            # A GPU multiplies float32 matrices as TF32 unless told otherwise, and which ones changes with the kernels.
            dtype="tensorfloat32" if reference.dtype == "float32" and reference.platform != "cpu" else reference.dtype,
        )
        if check.is_ok:
            return None
        return (
            f"{check.quantity} at step {check.step} must be {check.expected!r} within {check.tolerance or 0:.1e} "
            f"(relative) but is {check.got!r}"
        )

    def program_key(self, settings: FlagSet, report: WorkerReport) -> str:
        """Names what really runs: the compiled program, plus the settings that are read at run time."""
        runtime = dict(self._runtime_settings(self.spec.baseline.merge(settings)))
        body = json.dumps([report.fingerprint, runtime, report.process_count], sort_keys=True)
        return hashlib.sha256(body.encode()).hexdigest()[:16]


def watch_of(spec: StudySpec) -> GpuWatch:
    """A watch over the GPUs of a study; one that sees nothing in a study on CPUs."""
    return open_watch(environment.caller()) if spec.device.platform == "cuda" else GpuWatch(None, None)


def reference_failed(baseline: FlagSet, error: WorkerFailed) -> str:
    """What to tell a user whose reference cannot run."""
    lines = "\n".join(f"    {line}" for line in error.failure.last_lines[-8:])
    return (
        f"the reference (baseline settings: {baseline}) must run but did not: {error}\n"
        f"  its log is {error.failure.log}; its last lines:\n{lines}\n"
        "  mend the workload or the baseline of the study, then run the same command again"
    )


def node_lost(deaths: int) -> Failure:
    """What is recorded of work that is not given back again."""
    message = f"{deaths} workers died over this, one after the other; it is not given to another"
    return Failure(kind=FailureKind.NODE_LOST, message=message, phase="step")


def evaluate(
    bench: Bench,
    config: TrialConfig,
    *,
    stop: Callable[[list[float]], Decision | None],
    estimate: Callable[[list[float]], Estimate],
    known: Iterable[TrialResult],
    attempt: int = 1,
) -> TrialResult:
    """Measures one proposed set, unless it or its program is known already.

    Args:
        bench: Where.
        config: What.
        stop: The stopping rule.
        estimate: From log ratios to the estimate that is honest under that rule.
        known: Results so far.
        attempt: Number of the attempt; workers that died made those before it.

    Raises:
        LaunchError: If the reference cannot be kept alive.
        RunDirectoryError: If the run directory cannot be written.
    """
    started = time.monotonic()
    known = list(known)
    same = next((r for r in known if r.settings == config.settings and r.status is not TrialStatus.SAME_SET), None)
    folder = bench.store.folder("trials", attempts(f"{config.number:04d}", attempt))
    base = TrialResult(
        number=config.number,
        settings=config.settings,
        origin=config.origin,
        params=config.params,
        status=TrialStatus.FAILED,
        directory=bench.store.relative(folder),
    )
    if same is not None:
        return base.model_copy(
            update={
                "status": TrialStatus.SAME_SET, "same_as": same.number, "comparison": same.comparison,
                "failure": same.failure, "program_key": same.program_key, "directory": None,
            }
        )  # fmt: skip
    if bench.screening is not None:
        found = bench.screening.look(config.settings)
        if (early := settle(found, base, known, bench.screening.look(FlagSet()))) is not None:
            return early.model_copy(update={"duration_s": round(time.monotonic() - started, 3)})
        base = base.model_copy(update={"compiled_key": found.key})
    write_atomically(folder / "request.json", _request(bench, config))
    alone = bench.mode == sandwich.MODE
    while True:
        if alone:
            result = _attempt_alone(bench, base, folder, known=known)
        else:
            result = _attempt(bench, base, folder, stop=stop, estimate=estimate, known=known)
        if result is not None and result.failure is not None and not alone and bench.must_run_alone(result.failure):
            bench.release_reference()
            alone, result = True, None
        if result is not None:
            return result.model_copy(update={"duration_s": round(time.monotonic() - started, 3)})


def _attempt(
    bench: Bench,
    base: TrialResult,
    folder: Path,
    *,
    stop: Callable[[list[float]], Decision | None],
    estimate: Callable[[list[float]], Estimate],
    known: list[TrialResult],
) -> TrialResult | None:
    """One try; None if it was the reference that failed, which is then lost and the try worth nothing."""
    reference = bench.reference()
    try:
        candidate = bench.start(base.settings, folder)
    except WorkerFailed as error:
        return base.model_copy(update={"failure": _relative(bench, error.failure)})
    try:
        key = bench.program_key(base.settings, candidate.report)
        base = base.model_copy(update={"worker": candidate.report, "program_key": key})
        if wrong := bench.check_loss(reference.report, candidate.report):
            return base.model_copy(
                update={"failure": Failure(kind=FailureKind.WRONG_LOSS, message=wrong, phase="check")}
            )
        if (twin := _twin(bench, key, reference.report, known)) is not None:
            return base.model_copy(update=twin)
        try:
            pairs, stopped = bench.run_turns(reference, candidate, folder, name=f"trial-{base.number}", stop=stop)
        except WorkerFailed as error:
            # A machine that fails in mid-trial takes the reference with it, and says nothing of the candidate.
            if error.infrastructure or (error.failure.log and Path(error.failure.log).parent != folder):
                bench.lose_reference(str(error))
                return None
            return base.model_copy(update={"failure": _relative(bench, error.failure)})
        found = estimate([measure.log_ratio(p) for p in pairs])
        comparison = measure.compare(
            pairs, found, sesoi=bench.spec.measure.smallest_effect, stopped=stopped, warnings=bench.gpus.warnings(),
            meter=bench.meter,
        )  # fmt: skip
        return base.model_copy(update={"status": TrialStatus.MEASURED, "comparison": comparison})
    finally:
        candidate.close()


class _Settled(Exception):
    """A trial has its result before it was measured."""

    def __init__(self, result: TrialResult) -> None:
        self.result = result


def _attempt_alone(bench: Bench, base: TrialResult, folder: Path, *, known: list[TrialResult]) -> TrialResult | None:
    """One try in sandwiches; None if it was the reference that failed."""
    seen = base

    def inspect(reference: WorkerReport, candidate: WorkerReport) -> None:
        nonlocal seen
        key = bench.program_key(base.settings, candidate)
        seen = base.model_copy(update={"worker": candidate, "program_key": key})
        if wrong := bench.check_loss(reference, candidate):
            failure = Failure(kind=FailureKind.WRONG_LOSS, message=wrong, phase="check")
            raise _Settled(seen.model_copy(update={"failure": failure}))
        if (twin := _twin(bench, key, reference, known)) is not None:
            raise _Settled(seen.model_copy(update=twin))

    try:
        pairs = sandwich.run_sandwiches(bench, FlagSet(), base.settings, folder, inspect=inspect)
    except _Settled as settled:
        return settled.result
    except sandwich.ReferenceFailed as error:
        bench.lose_reference(str(error))
        return None
    except WorkerFailed as error:
        return seen.model_copy(update={"failure": _relative(bench, error.failure)})
    comparison = sandwich.compare(bench, pairs)
    return seen.model_copy(update={"status": TrialStatus.MEASURED, "comparison": comparison})


def _steers_memory(name: str) -> bool:
    return name.endswith(("_MEM_FRACTION", "_PREALLOCATE", "_ALLOCATOR"))


def _twin(bench: Bench, key: str, reference: WorkerReport, known: list[TrialResult]) -> dict[str, object] | None:
    """What is known of a program that was measured before, or is the reference's own."""
    if key == bench.program_key(FlagSet(), reference):
        return {"status": TrialStatus.SAME_PROGRAM, "same_as": REFERENCE_NUMBER}
    for earlier in known:
        if earlier.program_key == key and earlier.status is TrialStatus.MEASURED:
            return {
                "status": TrialStatus.SAME_PROGRAM,
                "same_as": earlier.number,
                "comparison": earlier.comparison,
            }
    return None


def _relative(bench: Bench, failure: Failure) -> Failure:
    """The failure with its log's path relative to the run directory."""
    if failure.log is None:
        return failure
    path = Path(failure.log)
    inside = path.is_relative_to(bench.store.path)
    return failure.model_copy(update={"log": bench.store.relative(path) if inside else path.name})


def _request(bench: Bench, config: TrialConfig) -> str:
    """What a trial was asked to do: settings and the environment they make, allow-listed."""
    device = bench.spec.device
    merged = bench.settings_of(config.settings, alone=bench.mode == sandwich.MODE)
    return (
        json.dumps(
            {
                "trial": config.number,
                "origin": config.origin,
                "settings": dict(config.settings),
                "baseline": dict(bench.spec.baseline),
                "frame": {n: v for n, v in merged.items() if n not in config.settings and n not in bench.spec.baseline},
                "mode": bench.mode,
                "environment": environment.reproduction(
                    merged, platform_name=device.platform, virtual_devices=device.count
                ),
                "workload": bench.spec.workload.model_dump(),
            },
            indent=1,
        )
        + "\n"
    )
