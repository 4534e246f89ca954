"""Simulated step times of known truth: noise models as data, their machines and processes.

All noise is multiplicative. What slows the machine hits whichever process runs at that moment; what
belongs to a process stays with it; what comes of company depends on who lies idle beside the one
that runs, and who ran last. One implementation serves a single machine (`shape=()`) and many at
once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


DRIFT_STEPS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Sizes of the noise, in logs of step time (0.01 is about 1 %), and lengths in steps.

    Attributes:
        white_sd: Independent noise of every step.
        drift: Slow-down per 1000 steps of the machine, for `DRIFT_STEPS`; then it becomes faster
            again for as many.
        wander_sd: Stationary spread of the machine's own first-order autoregressive wander.
        wander_steps: Its correlation length.
        burst_share: Share of time in which another load holds a core, or a clock is in its slow
            state.
        burst_steps: Mean length of such a burst, the dwell time of that state.
        burst_cost: Slow-down inside a burst.
        period_steps: From the start of one regular burst to the start of the next; 0: there are
            none.
        period_burst_steps: Length of a regular burst.
        period_cost: Slow-down inside one.
        ramp_cost: Slow-down that a machine approaches as it runs; it is cool again whenever a
            process was started.
        ramp_steps: Steps in which it comes within 1/e of that.
        position_cost: Slow-down of every second block since a process was started: of the second
            one of each pair.
        outlier_share: Share of steps hit by a single hiccup.
        outlier_cost: Mean size of a hiccup (exponential).
        process_sd: Constant effect of each process, drawn when it starts.
        tail_share: Share of processes that are slow for as long as they live.
        tail_least: Slow-down of such a process, at least.
        tail_most: Likewise at most; between the two every size is as likely.
        own_wander_sd: Wander that belongs to one process and not to the machine: interleaving
            cannot cancel it.
        own_wander_steps: Its correlation length.
        stall_share: Share of steps of every process that stall.
        stall_steps: Length of a stall.
        candidate_stall_share: Share of a candidate's steps that stall beside those: its typical
            step does not show it.
        fault_share: Share of the candidate's processes that have a bad kernel for as long as they
            live.
        fault_cost: Slow-down of such a process.
        late_cost: Slow-down of a candidate's process after its first `late_steps` steps.
        early_cost: Slow-down of a reference's process in its first `early_steps` steps.
        warm_cost: Slow-down of every process when it starts, which becomes less as it runs.
        warm_steps: Steps in which that of the reference's falls to 1/e.
        candidate_warm_steps: Likewise of the candidate's.
        idle_cost: Slow-down of whoever runs while a candidate's process lies idle beside it: alone
            there is none.
        memory_cost: Slow-down of a block that follows a block of another process, a candidate's:
            alone there is none.
        clock_s: Seconds in which the clock comes within 1/e of where the power of whoever runs lets
            it stay; it is at its highest whenever a process was started. 0: it never moves.
        power_cost: Slow-down that the clock approaches so while anything runs.
        candidate_power_cost: What it approaches beside that while a candidate runs; below 0 it
            draws less.
    """

    white_sd: float = 0.01
    drift: float = 0.0
    wander_sd: float = 0.0
    wander_steps: float = 30.0
    burst_share: float = 0.0
    burst_steps: float = 20.0
    burst_cost: float = 0.0
    period_steps: float = 0.0
    period_burst_steps: float = 0.0
    period_cost: float = 0.0
    ramp_cost: float = 0.0
    ramp_steps: float = 100.0
    position_cost: float = 0.0
    outlier_share: float = 0.0
    outlier_cost: float = 0.0
    process_sd: float = 0.0
    tail_share: float = 0.0
    tail_least: float = 0.0
    tail_most: float = 0.0
    own_wander_sd: float = 0.0
    own_wander_steps: float = 100.0
    stall_share: float = 0.0
    stall_steps: float = 0.0
    candidate_stall_share: float = 0.0
    fault_share: float = 0.0
    fault_cost: float = 0.0
    late_cost: float = 0.0
    late_steps: float = 0.0
    early_cost: float = 0.0
    early_steps: float = 0.0
    warm_cost: float = 0.0
    warm_steps: float = 1.0
    candidate_warm_steps: float = 1.0
    idle_cost: float = 0.0
    memory_cost: float = 0.0
    clock_s: float = 0.0
    power_cost: float = 0.0
    candidate_power_cost: float = 0.0


