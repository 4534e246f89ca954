"""The notebooks run from a clean clone, on the recorded studies beside them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import autotune

STUDIES = Path(__file__).parents[2] / "studies"
RECORDED = sorted(p.parent for p in STUDIES.glob("recorded/*/study.json"))


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ipython = pytest.importorskip("IPython.core.interactiveshell", reason="cells are run by IPython")
    monkeypatch.setattr("IPython.core.history.HistoryManager.enabled", False)
    monkeypatch.setattr(sys, "ps1", "", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(STUDIES)
    shell = ipython.InteractiveShell()  # what runs the cells inside a kernel
    outputs: list[dict[str, str]] = []
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    for cell in cells:
        done = shell.run_cell("".join(cell["source"]))
        done.raise_error()
        if done.result is not None:
            outputs.append(shell.display_formatter.format(done.result)[0])
    assert len(outputs) >= 4
    # What a cell draws ends up on the page: the charts of the report, each with its colours in it.
    drawn = [o for o in outputs if "<svg " in o.get("text/html", "")]
    assert len(drawn) == sum(".plot." in "".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert [c for c in cells if c["cell_type"] == "code" and (c["outputs"] or c["execution_count"])] == []


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.name)
def test_recorded_studies_are_whole_and_name_no_machine(path: Path) -> None:
    s = autotune.load(path)
    assert s.verdict != "not ended yet"
    assert not s.steps.empty
    text = "".join(f.read_text() for f in path.rglob("*.json*"))
    for place in ("/home/", "/root/", "/tmp/", "/work/"):
        assert place not in text


def test_the_lines_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (STUDIES.parent / "docs" / "notebook.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(STUDIES.parent)
    found: dict[str, Any] = {}
    exec(code, found)
    assert len(found["s"].trials)
    assert len(found["s"].steps)
    assert "<svg" in found["s"].plot.forest().picture
