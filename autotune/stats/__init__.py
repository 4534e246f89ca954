"""Numbers in, numbers out."""

from autotune.stats.estimates import (
    REFERENCE, Decision, Estimate, Sandwich, SequentialPlan, Verdict, confirm, decide, estimate_pairs,
    estimate_sandwiches, judge, processes_to_settle,
)  # fmt: skip
from autotune.stats.equal_work import Comparability, compare_first_steps, compare_long_runs
from autotune.stats.loss_check import compare_traces, largest_drift, rounding_of
from autotune.stats.noise_floor import NoiseFloor, read_noise_floor
from autotune.stats.alone import look_alone
from autotune.stats.noise_models import NOISE_MODELS, NoiseModel
from autotune.stats.proof_design import CLAIM, HURDLE, allot, candidate_weights, gain_pairs
from autotune.stats.proof_plan import FIRST_LOOK, ProofPlan, chance_to_prove, look
from autotune.stats.simulate import Machine, Process
