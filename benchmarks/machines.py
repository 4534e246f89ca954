"""The machines of the truth tests: named noise models, and what is true of a candidate there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.noise import EVEN_MODELS, NOISE_MODELS, UNEVEN_MODELS, NoiseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One machine.

    A candidate's true ratio is that of the time that a long training takes: over many processes,
    stalls included. Its typical step in a typical process is faster than that where `shift` is
    above 0.

    Attributes:
        model: Its noise.
        none_typical: Log ratio of the typical steps of candidates that are no winners.
        soaks: Whether studies run the winner for long before they name it.
        is_even: Whether the machine hits both arms alike.
    """

    model: NoiseModel
    none_typical: float = 0.0
    soaks: bool = False
    is_even: bool = True

    @property
    def shift(self) -> float:
        """What faults and stalls of its own add to a candidate's log ratio."""
        model = self.model
        stalls = model.stall_share * model.stall_steps
        more = model.candidate_stall_share * model.stall_steps
        return model.fault_share * model.fault_cost + math.log1p(stalls + more) - math.log1p(stalls)


def _pairs_of_processes(sd: float) -> Case:
    """A machine on which one pair of processes has this standard deviation of its log ratio."""
    white_sd, blocks = sd / 2.0, 20
    within = white_sd * math.sqrt(2.0 / (3 * blocks))
    return Case(
        model=NoiseModel(white_sd=white_sd, process_sd=math.sqrt((sd**2 - within**2) / 2.0))
    )


def _stalling(name: str, *, soaks: bool) -> Case:
    """Candidates whose typical step is 5 % faster and which are 4.5 % slower in total."""
    return Case(model=NOISE_MODELS[name], none_typical=math.log(0.95), soaks=soaks, is_even=False)


def _attack(typical: float, *, soaks: bool = False, **model: float) -> Case:
    noise = NoiseModel(white_sd=0.01, **{"process_sd": 0.003, **model})
    return Case(model=noise, none_typical=math.log(typical), soaks=soaks, is_even=False)


ATTACKS = {
    "slower after 300 steps, soaked": _attack(0.92, soaks=True, late_cost=0.18, late_steps=300.0),
    "reference slow at first, soaked": _attack(1.0, soaks=True, early_cost=0.05, early_steps=200.0),
    "reference slow at first by little, soaked": _attack(
        1.0, soaks=True, early_cost=0.03, early_steps=300.0
    ),
    "process sd 1.5 %, no gain after 300 steps, soaked": _attack(
        0.95, soaks=True, late_cost=-math.log(0.95), late_steps=300.0, process_sd=0.015
    ),
    "both warm up by 10 % over 1500 steps, the set sooner, soaked": _attack(
        1.0, soaks=True, warm_cost=0.1, warm_steps=1500.0, candidate_warm_steps=300.0
    ),
    "coupled by 1 %": _attack(1.0, idle_cost=0.01, process_sd=0.009),
    "1 in 20 slower by 38 %": _attack(0.98, fault_share=0.05, fault_cost=math.log(1.38 / 0.98)),
    "1 in 5 slower by 8 %": _attack(0.98, fault_share=0.2, fault_cost=math.log(1.08 / 0.98)),
    "1 in 10 slower by 9 %": _attack(0.99, fault_share=0.1, fault_cost=math.log(1.09 / 0.99)),
}
"""Machines on which candidates look faster for as long as a proof looks."""

CASES: dict[str, Case] = {
    **{
        name: Case(model=model, is_even=name in EVEN_MODELS)
        for name, model in (EVEN_MODELS | UNEVEN_MODELS).items()
    },
    "stalls": _stalling("stalls", soaks=False),
    "rarer stalls": _stalling("rarer stalls", soaks=False),
    "stalls, soaked": _stalling("stalls", soaks=True),
    "rarer stalls, soaked": _stalling("rarer stalls", soaks=True),
    **ATTACKS,
    "pair sd 0.7 %": _pairs_of_processes(0.007),
    "pair sd 1.8 %": _pairs_of_processes(0.018),
}
"""All machines by name; equal candidates are planted where nothing else is said."""

ANNOUNCED = ("pair sd 0.7 %", "pair sd 1.8 %")
"""Machines on which the gain that the A/A run announces is tried."""
