"""Compiles many flag sets for a described GPU: keeps the compile worker in hand, reads what it leaves."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.compiler import plugin
from autotune.compiler.arrival import require_arrival
from autotune.compiler.cache import Cache
from autotune.compiler.program import CompileResult
from autotune.compiler.reading import FATAL, LOG, OPTIONS, RESULT, last_lines, read_program, read_text
from autotune.compiler.scratch import Scratch
from autotune.compiler.targets import Target, Topology
from autotune.machine import caller_environment, child_environment, driver_python, let_import_packages
from autotune.model import OPTION, PROCESS_COUNT, Failure, FailureKind, FlagSet, LaunchError, options_in
from autotune.workers import GuardedProcess, classify_failure

START_LIMIT_S = 900.0
STOP_PATIENCE_S = 10.0
LOG_BYTES = 2_000_000
WORKER_RESTARTS = 2


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """What is compiled, and for which GPUs.

    Attributes:
        entry: The workload, as `workloads.load` takes it.
        options: Its options.
        target: The GPU; None compiles for this machine's CPU.
        topology: Machines and GPUs; for the CPU, its virtual devices.
        paths: Folders where the user's own modules are found.
        versions: Installed versions that decide what comes out: part of the cache's key.
        base: The caller's environment.
    """

    entry: str
    options: Mapping[str, Any]
    target: Target | None
    topology: Topology
    paths: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=plugin.compiler_versions)
    base: Mapping[str, str] = field(default_factory=caller_environment)

    @property
    def digest(self) -> str:
        """Names everything but the flag set that decides what comes out, the user's own source included."""
        known = {
            "entry": self.entry,
            "options": self.options,
            "source": _source_digest(self.entry, self.paths),
            "target": self.target.digest if self.target else "cpu",
            "topology": str(self.topology),
            "versions": dict(self.versions),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]


Progress = Callable[[str], None]

NICENESS = 15
"""Of every process that compiles: whatever else runs goes first."""


IN_FORK = ("lowered", "build", "import")
"""What each fork of a worker begins with: the lowered step; or it builds that; or it imports the workload, too.

A workload decides: nothing may start a backend of JAX before the fork, or the fork's flags do nothing. For the CPU a
fork always imports, for the devices themselves start a backend.
"""

ESTIMATES = "--xla_gpu_collect_cost_model_stats=true"
"""Makes XLA write its own estimates beside each kernel; the program stays the same."""


