"""A compile worker: a process that lowers a step once and compiles it under many flag sets.

XLA parses XLA_FLAGS once in a process, and writes the options in force, other than defaults, beside
its dump. If those name the dump folder of this compilation, its flags were parsed; all are compared
with the given ones. Without this an unchanged program does not show that a set is a no-op.
"""

from __future__ import annotations

import hashlib
import json
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.child.channel import Message
from autotune.child.fingerprint import LOG, OPTIONS, RESULT
from autotune.child.packages import workloads_root
from autotune.compiler.program import CompileResult
from autotune.compiler.schedule import read_program
from autotune.compiler.targets import Target, Topology, compiler_versions
from autotune.machine.environment import (
    Environment,
    caller_environment,
    child_environment,
    driver_python,
    with_packages,
)
from autotune.machine.files import COMPILES, Scratch
from autotune.machine.host import Versions
from autotune.model.errors import LaunchError
from autotune.model.flags import OPTION, FlagSet, parse_text_proto
from autotune.model.measurement import Failure, FailureKind
from autotune.model.options import PROCESS_COUNT, Options, options_in
from autotune.model.time_limits import COMPILE_FACTOR, CompileLimits
from autotune.settings.catalog import Texts
from autotune.workers.base import GuardedProcess
from autotune.workers.failures import classify_failure, last_lines, read_log
from autotune.workers.settings_check import check_debug_options, check_options

