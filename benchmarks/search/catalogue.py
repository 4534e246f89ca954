"""The catalogue's own spaces, as `autotune.settings` builds them for programs of several kinds."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from autotune.model.spec import parse_study
from autotune.settings.catalog import load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.space import SearchSpace, build_space

LAYER = 404_750_336  # bytes of one layer's weights in Llama 2 7B
_GROUPS = tuple(g for g in load_catalog().groups if not g.startswith("cpu"))


class _Facts(NamedTuple):
    """What a program told of itself, as far as a space depends on it."""

    device_count: int
    mesh: dict[str, int]
    layer_bytes: dict[str, int]
    collective_bytes: dict[str, int]


PROGRAMS: tuple[tuple[int, _Facts], ...] = (
    (1, _Facts(1, {}, {}, {})),
    (1, _Facts(8, {"fsdp": 8}, {"weights": LAYER, "gradients": LAYER}, {})),
    (1, _Facts(8, {"fsdp": 4, "tensor": 2}, {}, {})),
    (2, _Facts(16, {"pipeline": 2, "tensor": 8}, {}, {})),
)
"""Nodes, and what the program told."""


@functools.cache
def known_settings() -> KnownSettings:
    """What is known of settings on the build that is installed here."""
    return KnownSettings(probe_build(sys.executable, platform="cuda"))


@functools.cache
def _space(program: int, groups: tuple[str, ...]) -> SearchSpace:
    nodes, facts = PROGRAMS[program]
    study: dict[str, Any] = {
        "name": "space",
        "workload": {"entry": "llama"},
        "device": {"platform": "cuda", "node_count": nodes},
        "search": {"groups": list(groups)},
    }
    with mock.patch("os.sched_getaffinity", return_value=range(8)):
        return build_space(parse_study(study), known_settings(), facts)


def catalogue_space(rng: np.random.Generator, settings: tuple[int, int]) -> SearchSpace:
    """The space of one program and some groups, drawn until it has so many settings.

    Args:
        rng: Draws.
        settings: Least and most of them.
    """
    while True:
        program = int(rng.integers(len(PROGRAMS)))
        count = int(rng.integers(1, len(_GROUPS) + 1))
        groups = tuple(sorted(str(g) for g in rng.permutation(_GROUPS)[:count]))
        space = _space(program, groups)
        if settings[0] <= len(space.parameters) <= settings[1]:
            return space
