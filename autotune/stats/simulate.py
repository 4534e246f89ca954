"""A machine with known truth: step times with drift, bursts, outliers, memory and per-process effects.

Stands in for hardware where the true ratio must be known: tests, `benchmarks/truth.py`, replayed studies.
All noise is multiplicative. What slows the machine hits whichever process runs at that moment; what belongs
to a process stays with it. One implementation serves a single machine (`shape=()`) and many at once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Sizes of the noise, in logs of step time (0.01 is about 1 %), and lengths in steps.

    Attributes:
        white_sd: Independent noise of every step.
        drift: Slow-down per 1000 steps of the machine.
        wander_sd: Stationary spread of the machine's own first-order autoregressive wander.
        wander_steps: Its correlation length.
        burst_share: Share of time in which another load holds a core.
        burst_steps: Mean length of such a burst.
        burst_cost: Slow-down inside a burst.
        outlier_share: Share of steps hit by a single hiccup.
        outlier_cost: Mean size of a hiccup (exponential).
        process_sd: Constant effect of each process, drawn when it starts.
        own_wander_sd: Wander that belongs to one process and not to the machine: turns cannot cancel it.
        own_wander_steps: Its correlation length.
    """

    white_sd: float = 0.01
    drift: float = 0.0
    wander_sd: float = 0.0
    wander_steps: float = 30.0
    burst_share: float = 0.0
    burst_steps: float = 20.0
    burst_cost: float = 0.0
    outlier_share: float = 0.0
    outlier_cost: float = 0.0
    process_sd: float = 0.0
    own_wander_sd: float = 0.0
    own_wander_steps: float = 100.0


NOISE_MODELS = {
    "quiet": NoiseModel(white_sd=0.004, process_sd=0.001),
    "white": NoiseModel(white_sd=0.06),
    "drift": NoiseModel(white_sd=0.03, drift=0.5, process_sd=0.003),
    "bursts": NoiseModel(white_sd=0.03, burst_share=0.3, burst_steps=12.0, burst_cost=0.4, process_sd=0.003),
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
}
"""Named machines, at levels like those seen on a shared 2-core host and on a quiet GPU."""


