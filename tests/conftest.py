"""Fixtures of all tests; what they are made of is in `tests.runs`."""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.fronts import front_run as front_run
from tests.runs import _own_data_dir as _own_data_dir
from tests.runs import altered as altered
from tests.runs import finished as finished
from tests.runs import run_replay as run_replay

pytest_plugins = ["tests.budget"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    if not installed & {"jax-cuda12-plugin", "jax-cuda13-plugin"}:
        for item in items:
            if item.get_closest_marker("aot"):
                item.add_marker(pytest.mark.skip(reason="XLA's CUDA plugin is not installed"))
