"""What the installed build says, asked once for all tests of this room."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport, probe_build


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> ProbeReport:
    return probe_build(sys.executable, cache_dir=tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def known(report: ProbeReport) -> KnownSettings:
    return KnownSettings(report)


@pytest.fixture(scope="session")
def parser() -> Iterator[ParserProcess]:
    with ParserProcess(sys.executable, timeout_s=3600) as process:
        yield process
