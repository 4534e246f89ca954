"""The typed, conditional search space: pure data; who proposes asks for one parameter at a time.

A value that equals the default of the build is rendered as absence, so that equal sets have equal hashes. A
parameter that cannot act, given the choices made before it, is not asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from autotune.model import FlagSet, SettingError
from autotune.settings.known import is_default

DEFAULT = "(default)"
"""The choice that leaves a setting alone, where the build's default has no name."""

LISTABLE = 4096
"""Ranges up to this size can carry conditions of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One setting that is searched: either a list of choices, or a range of integers.

    Attributes:
        name: Name of the setting.
        choices: Texts to choose from, the default among them; None for a range.
        low: Least value of the range.
        high: Greatest value of the range, included.
        step: Distance of its values; 1 if `power_of_two`.
        log: Whether the range is better searched on a logarithmic scale.
        power_of_two: Whether the range holds powers of two only (`low` and `high` are such).
        default: What is in force when the setting is absent, as text; None if the build does not say.
        type: Type of the setting, to tell equal values.
        spellings: Further spellings of enum values to the value they mean.
        condition: Other parameter to the values under which this one acts; None if always.
        group: Group of the catalogue; empty for a setting that has none.
    """

    name: str
    choices: tuple[str, ...] | None = None
    low: int | None = None
    high: int | None = None
    step: int = 1
    log: bool = False
    power_of_two: bool = False
    default: str | None = None
    type: str = "string"
    spellings: Mapping[str, str] = field(default_factory=dict)
    condition: Mapping[str, tuple[str, ...]] | None = None
    group: str = ""

    def __post_init__(self) -> None:
        if (self.choices is None) == (self.low is None or self.high is None):
            raise ValueError(f"{self.name} must have either choices or a range")
        if self.choices is not None and (not self.choices or len(set(self.choices)) != len(self.choices)):
            raise ValueError(f"{self.name} must have distinct choices but got {self.choices!r}")

    @property
    def size(self) -> int:
        """How many values it has."""
        return len(self.choices) if self.choices is not None else len(self._range())

    def _range(self) -> range | tuple[int, ...]:
        assert self.low is not None
        assert self.high is not None
        if self.power_of_two:
            return tuple(1 << k for k in range(self.low.bit_length() - 1, self.high.bit_length()))
        return range(self.low, self.high + 1, self.step)

    def values(self) -> Iterator[str]:
        """All its values, in order."""
        return iter(self.choices) if self.choices is not None else map(str, self._range())

    def holds(self, value: str) -> bool:
        """Whether a value is one of its values."""
        if self.choices is not None:
            return value in self.choices
        return value.lstrip("+-").isdigit() and int(value) in self._range()

    def match(self, text: str) -> str | None:
        """The value that means the same as a text; None if there is none."""
        if self.holds(text):
            return text
        if self.is_absent(text):
            return self.default_choice
        named = (v for v in self.choices or () if v != DEFAULT)
        return next((v for v in named if is_default(text, v, self.type, self.spellings)), None)

    def is_absent(self, value: str) -> bool:
        """Whether a value means that the setting is left alone."""
        return value == DEFAULT or is_default(value, self.default, self.type, self.spellings)

    @property
    def default_choice(self) -> str:
        """The value that leaves the setting alone; `DEFAULT` if none of its values does."""
        listable = self.values() if self.size <= LISTABLE else ()
        return next((v for v in listable if self.is_absent(v)), DEFAULT)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Parameters in an order in which each follows those it depends on.

    Attributes:
        parameters: What is searched.
        left_out: Setting to the reason why it is not searched.
        notes: Setting that is searched to what a person should know of it.
    """

    parameters: tuple[Parameter, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def suggest(self, ask: Callable[[Parameter], str]) -> FlagSet:
        """One point: walks the parameters in order and asks for the active ones only.

        Args:
            ask: Gives one of the parameter's values as text: one of its choices, or an integer of its range.

        Raises:
            SettingError: If an answer is not one of the values.
        """
        chosen: dict[str, str] = {}
        for parameter in self.parameters:
            if not self._is_active(parameter, chosen):
                chosen[parameter.name] = parameter.default_choice
                continue
            value = ask(parameter)
            if not parameter.holds(value):
                raise SettingError(f"{parameter.name} must have one of its values but got {value!r}")
            chosen[parameter.name] = value
        return self._render(chosen)

    def locate(self, settings: FlagSet) -> dict[str, str] | None:
        """Values of the active parameters that give this set; None if it is not a point of the space.

        What `suggest` would have been told: it lets a known set be told to a sampler.
        """
        chosen: dict[str, str] = {}
        asked: dict[str, str] = {}
        for parameter in self.parameters:
            value = parameter.match(settings.get(parameter.name, DEFAULT))
            if not self._is_active(parameter, chosen):
                value = parameter.default_choice
            elif value is None:
                return None
            else:
                asked[parameter.name] = value
            chosen[parameter.name] = value
        rendered = self._render(chosen)
        absent = {p.name for p in self.parameters if p.is_absent(settings.get(p.name, DEFAULT))}
        return asked if set(rendered) == set(settings) - absent else None

    def size(self) -> int:
        """How many distinct points the space has, conditions taken into account."""
        needed_later = [
            {n for later in self.parameters[i:] for n in later.condition or {}} for i in range(len(self.parameters) + 1)
        ]

        @functools.cache
        def count(index: int, context: tuple[tuple[str, str], ...]) -> int:
            if index == len(self.parameters):
                return 1
            parameter, chosen = self.parameters[index], dict(context)
            keep = needed_later[index + 1]

            def rest(value: str) -> int:
                kept = {n: v for n, v in {**chosen, parameter.name: value}.items() if n in keep}
                return count(index + 1, tuple(sorted(kept.items())))

            if not self._is_active(parameter, chosen):
                return rest(parameter.default_choice)
            if parameter.name not in keep:
                return parameter.size * rest(DEFAULT)
            return sum(rest(v) for v in parameter.values())

        return count(0, ())

    def _is_active(self, parameter: Parameter, chosen: Mapping[str, str]) -> bool:
        return all(chosen.get(n, DEFAULT) in values for n, values in (parameter.condition or {}).items())

    def _render(self, chosen: Mapping[str, str]) -> FlagSet:
        return FlagSet({p.name: chosen[p.name] for p in self.parameters if not p.is_absent(chosen[p.name])})


def describe_condition(parameter: Parameter) -> str:
    """When a parameter acts, as a clause; ``always`` if it has no condition."""
    condition = parameter.condition or {}
    clauses = [f"{name} is {' or '.join(map(repr, values))}" for name, values in condition.items()]
    return "if " + " and ".join(clauses) if clauses else "always"


def describe_domain(parameter: Parameter) -> str:
    """The values of a parameter, as a clause."""
    if parameter.choices is not None:
        return ", ".join(map(repr, parameter.choices))
    how = " in powers of two" if parameter.power_of_two else ""
    how = how or (f" in steps of {parameter.step}" if parameter.step > 1 else "")
    return f"{parameter.low} to {parameter.high}{how}"