EVEN_MODELS = {
    "quiet": NoiseModel(white_sd=0.004, process_sd=0.001),
    "white": NoiseModel(white_sd=0.06),
    "drift": NoiseModel(white_sd=0.03, drift=0.5, process_sd=0.003),
    "bursts": NoiseModel(
        white_sd=0.03, burst_share=0.3, burst_steps=12.0, burst_cost=0.4, process_sd=0.003
    ),
    "outliers": NoiseModel(white_sd=0.03, outlier_share=0.05, outlier_cost=0.5, process_sd=0.003),
    "correlated": NoiseModel(white_sd=0.02, wander_sd=0.10, wander_steps=20.0, process_sd=0.003),
    "processes": NoiseModel(white_sd=0.03, process_sd=0.01),
    "everything": NoiseModel(
        white_sd=0.04,
        drift=0.1,
        wander_sd=0.05,
        burst_share=0.2,
        burst_cost=0.3,
        outlier_share=0.02,
        outlier_cost=0.4,
        process_sd=0.005,
    ),
    "own wander": NoiseModel(white_sd=0.03, own_wander_sd=0.01, process_sd=0.003),
    "heavy tails": NoiseModel(
        white_sd=0.01, process_sd=0.003, tail_share=0.15, tail_least=0.05, tail_most=0.15
    ),
    "two clocks": NoiseModel(
        white_sd=0.01, process_sd=0.003, burst_share=0.5, burst_steps=200.0, burst_cost=0.08
    ),
    "regular bursts": NoiseModel(
        white_sd=0.01,
        process_sd=0.003,
        period_steps=667.0,
        period_burst_steps=40.0,
        period_cost=0.4,
    ),
    "thermal ramp": NoiseModel(white_sd=0.01, process_sd=0.003, ramp_cost=0.15, ramp_steps=60.0),
    "position": NoiseModel(white_sd=0.01, process_sd=0.003, position_cost=0.03),
    "stalls of both": NoiseModel(
        white_sd=0.01, process_sd=0.003, stall_share=0.025, stall_steps=4.0
    ),
}
"""Named machines that hit both arms alike, at levels like those seen on a shared 2-core host and on
a quiet GPU. Steps take 0.03 s in a simulated study: 667 of them are 20 s.
"""

UNEVEN_MODELS = {
    "bad kernels": NoiseModel(white_sd=0.01, process_sd=0.003, fault_share=0.1, fault_cost=0.05),
    "coupled": NoiseModel(white_sd=0.01, process_sd=0.003, idle_cost=0.02),
    "block memory": NoiseModel(white_sd=0.01, process_sd=0.003, memory_cost=0.03),
    "stalls": NoiseModel(
        white_sd=0.01, process_sd=0.003, candidate_stall_share=0.025, stall_steps=4.0
    ),
    "rarer stalls": NoiseModel(
        white_sd=0.01, process_sd=0.003, candidate_stall_share=0.005, stall_steps=20.0
    ),
}
"""Named machines that tell the arms apart: where interleaved pairs, or typical steps, are wrong of
a candidate.
"""

GPU_MODELS = {
    "power": NoiseModel(
        white_sd=0.004, process_sd=0.002, clock_s=1.0, power_cost=0.1, candidate_power_cost=0.03
    ),
}
"""Machines whose clock follows what the running process draws: what a candidate costs by that is
its own in the long run, and hits both arms in blocks that are short against it. They want blocks of
a GPU's size.
"""

NOISE_MODELS = EVEN_MODELS | UNEVEN_MODELS | GPU_MODELS
"""All named machines."""


