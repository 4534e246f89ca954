"""The study's own choices as parameters of its space: options of the workload, and conditions between parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autotune.model import SettingError, StudySpec, close_matches, option_setting, option_text, render_value
from autotune.settings.parameters import Parameter

Conditions = Mapping[str, Mapping[str, tuple[str, ...]]]


def option_parameters(spec: StudySpec) -> Iterator[Parameter]:
    """One parameter for each option that the study searches; its default is the reference's value."""
    reference = spec.reference_options
    for name, values in spec.search.options.items():
        own = option_text(reference[name])
        choices = tuple(dict.fromkeys([own, *map(option_text, values)]))
        yield Parameter(name=option_setting(name), choices=choices, default=own)


def own_conditions(spec: StudySpec, known: Collection[str]) -> Conditions:
    """What `search.when` says, by the names of parameters: each to other ones, with the values under which it acts.

    Args:
        spec: The study.
        known: Names that `search.when` may use besides the study's options.

    Raises:
        SettingError: If a name is neither, or parameters wait for each other.
    """
    options = spec.search.options

    def full(name: str) -> str:
        if name in options:
            return option_setting(name)
        if name not in known:
            raise SettingError(
                f"`search.when` must name options or settings that are searched but got {name!r}"
                f"{close_matches(name, [*options, *known])}"
            )
        return name

    def text(name: str, value: Any) -> str:
        return option_text(value) if name in options else render_value(value)

    found = {
        full(name): {full(other): tuple(text(other, v) for v in values) for other, values in rules.items()}
        for name, rules in spec.search.when.items()
    }
    for name in found:
        _refuse_circle(name, found, ())
    return found


def _refuse_circle(name: str, conditions: Conditions, above: tuple[str, ...]) -> None:
    if name in above:
        raise SettingError(
            f"`search.when` must not go round in a circle but does: {' -> '.join([*above[above.index(name) :], name])}"
        )
    for other in conditions.get(name, {}):
        _refuse_circle(other, conditions, (*above, name))