NICENESS = 15
TOO_SLOW = "SIGXCPU"  # ends a compilation at its limit of processor time
START_LIMIT_S = 900.0
STOP_PATIENCE_S = 10.0
LOG_BYTES = 2_000_000
# Makes XLA write its cost estimate of each kernel; the program stays the same.
ESTIMATES = "--xla_gpu_collect_cost_model_stats=true"
# A file of kernels: what the sets of a worker have in common is compiled once.
KERNEL_CACHE = "xla_gpu_kernel_cache_file"

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """A step to compile, and the GPUs to compile it for."""

    entry: str
    options: Options
    target: Target | None  # None for this machine's CPU
    topology: Topology
    paths: Texts = ()
    versions: Versions = field(default_factory=compiler_versions)
    base: Environment = field(default_factory=caller_environment)

    @property
    def digest(self) -> str:
        """Digest of what decides the program besides the flag set, the user's source included."""
        module, colon, _ = self.entry.partition(":")
        name = f"{module.replace('.', '/')}.py"
        files = [Path(path) / name for path in self.paths if colon]
        files += sorted((workloads_root() / "workloads").glob("*.py"))
        source = b"".join(file.read_bytes() for file in files if file.is_file())
        facts = {
            "entry": self.entry,
            "options": self.options,
            "source": hashlib.sha256(source).hexdigest()[:16],
            "target": self.target.digest if self.target else "cpu",
            "topology": str(self.topology),
            "versions": dict(self.versions),
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def jax_settings(settings: FlagSet) -> FlagSet:
    """Returns the part of a set that JAX reads at import or while lowering."""
    return FlagSet({n: v for n, v in settings.items() if n.startswith(("jax_", "JAX_"))})


def worker_settings(settings: FlagSet) -> FlagSet:
    """Returns the part of a set that needs a worker of its own: options of JAX and the workload."""
    return jax_settings(settings).merge(settings.of_kind("option"))


class CompileWorker:
    """A guarded compile worker process with its scratch folder."""

    def __init__(
        self,
        job: CompileJob,
        shared: FlagSet,
        progress: Progress,
        *,
        lowers_first: bool,
        kept_to: frozenset[int],
    ) -> None:
        self._job = job
        self.kept_to = kept_to
        self.shared = shared
        self._scratch = Scratch(COMPILES)
        self._folder = self._scratch.path
        devices = None
        described = {"platform": "cpu"}
        if job.target is None:
            devices = job.topology.device_count
        else:
            described = {
                "platform": "cuda",
                "target_config": job.target.config_text,
                "topology": job.topology.for_xla(job.target.network),
            }
        env = child_environment(job.base, shared, platform_name="cpu", virtual_devices=devices)
        env = with_packages(env) | {
            "CUDA_VISIBLE_DEVICES": "",  # described GPUs only: attached ones are being measured
            # Else the plugin requires cuPTI, useless without a GPU.
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "OPENBLAS_NUM_THREADS": "1",  # threads that a fork would lose
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }
        command = [driver_python(), "-m", "autotune.child.compile"]
        self._process = GuardedProcess(command, env, self._folder / "worker.log", LOG_BYTES)
        self._send(
            "job",
            entry=job.entry,
            options={**job.options, **options_in(shared.without(OPTION + PROCESS_COUNT))},
            paths=list(job.paths),
            lowers_first=lowers_first,
            **described,
        )
        progress("lower")
        answer = self._process.first(("ready", "error"), START_LIMIT_S) or {}
        self.broken: Failure | None = None
        if answer.get("type") != "ready":
            self.broken = self._why_broken(answer)
        self.is_touched = bool(answer.get("is_touched"))

    def _send(self, kind: str, **order: Any) -> None:
        self._process.send(
            {"type": kind, "niceness": NICENESS, "processors": sorted(self.kept_to), **order}
        )

    def compile(
        self, settings: FlagSet, *, limits: CompileLimits, has_estimates: bool
    ) -> CompileResult | None:
        """Compiles one set within limits; None if the worker died."""
        flags_given = settings.without(
            *(n for n in settings if n.startswith(("xla_dump_", KERNEL_CACHE)))
        )
        is_gpu = self._job.target is not None
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as scratch:
            folder = Path(scratch)
            dump = f"{scratch}/dump"
            flags = [flags_given.render_xla_flags(), f"--xla_dump_to={dump}"]
            if is_gpu:
                flags.append(f"--{KERNEL_CACHE}={self._folder / 'kernels'}")
                if has_estimates:
                    flags.append(ESTIMATES)
            self._send(
                "compile",
                folder=scratch,
                environment={**settings.of_kind("env"), "XLA_FLAGS": " ".join(flags).strip()},
                jax_options=list(jax_settings(settings)),
                limit_s=limits.wall_s,
                processor_s=limits.processor_s,
            )
            answer = self._process.first(("compiled",), limits.wall_s + 60.0)
            if answer is None:
                return None
            report = json.loads(read_log(folder / RESULT) or "{}")
            program = None
            failure = None
            if answer["exit_status"] != 0 or answer["timed_out"]:
                failure = _failure(last_lines(folder / LOG), limits, answer, report)
            else:
                require_applied(
                    flags_given,
                    marker=dump,
                    written=read_log(folder / OPTIONS),
                    jax_options=report["jax_options"],
                )
                program = read_program(folder, report, self._job.topology, is_gpu=is_gpu)
            return CompileResult(
                settings=settings,
                program=program,
                failure=failure,
                cpu_s=answer["cpu_s"],
                host_bytes=answer["host_bytes"],
            )

    def _why_broken(self, answer: Message) -> Failure:
        """Returns the failure of a worker that cannot compile any set."""
        lines = tuple((self._process.end or {}).get("last_lines", ()))
        kind = FailureKind.LAUNCH
        message = f"the compile worker did not start: {' | '.join(lines[-3:]) or 'it said nothing'}"
        if answer.get("error_type"):
            kind = FailureKind.WORKLOAD_ERROR
            message = (
                f"the workload must build and lower but raised {answer['error_type']}: "
                f"{answer['message']}"
            )
        return Failure(kind=kind, message=message, phase="lower", last_lines=lines)

    def close(self) -> None:
        """Ends the process and removes its folder."""
        self._process.close(STOP_PATIENCE_S)
        self._scratch.close()

    def abort(self) -> None:
        """Ends the process from another thread; a pending `compile` returns None."""
        self._process.abort()


def _failure(lines: Texts, limits: CompileLimits, answer: Message, report: Message) -> Failure:
    if answer["timed_out"]:
        message = f"the compiler did not finish within {limits.wall_s:.0f} s"
        return Failure(kind=FailureKind.HANG, message=message, phase="compile", last_lines=lines)
    if answer["exit_status"] == -signal.SIGXCPU and limits.processor_s is not None:
        message = (
            f"the compiler did not finish within {limits.processor_s:.0f} s of processor time, "
            f"at least {COMPILE_FACTOR:.0f} times what the default takes"
        )
        return Failure(
            kind=FailureKind.COMPILE_ERROR,
            message=message,
            phase="compile",
            last_lines=lines,
            signal=TOO_SLOW,
        )
    return classify_failure(
        exit_status=answer["exit_status"],
        phase="compile",
        error_type=report.get("error_type"),
        message=report.get("message"),
        last_lines=lines,
        log=None,
    )


def require_applied(
    settings: FlagSet, *, marker: str, written: str, jax_options: Mapping[str, str]
) -> None:
    """Raises LaunchError unless XLA's text of options proves that a compilation had its flags.

    `marker` is the dump folder, which only this compilation uses; `written` may be empty.
    """
    options = parse_text_proto(written)
    lost = [*check_options(settings, jax_options), *check_debug_options(settings, options)]
    if options.get("xla_dump_to") != [marker]:
        lost = ["XLA does not say that it read them"]
    jax_names = settings.of_kind("jax")
    lost += [f"{n}: this JAX has no such option" for n in jax_names if n not in jax_options]
    if lost:
        raise LaunchError(
            "the flags of a compilation must be applied by XLA but those of "
            f"[{settings}] were not: {'; '.join(lost)}; a workload must leave XLA_FLAGS and "
            "jax.config to autotune and compile nothing before it is asked to"
        )
