"""Options of a workload and the study's own conditions in the search space."""

from __future__ import annotations

import itertools
from typing import Any

from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.settings.known import KnownSettings
from autotune.settings.space import Parameter, SearchSpace, build_space

FLAG = "xla_cpu_prefer_vector_width"
OPTIONS: dict[str, list[Any]] = {
    "attention": ["xla", "cudnn"],
    "dtype": ["float32", "bfloat16"],
    "mesh": [{"fsdp": 1}, {"fsdp": 2}],
}


def space(known: KnownSettings, **search: Any) -> SearchSpace:
    workload = {"entry": "llama", "options": {"dtype": "float32"}}
    return build_space(parse_study({"name": "s", "workload": workload, "search": search}), known, None)


def points(found: SearchSpace) -> set[FlagSet]:
    """Every point of a small space."""
    values = [list(p.values()) for p in found.parameters]
    names = [p.name for p in found.parameters]
    chosen = (dict(zip(names, each, strict=True)) for each in itertools.product(*values))

    def ask(choice: dict[str, str]) -> FlagSet:
        return found.suggest(lambda p: choice[p.name])

    return {ask(choice) for choice in chosen}


def test_the_references_value_is_absence_and_is_searched_though_not_listed(known: KnownSettings) -> None:
    found = space(known, options={"dtype": ["bfloat16"]})
    assert points(found) == {FlagSet(), FlagSet({"option.dtype": '"bfloat16"'})}


def test_an_options_values_are_matched_as_json(known: KnownSettings) -> None:
    (parameter,) = space(known, options={"batch": [8, 16]}).parameters
    assert isinstance(parameter, Parameter)
    assert parameter.match("16") == "16"
    assert parameter.match('"16"') is None
