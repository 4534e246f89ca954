"""Numbers in, numbers out."""

from autotune.stats.estimates import (
    REFERENCE, Decision, Estimate, Outlook, Sandwich, SequentialPlan, Verdict, confirm, decide, estimate_pairs,
    estimate_sandwiches, judge, outlook_of, standard_error, widen,
)  # fmt: skip
from autotune.stats.equal_work import Comparability, compare_first_steps, compare_long_runs
from autotune.stats.dtypes import is_float32, rounding_of, spacing_of
from autotune.stats.leak import find_leak, memory_growth
from autotune.stats.loss_check import (
    GRAD_NORM, LOSS, MOST_TOLERANCE, LossSpread, StepLoss, Trace, compare_traces, first_steps, largest_drift,
    relative_difference, spread_between,
)  # fmt: skip
from autotune.stats.noise_floor import NoiseFloor, read_noise_floor, spread_of
from autotune.stats.alone import look_alone
from autotune.stats.sizes import DEFAULT_PROOF_SIZE, LONG_PAIR_S, STARTS, moments, proof_size
from autotune.stats.proof_design import (
    ALONE_PAIRS, CLAIM, HURDLE, allot, candidate_weights, gain_pairs, pairs_to_find, proof_pairs, smallest_gain,
    study_power,
)  # fmt: skip
from autotune.stats.proof_plan import FIRST_LOOK, ProofPlan, chance_to_prove, look
from autotune.stats.total_time import (
    SOAK_LOOKS, Stalls, TotalTime, add_stalls, apart_total, compare_totals, find_stalls, growing_step, segments,
    slower_run, slower_total, stalled_total,
)  # fmt: skip
