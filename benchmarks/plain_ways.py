"""What people do without autotune, in virtual time: fresh processes, medians of their steps.

They run on the launcher of the study that they are compared with, so that starts, steps and noise
are the same ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna

from autotune.model.flags import FlagSet
from autotune.model.spec import StudySpec
from harness.virtual_time import Times, VirtualClock, VirtualLauncher

RUN_S = 10.0
"""Seconds of steps of a run."""

LEAST_GAIN = 0.005
"""Share of the reference's step time that a set must save to be kept: the studies' smallest effect
of interest.
"""

TPE_TRIALS = 60
HALVED = 32
REFERENCE = FlagSet()


class Bench:
    """Runs of sets by hand, one at a time.

    Attributes:
        figures: Of each set, the step times of its runs.
        best: Each set that came to be held as best, with the second at which it did.
        searched_s, sets: When all sets to choose from were tried, and how many there are.
    """

    def __init__(self, spec: StudySpec, times: Times) -> None:
        self.clock = VirtualClock()
        self.figures: dict[FlagSet, list[float]] = {}
        self.best: list[tuple[FlagSet, float]] = []
        self._launcher = VirtualLauncher(spec, self.clock, times)
        self._runs = 0
        self.searched_s = 0.0
        self.sets = 0

    def run(self, settings: FlagSet, *, seconds: float = RUN_S) -> float:
        """The figure of one more run of a set."""
        self._runs += 1
        worker = self._launcher.start(
            settings, Path(f"/simulated/runs/{self._runs}"), progress=lambda phase: None
        )
        step_s = statistics.median(worker.report.warmup_step_times_s)
        figure = statistics.median(worker.run_block(round(seconds / step_s)))
        worker.close()
        self.figures.setdefault(settings, []).append(figure)
        best = min(self.figures, key=self.mean)
        if not self.best or self.best[-1][0] != best:
            self.best.append((best, self.clock()))
        return figure

    def mean(self, settings: FlagSet) -> float:
        """Of the runs of a set."""
        return statistics.mean(self.figures[settings])

    def gains(self, settings: FlagSet) -> bool:
        """Whether a set is held to be faster than the reference."""
        return self.mean(settings) < (1.0 - LEAST_GAIN) * self.mean(REFERENCE)

    def again(self, settings: FlagSet, times: int) -> None:
        """Runs a set some times more."""
        for _ in range(times):
            self.run(settings)

    def end_search(self) -> None:
        """The sets to choose from are all tried; what comes now is to be sure."""
        self.searched_s = self.clock()
        self.sets = len(self.figures) - 1

    def named(self, settings: FlagSet, times: int) -> FlagSet | None:
        """A set, if it is held to be faster after some more runs of it."""
        if not settings:
            return None
        self.again(settings, times)
        return settings if self.gains(settings) else None


Way = Callable[[Bench, Sequence[str], int], FlagSet | None]
"""Tries switches, by a seed, and names a set."""


def loop(bench: Bench, names: Sequence[str], seed: int) -> FlagSet | None:
    """Each switch alone; then all gains together, three times."""
    _try_alone(bench, names)
    union = _union(filter(bench.gains, list(bench.figures)))
    bench.again(REFERENCE, 3)
    return bench.named(union, 3)


def engineer(bench: Bench, names: Sequence[str], seed: int) -> FlagSet | None:
    """Each switch alone; the best three five times more; then those that gain together, too."""
    _try_alone(bench, names)
    best = sorted((s for s in bench.figures if s), key=bench.mean)[:3]
    bench.again(REFERENCE, 5)
    kept = [bench.named(settings, 5) for settings in best]
    return bench.named(_union(s for s in kept if s is not None), 5)


def tpe(bench: Bench, names: Sequence[str], seed: int) -> FlagSet | None:
    """Optuna's TPE; then its best set, three times."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    bench.run(REFERENCE)

    def figure(trial: optuna.Trial) -> float:
        return bench.run(
            _set_of(n for n in names if trial.suggest_categorical(n, ["false", "true"]) == "true")
        )

    study.optimize(figure, n_trials=TPE_TRIALS)
    bench.end_search()
    bench.again(REFERENCE, 3)
    return bench.named(min(bench.figures, key=bench.mean), 3)


def halving(bench: Bench, names: Sequence[str], seed: int) -> FlagSet | None:
    """Random sets for a quarter of a run, the better half for twice as long, and so on."""
    rng = np.random.default_rng(seed)
    sets = [_set_of(n for n in names if rng.random() < 0.5) for _ in range(HALVED)]
    bench.run(REFERENCE)
    seconds = RUN_S / 4
    while len(sets) > 1:
        figures = {settings: bench.run(settings, seconds=seconds) for settings in sets}
        sets = sorted(figures, key=figures.__getitem__)[: len(sets) // 2]
        seconds *= 2
    bench.end_search()
    bench.again(REFERENCE, 3)
    return bench.named(sets[0], 3)


PLAIN_WAYS: Mapping[str, Way] = {
    "plain loop": loop,
    "engineer": engineer,
    "Optuna TPE": tpe,
    "successive halving": halving,
}


def _try_alone(bench: Bench, names: Sequence[str]) -> None:
    bench.run(REFERENCE)
    for name in names:
        bench.run(_set_of([name]))
    bench.end_search()


def _set_of(names: Iterable[str]) -> FlagSet:
    return FlagSet(dict.fromkeys(names, "true"))


def _union(sets: Iterable[FlagSet]) -> FlagSet:
    return FlagSet({name: value for settings in sets for name, value in settings.items()})
