"""Flags are applied, or nothing is said: workloads that start backends, workers that lie, dumps that are empty."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.child.fingerprint import HLO
from autotune.compiler import compile_worker
from autotune.compiler.compile_worker import CompileJob, require_applied
from autotune.compiler.compiler import Cache, Compiler
from autotune.compiler.program import SCHEMA_VERSION, CompiledProgram, CompileResult
from autotune.compiler.schedule import read_program
from autotune.compiler.screen import CPU_CANARIES, GPU_CANARIES, Screener
from autotune.compiler.targets import Topology
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from tests.compiler.rules import COMBINE, Deaf, Rules, screen
from tests.runs import there
from tests.tables import toml_beside

NONE, SMALL = FlagSet(), "small_workload:make"
WIDTH = "xla_cpu_prefer_vector_width"
MARKER = "/tmp/folder/dump"
DUMPS = Path(__file__).parent / "dumps"
WRITTEN = (DUMPS / "debug_options.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("asked", "written", "said"), toml_beside(__file__)["options_in_force"])
def test_options_in_force_prove_a_set_and_nothing_else_does(asked: dict[str, str], written: str, said: str) -> None:
    marked = f'xla_dump_to: "{MARKER}"\n'
    another = WRITTEN.replace(MARKER, "/tmp/another/dump")
    texts = {"": WRITTEN, "nothing": "", "another": another, "twice": WRITTEN + marked}
    wrong = pytest.raises(LaunchError, match=f"applied by .*{said}") if said else contextlib.nullcontext()
    with wrong:
        options = {"jax_default_matmul_precision": "bfloat16"}
        require_applied(FlagSet(asked), marker=MARKER, written=texts[written], jax_options=options)


def kept(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def run_screen(job: CompileJob, cache: Path, baseline: FlagSet = NONE) -> Any:
    with contextlib.closing(Compiler(job, cache_dir=cache)) as compiler:
        return Screener(compiler, baseline=baseline).run({}), compiler._lowers_first


@pytest.mark.gate
def test_flags_act_on_the_cpu_though_building_starts_a_backend(tmp_path: Path, toy_job: Any) -> None:
    report, _ = run_screen(toy_job("1x1", None, SMALL, touch=True), tmp_path)
    assert report.canary in CPU_CANARIES
    assert len(kept(tmp_path)) == report.compiled_count >= 2


@pytest.mark.aot
@pytest.mark.gate
@pytest.mark.parametrize(
    ("entry", "touch", "lowers_first"),
    [(SMALL, False, True), (SMALL, True, False), ("touching_workload:make", False, False)],
)
def test_flags_act_for_a_described_gpu_wherever_a_workload_starts_a_backend(
    tmp_path: Path, toy_job: Any, entry: str, touch: bool, lowers_first: bool
) -> None:
    report, how = run_screen(toy_job("1x1", entry=entry, touch=touch), tmp_path)
    assert how is lowers_first
    assert report.canary in GPU_CANARIES


LIAR = toml_beside(__file__)["programs"]["liar"]


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a worker in the place of the real one, whose forks make something else of their flags."""

    def lie(expression: str) -> None:
        program, python = tmp_path / "liar.py", tmp_path / "python"
        program.write_text(LIAR.replace("{lie}", expression), encoding="utf-8")
        python.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n", encoding="utf-8")
        python.chmod(0o755)
        monkeypatch.setattr(compile_worker, "driver_python", lambda: str(python))

    return lie


@pytest.mark.gate
@pytest.mark.parametrize(
    ("lie", "asked", "said"),
    [
        ("''", {}, "does not say that it read them"),
        (f"flags + ' --{WIDTH}=128'", {WIDTH: "256"}, "became 128"),
        ("' '.join(f for f in flags.split() if 'xla_dump_to' in f)", {}, "no canary does"),  # leaves the proof
    ],
)
def test_worker_that_lies_is_found_and_nothing_is_kept(
    tmp_path: Path, toy_job: Any, lying: Callable[[str], None], lie: str, asked: dict[str, str], said: str
) -> None:
    lying(lie)
    with pytest.raises(LaunchError, match=said):
        run_screen(toy_job("1x1", None, SMALL), tmp_path / "cache", FlagSet(asked))
    assert kept(tmp_path / "cache") == []


@pytest.mark.gate
def test_option_of_jax_that_the_workload_changes_did_not_arrive(tmp_path: Path, toy_job: Any) -> None:
    asked = FlagSet({"jax_default_matmul_precision": "bfloat16"})
    with pytest.raises(LaunchError, match="it float32"):
        run_screen(toy_job("1x1", None, SMALL, matmul="float32"), tmp_path, asked)
    assert kept(tmp_path) == []


@pytest.mark.parametrize(("target", "canaries"), [("h100-sxm", GPU_CANARIES), (None, CPU_CANARIES)])
def test_nothing_is_a_no_op_where_no_canary_acts(target: str | None, canaries: tuple[FlagSet, ...]) -> None:
    rules = Deaf(target)
    with pytest.raises(LaunchError, match="a no-op"):
        screen(rules).run({COMBINE: ["11"]})
    assert rules.compiled == [FlagSet(), *canaries]
    assert rules.forgotten == {FlagSet(), *canaries}


def test_the_first_canary_that_changes_the_program_stands_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    assert screen(Rules()).run({}).canary == GPU_CANARIES[0]
    # A step without graphs: the first canary changes nothing.
    monkeypatch.setattr(Rules, "canaries", lambda self, s: [str(c) for c in GPU_CANARIES[1:] if s.merge(c) == s])
    assert screen(Rules()).run({}).canary == GPU_CANARIES[1]


FOUND: dict[str, Any] = {"hlo_digest": "7", "versions": {}, "memory": None}
MODULE = (DUMPS / "negate.hlo").read_text(encoding="utf-8")


@pytest.mark.parametrize(("hlo", "is_gpu", "lacks"), [("", False, "HLO"), ("", True, "HLO"), (MODULE, True, "thunks")])
def test_empty_text_or_thunks_are_an_error_no_program(tmp_path: Path, hlo: str, is_gpu: bool, lacks: str) -> None:
    (tmp_path / HLO).write_text(hlo, encoding="utf-8")
    with pytest.raises(LaunchError, match=f"holds no .*{lacks}"):
        read_program(tmp_path, FOUND, Topology(1, 1), is_gpu=is_gpu)


def test_failures_of_the_machine_and_results_of_another_version_are_not_believed(tmp_path: Path) -> None:
    program = CompiledProgram(fingerprint="7", versions={}, device_count=1, memory=None)
    hung, cache = FlagSet({WIDTH: "64"}), Cache(tmp_path, "job")
    cache.store(CompileResult(settings=NONE, program=program))
    cache.store(CompileResult(settings=hung, failure=Failure(kind=FailureKind.HANG, message="", phase="compile")))
    assert there(cache.load(NONE)).from_cache
    assert cache.load(hung) is None
    (folder,) = tmp_path.iterdir()
    folder.rename(tmp_path / folder.name.replace(f"v{SCHEMA_VERSION}-", f"v{SCHEMA_VERSION - 1}-"))
    assert cache.load(NONE) is None
