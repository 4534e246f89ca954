"""A GPU whose memory is really used up: simulated processes take shares of it, and find too little.

What it imitates: jaxlib's `xla_client.py` reads the share from the environment of a process; XLA's
allocator takes it when the process first uses the device, does with nine tenths of it again and
again where less is left, and raises RESOURCE_EXHAUSTED when an array or the step's temporary
buffers do not fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.spec import StudySpec
from autotune.workers.base import Progress, WorkerFailed
from autotune.workers.failures import classify_failure
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker

GIB = 1 << 30
DEFAULT_SHARE = 0.75
FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")

Need = Callable[[FlagSet], float]


class GpuMemory:
    """One device's memory, in bytes, and who holds how much of it."""

    def __init__(self, size: int = 80 * 10**9) -> None:
        self.size = size
        self.held: dict[object, int] = {}

    @property
    def free(self) -> int:
        """What nobody holds."""
        return self.size - sum(self.held.values())

    def take(self, who: object, environment: Mapping[str, str]) -> int:
        """The share of one process, all of it at once unless it is told not to preallocate.

        Raises:
            ValueError: In jaxlib's words, if its share is named twice.
        """
        named = [environment[n] for n in FRACTIONS if n in environment]
        if len(named) > 1:
            raise ValueError(
                f"{FRACTIONS[0]} is specified together with {FRACTIONS[1]}. Remove the latter "
                "one, it is "
                "deprecated."
            )
        wanted = int(self.size * float(named[0] if named else DEFAULT_SHARE))
        while wanted > self.free:
            wanted = int(0.9 * wanted)
        if environment.get("XLA_PYTHON_CLIENT_PREALLOCATE") not in ("false", "False", "0"):
            self.held[who] = wanted
        return wanted

    def use(self, who: object, needed: int, limit: int) -> None:
        """Arrays and buffers of one process.

        Raises:
            MemoryError: In XLA's words, if they are more than its limit, or than what is left.
        """
        if needed > min(limit, self.free + self.held.get(who, 0)):
            raise MemoryError(
                f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {needed} bytes."
            )
        self.held[who] = max(needed, self.held.get(who, 0))


class OnSharedGpu(SimulatedLauncher):
    """A simulated study on one GPU, whose memory every process takes its share of.

    Args:
        spec: The study, with its simulated machine.
        need: GiB that the step of a set needs.
        grown: GiB that it needs from the third block of a process on; default: no more.
        environment: What the program puts into its own environment before JAX looks.
        gpu: The device.

    Attributes:
        started: Settings of every start, in order, whether it went well or not.
        most: The most processes that ever were there at once.
    """

    def __init__(
        self,
        spec: StudySpec,
        *,
        need: Need,
        grown: Need | None = None,
        environment: Mapping[str, str] | None = None,
        gpu: GpuMemory | None = None,
    ) -> None:
        super().__init__(spec)
        self._need, self._grown = need, grown or need
        self._environment = environment or {}
        self.gpu = gpu or GpuMemory()
        self.started: list[FlagSet] = []
        self.failed: list[FlagSet] = []
        self.most = 0

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        """Starts a process, or fails as a real one does; see `autotune.workers.base.Launcher`."""
        self.started.append(settings)
        own = settings.without(*FRACTIONS)
        log, who = self.log(settings, folder), object()
        environment = {**settings.to_environment(), **self._environment}
        if lost := [n for n in FRACTIONS if n in settings and environment[n] != settings[n]]:
            said = f"{lost[0]}={settings[lost[0]]}: the program made it {environment[lost[0]]}"
            raise self._failed(settings, "NotApplied", said, "check", log)
        try:
            limit = self.gpu.take(who, environment)
        except ValueError as error:  # JAX only logs it, and then knows no such platform
            log.write_text(
                f"ERROR:jax._src.xla_bridge:Jax plugin configuration error\nValueError: {error}\n"
            )
            said = (
                "Unable to initialize backend 'cuda': Backend 'cuda' is not in the list of "
                "known backends"
            )
            raise self._failed(settings, "RuntimeError", said, "build", log) from error
        blocks = itertools.count()

        def use(needed: float, phase: str) -> None:
            try:
                self.gpu.use(who, int(needed * GIB), limit)
            except MemoryError as error:
                self.gpu.held.pop(who, None)
                raise self._failed(settings, "JaxRuntimeError", str(error), phase, log) from error

        use(self._need(own), "warm-up")
        self.most = max(self.most, len(self.gpu.held))
        try:
            worker = super().start(own, folder, progress=progress)
        except WorkerFailed:
            self.gpu.held.pop(who, None)
            raise
        run_block, close = worker.run_block, worker.close

        def run(steps: int) -> tuple[float, ...]:
            use(self._grown(own) if next(blocks) >= 2 else self._need(own), "step")
            return run_block(steps)

        def leave() -> None:
            self.gpu.held.pop(who, None)
            close()

        worker.run_block, worker.close = run, leave  # type: ignore[method-assign]
        return worker

    def close(self) -> None:
        """Ends every process."""
        self.gpu.held.clear()
        super().close()

    def _failed(
        self, settings: FlagSet, error_type: str, message: str, phase: str, log: Path
    ) -> WorkerFailed:
        self.failed.append(settings)
        failure = classify_failure(
            exit_status=1,
            phase=phase,
            error_type=error_type,
            message=message,
            last_lines=(message,),
            log=str(log),
        )
        if error_type == "NotApplied":
            failure = failure.model_copy(
                update={"kind": FailureKind.NOT_APPLIED, "message": message}
            )
        return WorkerFailed(failure)