class _Wander:
    """First-order autoregressive noise, started from its stationary law."""

    def __init__(
        self, sd: float, length: float, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> None:
        self._keep = math.exp(-1.0 / length)
        self._kick_sd = sd * math.sqrt(1.0 - self._keep**2)
        self._rng = rng
        self._shape = shape
        self._at = sd * rng.standard_normal(shape)

    def steps(self, count: int) -> Floats:
        kicks = self._kick_sd * self._rng.standard_normal((count, *self._shape))
        for step in range(count):
            self._at = self._keep * self._at + kicks[step]
            kicks[step] = self._at
        return np.moveaxis(kicks, 0, -1)


class Machine:
    """One machine, or `shape` many independent ones, with one time for all their steps.

    Attributes:
        candidates: Processes of candidates that are alive on it.
        last: Whose block ran last since a process was started.
    """

    def __init__(
        self, model: NoiseModel, rng: np.random.Generator, shape: tuple[int, ...] = ()
    ) -> None:
        self.model = model
        self.rng = rng
        self.shape = shape
        self.candidates: list[Process] = []
        self.last: Process | None = None
        self._done = 0
        self._wander = _Wander(model.wander_sd, model.wander_steps, rng, shape)
        self._in_burst = rng.random(shape) < model.burst_share
        self.rest()

    def rest(self) -> None:
        """Idles, as while a process starts: it cools down, and bursts go on elsewhere."""
        self.last = None
        self._blocks, self._warm = 0, 0
        self._clock = np.zeros(self.shape)
        self._phase: Floats | None = (
            None  # drawn with the next block, so that two may be started at once
        )

    def slowness(self, count: int) -> Floats:
        """Logs of the slow-down of a block, the next `count` steps, `[*shape, count]`."""
        model, rng, shape = self.model, self.rng, (*self.shape, count)
        slow = model.white_sd * rng.standard_normal(shape)
        if model.drift:
            at = np.arange(self._done, self._done + count) % (2 * DRIFT_STEPS)
            slow += model.drift / 1000.0 * np.minimum(at, 2 * DRIFT_STEPS - at)
        if model.wander_sd:
            slow += self._wander.steps(count)
        if model.outlier_share:
            slow += (rng.random(shape) < model.outlier_share) * rng.exponential(
                model.outlier_cost, shape
            )
        if model.burst_share:
            slow += model.burst_cost * self._bursts(count)
        if model.period_steps:
            slow += model.period_cost * self._regular_bursts(count)
        if model.ramp_cost:
            slow += model.ramp_cost * -np.expm1(
                -np.arange(self._warm, self._warm + count) / model.ramp_steps
            )
        if model.position_cost:
            slow += model.position_cost * (self._blocks % 2)
        self._done += count
        self._warm += count
        self._blocks += 1
        return slow

    def clock(self, target: float | Floats, step_s: float | Floats, count: int) -> Floats:
        """Log slow-downs by the clock in the next `count` steps, to broadcast to `[*shape, count]`.

        Args:
            target: What it approaches while they run, by who runs them.
            step_s: Seconds of one of them, about.
            count: How many.
        """
        end, lag = np.asarray(target, dtype=np.float64)[..., None], self.model.clock_s
        if not lag:
            return end
        away, each = self._clock[..., None] - end, np.asarray(step_s)[..., None] / lag
        self._clock = np.asarray((end + away * np.exp(-count * each))[..., 0])
        slow: Floats = end + away * np.exp(-each * np.arange(count)) * (-np.expm1(-each) / each)
        return slow

    def _bursts(self, count: int) -> Floats:
        leave = 1.0 / self.model.burst_steps
        enter = leave * self.model.burst_share / (1.0 - self.model.burst_share)
        on = np.empty((count, *self.shape))
        for step, draw in enumerate(self.rng.random((count, *self.shape))):
            self._in_burst = np.where(self._in_burst, draw >= leave, draw < enter)
            on[step] = self._in_burst
        return np.moveaxis(on, 0, -1)

    def _regular_bursts(self, count: int) -> Bools:
        if self._phase is None:
            self._phase = np.asarray(self.model.period_steps * self.rng.random(self.shape))
        at = self._phase[..., None] + np.arange(self._warm, self._warm + count)
        return np.asarray(at % self.model.period_steps < self.model.period_burst_steps)

    def company(self, process: Process) -> float:
        """Log slow-down of a block of `process` by the others here, now the last that ran."""
        model, cost = self.model, 0.0
        if model.idle_cost and any(other is not process for other in self.candidates):
            cost += model.idle_cost
        if (
            model.memory_cost
            and self.last is not None
            and self.last is not process
            and self.last.is_candidate
        ):
            cost += model.memory_cost
        self.last = process
        return cost


class Process:
    """A worker on the machine: true step time, constant effect, wander and stalls.

    Args:
        machine: Where it runs; it rests until the process is there.
        step_s: Its true step time, seconds.
        rng: What is its own is drawn from here; default: the machine's, in the order in which
            processes are made.
        is_candidate: Whether what only candidates suffer, and make others suffer, is its lot.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        step_s: float = 1.0,
        rng: np.random.Generator | None = None,
        is_candidate: bool = False,
    ) -> None:
        model, shape = machine.model, machine.shape
        self._rng = rng = rng or machine.rng
        self.machine = machine
        self.is_candidate = is_candidate
        self._log_step = math.log(step_s) + model.process_sd * rng.standard_normal(shape)
        self._wander = (
            _Wander(model.own_wander_sd, model.own_wander_steps, rng, shape)
            if model.own_wander_sd
            else None
        )
        if model.tail_share:
            size = rng.uniform(model.tail_least, model.tail_most, shape)
            self._log_step = self._log_step + size * (rng.random(shape) < model.tail_share)
        if model.fault_share and is_candidate:
            self._log_step = self._log_step + model.fault_cost * (
                rng.random(shape) < model.fault_share
            )
        self._ran = 0
        self._stall_share = model.stall_share + (
            model.candidate_stall_share if is_candidate else 0.0
        )
        machine.rest()
        if is_candidate:
            machine.candidates.append(self)

    def run_block(self, count: int) -> Floats:
        """Seconds of the next `count` steps while the others here idle, `[*shape, count]`."""
        slow = self.machine.slowness(count) + self.own(count) + self.machine.company(self)
        return np.exp(slow + self.machine.clock(self.power_cost, self.step_s, count))

    @property
    def power_cost(self) -> float:
        """Slow-down that the clock approaches while it runs."""
        model = self.machine.model
        return model.power_cost + self.is_candidate * model.candidate_power_cost

    @property
    def step_s(self) -> Floats:
        """Seconds of one of its steps at the highest clock, but for noise."""
        return np.asarray(np.exp(self._log_step), dtype=np.float64)

    def own(self, count: int) -> Floats:
        """Logs of what belongs to the process in its next `count` steps, `[*shape, count]`."""
        mine = np.asarray(self._log_step)[..., None] + np.zeros(count)
        model, at = self.machine.model, np.arange(self._ran, self._ran + count)
        self._ran += count
        if model.late_cost and self.is_candidate:
            mine += model.late_cost * (at >= model.late_steps)
        if model.early_cost and not self.is_candidate:
            mine += model.early_cost * (at < model.early_steps)
        if model.warm_cost:
            steps = model.candidate_warm_steps if self.is_candidate else model.warm_steps
            mine += model.warm_cost * np.exp(-at / steps)
        if self._wander is not None:
            mine += self._wander.steps(count)
        if self._stall_share:
            mine += math.log1p(self.machine.model.stall_steps) * (
                self._rng.random(mine.shape) < self._stall_share
            )
        return mine

    def close(self) -> None:
        """Leaves the machine; safe to call twice."""
        if self in self.machine.candidates:
            self.machine.candidates.remove(self)


def run_pairs(
    reference: Process, candidate: Process, *, pairs: int, block_steps: int
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Interleaved pairs of blocks, the order within each pair a fresh fair coin.

    Returns:
        Step times of the reference and of the candidate in seconds, both
        `[*shape, pairs, block_steps]`, and whether the candidate went first, `[*shape, pairs]`.
    """
    machine = reference.machine
    reference_s, candidate_s = [], []
    order: list[Bools] = []
    for _ in range(pairs):
        first, second = machine.slowness(block_steps), machine.slowness(block_steps)
        candidate_first = np.asarray(machine.rng.random(machine.shape) < 0.5)
        # Who ran last is told of each of many machines: the end of the pair before, or the other
        # one of this pair.
        candidate_before = candidate_first | (~order[-1] if order else False)
        reference_before = ~candidate_first | (order[-1] if order else False)
        swap = candidate_first[..., None]
        first = first + _clock(reference, candidate, candidate_first, block_steps)
        second = second + _clock(reference, candidate, ~candidate_first, block_steps)
        slow = np.where(swap, second, first) + _switch_cost(candidate, candidate_before)[..., None]
        reference_s.append(np.exp(slow + reference.own(block_steps)))
        slow = np.where(swap, first, second) + _switch_cost(reference, reference_before)[..., None]
        candidate_s.append(np.exp(slow + candidate.own(block_steps)))
        order.append(candidate_first)
    return np.stack(reference_s, axis=-2), np.stack(candidate_s, axis=-2), np.stack(order, axis=-1)


def _clock(reference: Process, candidate: Process, is_candidate: Bools, count: int) -> Floats:
    """Logs of what the clock of each of many machines does to a block, by who runs it there."""
    target = np.where(is_candidate, candidate.power_cost, reference.power_cost)
    return reference.machine.clock(
        target, np.where(is_candidate, candidate.step_s, reference.step_s), count
    )


def _switch_cost(other: Process, was_before: Bools) -> Floats:
    """Log slow-down of a block by `other`, which idles and may have run just before."""
    model = other.machine.model
    return np.asarray(other.is_candidate * (model.idle_cost + model.memory_cost * was_before))


def log_ratios(reference_s: Floats, candidate_s: Floats) -> Floats:
    """log(candidate / reference block time), `[*shape, pairs]` from `[*shape, pairs, steps]`."""
    ratios: Floats = np.log(candidate_s.mean(axis=-1) / reference_s.mean(axis=-1))
    return ratios
