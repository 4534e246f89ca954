"""A formula stands in for the machine: search, proof, export and commands run whole, in seconds, with known truth."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from pathlib import Path

import numpy as np

from autotune.model import (
    DUMPED_KERNELS,
    PROFILE,
    Failure,
    FailureKind,
    FlagSet,
    MemoryUse,
    ReplaySpec,
    TimeLimits,
    WorkerReport,
)
from autotune.stats import NOISE_MODELS, Machine, NoiseModel, Process
from autotune.workers.base import Progress, WorkerFailed

LOSSES = (6.5, 6.1, 5.8, 5.6, 5.5)
COMPILE_S, PEAK_BYTES, TOKENS = 2.0, 1 << 30, 4096
"""Of the reference, in a study whose formula speaks of them."""


class ReplayLauncher:
    """Starts workers whose step time is the product of their settings' factors, on one noisy machine.

    Args:
        replay: Factors, failures and noise.
        seed: Of the noise.
        platform: What workers say they run on.
        device_count: How many devices they say they have.
    """

    def __init__(self, replay: ReplaySpec, *, seed: int, platform: str, device_count: int = 1) -> None:
        model = NOISE_MODELS[replay.noise] if isinstance(replay.noise, str) else NoiseModel(**replay.noise)
        self._replay = replay
        self._platform = platform
        self._device_count = device_count
        self._seed = seed
        self._starts: Counter[str] = Counter()
        self.limits = TimeLimits()  # nothing hangs
        self._machine = Machine(model, np.random.default_rng(seed))

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> ReplayWorker:
        """Makes a worker; see `base.Launcher`."""
        log = self.log(settings, folder)
        progress("compile")
        _wait(self._replay.delay_s)
        self._leave_results(settings)
        profiled = self._read_profile(settings)
        entries = [f"{n}={v}" for n, v in settings.items() if n not in (PROFILE, DUMPED_KERNELS)]
        losses: tuple[float, ...] = LOSSES
        for entry, kind in self._replay.failures.items():
            if not all(e in entries for e in entry.split()):
                continue
            if kind is not FailureKind.WRONG_LOSS:
                message = f"replayed failure of {entry}"
                raise WorkerFailed(Failure(kind=kind, message=message, phase="compile", log=str(log)))
            losses = tuple(x * 1.5 for x in LOSSES)
        step_s = self._replay.step_s
        for entry in entries:
            step_s *= self._replay.effects.get(entry, 1.0)
        seen = sorted(e for e in entries if e not in self._replay.inert)
        if profiled and self._replay.profile_effect is not None:
            step_s *= self._replay.profile_effect
            seen.append(PROFILE)
        # Two are started at once by two threads: what each draws must not depend on which comes first.
        own = np.random.default_rng(list(self._name_of_start("/".join(folder.parts[-2:])).encode()))
        is_candidate = any(e in self._replay.effects for e in entries)
        work = math.prod(self._replay.token_effects.get(e, 1.0) for e in entries)
        if work != 1.0:
            losses = _losses_of(losses, work)
        return ReplayWorker(
            Process(self._machine, step_s=step_s, rng=own, is_candidate=is_candidate),
            self._report(entries, seen, losses),
            delay_s=self._replay.delay_s,
            profile=self._replay.profile.encode(),
        )

    def _name_of_start(self, folder: str) -> str:
        """What seeds a process: its folder, and for a fresh process in the same folder how many were there before."""
        before = self._starts[folder]
        self._starts[folder] += 1
        return f"{self._seed}/{folder}" + (f"/{before}" if before else "")

    def _read_profile(self, settings: FlagSet) -> bool:
        """Whether a program is compiled with the recorded profile: as XLA, it goes on without a word if not."""
        path = settings.get(PROFILE)
        if path is None:
            return False
        try:
            return Path(path).read_bytes() == self._replay.profile.encode()
        except OSError:
            return False

    def _leave_results(self, settings: FlagSet) -> None:
        """Leaves the recorded results of an autotuner where a process is told to."""
        if self._replay.autotune_results and (path := settings.get(DUMPED_KERNELS)) is not None:
            Path(path).write_text(self._replay.autotune_results, encoding="utf-8")

    def log(self, settings: FlagSet, folder: Path) -> Path:
        """Writes what a worker's log would hold; returns the file."""
        log = folder / "worker.log"
        log.write_text(f"replayed: {settings}\n", encoding="utf-8")
        return log

    def close(self) -> None:
        """Takes the workers that are left off the machine."""
        self._machine.candidates.clear()

    def _report(self, entries: list[str], seen: list[str], losses: tuple[float, ...]) -> WorkerReport:
        replay = self._replay
        memory = math.prod(replay.memory_effects.get(e, 1.0) for e in entries)
        return WorkerReport(
            fingerprint=hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16],
            platform=self._platform,
            device_kind="replay",
            device_count=self._device_count,
            compile_s=COMPILE_S * math.prod(replay.compile_effects.get(e, 1.0) for e in entries)
            if replay.compile_effects
            else 0.0,
            peak_bytes=round(PEAK_BYTES * memory) if replay.memory_effects else None,
            tokens_per_step=round(TOKENS * math.prod(replay.token_effects.get(e, 1.0) for e in entries))
            if replay.token_effects
            else None,
            start_s=replay.start_s,
            losses=losses,
            grad_norms=losses,
            warmup_step_times_s=(self._replay.step_s,) * 3,
        )


def _losses_of(losses: tuple[float, ...], work: float) -> tuple[float, ...]:
    """Losses of another batch: after as much work they are the reference's, but for the rows that are other ones."""
    seen = [min(step * work, len(losses) - 1.0) for step in range(len(losses))]
    return tuple((1 + 1e-3 * work) * float(x) for x in np.interp(seen, range(len(losses)), losses))


class ReplayWorker:
    """A worker that draws its step times; its memory does not grow."""

    watches_memory = False
    last_memory: MemoryUse | None = MemoryUse(host_bytes=PEAK_BYTES)

    def __init__(self, process: Process, report: WorkerReport, *, delay_s: float, profile: bytes = b"") -> None:
        self.report = report
        self._profile = profile
        self._process = process
        self.last_loss: float | None = None
        self.last_norm: float | None = None
        self.loss_lag = 0
        self.fresh_batches = False
        self._delay_s = delay_s

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Draws a block; see `base.Worker`."""
        _wait(self._delay_s)
        self.last_loss = self.report.losses[-1] if self.report.losses else None
        return tuple(self._process.run_block(steps).tolist())

    def profile(self, steps: int) -> bytes:
        """The recorded one; see `base.Worker`."""
        return self._profile

    def close(self) -> None:
        """Leaves the machine: it is nobody's idle neighbour any more."""
        self._process.close()


def _wait(delay_s: float) -> None:
    if delay_s > 0:  # a sleep of no time still costs a turn of the processor
        time.sleep(delay_s)
