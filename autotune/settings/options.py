"""Options of the workload as parameters of a study's space."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.model import StudySpec, option_setting, option_text
from autotune.settings.parameters import Parameter


def option_parameters(spec: StudySpec) -> Iterator[Parameter]:
    """One parameter for each option that the study searches; its default is the reference's value."""
    reference = spec.reference_options
    for name, values in spec.search.options.items():
        own = option_text(reference[name])
        choices = tuple(dict.fromkeys([own, *map(option_text, values)]))
        yield Parameter(name=option_setting(name), choices=choices, default=own)
