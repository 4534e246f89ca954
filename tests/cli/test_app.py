"""The command as a user types it: real processes, good and bad input, exit status and words."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.model.records import IncidentRecord
from autotune.model.spec import load_study
from autotune.rundir.store import Store
from harness.sandbox import wait_for
from harness.simulated_machine import write_study
from tests.console import autotune
from tests.runs import TYPED
from tests.tables import toml_beside

ROOT = Path(__file__).parents[2]
BAD_CALLS, CASES = toml_beside(__file__, "bad_calls.toml"), toml_beside(__file__)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "typed.toml"
    write_study(file, TYPED)
    return file


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulated run, in `runs/typed` of the folder that is given."""
    folder = tmp_path_factory.mktemp("finished")
    write_study(folder / "typed.toml", TYPED)
    done = autotune("run", "typed.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_run_ends_with_table_sentence_place_and_next_commands(finished: Path) -> None:
    done = autotune("run", "typed.toml", cwd=finished)  # again: shows the same, runs nothing
    assert done.returncode == 0
    assert re.search(r"xla_backend_optimization_level=1 beats .* 1\.1 times", done.stdout)
    assert "lies in runs/typed" in done.stdout
    assert "autotune export runs/typed --format env" in done.stdout


def test_status_show_and_their_json(finished: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(autotune("status", "--json", cwd=finished).stdout)
    assert rows[0]["state"] == "finished"
    assert (rows[0]["trials"], rows[0]["asked_trials"], rows[0]["stage"]) == (5, 5, None)
    records = json.loads(autotune("show", "runs/typed", "--json", cwd=finished).stdout)
    assert {"session", "aa_run", "trial", "confirm_run", "finalist", "conclusion"} <= {r["kind"] for r in records}
    one = json.loads(autotune("show", "runs/typed", "1", "--json", cwd=finished).stdout)
    assert one["number"] == 1
    assert len(one["pairs"]) == one["comparison"]["pair_count"]


def by_hand(shown: str) -> list[str]:
    return [line.strip() for line in shown.partition("by hand:\n")[2].strip().splitlines()]


def test_a_trial_is_shown_with_lines_that_a_shell_takes(finished: Path) -> None:
    *exports, command = by_hand(autotune("show", "runs/typed", "1", cwd=finished).stdout)
    script = "\n".join([*exports, "env"])
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={}).stdout
    result = json.loads(autotune("show", "runs/typed", "1", "--json", cwd=finished).stdout)
    expected = " ".join(f"--{n}={v}" for n, v in result["settings"].items())
    assert f"XLA_FLAGS={expected}\n" in shown
    assert shlex.split(command)[:4] == ["python", "-m", "workloads", "llama"]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_start_fast_because_they_import_nothing_heavy(argument: str) -> None:
    code = (
        "import atexit, sys; from autotune.cli.app import main; sys.argv[0] = 'autotune'; "
        "atexit.register(lambda: print('imported:', *{m.partition('.')[0] for m in sys.modules})); main()"
    )
    command = [sys.executable, "-c", code, argument]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    said, _, imported = shown.partition("imported:")
    assert "autotune" in said.lower()
    heavy = {"jax", "jaxlib", "flax", "optax", "optuna", "pandas", "scipy", "pydantic", "numpy", "sqlalchemy", "yaml"}
    assert "typer" in imported
    assert heavy.isdisjoint(imported.split())


# ---------------------------------------------------------------------- bad input


def refused(cwd: Path, *arguments: str) -> str:
    done = autotune(*arguments, cwd=cwd, TERMINAL_WIDTH="200")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def edited(study: Path, old: str, new: str) -> Path:
    assert old in TYPED
    return write_study(study, TYPED.replace(old, new)).parent


WIDTH = CASES["refused_searches"][0][0]


@pytest.mark.parametrize(("old", "new", "words"), CASES["refused_searches"])
def test_settings_that_cannot_be_searched_are_refused_at_once(study: Path, old: str, new: str, words: str) -> None:
    folder = edited(study, old, new)
    assert words in refused(folder, "run", "typed.toml")
    assert not (folder / "runs").exists()


def test_a_study_that_measured_nothing_does_not_block_an_edit(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create_or_resume(study.parent / "runs/typed", load_study(study), study_dir=study.parent)
    store.append(IncidentRecord(what="the reference did not start"))
    (store.folder("aa_run") / "worker.log").write_text("why")
    (store.path / "notes.txt").write_text("mine")
    before = (store.path / "records.jsonl").read_bytes()
    store.close()
    folder = edited(study, "pairs_cap = 12", "pairs_cap = 13")

    def move_file(old: Path, new: Path) -> None:
        os.link(old, new)  # fails for a folder, as a rename does in the lower layer of an overlay
        old.unlink()

    monkeypatch.setattr(os, "rename", move_file)
    done = autotune("run", "typed.toml", "--trials", "1", "--json", cwd=folder)
    assert json.loads(done.stdout)["trial_count"] == 1
    assert "earlier-1" in done.stderr
    assert (store.path / "earlier-1/records.jsonl").read_bytes() == before
    assert (store.path / "earlier-1/aa_run/worker.log").read_text() == "why"
    assert (store.path / "notes.txt").read_text() == "mine"
    assert autotune("show", store.path / "earlier-1", cwd=folder).returncode == 0
    assert len(json.loads(autotune("status", "--json", cwd=folder).stdout)) == 1
    edited(study, "pairs_cap = 12", "pairs_cap = 14")
    assert "another study" in refused(folder, "run", "typed.toml")


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_bad_call_says_what_must_hold_and_leaves_nothing(study: Path, call: str) -> None:
    before = sorted(study.parent.rglob("*"))
    assert BAD_CALLS[call] in refused(study.parent, *shlex.split(call))
    assert sorted(study.parent.rglob("*")) == before


def test_a_trial_that_does_not_exist(finished: Path) -> None:
    assert "but got 99" in refused(finished, "show", "runs/typed", "99")


def test_hostile_values_are_data(study: Path) -> None:
    hostile = "$(touch pwned) `touch pwned` 'a' \\\"b\\\"; touch pwned"
    folder = edited(study, WIDTH, f'OMP_PLACES = ["{hostile}"]')
    assert autotune("run", "typed.toml", "--trials", "5", cwd=folder).returncode == 0
    scripts = ["\n".join(by_hand(autotune("show", "runs/typed", n, cwd=folder).stdout)[:-1]) for n in "12345"]
    assert any("pwned" in script for script in scripts)
    for script in scripts:
        subprocess.run(["sh", "-c", script], cwd=folder, check=False, timeout=10)
    assert not list(folder.rglob("pwned"))


def test_interrupt_stops_cleanly_and_says_how_to_go_on(study: Path) -> None:
    folder = edited(study, 'noise = "quiet"', 'noise = "quiet"\ndelay_s = 0.05')
    again = [sys.executable, "-c", CASES["programs"]["hears_interrupts"], "-m", "harness.simulated_machine"]
    env, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    run = [*again, "run", "typed.toml"]
    process = subprocess.Popen(run, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True)
    records = folder / "runs/typed/records.jsonl"
    wait_for(lambda: records.exists() and '"aa_run"' in records.read_text(), "the A/A run is recorded")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command" in errors
    assert "Traceback" not in errors
    assert json.loads(autotune("status", "--json", cwd=folder).stdout)[0]["state"].startswith("stopped")
