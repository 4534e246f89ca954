"""What the installed build says, asked once for all tests of this room."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from autotune.model.spec import parse_study
from autotune.settings.catalog import Catalog, load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.probe import ParserProcess, ProbeReport, probe_build
from autotune.settings.space import SearchSpace, build_space
from tests.runs import there

ROOT = Path(__file__).parents[2]
NOTHING_TOLD = {"device_count": 1, "mesh": {}, "layer_bytes": {}, "collective_bytes": {}}


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
def probe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the build's answers are kept, one folder for all workers."""
    folder = tmp_path_factory.getbasetemp()
    return Path(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder, "autotune")


@pytest.fixture(scope="session")
def report(probe_folder: Path) -> ProbeReport:
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(probe_folder.parent)):
        return probe_build(sys.executable)


@pytest.fixture(scope="session")
def known(report: ProbeReport) -> KnownSettings:
    return KnownSettings(report)


@pytest.fixture(scope="session")
def cuda(report: ProbeReport) -> KnownSettings:
    """The same build, as it is judged for GPUs."""
    return KnownSettings(dataclasses.replace(report, platform="cuda"))


def doctored(name: str, change: Mapping[str, Any]) -> Catalog:
    """The catalogue with another entry for a setting."""
    catalog = load_catalog()
    wrong = catalog[name].model_copy(update=change)
    return Catalog([*(s for s in catalog.values() if s.name != name), wrong], catalog.sources)


def space_of(known: KnownSettings, facts: Mapping[str, Any] | None = None, **study: Any) -> SearchSpace:
    """The space of a study for GPUs, given its tables, where it differs, and what its reference and machines tell."""
    told: Any = SimpleNamespace(**{**NOTHING_TOLD, **facts}) if facts else None
    device, machines = {"platform": "cuda", **study.pop("device", {})}, study.pop("machines", None)
    spec = parse_study({"name": "space", "workload": {"entry": "x"}, "device": device, **study})
    with mock.patch("os.sched_getaffinity", return_value=range(4)):
        return build_space(spec, known, told, machines=machines)


def searched(space: SearchSpace) -> set[str]:
    """The names of the parameters of a space."""
    return {p.name for p in space.parameters}


@pytest.fixture(scope="session")
def parser() -> Iterator[ParserProcess]:
    with contextlib.closing(ParserProcess(sys.executable, timeout_s=3600)) as process:
        yield process
