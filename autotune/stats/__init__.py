"""Numbers in, numbers out."""

from autotune.stats.estimates import (
    Estimate, Outlook, REFERENCE, SequentialPlan, Verdict, estimate_aba, estimate_pairs, estimate_processes, judge,
    outlook_of, reason_to_stop, standard_error, widen,
)  # fmt: skip
from autotune.stats.loss_check import (
    Comparability, GRAD_NORM, LOSS, LossSpread, MOST_TOLERANCE, StepLoss, Trace, compare_first_steps,
    compare_long_runs, compare_traces, first_steps, is_float32, largest_drift, relative_difference, rounding_of,
    spacing_of, spread_between,
)  # fmt: skip
from autotune.stats.noise_floor import (
    DEFAULT_PROOF_SIZE,
    LONG_PAIR_S,
    NoiseFloor,
    STARTS,
    moments,
    proof_size,
    read_noise_floor,
    spread_of,
)
from autotune.stats.long_run import (
    SOAK_LOOKS, Stalls, TotalTime, add_stalls, apart_total, compare_totals, find_leak, find_stalls, growing_step,
    memory_growth, segments, slower_run, slower_total, stalled_total,
)  # fmt: skip
from autotune.stats.proof import (
    ALONE_PAIRS, CLAIM, FIRST_LOOK, HURDLE, ProofPlan, allot, candidate_weights, chance_to_prove, gain_pairs, look,
    look_alone, proof_pairs, smallest_gain, study_power,
)  # fmt: skip
