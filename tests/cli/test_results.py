"""The commands on results, as a user types them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from autotune.cli import results as cli_results
from autotune.cli.app import app
from autotune.machine.host import RanOn
from autotune.model.errors import AutotuneError
from autotune.results import conditions
from autotune.results.conditions import Conditions, differences, this_machine
from autotune.results.export import FORMATS, render_winner
from autotune.results.library import add_to_library
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from autotune.study import preflight, recheck
from harness.simulated_machine import SimulatedLauncher, simulation_of
from tests.console import autotune, autotune_process
from tests.runs import make_winner
from tests.tables import toml_beside

CASES = toml_beside(__file__)


def call(*arguments: object, code: int = 0) -> Result:
    """Runs a command; errors for the user are raised as they are."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, AutotuneError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is the one on which `make_winner` was proven."""
    monkeypatch.setattr(conditions, "describe_machine", lambda: CASES["machine_of_the_proof"])
    monkeypatch.setattr(conditions, "visible_gpus", lambda environment: [SimpleNamespace(name="NVIDIA H200")] * 8)
    monkeypatch.setattr(conditions, "would_run_on", lambda environment, count: RanOn(versions={}, gpus=()))


def exported(folder: Path, form: str = "env", **conditions: Any) -> Path:
    path = folder / f"winner.{form}"
    path.write_text(render_winner(make_winner({"xla_gpu_a": "1"}, **conditions), form))
    return path


# ---------------------------------------------------------------------- report, compare, library


