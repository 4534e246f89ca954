"""Traces of two variants: what a kernel is, which moment counts for what, and a real pair of programs on the CPU.

The traces of GPUs in `traces.toml` are built by hand from XPlane's published schema: none was recorded here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.child import tracer
from autotune.child.tracer import COPIES, OTHER, Event, kind_of, of_a_step, seconds_by_kind
from autotune.model.flags import FlagSet
from autotune.model.records import ProfileRecord
from autotune.programs.variants import Variant
from autotune.results.audit import doubts
from autotune.results.report import render_html, render_markdown
from autotune.results.tables import profile_table
from autotune.rundir.store import Store
from autotune.study import profile as study_profile
from autotune.study.ab import prepare_variants
from autotune.study.preflight import Setup
from autotune.study.profile import profile_once, rows_of
from autotune.workers.tracing import traced_step
from harness.simulated import given_run
from harness.simulated_machine import write_study
from tests.console import autotune
from tests.runs import BUILDS_BASE, TYPED, Diary, rewrite
from tests.tables import toml_beside

CASES = toml_beside(__file__, "traces.toml")


@pytest.mark.parametrize(("name", "operation", "kind"), [case.values() for case in CASES["kernels"]])
def test_a_kernel_is_of_its_kind(name: str, operation: str, kind: str) -> None:
    assert kind_of(name, operation) == kind


def events(*given: tuple[str, float, float]) -> list[Event]:
    return [Event(name, kind_of(name), start, end) for name, start, end in given]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (
            [("gemm", 0, 2), ("ncclDevKernel_AllReduce", 1, 4)],
            {"matrix products": 2, "all-reduce": 2, "all-reduce, hidden": 1},
        ),
        ([("fusion", 0, 2), ("gemm", 1, 3)], {OTHER: 1, "matrix products": 2}),
        ([("memcpy", 0, 1), ("ncclDevKernel_AllGather", 0, 1)], {COPIES: 1, "all-gather, hidden": 1}),
        ([("ncclDevKernel_AllGather", 0, 1), ("ncclDevKernel_AllReduce", 0, 1)], {"all-reduce": 1}),
        ([("gemm", 0, 1), ("gemm", 5, 6)], {"matrix products": 2}),
        ([], {}),
    ],
    ids=["hidden in part", "two streams", "behind a copy", "two collectives", "a gap", "nothing"],
)
def test_each_moment_counts_once(given: list[Any], seconds: dict[str, float]) -> None:
    assert seconds_by_kind(events(*given)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("counts", "step_s", "steps"),
    [((10, 10, 30), 0.1, 10), ((10, 10, 30), 0.13, 10), ((80, 80, 10), 0.1, 10), ((3, 25, 40), 0.1, 10)],
    ids=["as timed", "timed badly", "eight micro-steps", "no common count"],
)
def test_how_many_steps_a_trace_has(counts: tuple[int, ...], step_s: float, steps: int) -> None:
    device = events(*((f"kernel{n}.{i}", 0.0, 0.4) for n, count in enumerate(counts) for i in range(count)))
    found = of_a_step(device, traced_s=1.0, step_s=step_s)
    assert {kind: s for kind, (s, _) in found["kinds"].items()} == pytest.approx(
        {OTHER: 0.4 / steps, "idle": 0.6 / steps}
    )
    assert [count for _, count in found["kernels"].values()] == pytest.approx([c / steps for c in counts])


def test_steps_that_are_slower_while_they_are_traced_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine: by the time of before, what runs twice in a step would be the number of steps."""
    start, clock = tmp_path / tracer.START, [0.0]
    start.write_text("1.0 0.05")

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        start.write_text("1.0 0.1")  # the driver meanwhile

    def start_trace(place: str, **_: Any) -> None:
        Path(place).mkdir()
        (Path(place) / "a.xplane.pb").touch()

    names = [*(f"gemm.{number % 2}" for number in range(20)), *["sort"] * 10]
    kernels = [SimpleNamespace(name=name, stats=(), start_ns=0, duration_ns=1) for name in names]
    plane = SimpleNamespace(name="/device:GPU:0", lines=[SimpleNamespace(name="Stream #1", events=kernels)])
    profiler = SimpleNamespace(
        ProfileOptions=SimpleNamespace,
        start_trace=start_trace,
        stop_trace=lambda: None,
        ProfileData=SimpleNamespace(from_file=lambda path: SimpleNamespace(planes=[plane])),
    )
    monkeypatch.setattr(tracer, "time", SimpleNamespace(perf_counter=lambda: clock[0], sleep=sleep))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(profiler=profiler))
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", SimpleNamespace())
    tracer.trace_when_asked(tmp_path)
    found = json.loads((tmp_path / tracer.DONE).read_text())
    assert {name: count for name, (_, count) in found["kernels"].items()} == {"gemm": 2.0, "sort": 1.0}


def test_a_trace_is_told_the_newest_time_of_a_step(tmp_path: Path) -> None:
    place, times = tmp_path / "trace", iter((0.1, 0.2, 0.4))

    def run_block(steps: int) -> tuple[float, ...]:
        step_s = next(times)
        if step_s == 0.4:
            (place / tracer.DONE).write_text(json.dumps({"start": (place / tracer.START).read_text()}))
        return (step_s,) * steps

    worker = SimpleNamespace(run_block=run_block)
    launcher: Any = SimpleNamespace(start=lambda *_, **__: worker, close=lambda: None)
    answer: Any = traced_step(launcher, FlagSet(), tmp_path, progress=print)
    assert [float(number) for number in answer["start"].split()] == pytest.approx([2.0, 0.2])


