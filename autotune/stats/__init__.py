"""Numbers in, numbers out."""

from autotune.stats.estimates import (
    REFERENCE, Decision, Estimate, Sandwich, SequentialPlan, Verdict, confirm, decide, estimate_pairs,
    estimate_sandwiches, judge, processes_to_settle,
)  # fmt: skip
from autotune.stats.equal_work import Comparability, compare_first_steps, compare_long_runs
from autotune.stats.leak import find_leak, memory_growth
from autotune.stats.loss_check import compare_traces, largest_drift, rounding_of
from autotune.stats.noise_floor import NoiseFloor, read_noise_floor
from autotune.stats.simulate import NOISE_MODELS, Machine, NoiseModel, Process
from autotune.stats.total_time import (
    Stalls, TotalTime, add_stalls, find_stalls, growing_step, segments, slower_run, slower_total, stalled_total,
    compare_totals,
)  # fmt: skip
