"""Numbers in, numbers out."""

from autotune.stats.estimates import (
    REFERENCE, Decision, Estimate, Sandwich, SequentialPlan, Verdict, confirm, decide, estimate_pairs,
    estimate_sandwiches, judge, processes_to_settle, widen,
)  # fmt: skip
from autotune.stats.equal_work import Comparability, compare_first_steps, compare_long_runs
from autotune.stats.loss_check import compare_traces, largest_drift, rounding_of
from autotune.stats.noise_floor import NoiseFloor, read_noise_floor, spread_of
from autotune.stats.sizes import DEFAULT_PROOF_SIZE, STARTS, pairs_in_process, proof_size
from autotune.stats.alone import look_alone
from autotune.stats.proof_design import (
    CLAIM, HURDLE, allot, candidate_weights, gain_pairs, pairs_to_find, smallest_gain, study_power,
)  # fmt: skip
from autotune.stats.proof_plan import FIRST_LOOK, ProofPlan, chance_to_prove, look
from autotune.stats.simulate import NOISE_MODELS, Machine, NoiseModel, Process