class Compiler:
    """Compiles flag sets for one job; keeps its worker, with the lowered step, from call to call.

    Args:
        job: What is compiled.
        cache_dir: Where results are kept; None keeps none.
        limit_s: Longest time for one compilation.
        progress: Told what is under way.

    Attributes:
        job: What is compiled.
        processors: To which compilations that begin from now on keep; empty for all.

    Raises:
        LaunchError: If no fitting CUDA plugin is installed.
    """

    def __init__(
        self,
        job: CompileJob,
        *,
        cache_dir: Path | None = None,
        limit_s: float = 900.0,
        progress: Progress = lambda what: None,
    ) -> None:
        if job.target is not None and (problem := plugin.compiler_problem(job.versions)):
            raise LaunchError(problem)
        self.job = job
        self.processors: frozenset[int] = frozenset()
        self._cache = Cache(cache_dir, job.digest)
        self._limit_s = limit_s
        self._progress = progress
        self._worker: _Worker | None = None
        self._in_fork = "import" if job.target is None else "lowered"
        self._is_stopped = False
        self._has_estimates = True

    def compile(self, sets: Sequence[FlagSet]) -> Iterator[CompileResult]:
        """Compiles each distinct set; one that fails is a result like any other.

        Args:
            sets: Flag sets, the baseline merged in; equal ones are compiled once.

        Yields:
            One result for each distinct set, cached ones first.

        Raises:
            LaunchError: If nothing can be compiled, because the workload itself fails.
        """
        missing = []
        for settings in dict.fromkeys(sets):
            kept = self._cache.load(settings)
            if kept is None:
                missing.append(settings)
            else:
                yield kept
        for settings in sorted(missing, key=lambda s: str(of_worker(s))):
            result = self._one(settings)
            self._cache.store(result)
            yield result

    def _one(self, settings: FlagSet) -> CompileResult:
        """Compiles one set; a worker that dies of it is started again some times."""
        shared = of_worker(settings)
        for _ in range(WORKER_RESTARTS + 1):
            if self._is_stopped:
                raise LaunchError("compiling was stopped")
            if self._worker is None or self._worker.shared != shared:
                self._start(shared)
            assert self._worker is not None
            if self._is_stopped:
                raise LaunchError("compiling was stopped")
            self._worker.processors = self.processors
            if self._worker.broken is not None:
                if not shared:
                    raise LaunchError(self._worker.broken.message)
                return CompileResult(settings=settings, failure=self._worker.broken)
            self._progress(f"compile {settings}")
            result = self._worker.compile(settings, has_estimates=self._has_estimates)
            if self._has_estimates and result is not None and _may_be_of_estimates(result):
                # XLA's cost models know some GPUs only, and another build may lack the flag: then go on without.
                result = self._worker.compile(settings, has_estimates=False)
                self._has_estimates = result is None or result.program is None
            if result is not None:
                return result
            self.close()
        failure = Failure(kind=FailureKind.CRASH, message="the compile worker died again and again", phase="compile")
        return CompileResult(settings=settings, failure=failure)

    def _start(self, shared: FlagSet) -> None:
        """Starts a worker; one in which a backend of JAX was started is of no use, so the next does less."""
        for _ in IN_FORK:
            self.close()
            self._worker = _Worker(
                self.job, shared, self._limit_s, self._progress, in_fork=self._in_fork, processors=self.processors
            )
            if self._worker.touched_by is None:
                return
            self._in_fork = self._worker.touched_by
            self._progress(f"the workload starts a backend in its {self._in_fork}: each set does that by itself")

    def forget(self, sets: Iterable[FlagSet]) -> None:
        """Takes results out of the cache."""
        for settings in sets:
            self._cache.drop(settings)

    def abort(self) -> None:
        """Stops, from any thread: what is being compiled, and whatever is asked for after it, is a `LaunchError`."""
        self._is_stopped = True
        if (worker := self._worker) is not None:
            worker.abort()

    def resume(self) -> None:
        """Compiles again after `abort`; nothing may be under way."""
        self.close()
        self._is_stopped = False

    def close(self) -> None:
        """Ends the worker; the next compilation starts one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_be_of_estimates(result: CompileResult) -> bool:
    """Whether a compilation failed, perhaps because estimates were asked for; a hang costs too much to look again."""
    return result.failure is not None and result.failure.kind is not FailureKind.HANG


def jax_settings(settings: FlagSet) -> FlagSet:
    """The part of a set that JAX itself reads, at import or while it lowers."""
    return FlagSet({n: v for n, v in settings.items() if n.startswith(("jax_", "JAX_"))})


def of_worker(settings: FlagSet) -> FlagSet:
    """The part of a set that decides which worker compiles it: what JAX reads, and options of the workload."""
    return jax_settings(settings).merge(settings.of_kind("option"))


class _Worker:
    """One compile worker behind its guard, in a folder of its own that goes with it."""

    def __init__(
        self,
        job: CompileJob,
        shared: FlagSet,
        limit_s: float,
        progress: Progress,
        *,
        in_fork: str,
        processors: frozenset[int],
    ) -> None:
        self._job = job
        self.processors = processors
        self.shared = shared
        self._limit_s = limit_s
        self._count = 0
        self._scratch = Scratch()
        self._folder = self._scratch.path
        is_cpu = job.target is None
        env = child_environment(
            job.base,
            shared,
            platform_name="cpu",
            virtual_devices=job.topology.device_count if is_cpu else None,
        )
        let_import_packages(env)
        env["CUDA_VISIBLE_DEVICES"] = ""  # described GPUs only: those that are here are being measured
        env["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # else the plugin wants cuPTI, of no use without a GPU
        env["OPENBLAS_NUM_THREADS"] = "1"  # threads that a fork would lose
        env["TF_CPP_MIN_LOG_LEVEL"] = "1"
        command = [driver_python(), "-m", "autotune.child.compile"]
        self._process = GuardedProcess(command, env, self._folder / "worker.log", LOG_BYTES)
        self._process.send({**self._order(), "in_fork": in_fork, **self._manners()})
        progress("lower")
        answer = self._process.first(("ready", "error"), START_LIMIT_S)
        self.broken = None if answer and answer["type"] == "ready" else self._why_broken(answer)
        self.touched_by: str | None = answer.get("touched_by") if answer else None

    def _order(self) -> dict[str, Any]:
        target, topology = self._job.target, self._job.topology
        return {
            "type": "job",
            "entry": self._job.entry,
            "options": {**self._job.options, **options_in(self.shared.without(OPTION + PROCESS_COUNT))},
            "paths": list(self._job.paths),
            "platform": "cuda" if target else "cpu",
            "target_config": target.config_text if target else None,
            "topology": topology.for_xla(target.network) if target else None,
        }

    def _manners(self) -> dict[str, Any]:
        return {"niceness": NICENESS, "processors": sorted(self.processors)}

    def compile(self, settings: FlagSet, *, has_estimates: bool) -> CompileResult | None:
        """Compiles one set; None if the worker itself is gone."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        env = settings.of_kind("env").to_environment()
        asked = settings.without(*(n for n in settings if n.startswith("xla_dump_")))
        own = [f"--xla_dump_to={folder / 'dump'}", *([ESTIMATES] if has_estimates and self._job.target else [])]
        env["XLA_FLAGS"] = " ".join([asked.render_xla_flags(), *own]).strip()
        self._process.send(
            {
                "type": "compile",
                "id": self._count,
                "folder": str(folder),
                "environment": env,
                "jax_options": list(jax_settings(settings)),
                "limit_s": self._limit_s,
                **self._manners(),
            }
        )
        answer = self._process.first(("compiled",), self._limit_s + 60.0)
        if answer is None:
            return None
        try:
            return self._read(settings, asked, folder, answer)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, settings: FlagSet, asked: FlagSet, folder: Path, answer: Mapping[str, Any]) -> CompileResult:
        found: dict[str, Any] = {}
        if (folder / RESULT).is_file():
            found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        cost = {"duration_s": answer["duration_s"], "cpu_s": answer["cpu_s"]}
        if answer["exit_status"] != 0 or answer["timed_out"]:
            failure = self._failure(folder, answer, found)
            return CompileResult(settings=settings, failure=failure, **cost)
        require_arrival(
            settings, asked, marker=str(folder / "dump"), written=read_text(folder / OPTIONS),
            jax_options=found["jax_options"],
        )  # fmt: skip
        program = read_program(
            folder,
            found,
            is_gpu=self._job.target is not None,
            device_count=self._job.topology.device_count,
            gpus_per_node=self._job.topology.gpus_per_node,
        )
        return CompileResult(settings=settings, program=program, **cost)

    def _failure(self, folder: Path, answer: Mapping[str, Any], found: Mapping[str, Any]) -> Failure:
        lines = last_lines(folder / LOG)
        if answer["timed_out"]:
            return Failure(
                kind=FailureKind.HANG,
                message=f"the compiler did not finish within {self._limit_s:.0f} s",
                phase="compile",
                last_lines=lines,
            )
        failure = classify_failure(
            exit_status=answer["exit_status"],
            phase="compile",
            error_type=found.get("error_type"),
            message=found.get("message"),
            last_lines=lines,
            log=None,
        )
        words = next((told[1] for line in lines if (told := FATAL.match(line))), None)
        if words is None or found.get("error_type"):
            return failure
        said = words if failure.kind is FailureKind.UNKNOWN_FLAG else f"{failure.message}: {words}"
        return failure.model_copy(update={"message": said})

    def _why_broken(self, answer: Mapping[str, Any] | None) -> Failure:
        """Why no set can be compiled at all."""
        end = self._process.end or {}
        lines = tuple(end.get("last_lines", ()))
        if answer is not None and answer.get("error_type"):
            kind = FailureKind.WORKLOAD_ERROR
            said = f"the workload must build and lower but raised {answer['error_type']}: {answer['message']}"
        else:
            kind = FailureKind.LAUNCH
            said = "the compile worker did not start: " + (" | ".join(lines[-3:]) or "it said nothing")
        return Failure(kind=kind, message=said, phase="lower", last_lines=lines)

    def close(self) -> None:
        """Ends the process and removes its folder."""
        self._process.close(STOP_PATIENCE_S)
        self._scratch.close()

    def abort(self) -> None:
        """Ends the process from another thread; whoever waits for it is told that it is gone."""
        self._process.abort()


def _source_digest(entry: str, paths: Sequence[str]) -> str:
    """Digest of the source that an entry of the user's names; presets are named by the package's version."""
    module = entry.partition(":")[0]
    digest = hashlib.sha256()
    roots = [Path(p) for p in paths] if ":" in entry else []
    packaged = Path(__file__).resolve().parents[2] / "workloads"
    files = [r / (module.replace(".", "/") + ".py") for r in roots] + sorted(packaged.glob("*.py"))
    for path in files:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
