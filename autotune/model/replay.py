"""The section [replay] of a study file: a machine that is made up."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from pydantic import Field, field_validator

from autotune.model.errors import close_matches
from autotune.model.measurement import FailureKind
from autotune.model.sections import Section
from autotune.stats import NOISE_MODELS, NoiseModel


class ReplaySpec(Section):
    """A formula that stands in for the machine: for tests, and to try how a study's search and proof behave.

    Attributes:
        step_s: Step time of the reference, seconds.
        effects: ``"name=value"`` to the factor by which it multiplies the step time. Who has such a setting, with a
            factor of 1 too, is a candidate: what a noise model says of candidates is its lot.
        memory_effects: Likewise for the peak memory.
        compile_effects: Likewise for the compile time.
        token_effects: Likewise for the tokens of a step; without any, a worker does not tell them.
        failures: ``"name=value"`` to the failure it causes, or several of them with spaces between: all together.
        inert: ``"name=value"`` entries that change nothing in the program.
        profile: A recorded profile of the reference's program, as text; empty where the stage `pgle` has none.
        profile_effect: Factor by which a program takes longer that is compiled with this very profile; None: it is the
             same program.
        autotune_results: Recorded results of an autotuner, as text.
        noise: A named noise model of `autotune.stats.noise_models`, or a table of its parameters.
        start_s: Seconds that a process says it took to start; 0 tells nothing of what starting costs.
        delay_s: Real seconds that each start and each block take, so that a stop in mid-study can be tried.
    """

    step_s: Annotated[float, Field(gt=0)] = 0.03
    effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    memory_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    compile_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    token_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    failures: dict[str, FailureKind] = Field(default_factory=dict)
    inert: tuple[str, ...] = ()
    profile: str = ""
    profile_effect: Annotated[float, Field(gt=0)] | None = None
    autotune_results: str = ""
    noise: str | dict[str, float] = "quiet"
    start_s: Annotated[float, Field(ge=0)] = 0.0
    delay_s: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("noise")
    @classmethod
    def _known(cls, noise: str | dict[str, float]) -> str | dict[str, float]:
        if isinstance(noise, str):
            if noise not in NOISE_MODELS:
                raise ValueError(f"one of {', '.join(NOISE_MODELS)}{close_matches(noise, NOISE_MODELS)}")
        else:
            legal = [f.name for f in dataclasses.fields(NoiseModel)]
            for name in noise:
                if name not in legal:
                    raise ValueError(f"parameters of a noise model ({', '.join(legal)}), not `{name}`")
        return noise
