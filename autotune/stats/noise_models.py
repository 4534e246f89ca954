"""Noise models: what hits the step times of simulated processes, as plain data, and the named machines made of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """Sizes of the noise, in logs of step time (0.01 is about 1 %), and lengths in steps.

    Attributes:
        white_sd: Independent noise of every step.
        drift: Slow-down per 1000 steps of the machine.
        wander_sd: Stationary spread of the machine's own first-order autoregressive wander.
        wander_steps: Its correlation length.
        burst_share: Share of time in which another load holds a core, or a clock is in its slow state.
        burst_steps: Mean length of such a burst, the dwell time of that state.
        burst_cost: Slow-down inside a burst.
        period_steps: From the start of one regular burst to the start of the next; 0: there are none.
        period_burst_steps: Length of a regular burst.
        period_cost: Slow-down inside one.
        ramp_cost: Slow-down that a machine approaches as it runs; it is cool again whenever a process was started.
        ramp_steps: Steps in which it comes within 1/e of that.
        position_cost: Slow-down of every second block since a process was started: of the second one of each pair.
        outlier_share: Share of steps hit by a single hiccup.
        outlier_cost: Mean size of a hiccup (exponential).
        process_sd: Constant effect of each process, drawn when it starts.
        tail_share: Share of processes that are slow for as long as they live.
        tail_least: Slow-down of such a process, at least.
        tail_most: Likewise at most; between the two every size is as likely.
        own_wander_sd: Wander that belongs to one process and not to the machine: turns cannot cancel it.
        own_wander_steps: Its correlation length.
        stall_share: Share of steps of every process that stall.
        stall_steps: Length of a stall.
        candidate_stall_share: Share of a candidate's steps that stall beside those: its typical step does not show it.
        fault_share: Share of the candidate's processes that have a bad kernel for as long as they live.
        fault_cost: Slow-down of such a process.
        idle_cost: Slow-down of whoever runs while a candidate's process lies idle beside it: alone there is none.
        memory_cost: Slow-down of a block that follows a block of another process, a candidate's: alone there is none.
        clock_s: Seconds in which the clock comes within 1/e of where the power of whoever runs lets it stay; it is at
            its highest whenever a process was started. 0: it never moves.
        power_cost: Slow-down that the clock approaches so while anything runs.
        candidate_power_cost: What it approaches beside that while a candidate runs; below 0 it draws less.
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
    idle_cost: float = 0.0
    memory_cost: float = 0.0
    clock_s: float = 0.0
    power_cost: float = 0.0
    candidate_power_cost: float = 0.0


EVEN_MODELS = {
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
    "heavy tails": NoiseModel(white_sd=0.01, process_sd=0.003, tail_share=0.15, tail_least=0.05, tail_most=0.15),
    "two clocks": NoiseModel(white_sd=0.01, process_sd=0.003, burst_share=0.5, burst_steps=200.0, burst_cost=0.08),
    "regular bursts": NoiseModel(
        white_sd=0.01, process_sd=0.003, period_steps=667.0, period_burst_steps=40.0, period_cost=0.4
    ),
    "thermal ramp": NoiseModel(white_sd=0.01, process_sd=0.003, ramp_cost=0.15, ramp_steps=60.0),
    "position": NoiseModel(white_sd=0.01, process_sd=0.003, position_cost=0.03),
    "stalls of both": NoiseModel(white_sd=0.01, process_sd=0.003, stall_share=0.025, stall_steps=4.0),
}
"""Named machines that hit both arms alike, at levels like those seen on a shared 2-core host and on a quiet GPU. Steps
take 0.03 s in a replayed study: 667 of them are 20 s."""

UNEVEN_MODELS = {
    "bad kernels": NoiseModel(white_sd=0.01, process_sd=0.003, fault_share=0.1, fault_cost=0.05),
    "coupled": NoiseModel(white_sd=0.01, process_sd=0.003, idle_cost=0.02),
    "block memory": NoiseModel(white_sd=0.01, process_sd=0.003, memory_cost=0.03),
    "stalls": NoiseModel(white_sd=0.01, process_sd=0.003, candidate_stall_share=0.025, stall_steps=4.0),
    "rarer stalls": NoiseModel(white_sd=0.01, process_sd=0.003, candidate_stall_share=0.005, stall_steps=20.0),
}
"""Named machines that tell the arms apart: where turns, or typical steps, are systematically wrong of a candidate."""

GPU_MODELS = {
    "power": NoiseModel(white_sd=0.004, process_sd=0.002, clock_s=1.0, power_cost=0.1, candidate_power_cost=0.03),
}
"""Machines whose clock follows what the running process draws: what a candidate costs by that is its own in the long
run, and hits both arms in turns that are short against it. They want turns of a GPU's size."""

NOISE_MODELS = EVEN_MODELS | UNEVEN_MODELS | GPU_MODELS
"""All named machines."""
