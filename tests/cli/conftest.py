"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.settings.probe import probe_build


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the user in which the build's answers lie."""
    folder = tmp_path_factory.mktemp("cache")
    probe_build(cache_dir=folder / "autotune")
    return folder
