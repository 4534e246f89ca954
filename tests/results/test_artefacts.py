"""A winner's artefacts on their way out: beside its file, unchanged, and never of anywhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.model.artefacts import Artefact
from autotune.model.errors import AutotuneError
from autotune.model.flags import PROFILE
from autotune.results.export import (
    ExportFormat,
    is_unchanged,
    parse_winner,
    put_beside,
    read_winner,
    render_winner,
    settings_in_force,
)  # fmt: skip
from autotune.results.library import add_to_library
from autotune.results.winner import Winner, this_machine
from autotune.rundir.artefacts import place_artefacts
from autotune.rundir.store import Store
from autotune.study import preflight
from autotune.study.recheck import verify_winner
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher, simulation_of
from tests.cli.test_results import call
from tests.results.test_trust import edited
from tests.runs import SPACE, Diary, asking, make_winner
from tests.study.test_pgle import BARE, PROFILED, TEXT, study

CONTENT = TEXT.encode()
ARTEFACT = Artefact.of(PROFILE, CONTENT)
SETTINGS = {"xla_gpu_a": "1", PROFILE: ARTEFACT.reference}


def winner(**more: Any) -> Winner:
    """One with a profile, proven on this very machine."""
    mine = this_machine(platform="cpu").model_dump(exclude={"workload"})
    return make_winner(SETTINGS, **mine).model_copy(update=more)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A file with its profile beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    place_artefacts([ARTEFACT], folder)
    (folder / "winner.env").write_text(render_winner(winner(), ExportFormat.ENV, folder))
    return folder / "winner.env"


def beside(file: Path) -> Path:
    return file.parent / ARTEFACT.file_name


def differing(file: Path) -> set[str]:
    return {d.field for d in verify_winner(read_winner(file), file).differences}


def run_exec(file: Path, *options: str) -> list[str]:
    """The flags under which `autotune exec` starts the command; an error if it starts none."""
    started: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XLA_FLAGS", raising=False)
        patch.setattr(os, "execvpe", lambda _file, _words, environment: started.append(environment["XLA_FLAGS"]))
        result = CliRunner().invoke(app, ["exec", *options, str(file), "--", "true"])
    if result.exception is not None:
        raise result.exception
    (flags,) = started
    return flags.split()


# ---------------------------------------------------------------------- attackers


def swap(path: Path) -> None:
    path.write_text('costs { name: "all-gather-start" cost_us: 0 }\n')


def link(path: Path) -> None:
    path.rename(path.with_name("kept"))
    path.symlink_to("kept")  # even to the right content: what it leads to can be changed by others


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # whoever opens one waits for ever


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "0.pbtxt").write_bytes(CONTENT)  # XLA takes a folder, too


ATTACKS = [swap, link, pipe, folder, Path.unlink, lambda path: path.write_bytes(b"")]


def test_what_lies_there_unchanged_holds_and_is_put_in_force(exported: Path) -> None:
    assert differing(exported) == set()
    assert f"--{PROFILE}={beside(exported)}" in run_exec(exported, "--force")


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_is_told_and_never_used(exported: Path, attack: Callable[[Path], object]) -> None:
    attack(beside(exported))
    assert differing(exported) == {"artefact"}
    with pytest.raises(AutotuneError, match="must lie beside it, unchanged"):
        settings_in_force(read_winner(exported), exported)


def test_exec_refuses_a_swapped_profile_whatever_force_says(exported: Path) -> None:
    swap(beside(exported))
    with pytest.raises(AutotuneError, match="it holds something else"):
        run_exec(exported, "--force")


@pytest.mark.parametrize(
    "value",
    ["/etc/passwd", "../../other.pbtxt", "artefact:../x", f"artefact:{'0' * 63}", f"artefact:{'A' * 64}", "artefact:"],
)
def test_a_file_cannot_name_a_path(exported: Path, value: str) -> None:
    text = exported.read_text().replace(ARTEFACT.reference, value)
    with pytest.raises(AutotuneError, match="must not write or read files"):
        parse_winner(text, source="a file")


def test_a_path_edited_in_the_lines_of_a_file_is_found_out_and_not_used(exported: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.pbtxt"
    evil.write_text("costs {}")
    exported.write_text(exported.read_text().replace(str(beside(exported)), str(evil)))
    assert differing(exported) == {"file"}
    assert settings_in_force(read_winner(exported), exported)[PROFILE] == str(beside(exported))


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"packed": Artefact.of(PROFILE, b"other").packed},
        {"packed": "no base64!"},
        {"packed": "AAAA"},
        {"setting": "xla_dump_to"},
    ],
)
def test_an_artefact_in_a_record_holds_what_it_says(change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"artefact|base64|padding"):
        Artefact.model_validate({**ARTEFACT.model_dump(), **change})


# ---------------------------------------------------------------------- ways out


@pytest.mark.parametrize("form", [f for f in ExportFormat if f not in ("arguments", "overrides")])
def test_every_format_of_settings_holds_the_path_and_is_bound_to_its_folder(form: ExportFormat, tmp_path: Path) -> None:
    text = render_winner(winner(), form, tmp_path)
    assert str(tmp_path / ARTEFACT.file_name) in text
    assert is_unchanged(text, winner(), tmp_path)
    assert not is_unchanged(text, winner(), tmp_path / "elsewhere")
    assert parse_winner(text, source="x") == winner()


def test_a_library_keeps_the_profile_and_no_path(exported: Path, tmp_path: Path) -> None:
    entry = add_to_library(read_winner(exported), tmp_path / "library", exported)
    assert beside(entry).read_bytes() == CONTENT
    assert str(tmp_path) not in entry.read_text()
    assert json.loads(entry.read_text())["environment"] == {}
    assert differing(entry) == set()
    assert settings_in_force(read_winner(entry), entry)[PROFILE] == str(beside(entry))


def test_a_library_takes_no_winner_without_its_profile(exported: Path, tmp_path: Path) -> None:
    swap(beside(exported))
    with pytest.raises(AutotuneError, match="it holds something else"):
        add_to_library(read_winner(exported), tmp_path / "library", exported)
    assert not list((tmp_path / "library").rglob("*.json"))


# ---------------------------------------------------------------------- from a run


STUDY = study(profile_effect=0.93)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = asking(STUDY, 1)
    setup = GivenSetup(given_space=SPACE, first=(("set fast", BARE),))
    begun = given_run(spec, tmp_path_factory.mktemp("recorded") / "run", setup, Diary())
    run_study(begun)
    return begun.store.path


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy of a run whose winner has a profile."""
    return shutil.copytree(recorded, tmp_path / "run")


