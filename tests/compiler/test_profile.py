"""Calibrating by a profile: planted factors are found, and what is no profile of this step is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.compiler.open import open_screener
from autotune.compiler.predict import OTHERS, PRODUCTS, Calibration, predict_step
from autotune.compiler.profile import ProfileCheck, check_profile, fit_profile
from autotune.compiler.program import Collective, CompiledProgram, CompileResult, Op, OpKind
from autotune.compiler.targets import Topology, load_target
from autotune.compiler.xplane import read_device
from autotune.model import load_study
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.results.screen_words import profile_lines
from tests.compiler.played import (
    MAIN,
    NVIDIA,
    Event,
    Player,
    by_the_model,
    write_trace,
    write_xplane,
)  # fmt: skip

TARGET, EIGHT = load_target("h100-sxm"), Topology(1, 8)


def kernel(name: str, gigabytes: float) -> Op:
    return Op(kind=OpKind.KERNEL, name=name, bytes=gigabytes * 1e9)


def product(name: str, teraflops: float) -> Op:
    return Op(kind=OpKind.KERNEL, name=name, matrix_flops=teraflops * 1e12, matrix_dtype="bf16")


def collective(name: str, kind: str, megabytes: int) -> Op:
    moved = Collective(kind=kind, bytes=megabytes << 20, dtype="bf16", array_count=1, group_size=8, node_count=1)
    return Op(kind=OpKind.COLLECTIVE, name=name, collective=moved)


def compiled(*ops: Op) -> CompiledProgram:
    return CompiledProgram(fingerprint="f", versions={}, compile_s=0.0, memory=None, schedule=ops)


def model(*, is_overlapped: bool = True, layers: int = 6) -> CompiledProgram:
    """A step with layers in a loop, a CUDA graph, a gather before and a reduction behind the products of a layer."""
    reduction = collective("reduce-scatter.4", "reduce-scatter", 300)
    behind: tuple[Op, ...] = (reduction, product("gemm_fusion_dot.13", 0.4))
    if is_overlapped:
        begin = Op(
            kind=OpKind.START, name="reduce-scatter-start", stream="communication_stream[0]", async_id=3,
            content=(reduction,),
        )  # fmt: skip
        behind = (begin, product("gemm_fusion_dot.13", 0.4), Op(kind=OpKind.DONE, name="done", async_id=3))
    graph = Op(
        kind=OpKind.GRAPH, name="CommandBuffer",
        content=(product("gemm_fusion_dot.12", 0.5), kernel("loop_multiply_fusion", 1.0)),
    )  # fmt: skip
    body = (kernel("loop_dynamic_slice_fusion", 0.2), collective("all-gather-start", "all-gather", 200), graph, *behind)
    loop = Op(
        kind=OpKind.LOOP, name="while.22", trip_count=layers, content=body,
        condition=(kernel("loop_compare_fusion", 0.0001),),
    )  # fmt: skip
    return compiled(
        kernel("loop_broadcast_fusion", 0.5), loop, collective("all-reduce-start", "all-reduce", 100),
        kernel("loop_subtract_fusion", 2.0),
    )  # fmt: skip


def played(program: CompiledProgram, *, steps: int = 6, between_s: float = 0.0, **planted: float) -> Player:
    seconds = by_the_model(TARGET, EIGHT, **{k: v for k, v in planted.items() if k != "gap_s"})
    player = Player(seconds, gap_s=planted.get("gap_s", 2e-6))
    return player.steps(program, steps, between_s=between_s, first_s=0.5)


def calibrated(folder: Path, program: CompiledProgram, player: Player) -> ProfileCheck:
    return fit_profile(read_device(write_xplane(folder, player.events)), program, TARGET, EIGHT)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_planted_factors_are_found(tmp_path: Path, is_overlapped: bool) -> None:
    program = model(is_overlapped=is_overlapped)
    player = played(program, products=1.3, others=1.6, collectives=2.0, gap_s=9e-6, between_s=0.004)
    held = calibrated(tmp_path, program, player)
    scales = held.calibration.work_scales
    kinds = (PRODUCTS, OTHERS, "all-gather", "reduce-scatter", "all-reduce")
    # the model runs the condition of a loop, which XLA does not: one small kernel in each layer
    assert [scales[k] for k in kinds] == pytest.approx([1.3, 1.6, 2.0, 2.0, 2.0], rel=1e-2)
    if not is_overlapped:
        assert held.step.gap_s == pytest.approx(9e-6 * (len(player.events) / 6 - 1))  # the first is outside
    assert held.step.outside_s == pytest.approx(0.004, rel=0.01)
    assert held.calibration.compute_scale == pytest.approx(1.0, rel=0.01)
    assert held.calibration.exposed_scale == pytest.approx(1.0, rel=0.02)
    assert held.predicted_s == pytest.approx(held.step.step_s, rel=1e-6)
    assert held.step_count == 4  # of six, less the first and the last, whose end is not seen


def test_parts_of_a_step_are_those_of_a_brute_force(tmp_path: Path) -> None:
    program = model()
    player = played(program, products=1.3, collectives=5.0, between_s=0.001)
    held = calibrated(tmp_path, program, player)
    starts = [e.start_ps for e in player.events if e.kernel == "loop_broadcast_fusion"]
    begin, end = starts[2], starts[3]
    near = [e for e in player.events if begin <= e.start_ps < end]
    # each moment between two borders belongs to one part
    borders = sorted({begin, end, *(e.start_ps for e in near), *(e.start_ps + e.duration_ps for e in near)})
    parts = {"compute": 0, "exposed": 0, "idle": 0}
    for a, b in pairwise(borders):
        runs = [e for e in near if e.start_ps <= a and e.start_ps + e.duration_ps >= b]
        computes = any("nccl" not in e.kernel for e in runs)
        parts["compute" if computes else "exposed" if runs else "idle"] += b - a
    assert parts["exposed"] > 0
    assert held.step.compute_s == pytest.approx(parts["compute"] * 1e-12)
    assert held.step.exposed_s == pytest.approx(parts["exposed"] * 1e-12)
    assert held.step.gap_s + held.step.outside_s == pytest.approx(parts["idle"] * 1e-12)


def test_calibrated_prediction_of_another_program_of_the_same_machine(tmp_path: Path) -> None:
    """What calibrating is for: the reference alone is profiled, and a set that waits more is predicted."""
    factors = {"products": 1.3, "others": 1.6, "collectives": 3.0}
    reference, candidate = model(), model(is_overlapped=False)
    player = Player(by_the_model(TARGET, EIGHT, **factors), gap_s=2e-6)
    held = calibrated(tmp_path, reference, Player(player.seconds, 2e-6).steps(reference, 6))
    starts = [e.start_ps for e in player.steps(candidate, 6).events if e.kernel == "loop_broadcast_fusion"]
    real_s = (starts[3] - starts[2]) * 1e-12
    as_run = compiled(*candidate.schedule)
    raw, tuned = predict_step(as_run, TARGET, EIGHT), predict_step(as_run, TARGET, EIGHT, held.calibration)
    assert abs(raw.step_s / real_s - 1) > 0.25
    assert tuned.step_s == pytest.approx(real_s, rel=0.02)


def test_both_files_tell_the_same(tmp_path: Path) -> None:
    program = model()
    player = played(program, products=1.3, collectives=2.0)
    a = calibrated(tmp_path / "x", program, player)
    file = write_trace(tmp_path / "node.trace.json.gz", player.events)
    b = fit_profile(read_device(file), program, TARGET, EIGHT)
    assert dict(b.calibration.work_scales) == pytest.approx(dict(a.calibration.work_scales), rel=1e-4)
    assert b.step.step_s == pytest.approx(a.step.step_s, rel=1e-4)
    assert "node.trace.json.gz" in b.calibration.source


def test_graphs_of_a_profile_are_held_against_graphs(tmp_path: Path) -> None:
    program = model()
    seconds = by_the_model(TARGET, EIGHT, products=1.3)
    with_graphs = Player(seconds, gap_s=2e-6, has_graphs=True).steps(program, 5)
    held = calibrated(tmp_path / "a", program, with_graphs)
    assert held.calibration.work_scales[PRODUCTS] == pytest.approx(1.3, rel=0.01)
    assert not any("CUDA graph" in n for n in held.notes)
    without = calibrated(tmp_path / "b", program, played(program, products=1.3))
    assert any("no CUDA graph" in n for n in without.notes)


def test_kernels_that_the_autotuner_chose_on_the_device_are_matched_by_kind(tmp_path: Path) -> None:
    program = model()
    player = played(program, products=1.5)
    for e in player.events:
        if e.stats["hlo_op"] == "gemm_fusion_dot.12":  # no Triton kernel there, but cuBLAS
            e.kernel, e.stats["hlo_op"] = "nvjet_tst_128x256_64x4", "cublas-gemm.7"
    held = calibrated(tmp_path, program, player)
    assert held.calibration.work_scales[PRODUCTS] == pytest.approx(1.5, rel=0.01)


def test_work_of_other_programs_is_told_apart(tmp_path: Path) -> None:
    program = model()
    player = played(program, between_s=0.02)
    begin = [e.start_ps for e in player.events if e.kernel == "loop_broadcast_fusion"]
    metrics = {"hlo_op": "loop_broadcast_fusion", "hlo_module": "jit_metrics"}  # names repeat from program to program
    player.events += [Event(MAIN, at - 10**10, 10**9, "metrics", dict(metrics)) for at in begin[1:]]
    step = calibrated(tmp_path, program, player).step
    assert step.outside_s == pytest.approx(0.02, rel=1e-3)
    assert step.gap_s < 0.001
    assert step.step_s == pytest.approx(step.compute_s + step.exposed_s + step.gap_s + step.outside_s)


def test_waiting_that_the_model_lacks_is_told_and_multiplies_nothing(tmp_path: Path) -> None:
    """Twenty milliseconds of copies between GPUs against a small reduction: a factor of hundreds would be absurd."""
    reduction = collective("all-reduce-start", "all-reduce", 1)
    program = compiled(
        *(kernel(f"loop_add_fusion.{n}", 9.0) for n in range(5)), reduction, kernel("loop_subtract_fusion", 2.0)
    )
    player = played(program, between_s=0.02)
    copies = [
        Event(
            "Stream #99(MemcpyP2P)", e.start_ps + e.duration_ps, round(0.02e12), "MemcpyP2P", {**e.stats, "hlo_op": ""}
        )
        for e in player.events
        if e.kernel == "loop_subtract_fusion"
    ]
    player.events += copies
    held = calibrated(tmp_path, program, player)
    assert held.step.exposed_s > 0.02
    assert held.calibration.exposed_scale == 1.0
    assert any("exposed communication: the profile has 20" in n for n in held.notes)


# --- liars ---


def screener(program: CompiledProgram, *, target: Any = TARGET, topology: Topology = EIGHT) -> Any:
    job = SimpleNamespace(target=target, topology=topology)
    return SimpleNamespace(job=job, result=lambda settings: CompileResult(settings=settings, program=program))


def refused(path: Path, program: CompiledProgram | None = None, **where: Any) -> str:
    with pytest.raises(StudyFileError) as caught:
        check_profile(path, screener(program or model(), **where))
    return str(caught.value)


def test_profile_of_a_program_with_other_names_is_refused(tmp_path: Path) -> None:
    player = played(compiled(kernel("wrapped_sine", 3.0), kernel("wrapped_cosine", 3.0)))
    assert "has none" in refused(write_xplane(tmp_path, player.events))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (model(layers=12), "kernels 50 where the program has 26"),
        (model(layers=3), "all-gather 3 where the program has 6"),
        (compiled(*model(layers=6).schedule[:2], kernel("loop_subtract_fusion", 2.0)), "all-reduce 0 where"),
    ],
)
def test_profile_of_another_size_of_the_same_model_is_refused(
    tmp_path: Path, other: CompiledProgram, said: str
) -> None:
    message = refused(write_xplane(tmp_path, played(other).events))
    assert said in message
    assert "profile the study's workload under its baseline" in message


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_too_few_steps_are_refused(tmp_path: Path, steps: int) -> None:
    message = refused(write_xplane(tmp_path, played(model(), steps=steps).events))
    assert "at least 3 whole steps but" in message
    assert f"has {steps - 1}" in message


@pytest.mark.parametrize(
    ("facts", "gpus", "said"),
    [
        ({"device_vendor": "AMD", "core_count": 304}, 1, "is of AMD's"),
        ({**NVIDIA, "core_count": 108}, 1, "108 multiprocessors, not 132"),
        ({**NVIDIA, "memory_size": 150_754_820_096}, 1, "140 GiB of memory"),
        (NVIDIA, 9, "9 GPUs of one machine"),
    ],
)
def test_profile_of_other_gpus_is_refused(tmp_path: Path, facts: dict[str, Any], gpus: int, said: str) -> None:
    path = write_xplane(tmp_path, played(model()).events, facts, gpus)
    message = refused(path)
    assert said in message
    assert "--target" in message


def test_words_say_what_was_matched(tmp_path: Path) -> None:
    program = model()
    held = calibrated(tmp_path, program, played(program, products=1.3, others=1.3, collectives=2.0, between_s=0.01))
    said = "\n".join(profile_lines(held))
    assert "4 steps of jit_step in node.xplane.pb" in said
    assert "matrix products x 1.3" in said
    assert "all-gather x 2" in said
    assert "outside of the program" in said


def test_scales_act_in_the_simulation() -> None:
    """A collective that is hidden stays hidden if twice its time is, too."""
    program = model()
    plain = predict_step(program, TARGET, EIGHT, Calibration(collective_cores=0))
    slow = predict_step(program, TARGET, EIGHT, Calibration(collective_cores=0, work_scales={"reduce-scatter": 0.5}))
    assert slow.communication_s < plain.communication_s
    assert slow.compute_s == plain.compute_s
    longer = predict_step(program, TARGET, EIGHT, Calibration(collective_cores=0, outside_s=1.0))
    assert longer.step_s == pytest.approx(plain.step_s + 1.0)
    assert json.loads(json.dumps(plain.to_json()))["work_s"]["all-gather"] > 0


@pytest.mark.aot
@pytest.mark.slow
def test_predict_calibrated_by_a_profile_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).with_name("toy_workload.py").read_text(encoding="utf-8")
    (tmp_path / "toy_workload.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    toml = tmp_path / "study.toml"
    toml.write_text('name = "toy"\n[workload]\nentry = "toy_workload:make"\n', encoding="utf-8")
    with open_screener(load_study(toml), study_dir=tmp_path, target=TARGET, topology=EIGHT) as (_, opened):
        program = opened.result(FlagSet()).program
    assert program is not None
    profile = write_xplane(tmp_path / "profile", played(program, products=1.3, collectives=2.0).events)
    where = ["predict", str(toml), "--target", "h100-sxm", "--topology", "8", "--calibrate", str(profile)]
    done = CliRunner().invoke(app, where)
    assert done.exit_code == 0, done.output
    assert "calibrated by 4 steps of jit_step in node.xplane.pb" in done.stdout
    assert "matrix products x 1.3, " in done.stdout
    assert "all-gather x 2, " in done.stdout
    other = write_xplane(tmp_path / "other", played(model()).events)
    done = CliRunner().invoke(app, [*where[:-1], str(other)])
    assert done.exit_code != 0
    assert "a profile must be of the study's own step" in str(done.exception)


def test_what_is_neither_a_run_nor_a_profile_is_told_so(tmp_path: Path) -> None:
    toml = tmp_path / "study.toml"
    toml.write_text('name = "toy"\n[workload]\nentry = "llama"\n', encoding="utf-8")
    for neither in (tmp_path, tmp_path / "nowhere"):
        done = CliRunner().invoke(app, ["predict", str(toml), "--target", "h100-sxm", "--calibrate", str(neither)])
        assert "must be a run directory (it holds a study.json) or a profile" in str(done.exception)
        assert f"but {neither} is neither" in str(done.exception)
