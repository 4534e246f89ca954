"""The examples of docs/extending.md, as a reader would use them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, TrialResult
from autotune.model.spec import load_study
from autotune.results.export import read_winner
from autotune.rundir.store import Store
from autotune.settings.catalog import Setting, read_entries
from autotune.study import preflight
from autotune.study.driver import run_study
from autotune.study.engines import choose_engine
from autotune.study.proposer import STARTUP_TRIALS
from autotune.study.samplers import check_sampler
from autotune.workers.local import LocalWorker
from harness import simulated_machine
from harness.simulated import GivenSetup, given_run
from tests.console import autotune
from tests.runs import EFFECTS, SPACE, Diary, Run, asking, replay_study, there
from workloads import models

PAGE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page; what it imports is forgotten again."""
    for name, text in re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def test_a_winner_is_exported_in_a_format_of_one_s_own(finished: Store, page: Path) -> None:
    done = autotune("export", finished.path, "--format", "my_format:Fish", "-o", "winner.fish", cwd=page)
    assert (done.returncode, "source ./winner.fish" in done.stderr) == (0, True)
    assert read_winner(page / "winner.fish") == read_winner(finished.path)
    assert "set -gx NCCL_DEBUG 'WARN'\n" in (page / "winner.fish").read_text(encoding="utf-8")
    refused = autotune("export", finished.path, "--format", "my_engine:OneCore", cwd=page)
    assert (refused.returncode, "autotune.results.export.Exporter" in refused.stderr) == (2, True)


def test_a_sampler_beside_the_study_proposes_and_a_stopped_study_goes_on_alike(run_replay: Run, page: Path) -> None:
    search = load_study(page / "sampler.toml").search
    check_sampler(search, str(page))
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 0.0}, study={"search": {"sampler": search.sampler}})
    for folder, stops in (("whole", [10]), ("stopped", [9, 10])):
        for trials in stops:
            _, store, _ = run_replay(spec, trials=trials, folder=folder)
    results = store.of(TrialResult)
    assert search.sampler in [r.origin for r in results[STARTUP_TRIALS:]]
    assert [r.settings for r in results] == [r.settings for r in Store.open(page / "whole").of(TrialResult)]


def test_a_launcher_beside_the_study_starts_its_program(page: Path) -> None:
    (page / "train.py").write_text(
        "import time\nfor _ in range(400):\n    time.sleep(0.01)\n    print('10 ms', flush=True)\n"
    )
    launcher = preflight.make_launcher(load_study(page / "launcher.toml"), str(page))
    (page / "logs").mkdir()
    try:
        worker = launcher.start(FlagSet(), page / "logs", progress=lambda phase: None)
        assert isinstance(worker, LocalWorker)
        assert 19 in {p.nice() for p in psutil.Process().children(recursive=True)}
    finally:
        launcher.close()


def test_an_engine_of_one_s_own_runs_a_study_on_its_lane(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "make_launcher", simulated_machine.make_launcher)
    monkeypatch.chdir(page)
    (page / simulated_machine.FILE).write_text('effects = { "xla_a=1" = 0.9 }\nnoise = { white_sd = 0.002 }\n')
    quick = replay_study(study={"confirm": {"processes": 3, "isolated": 0, "soak": 0, "finalists": 1}})
    run = given_run(asking(quick, 1), page / "run", GivenSetup(given_space=SPACE), Diary())
    run.make_engine = choose_engine(run.spec, (), scheduler="my_engine:OneCore")
    run_study(run)
    assert there(run.store.last(AaRecord)).by == "device-0"
    assert [r.by for r in run.store.of(TrialResult)] == ["device-0"]


def test_the_entry_of_a_variable_and_the_size_of_a_model_are_legal(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_entries("entry.toml", Setting, page)["NCCL_MY_VARIABLE"].values == ("0", "1")
    monkeypatch.setattr(models, "LLAMA", {**models.LLAMA})
    exec((page / "size.py").read_text(), {})
    assert models.LLAMA["llama3-9b"].keys() == models.LLAMA["llama3-8b"].keys()
