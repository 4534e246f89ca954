"""How many pairs of blocks a process of a proof runs: the formula against brute force, and what it saves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.stats.aa_noise import (
    DEFAULT_PROOF_SIZE,
    LEAST,
    MOST,
    STARTS,
    AaNoise,
    moments,
    pairs_in_process,
    proof_size,
    read_aa_noise,
)

SPREADS = st.floats(0.0005, 0.05)
SECONDS = st.floats(0.01, 300.0)


def time_at_equal_precision(count: int, within_sd: float, process_sd: float, start_s: float, pair_s: float) -> float:
    """What a proof takes, up to a factor that is the same for every count."""
    return (2 * process_sd**2 + within_sd**2 / count) * (start_s + count * pair_s)


@given(within_sd=SPREADS, process_sd=SPREADS, start_s=SECONDS, pair_s=SECONDS)
def test_no_other_size_takes_less_time(within_sd: float, process_sd: float, start_s: float, pair_s: float) -> None:
    found = pairs_in_process(within_sd, process_sd, start_s, pair_s)
    sizes = (within_sd, process_sd, start_s, pair_s)
    best = min(time_at_equal_precision(n, *sizes) for n in range(LEAST, MOST + 1))
    assert time_at_equal_precision(found, *sizes) <= 1.02 * best  # rounding to the nearest may miss the best by one


def test_the_formula_by_hand() -> None:
    # 0.6 % / (sqrt(2) 0.3 %) = sqrt(2); start-up is 32 pairs of blocks: sqrt(2) * sqrt(32) = 8
    assert pairs_in_process(0.006, 0.003, 32.0, 1.0) == 8
    assert pairs_in_process(0.006, 0.003, 0.1, 1.0) == LEAST
    assert pairs_in_process(0.06, 0.001, 90.0, 0.1) == MOST
    assert pairs_in_process(0.01, 0.0, 90.0, 0.1) == MOST  # only blocks are noisy
    assert pairs_in_process(0.0, 0.0, 90.0, 0.1) == LEAST  # nothing is
    aa_run = read_aa_noise([[0.01 * (i % 5 - 2) for i in range(20)]])
    assert proof_size(aa_run) == DEFAULT_PROOF_SIZE == 20


def test_processes_that_an_aa_run_cannot_tell_apart_do_not_get_the_most_pairs() -> None:
    """As an H100 had it: four pairs of 7 s in each of two processes, whose centres lay closer than the blocks' noise.

    With 40 pairs each pair of processes took 164 s; two are as good, as more processes are what may still help.
    """
    aa_run = read_aa_noise([[-0.002, 0.002, -0.001, 0.001]] * 2, start_s=5.2, pair_s=7.1)
    assert aa_run.process_sd == 0.0 < aa_run.within_sd
    assert proof_size(aa_run, starts=2.0) == 2


def aa_noise_on_gpu(
    rng: np.random.Generator, process_sd: float, within_sd: float, start_s: float, pair_s: float
) -> AaNoise:
    centres = process_sd * (rng.standard_normal((4, 1)) - rng.standard_normal())
    blocks = list(centres + within_sd * rng.standard_normal((4, 8)))
    return read_aa_noise(blocks, start_s=start_s / STARTS, pair_s=pair_s)


@pytest.mark.parametrize(
    ("start_s", "pair_s", "process_sd", "within_sd", "best", "saved"),
    [(20.0, 2.4, 0.003, 0.003, 4, 0.52), (20.0, 1.2, 0.002, 0.003, 4, 0.32), (90.0, 2.4, 0.003, 0.004, 6, 0.17)],
)
def test_on_a_gpu_few_pairs_save_time_at_equal_precision(
    start_s: float, pair_s: float, process_sd: float, within_sd: float, best: int, saved: float
) -> None:
    """Proofs are simulated at both sizes, each with as many processes as the same spread of their mean takes.

    Steps of 0.2 and 0.4 s in blocks of three. The size comes from a simulated A/A run each time, which knows the
    spread between processes from five of them only: that costs a few points of what the best size saves.
    """
    rng = np.random.default_rng(19)
    assert pairs_in_process(within_sd, process_sd, start_s, pair_s) == best

    def seconds(count: int) -> float:
        """Seconds of processes until the mean of their figures has a variance of (0.1 %)^2."""
        deviations = process_sd * (rng.standard_normal(10_000) - rng.standard_normal(10_000))
        figures = deviations + within_sd * rng.standard_normal((10_000, count)).mean(axis=1)
        return float(np.var(figures)) / 0.001**2 * (start_s + count * pair_s)

    before = float(np.mean([seconds(20) for _ in range(10)]))
    assert 1 - np.mean([seconds(best) for _ in range(10)]) / before == pytest.approx(saved, abs=0.03)
    sizes = [proof_size(aa_noise_on_gpu(rng, process_sd, within_sd, start_s, pair_s)) for _ in range(100)]
    assert 2 <= np.median(sizes) <= best + 2
    assert 1 - np.mean([seconds(n) for n in sizes]) / before > saved - 0.12


@pytest.mark.parametrize(
    ("start_s", "pair_s", "pairs"),
    [(7.2, 0.1, 36), (30.0, 0.1, 40), (30.0, 0.4, 10), (90.0, 10.0, 0), (1.0, 0.1, 5), (0.0, 0.1, 0)],
)
def test_a_process_is_measured_for_seconds_if_starting_takes_longer(start_s: float, pair_s: float, pairs: int) -> None:
    assert moments(start_s, pair_s) == pairs


def noise_that_comes_and_goes(rng: np.random.Generator, runs: int, count: int) -> npt.NDArray[np.float64]:
    """Log ratios of pairs of 0.1 s beside a program that works for about a second and rests for one, `[runs, count]`.

    While it works one of the two arms has it on its core, and is slower by 20 %, until it rests again.
    """
    found = np.empty((runs, count))
    works, side = rng.random(runs) < 0.5, rng.choice([-1.0, 1.0], runs)
    for at in range(count):
        turns = rng.random(runs) < 0.1
        side = np.where(turns & ~works, rng.choice([-1.0, 1.0], runs), side)
        works = works ^ turns
        found[:, at] = np.where(works, 0.2 * side, 0.0)
    return found + 0.02 * rng.standard_normal((runs, count))


def test_beside_bursts_of_others_a_proof_takes_less_time_than_the_formula_alone_would_give() -> None:
    """The A/A run takes what it sees of a burst for a difference of processes, as if only more of them would tell."""
    rng = np.random.default_rng(3)
    start_s, pair_s, process_sd = 7.2, 0.1, 0.003

    def figures(runs: int, count: int) -> npt.NDArray[np.float64]:
        deviations = process_sd * (rng.standard_normal(runs) - rng.standard_normal(runs))
        return deviations[:, None] + noise_that_comes_and_goes(rng, runs, count)

    def seconds(count: int) -> float:
        """What pairs of processes take until their mean has a variance of (1 %)^2."""
        return float(np.var(figures(4_000, count).mean(axis=1))) / 0.01**2 * (start_s + count * pair_s)

    def aa_run(count: int) -> AaNoise:
        return read_aa_noise(list(figures(4, count)), start_s=start_s / STARTS, pair_s=pair_s)

    aa_runs = [aa_run(12) for _ in range(100)]
    sizes = [proof_size(f) for f in aa_runs]
    by_formula = [pairs_in_process(f.within_sd, f.process_sd, start_s, pair_s) for f in aa_runs]
    assert np.median(by_formula) < 25  # the trap is one
    takes = {n: seconds(n) for n in {*sizes, *by_formula}}
    assert np.mean([takes[n] for n in sizes]) < 0.75 * np.mean([takes[n] for n in by_formula])
