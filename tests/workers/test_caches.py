"""Caches of compilations: one for each set, found again by later processes of it, and never by those of another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.child.fingerprint import CACHE_FOLDER, CACHE_SWITCH, KEPT, KERNELS_FLAG
from autotune.machine.environment import child_environment
from autotune.measure.context import MeasurementContext, time_limits_after
from autotune.measure.runner import TaskRunner
from autotune.measure.tasks import AaTask, AblationTask, Assignment, PairTask, TrialTask
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, TrialConfig
from autotune.model.spec import StudySpec, parse_study
from autotune.model.time_limits import START_FACTOR
from autotune.rundir.store import Folders
from autotune.workers.base import Progress
from autotune.workers.caches import MOST_SETS, Caches
from autotune.workers.command import CommandLauncher
from autotune.workers.local import LocalLauncher, LocalWorker
from autotune.workers.settings_check import check_environment
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker, Simulation
from tests.runs import Told
from tests.workers.conftest import PROGRAMS, command, study

ONE, EIGHT = FlagSet({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}), FlagSet({"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
"""Two sets that JAX's own key does not tell apart."""

HAS_ITS_OWN = """
import sys, jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
hits = []
jax.monitoring.register_event_listener(lambda name, **more: hits.append(name) if name.endswith("cache_hits") else None)
jax.jit(lambda x: x * 2 + 1)(1.0)
print(len(hits))
"""
"""A program whose processes share a cache, whatever they are given."""


@pytest.fixture
def caches() -> Iterator[Caches]:
    made = Caches()
    made.begin(programs=True, kernels=False, anew=False)
    yield made
    made.close()


def environment_of(caches: Caches, settings: FlagSet, base: Mapping[str, str] | None = None) -> Mapping[str, str]:
    return caches.added_to(child_environment(base or {}, settings, platform_name="cpu"), settings)


def keep(environment: Mapping[str, str]) -> Path:
    """Does what a process does that became ready."""
    folder = Path(environment[CACHE_FOLDER])
    (folder / f"{KEPT}x").write_text("{}")
    (folder / "jit_step-cache").write_text("x")
    return folder


# ---------------------------------------------------------------------- which process gets which folder


def task_of(kind: str) -> Any:
    if kind == "aa_run":
        return AaTask()
    if kind == "trial":
        return TrialTask(config=TrialConfig(number=1, settings=ONE, origin="first"))
    if kind == "ablation":
        return AblationTask(settings=ONE, left_out="CUDA_DEVICE_MAX_CONNECTIONS")
    return PairTask(stage="finalist", trial=1, settings=ONE, repeat=0)


def begun(tmp_path: Path, kind: str, platform: str, **sections: Any) -> Mapping[str, str]:
    """The environment of a worker that a task of a kind starts."""
    data = {"name": "x", "workload": {"entry": "llama"}, "device": {"platform": platform, "count": 1}, **sections}
    spec = parse_study(data)
    launcher = LocalLauncher(spec, study_dir=str(tmp_path), base={CACHE_FOLDER: "/of/the/caller"})
    context = MeasurementContext(spec, Folders(tmp_path), launcher, Told())
    try:
        context.begin(Assignment(task=task_of(kind)))
        return launcher._environment(ONE)
    finally:
        context.close()


@pytest.mark.parametrize(
    ("kind", "platform", "programs", "kernels"),
    [
        ("aa_run", "cpu", True, False),
        ("trial", "cpu", True, False),
        ("pair", "cpu", True, False),
        ("aa_run", "cuda", False, False),
        ("trial", "cuda", True, True),
        ("ablation", "cuda", True, True),
        ("pair", "cuda", False, False),
    ],
)
def test_processes_of_proofs_on_gpus_choose_their_own_kernels(
    kind: str, platform: str, programs: bool, kernels: bool, tmp_path: Path
) -> None:
    env = begun(tmp_path, kind, platform)
    assert (env[CACHE_SWITCH] == "true") is programs
    assert (env[CACHE_FOLDER] != "/of/the/caller") is programs
    assert (KERNELS_FLAG in env.get("XLA_FLAGS", "")) is kernels


@pytest.mark.parametrize(("nodes", "switch"), [(1, "true"), (2, "false")])
def test_ranks_share_programs_but_no_kernels_and_only_on_one_node(nodes: int, switch: str, tmp_path: Path) -> None:
    device = {"platform": "cuda", "count": 2, "process_count": 2, "node_count": nodes}
    env = begun(tmp_path, "trial", "cuda", device=device)
    assert (env[CACHE_SWITCH], KERNELS_FLAG in env.get("XLA_FLAGS", "")) == (switch, False)


def test_sets_share_no_folder_and_no_mark(caches: Caches) -> None:
    base = {"LIBTPU_INIT_ARGS": "--mine=1"}
    one, other = (environment_of(caches, s, base) for s in (ONE, EIGHT))
    for name in (CACHE_FOLDER, "LIBTPU_INIT_ARGS"):
        assert one[name] != other[name]
    assert one["LIBTPU_INIT_ARGS"].startswith("--mine=1 ")