def test_the_kernels_that_differ_most_come_first_and_reach_the_report(tmp_path: Path) -> None:
    names = [f"kernel{number}" for number in range(20)]
    a = {"kinds": {OTHER: (0.5, 0.0)}, "kernels": dict.fromkeys(names, (0.01, 1.0))}
    b = {"kinds": {"idle": (0.7, 0.0)}, "kernels": {name: (0.01 * number, 2.0) for number, name in enumerate(names)}}
    rows = rows_of(a, b)
    assert [row.name for row in rows][:4] == ["idle", OTHER, "kernel19", "kernel18"]
    assert len(rows) == 12
    a_variant, b_variant = (Variant(command=("python", "train.py", word)) for word in "ab")
    spec, _ = prepare_variants(BUILDS_BASE, a_variant, b_variant, tmp_path / "run")
    run = given_run(spec, tmp_path / "run", Setup(), Diary())
    run.open()
    run.store.append(ProfileRecord(names=("A", "B"), rows=rows))
    run.close()
    assert all("kernel19" in render(run.store) for render in (render_html, render_markdown))


def test_a_winner_is_traced_beside_the_default_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def step(launcher: Any, settings: FlagSet, folder: Path, *, progress: Any) -> dict[str, Any]:
        traced.append(settings)
        return {"kinds": {"idle": (0.01 if settings else 0.02, 0.0)}, "kernels": {}}

    monkeypatch.setattr(study_profile, "traced_step", step)
    write_study(tmp_path / "study.toml", TYPED)
    told = []
    for more in ([], ["--profile"], ["--profile"]):
        done = autotune("run", "study.toml", *more, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    winner = FlagSet(told[0]["settings"])
    assert "profile" not in told[0]
    assert traced == [FlagSet(), winner]
    assert told[1]["profile"] == told[2]["profile"]
    assert told[1]["profile"]["names"] == ["the default", str(winner)]
    assert [row["seconds"] for row in told[1]["profile"]["rows"]] == [[0.02, 0.01]]
    shown = autotune("show", "runs/typed", cwd=tmp_path).stdout
    assert "idle\t20 ms\t10 ms" in shown
    assert doubts(Store.open(tmp_path / "runs" / "typed")) == []


def test_why_there_is_no_trace_stands_in_the_report(finished: Store, altered: Any) -> None:
    store = Store.open(altered(finished, "untraced"))
    assert profile_table(store) == []
    rewrite(store.path, lambda records: [*records, ProfileRecord(names=("a", "b"), problem="of a").model_dump()])
    assert profile_table(Store.open(store.path)) == [{"work": "of a"}]


# ---------------------------------------------------------------------- traces as they are written

READ = """
import json, sys
from jax.profiler import ProfileData
from autotune.child import tracer
from autotune.child.tracer import device_events, of_a_step
trace = ProfileData.from_serialized_xspace(ProfileData.text_proto_to_serialized_xspace(sys.stdin.read()))
print(json.dumps(of_a_step(device_events(trace.planes), traced_s=0.005, step_s=0.005)))
"""


def test_traces_of_gpus_are_read() -> None:
    trace = CASES["gpu_trace"]
    done = subprocess.run(
        [sys.executable, "-c", READ], input=trace["xspace"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {kind: seconds for kind, (seconds, _) in found["kinds"].items()} == pytest.approx(trace["kinds"])
    assert "jit_step" not in found["kernels"]


PROGRAM = """
import sys, time
import jax, jax.numpy as jnp
@jax.jit
def step(x):
    for _ in range(int(sys.argv[1])):
        x = jnp.tanh(x @ x)
    return x, jnp.sort(x, axis=0)
x = jnp.ones((64, 64))
for i in range(100000):
    time.sleep(0.002)
    jax.block_until_ready(step(x))
    print(f"step {i}", flush=True)
"""


@pytest.mark.parametrize("text", [None, "print('theirs')"], ids=["none", "one"])
def test_the_program_keeps_its_own_sitecustomize(text: str | None, tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "sitecustomize.py").write_text(Path(tracer.__file__).read_text())
    if text is not None:
        (folders[1] / "sitecustomize.py").write_text(text)
    environment = {tracer.FOLDER: str(folders[0]), "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run([sys.executable, "-c", "print('run')"], env=environment, capture_output=True, check=True)
    assert done.stdout.split() == ([b"theirs"] if text else []) + [b"run"]
    assert done.stderr == b""


@pytest.mark.gate
def test_one_more_matrix_product_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    a, b = (Variant(command=(sys.executable, str(tmp_path / "train.py"), count)) for count in "23")
    spec, variants = prepare_variants(BUILDS_BASE, a, b, Path("runs/traced"))
    run = given_run(spec, tmp_path / "runs" / "traced", Setup(), Diary())
    run.open()
    profile_once(run, variants.names, (variants.going_back, FlagSet()))
    record = run.store.of(ProfileRecord)[0]
    run.close()
    assert record.problem == ""
    products = [row for row in record.rows if row.counts != (0.0, 0.0) and kind_of(row.name) == "matrix products"]
    least = [min(row.counts[arm] for row in record.rows if row.counts[arm] > 0) for arm in (0, 1)]  # equal in both
    ratios = [(row.counts[1] / least[1]) / (row.counts[0] / least[0]) for row in products]
    assert ratios == [pytest.approx(3 / 2, rel=0.1)]
