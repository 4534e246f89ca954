"""Predictions against measurements: factors that are recovered, ranks that are honest, runs that are refused."""

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.compiler import calibrate as module
from autotune.compiler.calibrate import Measured, agreement, check_predictions, fit, measured_programs
from autotune.compiler.predict import predict_step
from autotune.compiler.program import Collective, CompiledProgram, Op, OpKind
from autotune.compiler.targets import Topology, load_target
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.spec import StudySpec
from autotune.rundir.store import Store
from autotune.study.stages import run_study
from harness.simulated import GivenSetup, given_run
from tests.compiler.rules import BUFFER, COMBINE, Rules, screen, space
from tests.runs import Diary, asking
from tests.study.test_screening import study

TARGET, EIGHT = load_target("h100-sxm"), Topology(1, 8)


def program(name: str, kernel_bytes: float, gathered_bytes: int, launches: int) -> CompiledProgram:
    gather = Collective(
        kind="all-gather", bytes=gathered_bytes, dtype="bf16", array_count=1, group_size=8, node_count=1
    )
    ops = [
        Op(kind=OpKind.KERNEL, name="k", bytes=kernel_bytes),
        Op(kind=OpKind.COLLECTIVE, name="g", collective=gather),
    ]
    ops += [Op(kind=OpKind.KERNEL, name="small", bytes=1.0)] * launches
    return CompiledProgram(fingerprint=name, versions={}, compile_s=1.0, memory=None, schedule=tuple(ops))


def drawn(count: int, factors: tuple[float, float, float], *, noise: float = 0.0) -> list[Measured]:
    """Programs of known work, measured on a machine of known factors."""
    rng = random.Random(3)
    found = []
    for i in range(count):
        p = program(str(i), rng.uniform(1e9, 1e11), rng.randrange(10**7, 10**10), rng.randrange(10, 3000))
        raw = predict_step(p, TARGET, EIGHT)
        step_s = sum(f * x for f, x in zip(factors, (raw.compute_s, raw.exposed_s, raw.idle_s), strict=True))
        found.append(Measured(FlagSet({"xla_a": i}), p, step_s * (1 + rng.gauss(0, noise))))
    return found


def test_factors_of_each_class_of_work_are_recovered() -> None:
    calibration, error = fit(drawn(12, (1.2, 0.7, 2.0)), TARGET, EIGHT, source="here")
    found = (calibration.compute_scale, calibration.exposed_scale, calibration.idle_scale)
    assert found == pytest.approx((1.2, 0.7, 2.0), rel=1e-6)
    assert error == pytest.approx(0.0, abs=1e-9)
    assert calibration.source == "here"


def test_few_programs_share_one_factor() -> None:
    measured = drawn(3, (1.5, 1.5, 1.5))
    calibration, _ = fit(measured, TARGET, EIGHT, source="")
    assert calibration.compute_scale == calibration.exposed_scale == calibration.idle_scale == pytest.approx(1.5)
    assert predict_step(measured[0].program, TARGET, EIGHT, calibration).step_s == pytest.approx(measured[0].step_s)


def test_one_factor_is_kept_where_more_predict_left_out_programs_no_better() -> None:
    calibration, error = fit(drawn(8, (1.3, 1.3, 1.3), noise=0.05), TARGET, EIGHT, source="")
    assert error is not None
    assert error < 0.1
    assert calibration.compute_scale == pytest.approx(1.3, rel=0.1)


@pytest.mark.slow
def test_ranks_of_equal_and_opposite_orders() -> None:
    up, down = [1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 4.0, 3.0, 2.0, 1.0]
    same, other = agreement(up, [10.0, 11.0, 12.0, 13.0, 99.0]), agreement(up, down)
    assert (same.spearman, same.kendall) == pytest.approx((1.0, 1.0))
    assert (other.spearman, other.kendall) == pytest.approx((-1.0, -1.0))
    assert same.low is not None
    assert same.low <= 1.0


