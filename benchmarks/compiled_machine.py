"""What stands in for GPUs that are not there: really compiled programs, whose steps take what is predicted of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autotune.compiler.predict import predict_step
from autotune.compiler.screen import Screener
from autotune.compiler.targets import Target
from autotune.model import Failure, FailureKind, FlagSet, StudySpec
from autotune.stats.simulate import Process
from autotune.workers.base import Progress, WorkerFailed
from autotune.workers.replay import ReplayLauncher, ReplayWorker


class CompiledMachine(ReplayLauncher):
    """Stands in for GPUs: a step takes what the model predicts of the really compiled program, with noise."""

    def __init__(self, spec: StudySpec, screen: Screener, target: Target) -> None:
        assert spec.replay is not None
        super().__init__(spec.replay, seed=spec.seed, platform="cuda")
        self._screen, self._target = screen, target
        self.started = 0

    def step_s(self, settings: FlagSet) -> float | None:
        """What a step takes; None where nothing compiles."""
        program = self._screen.result(settings.without("XLA_CLIENT_MEM_FRACTION")).program
        if program is None:
            return None
        return predict_step(program, self._target, self._screen.job.topology).step_s

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> ReplayWorker:
        """See `base.Launcher`."""
        self.started += 1
        if (step_s := self.step_s(settings)) is None:
            raise WorkerFailed(Failure(kind=FailureKind.CRASH, message="does not compile", phase="compile"))
        worker = super().start(settings, folder, progress=progress)
        own = f"t{hashlib.sha256(str(settings).encode()).hexdigest()[:15]}"  # a GPU cannot tell that programs are equal
        report = worker.report.model_copy(update={"fingerprint": own})
        return ReplayWorker(Process(self._machine, step_s=step_s), report, delay_s=0.0)