class _Wander:
    """First-order autoregressive noise, started from its stationary law."""

    def __init__(self, sd: float, length: float, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        self._keep = math.exp(-1.0 / length)
        self._kick_sd = sd * math.sqrt(1.0 - self._keep**2)
        self._rng = rng
        self._shape = shape
        self._at: Any = sd * (rng.standard_normal(shape) if shape else float(rng.standard_normal()))

    def steps(self, count: int) -> Floats:
        kicks = self._kick_sd * self._rng.standard_normal((count, *self._shape))
        moves = kicks if self._shape else kicks.tolist()  # one by one, Python's own numbers are ten times as fast
        path = list(itertools.accumulate(moves, lambda at, kick: self._keep * at + kick, initial=self._at))
        self._at = path[-1]
        return np.moveaxis(np.array(path[1:]), 0, -1)


class Machine:
    """One machine, or `shape` many independent ones, whose time goes on with every step that runs on it."""

    def __init__(self, model: NoiseModel, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> None:
        self.model = model
        self.rng = rng
        self.shape = shape
        self._done = 0
        self._wander = _Wander(model.wander_sd, model.wander_steps, rng, shape)
        self._in_burst = rng.random(shape) < model.burst_share

    def slowness(self, count: int) -> Floats:
        """Logs of the slow-down of the next `count` steps, `[*shape, count]`."""
        model, rng, shape = self.model, self.rng, (*self.shape, count)
        slow = model.white_sd * rng.standard_normal(shape)
        slow += model.drift / 1000.0 * np.arange(self._done, self._done + count)
        self._done += count
        if model.wander_sd:
            slow += self._wander.steps(count)
        if model.outlier_share:
            slow += (rng.random(shape) < model.outlier_share) * rng.exponential(model.outlier_cost, shape)
        if model.burst_share:
            slow += model.burst_cost * self._bursts(count)
        return slow

    def _bursts(self, count: int) -> Floats:
        """Whether each of the next steps lies in a burst, `[*shape, count]`."""
        leave = 1.0 / self.model.burst_steps
        enter = leave * self.model.burst_share / (1.0 - self.model.burst_share)
        draws = self.rng.random((count, *self.shape))
        # A draw below both limits changes the state, one above both keeps it, one between them sets it: so a state is
        # the last one that was set, or the first one of all, changed as often as draws said so since.
        changes = np.cumsum(draws < min(enter, leave), axis=0)
        is_set = (draws >= min(enter, leave)) & (draws < max(enter, leave))
        steps = np.arange(count).reshape(-1, *[1] * len(self.shape))
        last_set = np.maximum.accumulate(np.where(is_set, steps, -1), axis=0)
        since: npt.NDArray[np.int64] = changes - np.where(
            last_set < 0, 0, np.take_along_axis(changes, np.maximum(last_set, 0), axis=0)
        )
        start = np.where(last_set < 0, self._in_burst, leave < enter)
        on: npt.NDArray[np.bool_] = start ^ (since % 2 == 1)
        self._in_burst = on[-1]
        return np.moveaxis(on, 0, -1).astype(np.float64)


class Process:
    """A worker on the machine: its true step time, its constant effect and its own wander.

    Args:
        machine: Where it runs.
        step_s: Its true step time, seconds.
        rng: What is its own is drawn from here; default: the machine's, in the order in which processes are made.
    """

    def __init__(self, machine: Machine, *, step_s: float = 1.0, rng: np.random.Generator | None = None) -> None:
        model = machine.model
        rng = rng or machine.rng
        self.machine = machine
        self._log_step = math.log(step_s) + model.process_sd * rng.standard_normal(machine.shape)
        self._wander = (
            _Wander(model.own_wander_sd, model.own_wander_steps, rng, machine.shape) if model.own_wander_sd else None
        )

    def run_block(self, count: int) -> Floats:
        """Durations of the next `count` steps when this process runs alone, in seconds, `[*shape, count]`."""
        return np.exp(self.machine.slowness(count) + self.own(count))

    def own(self, count: int) -> Floats:
        """Logs of what belongs to the process in its next `count` steps, `[*shape, count]`."""
        mine = np.repeat(np.asarray(self._log_step)[..., None], count, axis=-1)
        return mine if self._wander is None else mine + self._wander.steps(count)


def run_pairs(
    reference: Process, candidate: Process, *, pairs: int, block_steps: int
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Pairs of blocks in turns, the order within each pair a fresh fair coin.

    Returns:
        Step times of the reference and of the candidate in seconds, both `[*shape, pairs, block_steps]`,
        and whether the candidate went first, `[*shape, pairs]`.
    """
    machine = reference.machine
    reference_s, candidate_s, order = [], [], []
    for _ in range(pairs):
        first, second = machine.slowness(block_steps), machine.slowness(block_steps)
        candidate_first = machine.rng.random(machine.shape) < 0.5
        swap = np.asarray(candidate_first)[..., None]
        reference_s.append(np.exp(np.where(swap, second, first) + reference.own(block_steps)))
        candidate_s.append(np.exp(np.where(swap, first, second) + candidate.own(block_steps)))
        order.append(candidate_first)
    return np.stack(reference_s, axis=-2), np.stack(candidate_s, axis=-2), np.stack(order, axis=-1)


def log_ratios(reference_s: Floats, candidate_s: Floats) -> Floats:
    """log(candidate / reference block step time), `[*shape, pairs]` from steps `[*shape, pairs, steps]`."""
    ratios: Floats = np.log(candidate_s.mean(axis=-1) / reference_s.mean(axis=-1))
    return ratios
