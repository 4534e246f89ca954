"""What commands print of a recorded run, whole: one transcript a command.

`UPDATE_TRANSCRIPTS=1 python -m pytest tests/cli/test_transcripts.py` writes them anew; read the difference before it is
committed. Other tests look at fields and exit statuses, not at sentences.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from autotune.cli import ab
from autotune.model.clock import Stopwatch
from tests.console import autotune
from tests.runs import BUILDS_BASE
from tests.tables import toml_beside

TRANSCRIPTS = Path(__file__).parent / "transcripts"
SMALL = Path(__file__).parents[1] / "rundir" / "small"
CASES = toml_beside(__file__)
COMMANDS = CASES["transcripts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transcripts")
    for name in ("run", "again"):
        shutil.copytree(SMALL, folder / name)
    (folder / "study.toml").write_text(CASES["programs"]["to_submit"], encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_its_transcript(name: str, folder: Path) -> None:
    done = autotune(*COMMANDS[name].split(), cwd=folder, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    agrees(name, done.stdout, folder)


def test_a_comparison_prints_its_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab, "_look", lambda *_: BUILDS_BASE)
    text = f"noise = {{ white_sd = 1e-6 }}\n[effects]\n'option.script=\"{tmp_path}/runs/train-ab-a.sh\"' = 0.97\n"
    (tmp_path / "simulation.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(Stopwatch.__init__, "__defaults__", (lambda: 0.0,))  # a busy machine takes longer
    done = autotune("ab", "--b-args", "--remat none", "--", "python", "train.py", cwd=tmp_path, COLUMNS="120")
    assert done.returncode == 1, done.stderr
    # The noise of the simulated machine follows the settings, and one of them holds the path of this folder.
    printed = re.sub(r"\d+\.\d+(?:e[-+]\d+)?|\d+e-\d+|\d+ ms", "N", done.stdout)
    agrees("ab", printed, tmp_path)


def agrees(name: str, printed: str, folder: Path) -> None:
    """Compares what was printed with a transcript, or writes it."""
    text = re.sub(re.escape(str(folder)), "/folder", printed)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    file = TRANSCRIPTS / f"{name}.txt"
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
