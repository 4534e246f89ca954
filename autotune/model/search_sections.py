"""What a study searches."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from autotune.model.flags import FlagSet
from autotune.model.measurement import Settings
from autotune.model.names import kind_of
from autotune.model.options import option_sets, option_setting, option_text
from autotune.model.quantities import Seconds
from autotune.model.sections import Section

SAMPLERS = ("additive", "tpe", "random")
"""Samplers that have a name of their own."""

_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

SettingValue = bool | int | float | str
Domain = list[SettingValue] | dict[str, SettingValue | list[SettingValue]]


class NamedSet(Section):
    """A flag set with a name, tried before the sampler proposes.

    Attributes:
        name: Shown in tables, as ``set NAME``.
        settings: Setting to value, of what is tried beside the baseline.
        options: Options of the workload to values, likewise.
    """

    name: str
    settings: Settings = Field(default_factory=FlagSet)
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def whole(self) -> FlagSet:
        """Settings and options as one set."""
        return self.settings.merge(option_sets(self.options))


class SearchSpec(Section):
    """What is searched, how long, and what is tried first.

    Attributes:
        trials: Distinct proposals, failed ones included; recipes and `first` count too.
        time_budget: Seconds for the whole study, over all its sessions; part is kept back for confirming.
        gpu_hours: Likewise hours of devices, summed over all that stood ready for the study.
        settings: Setting to its domain: a list of values, or ``{low, high, log, power_of_two, step}``.
        options: Option of the workload to the values that are tried; the reference has that of `workload.options`, else
            the first. ``process_count`` is that of `device`.
        groups: Groups of the catalogue whose settings are searched.
        recipes: Published sets that are tried first, each filtered to what the installed build has.
        learn_from: Folder of a library of winners (`autotune library`): the nearest ones are tried first, and settings
            that winners hold are thought likelier to act.
        first: Sets with names that are tried before the sampler proposes.
        sampler: Who proposes: ``additive`` (a sparse model of effects), ``tpe``, ``random``, or a sampler of Optuna by
            import path, ``module:Class``.
    """

    trials: Annotated[int, Field(ge=1, le=100_000)] = 30
    time_budget: Seconds | None = None
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    settings: dict[str, Domain] = Field(default_factory=dict)
    options: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    groups: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    learn_from: Annotated[str, Field(min_length=1)] | None = None
    first: tuple[NamedSet, ...] = ()
    sampler: str = "additive"

    @field_validator("settings")
    @classmethod
    def _names_settings(cls, settings: dict[str, Domain]) -> dict[str, Domain]:
        for name in settings:
            kind_of(name)
        return settings

    @field_validator("options")
    @classmethod
    def _distinct_values(cls, options: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, values in options.items():
            option_setting(name)
            texts = [option_text(v) for v in values]
            if len(set(texts)) < len(texts):
                raise ValueError(f"distinct values of `{name}`")
        return options

    @field_validator("sampler")
    @classmethod
    def _names_a_sampler(cls, sampler: str) -> str:
        if sampler not in SAMPLERS and not _PATH.fullmatch(sampler):
            raise ValueError(f"one of {', '.join(SAMPLERS)}, or a sampler of Optuna as module:Class")
        return sampler
