"""A machine with known truth: step times with drift, bursts, outliers, memory and per-process effects.

Stands in for hardware where the true ratio must be known: tests, `benchmarks/truth.py`, replayed studies.
All noise is multiplicative. What slows the machine hits whichever process runs at that moment; what belongs
to a process stays with it; what comes of company depends on who lies idle beside the one that runs, and who ran last.
One implementation serves a single machine (`shape=()`) and many at once.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from autotune.stats.noise_models import NoiseModel

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class _Wander:
    """First-order autoregressive noise, started from its stationary law."""

    def __init__(self, sd: float, length: float, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
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
    """One machine, or `shape` many independent ones, whose time goes on with every step that runs on it.

    Attributes:
        candidates: Processes of candidates that are alive on it.
        last: Whose block ran last since a process was started.
    """

    def __init__(self, model: NoiseModel, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> None:
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
        """Nothing runs for a while, as when a process is started: it cools down, and bursts go on elsewhere."""
        self.last = None
        self._blocks, self._warm = 0, 0
        self._clock = np.zeros(self.shape)
        self._phase: Floats | None = None  # drawn with the next block, so that two may be started at once

    def slowness(self, count: int) -> Floats:
        """Logs of the slow-down of a block, the next `count` steps, `[*shape, count]`."""
        model, rng, shape = self.model, self.rng, (*self.shape, count)
        slow = model.white_sd * rng.standard_normal(shape)
        if model.drift:
            slow += model.drift / 1000.0 * np.arange(self._done, self._done + count)
        if model.wander_sd:
            slow += self._wander.steps(count)
        if model.outlier_share:
            slow += (rng.random(shape) < model.outlier_share) * rng.exponential(model.outlier_cost, shape)
        if model.burst_share:
            slow += model.burst_cost * self._bursts(count)
        if model.period_steps:
            slow += model.period_cost * self._regular_bursts(count)
        if model.ramp_cost:
            slow += model.ramp_cost * -np.expm1(-np.arange(self._warm, self._warm + count) / model.ramp_steps)
        if model.position_cost:
            slow += model.position_cost * (self._blocks % 2)
        self._done += count
        self._warm += count
        self._blocks += 1
        return slow

    def clock(self, target: float | Floats, step_s: float | Floats, count: int) -> Floats:
        """Logs of the slow-down by the clock in the next `count` steps, `[*shape, count]`: the mean over each step.

        Args:
            target: What it approaches while they run, by who runs them.
            step_s: Seconds of one of them, about.
            count: How many.
        """
        end, lag = np.asarray(target, dtype=np.float64)[..., None], self.model.clock_s
        if not lag:
            return np.broadcast_to(end, (*self.shape, count)).astype(np.float64)
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
        """Log of the slow-down of a block of `process` that comes of the others here; it is then the last that ran."""
        model, cost = self.model, 0.0
        if model.idle_cost and any(other is not process for other in self.candidates):
            cost += model.idle_cost
        if model.memory_cost and self.last is not None and self.last is not process and self.last.is_candidate:
            cost += model.memory_cost
        self.last = process
        return cost


class Process:
    """A worker on the machine: its true step time, its constant effect, its own wander and its stalls.

    Args:
        machine: Where it runs; it rests until the process is there.
        step_s: Its true step time, seconds.
        rng: What is its own is drawn from here; default: the machine's, in the order in which processes are made.
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
        self._wander = _Wander(model.own_wander_sd, model.own_wander_steps, rng, shape) if model.own_wander_sd else None
        if model.tail_share:
            size = rng.uniform(model.tail_least, model.tail_most, shape)
            self._log_step = self._log_step + size * (rng.random(shape) < model.tail_share)
        if model.fault_share and is_candidate:
            self._log_step = self._log_step + model.fault_cost * (rng.random(shape) < model.fault_share)
        self._stall_share = model.stall_share + (model.candidate_stall_share if is_candidate else 0.0)
        machine.rest()
        if is_candidate:
            machine.candidates.append(self)

    def run_block(self, count: int) -> Floats:
        """Durations of the next `count` steps while the others here are idle, in seconds, `[*shape, count]`."""
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
        if self._wander is not None:
            mine += self._wander.steps(count)
        if self._stall_share:
            mine += math.log1p(self.machine.model.stall_steps) * (self._rng.random(mine.shape) < self._stall_share)
        return mine

    def close(self) -> None:
        """Leaves the machine; safe to call twice."""
        if self in self.machine.candidates:
            self.machine.candidates.remove(self)


def run_pairs(
    reference: Process, candidate: Process, *, pairs: int, block_steps: int
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Pairs of blocks in turns, the order within each pair a fresh fair coin.

    Returns:
        Step times of the reference and of the candidate in seconds, both `[*shape, pairs, block_steps]`,
        and whether the candidate went first, `[*shape, pairs]`.
    """
    machine = reference.machine
    reference_s, candidate_s = [], []
    order: list[Bools] = []
    for _ in range(pairs):
        first, second = machine.slowness(block_steps), machine.slowness(block_steps)
        candidate_first = np.asarray(machine.rng.random(machine.shape) < 0.5)
        # Who ran last is told of each of many machines: the end of the pair before, or the other one of this pair.
        candidate_before = candidate_first | (~order[-1] if order else False)
        reference_before = ~candidate_first | (order[-1] if order else False)
        swap = candidate_first[..., None]
        first = first + _clock(reference, candidate, candidate_first, block_steps)
        second = second + _clock(reference, candidate, ~candidate_first, block_steps)
        slow = np.where(swap, second, first) + _turn_cost(candidate, candidate_before)[..., None]
        reference_s.append(np.exp(slow + reference.own(block_steps)))
        slow = np.where(swap, first, second) + _turn_cost(reference, reference_before)[..., None]
        candidate_s.append(np.exp(slow + candidate.own(block_steps)))
        order.append(candidate_first)
    return np.stack(reference_s, axis=-2), np.stack(candidate_s, axis=-2), np.stack(order, axis=-1)


def _clock(reference: Process, candidate: Process, is_candidate: Bools, count: int) -> Floats:
    """Logs of what the clock of each of many machines does to a block, by who runs it there."""
    target = np.where(is_candidate, candidate.power_cost, reference.power_cost)
    return reference.machine.clock(target, np.where(is_candidate, candidate.step_s, reference.step_s), count)


def _turn_cost(other: Process, was_before: Bools) -> Floats:
    """Log of the slow-down of a block for the company of `other`, which is idle and may have run just before."""
    model = other.machine.model
    return np.asarray(other.is_candidate * (model.idle_cost + model.memory_cost * was_before))


def log_ratios(reference_s: Floats, candidate_s: Floats) -> Floats:
    """log(candidate / reference block step time), `[*shape, pairs]` from steps `[*shape, pairs, steps]`."""
    ratios: Floats = np.log(candidate_s.mean(axis=-1) / reference_s.mean(axis=-1))
    return ratios
