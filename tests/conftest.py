"""Fixtures of all tests; what they are made of is in `tests.runs`."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from autotune.child.packages import installed_versions
from autotune.machine import host
from harness import simulated_machine
from tests.console import started as started
from tests.runs import _own_data_dir as _own_data_dir
from tests.runs import altered as altered
from tests.runs import finished as finished
from tests.runs import run_replay as run_replay

pytest_plugins = ["tests.budget"]


def pytest_configure(config: pytest.Config) -> None:
    """Puts what tests write into memory where there is room: a study waits for the disk some 200 times."""
    memory = Path("/dev/shm")
    if config.option.basetemp is not None or hasattr(config, "workerinput") or not os.access(memory, os.W_OK):
        return
    if shutil.disk_usage(memory).free > 4 << 30 and not os.statvfs(memory).f_flag & os.ST_NOEXEC:
        config.option.basetemp = tempfile.mkdtemp(prefix="autotune-tests-", dir=memory)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


@pytest.fixture(autouse=True, scope="session")
def _once_a_process() -> Iterator[None]:
    """The parser of the command line is made, and installed packages are read, once for all calls and studies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "installed_versions", functools.cache(installed_versions))
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def _simulated_machines() -> None:
    """Studies beside which a simulated machine is described run on it."""
    simulated_machine.install()


def pytest_collection_finish() -> None:
    """Keeps the collector of garbage from going through all tests and modules again and again: a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    installed = {d.metadata["Name"] for d in importlib.metadata.distributions()}
    if not installed & {"jax-cuda12-plugin", "jax-cuda13-plugin"}:
        for item in items:
            if item.get_closest_marker("aot"):
                item.add_marker(pytest.mark.skip(reason="XLA's CUDA plugin is not installed"))
