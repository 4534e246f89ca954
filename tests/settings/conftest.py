"""What the installed build says, asked once for all tests of this room."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport, probe_build
from tests.runs import there

ROOT = Path(__file__).parents[2]


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a table beside these tests."""
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def docs_script(name: str) -> ModuleType:
    """A script of `docs/`, as a module."""
    spec = there(importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py"))
    module = importlib.util.module_from_spec(spec)
    there(spec.loader).exec_module(module)
    return module


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
