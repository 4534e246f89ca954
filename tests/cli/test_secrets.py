"""Secrets in a study's command: the program gets them, and nothing that is kept, shared or shown has them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from autotune.model.clock import Stopwatch
from autotune.model.errors import StudyFileError
from autotune.results.export import FORMATS
from autotune.results.live import LineView
from autotune.rundir.store import Store
from autotune.study.recheck import recheck_study
from harness.simulated_machine import write_study
from tests.console import autotune
from tests.tables import toml_beside

pytestmark = pytest.mark.filterwarnings("ignore:Query string argument")

CASES = toml_beside(__file__)
PROGRAMS = CASES["programs"]
SECRET = ["--wandb-key=hunter2-a", "--token", "hunter2-b", "API_KEY=hunter2-c", "--db=postgresql://me:hunter2-d@h/x"]

STUDY = Path(__file__).with_name("secretive.toml").read_text(encoding="utf-8")


def text_of(secrets: list[str]) -> str:
    return STUDY.replace('["python", "train.py"]', json.dumps([sys.executable, "train.py", *secrets]))


def secretly(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """What a command prints that has more secrets in its environment."""
    more = {"AWS_SECRET_ACCESS_KEY": "hunter2-aws", "SECRET_TOKEN": "hunter2-f3a9", "NCCL_HUNTER": "plain"}
    done = autotune(*arguments, cwd=cwd, HF_TOKEN="hunter2-e", XDG_DATA_HOME=str(cwd / "data"), **more)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def finish(folder: Path, study: str) -> Path:
    (folder / "train.py").write_text(PROGRAMS["secretive"])
    write_study(folder / "study.toml", study)
    url = "sqlite:///s.db?password=hunter2-f"
    done = secretly("run", "study.toml", "--run-dir", "run", "--storage", url, cwd=folder)
    assert "hunter2" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of such a program, called with more secrets; a formula takes the place of measuring."""
    return finish(tmp_path_factory.mktemp("secretive"), text_of(SECRET) + PROGRAMS["simulation"])


OWN = {"study.toml", "got.txt", "worker.log"}
"""The user's own file, what the program itself writes, and its output as it is, in a folder that is private."""


def leaks(folder: Path) -> list[str]:
    return [
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and p.name not in OWN and b"hunter2" in p.read_bytes()
    ]


def test_nothing_that_is_kept_has_them(folder: Path) -> None:
    assert leaks(folder) == []
    study = json.loads((folder / "run/study.json").read_text())
    assert study["study"]["workload"]["command"][2:] == [
        "--wandb-key=***",
        "--token",
        "***",
        "API_KEY=***",
        "--db=postgresql://me:***@h/x",
    ]


def test_nothing_that_is_shown_or_shared_has_them(folder: Path) -> None:
    said = []
    exports = [["export", "run", "--format", form, "-o", f"winner.{form}"] for form in FORMATS]
    for command in (*CASES["calls_without_secrets"], *exports):
        done = secretly(*command, cwd=folder)
        said.append(done.stdout + done.stderr)
    assert not any("hunter2" in text for text in said)
    assert leaks(folder) == []
    assert "--wandb-key=***" in (folder / "winner.env").read_text()
    assert (folder / "report.html").read_text().count("--wandb-key=***") > 0


def test_a_recheck_asks_for_them_instead_of_running_without(folder: Path) -> None:
    words = r"secrets .*--wandb-key=\*{3}.*--token.*API_KEY=\*{3}.*--study STUDY.toml.*environment variables"
    with pytest.raises(StudyFileError, match=words):
        recheck_study(folder / "run", None)
    assert recheck_study(folder / "run", folder / "study.toml")[0].workload.command == (
        sys.executable,
        "train.py",
        *SECRET,
    )


@pytest.mark.gate
def test_a_real_program_gets_them_and_nobody_else(tmp_path: Path) -> None:
    finish(tmp_path, text_of(SECRET))
    got = tmp_path / "got.txt"
    assert set(got.read_text().splitlines()) == {repr(SECRET) + "hunter2-e"}
    records = (tmp_path / "run/records.jsonl").read_text()
    assert '"kind":"workload_error"' in records or '"kind":"no_result"' in records
    assert "unrecognized arguments: --wandb-key=*** --token *** API_KEY=***" in records
    assert leaks(tmp_path) == []
    assert not [p for p in (tmp_path / "run").rglob("*") if p.stat().st_mode & 0o077]
    got.unlink()
    secretly("recheck", "run", cwd=tmp_path, code=2)
    assert not got.exists()
    secretly("recheck", "run", "--study", "study.toml", cwd=tmp_path)
    assert set(got.read_text().splitlines()) == {repr(SECRET) + "hunter2-e"}
    (tmp_path / "study.toml").write_text(text_of([s.replace("hunter2", "hunter2-new") for s in SECRET]))
    secretly("run", "study.toml", "--run-dir", "run", "--trials", "3", cwd=tmp_path)
    assert "hunter2-new-b" in got.read_text()
    assert leaks(tmp_path) == []


def test_a_study_file_with_struck_out_secrets_or_one_as_a_setting_is_refused(folder: Path) -> None:
    (folder / "struck.toml").write_text(text_of(["--token", "***"]))
    assert "its secrets" in secretly("run", "struck.toml", "--run-dir", "other", cwd=folder, code=2).stderr
    (folder / "setting.toml").write_text(text_of(["--lr", "1"]) + '[baseline]\nWANDB_API_KEY = "hunter2-g"\n')
    done = secretly("run", "setting.toml", "--run-dir", "other", cwd=folder, code=2)
    (folder / "setting.toml").unlink()
    assert "WANDB_API_KEY" in done.stderr
    assert "hunter2" not in done.stderr
    assert not (folder / "other").exists()


def test_the_run_directory_is_private(folder: Path) -> None:
    assert (folder / "run").stat().st_mode & 0o777 == 0o700
    others = [p.name for p in (folder / "run").rglob("*") if p.stat().st_mode & 0o077]
    assert set(others) == {"worker.log"}, "the formula's; a program's is private"
    assert Store.open(folder / "run").spec.name == "secretive"


def test_neither_an_error_nor_a_line_of_progress_shows_the_value_of_a_secret_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-plain")
    monkeypatch.setenv("DB", "postgresql://me:hunter2-db@h/x")
    raises = "import os; raise RuntimeError(os.environ['MY_TOKEN'] + ' at ' + os.environ['DB'])"
    (tmp_path / "train.py").write_text(raises)
    done = autotune("tune", "--dry-run", "--", sys.executable, "train.py", cwd=tmp_path)
    assert "RuntimeError: *** at ***" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    console = Console(file=io.StringIO(), width=200)
    LineView(console, Stopwatch(), min_effect=0.005).note("it said hunter2-plain")
    assert "note: it said ***" in console.file.getvalue()  # type: ignore[attr-defined]