def test_a_report_stands_beside_the_run_directory_or_where_asked(finished: Store, tmp_path: Path) -> None:
    call("report", finished.path, "--html", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    copy = tmp_path / "copy"
    shutil.copytree(finished.path, copy)
    files = sorted(copy.rglob("*"))
    call("report", copy)
    assert (tmp_path / "copy.html").is_file()
    assert sorted(copy.rglob("*")) == files, "only the study writes into its run directory"
    assert call("report", copy, "--md").stdout.startswith("# replayed")


def test_compare_takes_several_axes(finished: Store, tmp_path: Path) -> None:
    copy = shutil.copytree(finished.path, tmp_path / "copy")
    data = json.loads(call("compare", finished.path, copy, "--json", "--by", "gpu, jaxlib").stdout)
    assert data["by"] == ["gpu", "jaxlib"]


def test_library_from_run_to_best(finished: Store, tmp_path: Path) -> None:
    library = tmp_path / "library"
    call("library", "add", finished.path, "--library", library)
    with pytest.raises(AutotuneError, match="is unchecked"):
        call("library", "add", exported(tmp_path), "--library", library)
    add_to_library(make_winner({"xla_gpu_a": "1"}), library)
    found = call("best", "--gpu", "NVIDIA H200", "--jaxlib", "0.11", "--workload", "llama3-8b", "--library", library)
    assert found.stdout.split(": ")[1].startswith("xla_gpu_a=1\n")
    assert "unchecked" in found.stdout
    data = json.loads(call("best", "--gpu", "H100", "--count", 8, "--library", library, "--json").stdout)
    assert (data["tested"], data["status"]) == (False, "unchecked")
    assert data["distance"] == ["proven on NVIDIA H200, not on H100"]


def test_recheck_of_a_run_directory(finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = simulation_of(finished.spec)
    monkeypatch.setattr(preflight, "make_launcher", lambda spec, study_dir: SimulatedLauncher(spec, machine))
    result = call("recheck", finished.path, "--run-dir", tmp_path / "again", "--json")
    data = json.loads(result.stdout)
    assert data["outcome"] == "winner"
    assert "still holds" in data["sentence"]
    with pytest.raises(AutotuneError, match="with --study"):
        call("recheck", exported(tmp_path))


# ---------------------------------------------------------------------- export, verify, exec


def test_verify_says_that_a_file_whose_run_is_not_here_is_unchecked(here: None, tmp_path: Path) -> None:
    for form in FORMATS:
        result = call("verify", exported(tmp_path, form), code=cli_results.UNCHECKED)
        assert "unchecked  eight:" in result.stdout
    told = call("verify", exported(tmp_path, "env"), "--json", code=cli_results.UNCHECKED).stdout
    assert json.loads(told)["status"] == "unchecked"


def test_verify_holds_where_it_was_proven(finished: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "differences", lambda proven, here: [])
    file = tmp_path / "winner.env"
    file.write_text(render_winner(winner_of(finished), "env"))
    assert f"holds    {finished.spec.name}" in call("verify", file, "--run", finished.path).stdout
    assert json.loads(call("verify", finished.path, "--json").stdout)["status"] == "holds"


@pytest.mark.parametrize(("field", "proven"), CASES["differences"])
def test_verify_names_each_difference_and_fails(here: None, tmp_path: Path, field: str, proven: object) -> None:
    changed: dict[str, Any] = {field: proven}
    file = exported(tmp_path, **changed)
    result = call("verify", file, code=1)
    assert f"differs  {field}: proven with {proven}," in result.stdout
    data = json.loads(call("verify", file, "--json", code=1).stdout)
    assert [d["field"] for d in data["differences"]] == [field]


def test_verify_compares_the_workload_of_a_study(here: None, tmp_path: Path) -> None:
    from autotune.model.spec import load_study

    study = tmp_path / "s.toml"
    study.write_text('name = "s"\nworkload = { entry = "llama" }\n')
    assert "workload: proven with 0123456789ab" in call("verify", exported(tmp_path), "--study", study, code=1).stdout
    file = exported(tmp_path, workload=load_study(study).workload_hash)
    assert "not checked" not in call("verify", file, "--study", study, code=cli_results.UNCHECKED).stdout


def test_a_machine_without_the_gpu_differs_and_so_does_what_was_not_recorded() -> None:
    fields = {d.field for d in differences(make_winner({}).conditions, this_machine(Conditions(platform="cuda")))}
    assert {"device_kind", "device_count", "jaxlib"} <= fields
    unrecorded = {d.field for d in differences(Conditions(platform="cpu"), this_machine(Conditions(platform="cpu")))}
    assert {"device_kind", "jaxlib"} <= unrecorded
    assert "platform" not in unrecorded


def cpu_winner(folder: Path, settings: Mapping[str, str]) -> Path:
    """An exported file that was proven on this very machine."""
    mine = this_machine(Conditions(platform="cpu")).model_dump(exclude={"workload"})
    path = folder / "here.env"
    path.write_text(render_winner(make_winner(settings, **mine), "env"))
    return path


def test_exec_runs_where_it_was_proven_and_says_what_it_set(tmp_path: Path) -> None:
    hostile = "$(touch canary) 'x'"
    file = cpu_winner(tmp_path, {"xla_cpu_a": "1", "OMP_PLACES": hostile})
    script = 'printf "%s|%s" "$XLA_FLAGS" "$OMP_PLACES"; exit 7'
    asked = ("exec", "--force", file, "--", "sh", "-c", script)
    done = autotune_process(*asked, XLA_FLAGS="--xla_cpu_z=3", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"--xla_cpu_a=1 --xla_cpu_z=3|{hostile}"
    assert "gives xla_cpu_a=1 (winner)" in done.stderr
    assert "gives xla_cpu_z=3 (your" in done.stderr


def test_exec_refuses_a_file_whose_run_is_not_here(tmp_path: Path, started: list[Any]) -> None:
    file = cpu_winner(tmp_path, {"xla_cpu_a": "1", "option.batch": '"8; touch X"'})
    done = autotune("exec", file, "--", "bash", "-c", "echo {batch}")
    assert (done.returncode, started) == (2, [])
    assert "unchecked" in done.stderr
    assert "--force" in done.stderr
    assert autotune("exec", "--force", file, "--", "bash", "-c", "echo {batch}").returncode == 2
    assert started == []
    autotune("exec", "--force", file, "--", "bash", "train.sh", "--batch={batch}")
    assert [command for command, _ in started] == [["bash", "train.sh", "--batch=8; touch X"]]


def test_exec_refuses_elsewhere_unless_forced(tmp_path: Path, started: list[Any]) -> None:
    file = exported(tmp_path, "json")
    done = autotune("exec", file, "--", "echo", "ran")
    assert (done.returncode, started) == (2, [])
    assert "proven with NVIDIA H200," in done.stderr
    assert "--force" in done.stderr
    done = autotune("exec", "--force", file, "--", "echo", "ran")
    assert (done.returncode, [command for command, _ in started]) == (0, [["echo", "ran"]])
    assert "forced: device_kind" in done.stderr