def test_sets_that_nccl_alone_tells_apart_share_their_program(caches: Caches) -> None:
    def folder(**settings: str) -> str:
        found = environment_of(caches, FlagSet(settings))[CACHE_FOLDER]
        (Path(found) / f"{KEPT}ready").touch()  # a process became ready
        return found

    shared = folder()
    assert folder(NCCL_PROTO="LL") == folder(NCCL_ALGO="Ring", NCCL_NVLS_ENABLE="0") == shared
    read_by_the_compiler = {folder(**{f"NCCL_{name}": "8"}) for name in ("MAX_NCHANNELS", "MIN_NCHANNELS", "NTHREADS")}
    assert len({shared, *read_by_the_compiler}) == 4
    assert folder(NCCL_PROTO="LL", CUDA_DEVICE_MAX_CONNECTIONS="1") == folder(**ONE) != shared


def test_kernels_are_shared_only_where_the_sets_choose_alike(caches: Caches) -> None:
    caches.begin(programs=False, kernels=True, anew=False)

    def flag(flags: str, **variables: str) -> str:
        settings = FlagSet({**FlagSet.parse(flags), **variables})
        found = environment_of(caches, settings)
        assert check_environment(settings, found).notes == (), "it is not the program's own"
        return found.get("XLA_FLAGS", "").removeprefix(flags).strip()

    shared = flag("")
    assert Path(shared.partition("=")[2]).is_dir()
    assert flag("--xla_gpu_enable_latency_hiding_scheduler=true", NCCL_PROTO="LL") == shared
    assert flag("--xla_gpu_all_reduce_combine_threshold_bytes=1") == shared
    own = [flag(f"--xla_gpu_{name}") for name in ("enable_triton_gemm=false", "cublas_fallback=false", "new_flag=1")]
    assert len({shared, *own}) == 4
    assert flag("--xla_gpu_autotune_level=0") == flag("--xla_gpu_deterministic_ops=true") == ""
    assert flag("--xla_gpu_load_autotune_results_from=/x") == ""


class Warming(SimulatedLauncher):
    """Its first process takes longer to start than the later ones, and so to compile."""

    starts_s = (60.0, 2.0)
    compiled_s = (58.0, 0.0)
    started = 0

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        """See `SimulatedLauncher`."""
        worker = super().start(settings, folder, progress=progress)
        is_later = min(self.started, 1)
        times = {"start_s": self.starts_s[is_later], "compile_s": self.compiled_s[is_later]}
        worker.report = worker.report.model_copy(update=times)
        self.started += 1
        return worker


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
@pytest.mark.parametrize(
    ("starts_s", "compiled_s", "typical_s"),
    [
        pytest.param((60.0, 2.0), (58.0, 0.0), 60.0, id="later ones load the program"),
        pytest.param((60.0, 8.0), (5.0, 5.0), 8.0, id="the first one waits for a disk"),
    ],
)
def test_a_start_lasts_as_one_that_compiles_and_reads_warm_files(
    mode: str,
    starts_s: tuple[float, float],
    compiled_s: tuple[float, float],
    typical_s: float,
    tmp_path: Path,
) -> None:
    spec = parse_study({"name": "x", "workload": {"entry": "llama"}, "measure": {"mode": mode}})
    launcher = Warming(spec, Simulation())
    launcher.starts_s, launcher.compiled_s = starts_s, compiled_s
    record = TaskRunner(spec, Folders(tmp_path), launcher, Told()).do(Assignment(folder=("aa_run",)))
    assert isinstance(record, AaRecord)
    assert (record.noise.start_s, record.reference.start_s) == (typical_s, 60.0)
    assert time_limits_after(spec, record).start_s == START_FACTOR * 60.0


# ---------------------------------------------------------------------- what is not kept


def test_what_a_process_compiled_that_never_became_ready_is_not_loaded(caches: Caches) -> None:
    dead, first = environment_of(caches, ONE), environment_of(caches, ONE)
    assert dead[CACHE_FOLDER] != first[CACHE_FOLDER]
    assert dead["LIBTPU_INIT_ARGS"] != first["LIBTPU_INIT_ARGS"], "its program may keep what it compiled elsewhere"
    keep(first)
    assert environment_of(caches, ONE) == first


def test_only_the_last_sets_stay_and_an_aa_run_begins_without(caches: Caches) -> None:
    folders = [keep(environment_of(caches, FlagSet({"OMP_NUM_THREADS": str(n)}))) for n in range(MOST_SETS + 3)]
    assert [f for f in folders if f.exists()] == folders[3:]
    caches.begin(programs=True, kernels=False, anew=True)
    assert not any(f.exists() for f in folders)


@pytest.mark.parametrize("name", ["jax_enable_pgle", "jax_compilation_cache_expect_pgle"])
def test_a_set_that_steers_the_cache_has_none(name: str, caches: Caches) -> None:
    assert environment_of(caches, FlagSet({name: "true"}))[CACHE_SWITCH] == "false"


