"""Fixtures of the command line's tests."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from autotune.settings.probe import probe_build


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the user in which the build's answers lie."""
    folder = tmp_path_factory.mktemp("cache")
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        probe_build()
    return folder