@pytest.mark.parametrize(("x", "y"), [([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), ([1.0] * 9, [float(i) for i in range(9)])])
def test_too_little_gives_no_rank_correlation(x: list[float], y: list[float]) -> None:
    found = agreement(x, y)
    assert found.spearman is None
    assert found.count == len(x)


@pytest.mark.slow
def test_unrelated_orders_have_an_interval_that_holds_zero() -> None:
    rng = random.Random(1)
    found = agreement([rng.random() for _ in range(30)], [rng.random() for _ in range(30)])
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high


def record(path: Path, spec: StudySpec, *, trials: int, first: tuple[tuple[str, FlagSet], ...]) -> Store:
    """A finished replayed study."""
    run = given_run(asking(spec, trials), path, GivenSetup(given_space=space(), first=first), Diary())
    run_study(run)
    return run.store


@pytest.fixture
def gpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A replayed GPU study in which sets were measured, one of them with a setting that is read at run time."""
    spec = study(screen={"enabled": False, "target": "h100-sxm"})
    first = (
        ("a", FlagSet({COMBINE: "11"})),
        ("b", FlagSet({BUFFER: "true"})),
        ("c", FlagSet({COMBINE: "11", "NCCL_PROTO": "LL"})),
    )
    store = record(tmp_path / "gpu", spec, trials=3, first=first)
    monkeypatch.setattr(module, "open_screener", lambda *_, **__: contextlib.nullcontext((spec, screen(Rules()))))
    return store


def test_only_what_a_prediction_can_see_is_held_against_measurements(gpu_run: Store) -> None:
    found = measured_programs(gpu_run, screen(Rules()))
    assert [m.settings for m in found] == [FlagSet(), FlagSet({COMBINE: "11"}), FlagSet({BUFFER: "true"})]
    ratios = [m.step_s / found[0].step_s for m in found]
    assert ratios == pytest.approx([1.0, 0.93, 0.5], rel=0.01)


@pytest.mark.slow
def test_run_is_held_against_the_model_on_the_cluster_it_ran_on(gpu_run: Store) -> None:
    held = check_predictions(gpu_run)
    assert (held.target, held.topology) == ("h100-sxm", "1x1")  # a replayed reference has one device
    assert held.agreement.count == 3
    assert "3 programs of gpu" in held.calibration.source


@pytest.mark.parametrize("more", [{"platform": "cpu"}, {"predicted": True}])
def test_runs_without_a_measurement_on_a_gpu_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    spec = study(more.get("platform", "cuda"))
    if "predicted" in more:
        spec = spec.model_copy(
            update={"replay": None, "search": spec.search.model_copy(update={"step_time": "predicted"})}
        )
    store = Store.create_or_resume(tmp_path / "run", spec, study_dir=tmp_path)
    with pytest.raises(StudyFileError, match="measured on GPUs"):
        check_predictions(store)
    store.close()


@pytest.mark.aot
@pytest.mark.slow
def test_predict_calibrated_by_a_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).with_name("toy_workload.py").read_text(encoding="utf-8")
    (tmp_path / "toy_workload.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    replay = {"effects": {}, "noise": {"white_sd": 1e-4}}
    data = json.loads(study(screen={"target": "h100-sxm", "topology": "8"}, replay=replay).model_dump_json())
    data["workload"] = {"entry": "toy_workload:make"}
    spec = type(study()).model_validate(data)
    first = (("a", FlagSet({BUFFER: "true"})),)
    store = record(tmp_path / "gpu", spec, trials=1, first=first)
    toml = tmp_path / "study.toml"
    toml.write_text('name = "toy"\n[workload]\nentry = "toy_workload:make"\n', encoding="utf-8")
    where = ["predict", str(toml), "--target", "h100-sxm", "--topology", "8", "--calibrate", str(store.path)]
    done = CliRunner().invoke(app, where)
    assert done.exit_code == 0, done.output
    assert "calibrated by 2 programs of gpu" in done.stdout
    assert re.search(r"predicted step (2[5-9]|3[0-5])(\.\d)? ms", done.stdout)  # the replayed reference takes 30 ms
    assert "too few" in done.stdout
