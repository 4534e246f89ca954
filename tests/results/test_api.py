"""What `import autotune` offers in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.model.errors import AutotuneError, RunDirectoryError
from autotune.rundir.store import Store
from tests.runs import replay_study


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, autotune; print([m for m in ('pandas', 'optuna', 'pydantic', 'scipy', 'jax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_loading_and_comparing_do_not_need_jax_or_a_plotting_library() -> None:
    heavy = "[m for m in ('jax', 'matplotlib') if m in sys.modules]"
    code = f"import sys, autotune; autotune.load, autotune.compare; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = autotune.lode
    assert {"load", "compare", "Study"} <= set(dir(autotune))


def test_a_study_as_an_object(finished: Store) -> None:
    s = autotune.load(str(finished.path))
    assert s.name == "replayed"
    assert len(s.trials) == 40
    assert s.trials is s.trials
    assert s.settings.shape == (40, 4)
    assert s.steps["step_s"].gt(0).all()
    assert s.winner is not None
    assert dict(s.winner.settings) == {"NCCL_DEBUG": "WARN", "xla_a": "1", "xla_d": "2"}
    assert set(s.effects()["setting"]) == {"xla_a", "xla_b", "xla_c", "xla_d"}
    assert not s.importance().empty
    assert "7.8 % faster" in repr(s)
    assert "7.8 % faster" in s._repr_html_()


def test_a_study_without_a_winner_has_none(tmp_path: Path) -> None:
    Store.create_or_resume(tmp_path, replay_study(), study_dir=tmp_path).close()
    s = autotune.load(tmp_path)
    assert s.winner is None
    assert s.verdict == "not ended yet"
    assert s.trials.empty


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="must be a run directory"):
        autotune.load(tmp_path)


def test_plots_draw_what_the_frames_hold(finished: Store) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="plots need Matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    s = autotune.load(finished.path)
    shown = s.trials[s.trials["ratio"].notna() & s.trials["failure"].isna()]
    ax = s.plot.forest()
    assert len(ax.get_yticks()) == len(shown)
    assert np.max(np.asarray(ax.lines[-1].get_xdata(), dtype=float)) == shown["ratio"].max()
    assert len(s.plot.forest(most=3).get_yticks()) == 3
    measured = int(s.trials.query("status == 'measured'")["trial"].iloc[0])
    drawn = s.plot.steps(measured).lines
    assert sum(np.size(x.get_xdata()) for x in drawn) == len(s.steps.query("stage == 'trial' and trial == @measured"))
    assert s.plot.history().lines
    assert s.plot.importance().patches
    with pytest.raises(AutotuneError, match="99 has none"):
        s.plot.steps(99)
    plt.close("all")