def test_a_run_is_exported_with_all_that_belongs_to_it(run: Path, tmp_path: Path) -> None:
    found = read_winner(run)
    assert found.settings == PROFILED
    put_beside(found, Store.open(run), tmp_path / "out")
    names = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    assert names == {ARTEFACT.file_name: CONTENT}
    assert settings_in_force(found, run)[PROFILE] == str(run / "artefacts" / ARTEFACT.file_name)


def test_another_profile_in_the_records_is_found_out(run: Path, tmp_path: Path) -> None:
    other = json.loads(Artefact.of(PROFILE, b"costs {}").model_dump_json())
    forged = edited(run, tmp_path / "forged", "profile", lambda r: r.update(profile=other))
    with pytest.raises(AutotuneError, match=r"has a profile .* that no record of this run holds"):
        read_winner(forged)


def test_the_command_line_exports_the_profile_too_and_refuses_what_would_not_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "winner.env"
    call("export", run, "-o", file)
    names = {f.suffix for f in file.parent.iterdir()}
    assert names == {".env", ".pbtxt"}
    flags = file.read_text().split("export XLA_FLAGS=")[1]
    assert f"--{PROFILE}={file.parent}" in flags
    with pytest.raises(AutotuneError, match=r"autotune export RUN -o FILE"):
        call("export", run)


def test_a_recheck_measures_with_the_same_profile(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = simulation_of(STUDY)
    monkeypatch.setattr(preflight, "make_launcher", lambda spec, study_dir: SimulatedLauncher(spec, machine))
    folder = tmp_path / "again"
    call("recheck", run, "--run-dir", folder)
    found = read_winner(folder)
    assert found.settings == PROFILED
    assert found.estimate is not None
    assert found.estimate.ratio == pytest.approx(0.9 * 0.93, rel=0.02)
    assert settings_in_force(found, folder)[PROFILE] == str(folder / "artefacts" / ARTEFACT.file_name)