def test_a_full_disk_or_a_lost_folder_only_means_that_nothing_is_kept(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(environment_of(caches, ONE)[CACHE_FOLDER]).parent
    shutil.rmtree(root)
    assert environment_of(caches, ONE)[CACHE_SWITCH] == "false"
    root.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
        assert environment_of(caches, ONE)[CACHE_SWITCH] == "false"
    assert environment_of(caches, ONE)[CACHE_SWITCH] == "true"


# ---------------------------------------------------------------------- real processes


@pytest.mark.gate
def test_a_programs_own_shared_cache_never_serves_one_set_the_binary_of_another(caches: Caches, tmp_path: Path) -> None:
    def hits(environment: Mapping[str, str]) -> int:
        command = [sys.executable, "-c", HAS_ITS_OWN, str(tmp_path)]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120).stdout)

    environments = [environment_of(caches, s, os.environ) for s in (ONE, EIGHT)]
    assert hits(environments[0]) == hits(environments[1]) == 0
    assert hits(environments[0]) > 0
    unmarked = [{n: v for n, v in e.items() if n != "LIBTPU_INIT_ARGS"} for e in environments]
    assert (hits(unmarked[0]), hits(unmarked[1]) > 0) == (0, True), "without a mark it would"


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Any]:
    """Starts a worker of a study, with the caches of the earlier ones."""
    launchers: list[LocalLauncher] = []

    def begin(spec: StudySpec, settings: FlagSet, **variables: str) -> LocalWorker:
        if not launchers:
            kind = CommandLauncher if spec.workload.command is not None else LocalLauncher
            launchers.append(kind(spec, study_dir=str(PROGRAMS), base=os.environ))
            launchers[0].caches.begin(programs=True, kernels=False, anew=False)
            launchers[0].added = variables
        return launchers[0].start(settings, tmp_path, progress=lambda phase: None)

    begin.launchers = launchers  # type: ignore[attr-defined]
    yield begin
    for launcher in launchers:
        launcher.close()
        launcher.caches.close()


def folder_of(launched: Any, settings: FlagSet) -> Path:
    return Path(launched.launchers[0]._environment(settings)[CACHE_FOLDER])


@pytest.mark.gate
@pytest.mark.parametrize(
    "workload",
    [
        command("--steps", "40", program="programs_seen.py"),
        {"entry": "faulty:build"},
    ],
    ids=["read", "entry"],
)
def test_a_loaded_program_has_the_name_of_the_compiled_one_even_after_damage(
    workload: dict[str, Any], launched: Any
) -> None:
    spec, settings = study(workload), FlagSet({"xla_cpu_max_isa": "SSE4_2"})
    reports = []
    for after in ("cold", "loaded", "damaged", "other"):
        if after == "damaged":
            for entry in folder_of(launched, settings).glob("*-cache"):
                entry.write_bytes(entry.read_bytes()[:100])
        worker = launched(spec, FlagSet() if after == "other" else settings)
        worker.run_block(4)
        reports.append(worker.report)
        worker.close()
    cold, loaded, damaged, other = reports
    assert [r.program_problem for r in reports] == [None] * 4
    assert cold.fingerprint == loaded.fingerprint == damaged.fingerprint != other.fingerprint
    assert (cold.collective_bytes, cold.losses) == (loaded.collective_bytes, loaded.losses)
    assert spec.workload.command is None or loaded.compile_s == 0 < cold.compile_s


@pytest.mark.gate
def test_one_compilation_serves_all_sets_that_nccl_alone_tells_apart_in_both_ranks(
    launched: Any, tmp_path: Path
) -> None:
    """Two processes with `jax.distributed` over Gloo; JAX tells in a rank's log what it did not find in its cache."""
    spec = study({"entry": "faulty:build"}, device={"platform": "cpu", "count": 2, "process_count": 2})
    reports, compiled = [], []
    for settings in ({}, {"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "LL128"}, {"xla_cpu_max_isa": "SSE4_2"}):
        worker = launched(spec, FlagSet(settings), JAX_EXPLAIN_CACHE_MISSES="1")
        reports.append(worker.report)
        worker.close()
        logs = [(tmp_path / name).read_text() for name in ("worker.log", "worker.1.log")]
        compiled.append(["CACHE MISS for 'jit_step'" in log for log in logs])
        for name in ("worker.log", "worker.1.log"):
            (tmp_path / name).unlink()
    assert compiled == [[True, True], [False, False], [False, False], [True, True]]
    assert len({(r.fingerprint, r.losses) for r in reports[:3]}) == 1
    assert reports[3].fingerprint != reports[0].fingerprint


@pytest.mark.gate
def test_a_command_that_hides_its_flags_is_refused_each_time(launched: Any) -> None:
    spec = study(command("--lie", "flags", program="programs_seen.py"))
    for _ in range(2):
        with pytest.raises(Exception, match="compiled nothing"):
            launched(spec, FlagSet({"xla_cpu_max_isa": "SSE4_2"}))


@pytest.mark.gate
def test_a_command_that_compiles_later_stays_without_a_name(launched: Any) -> None:
    spec = study(command("--lie", "later", program="programs_seen.py"))
    for _ in range(2):
        worker = launched(spec, FlagSet())
        worker.run_block(10)
        assert worker.report.fingerprint.startswith("settings-")
        worker.close()
