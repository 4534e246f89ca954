"""What `import autotune` offers in a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import autotune
from autotune.model.errors import RunDirectoryError
from autotune.model.records import TrialResult
from autotune.rundir.store import Store
from tests.runs import replay_study, there

HEAVY = ("jax", "scipy", "pandas", "jinja2", "rich", "sqlalchemy", "alembic", "optuna", "pydantic")


def test_each_face_brings_no_more_than_it_needs() -> None:
    """What is imported one after the other in one process, and what of it all may be there by then."""
    steps = {
        "import autotune": [],
        "autotune.ab": [],
        "import autotune.results.format, autotune.results.winner": ["pydantic", "optuna"],
        "import autotune.study.driver": ["pydantic", "optuna", "rich", "jinja2"],
        "import autotune.study.start": ["pydantic", "optuna", "rich", "jinja2"],
        "autotune.load, autotune.compare, autotune.run": [n for n in HEAVY if n != "jax"],
    }
    look = f"print(*[m for m in {HEAVY} if m in sys.modules])"
    code = "\n".join(["import sys", *(f"{step}\n{look}" for step in steps)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    for (step, allowed), told in zip(steps.items(), done.stdout.splitlines(), strict=True):
        assert {*told.split()} <= {*allowed}, step


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="run directory"):
        autotune.load(tmp_path)
    with pytest.raises(AttributeError, match="'lode'"):
        _ = autotune.lode
    assert {"load", "compare", "Study"} <= set(dir(autotune))


def test_a_study_as_an_object(finished: Store) -> None:
    s = autotune.load(str(finished.path))
    assert s.name == "replayed"
    count = len(finished.of(TrialResult))
    assert len(s.trials) == count
    assert s.trials is s.trials
    assert s.settings.shape == (count, 4)
    assert s.steps["step_s"].gt(0).all()
    assert dict(there(s.winner).settings) == {"NCCL_DEBUG": "WARN", "xla_a": "1", "xla_d": "2"}
    assert re.search(r"7\.[89] % less", repr(s))  # 7.85 %: 0.95 * 0.97
    assert re.search(r"7\.[89] % less", s._repr_html_())


def test_a_study_without_a_winner_has_none(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path).close()
    s = autotune.load(tmp_path)
    assert s.winner is None
    assert s.verdict == "not ended yet"
    assert "nothing to draw" in s.plot.forest()._repr_html_()
    assert ElementTree.fromstring(s.plot.forest().picture).tag.endswith("svg")
    for frame in (s.trials, s.steps, s.estimated_effects()):
        assert frame.empty
        assert len(frame.columns) > 2


def test_charts_draw_what_the_frames_hold(finished: Store, tmp_path: Path) -> None:
    s = autotune.load(finished.path)
    is_one_program = s.trials["same_as"].fillna(0) == 0  # duplicates are drawn once
    shown = s.trials[s.trials["ratio"].notna() & s.trials["failure"].isna() & is_one_program]
    forest = s.plot.forest()
    drawn = set(map(int, re.findall(r"<title>trial (\d+):", forest.svg)))
    assert drawn == set(shown["trial"])
    best = set(map(int, re.findall(r"<title>trial (\d+):", s.plot.forest(most=3).svg)))
    assert best <= set(shown.sort_values("ratio")["trial"].head(4))
    assert len(best) == 3
    measured = int(s.trials.query("status == 'measured'")["trial"].iloc[0])
    dots = s.plot.steps(measured).svg.count("h0")
    assert dots == len(s.steps.query("stage == 'trial' and trial == @measured"))
    assert s.plot.steps().svg.count("h0") == len(s.steps.query("stage == 'aa_run'"))
    assert not s.plot.steps(99).svg
