"""A compiler with known rules, and a search space for it: what a screen must find is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from autotune.compiler.program import CompiledProgram, CompileResult, Memory, Op, OpKind
from autotune.compiler.screen import CPU_CANARIES, GPU_CANARIES, Screener
from autotune.compiler.targets import load_target, parse_topology
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.settings.space import Parameter, SearchSpace

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
BUFFER = "xla_gpu_enable_while_loop_double_buffering"
SLOP = "xla_gpu_memory_limit_slop_factor"
OVERLAP = "xla_gpu_experimental_parallel_collective_overlap_limit"
P2P = "xla_gpu_enable_pipelined_p2p"
DECOMPOSE = "xla_gpu_collective_permute_decomposer_threshold"
GRAPHS = "xla_gpu_enable_command_buffer"
TRITON = "xla_gpu_enable_triton_gemm"
CHANNELS = "xla_gpu_nccl_collective_max_nchannels"
GIB = 1 << 30


class Rules:
    """A compiler with known rules: which settings make which program; it counts what it is asked for but canaries."""

    def __init__(self, target: str | None = "h100-sxm", peak_gib: float = 10.0) -> None:
        gpu = load_target(target) if target else None
        self.job: Any = SimpleNamespace(entry="llama", options={}, target=gpu, topology=parse_topology("1x8"))
        self.peak_gib = peak_gib
        self.compiled: list[FlagSet] = []

    def compile(self, sets: Sequence[FlagSet]) -> Iterator[CompileResult]:
        for settings in dict.fromkeys(sets):
            if not self.canaries(settings):
                self.compiled.append(settings)
            yield self._result(settings)

    def _result(self, settings: FlagSet) -> CompileResult:
        if settings.get(COMBINE) == "13":
            failure = Failure(kind=FailureKind.COMPILE_ERROR, message="thirteen is not allowed", phase="compile")
            return CompileResult(settings=settings, failure=failure)
        name = "; ".join([self.name(settings), *self.canaries(settings)])
        memory = Memory(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=int(self.gib(settings) * GIB))
        program = CompiledProgram(
            fingerprint=name,
            versions={"jaxlib": "0"},
            device_count=1,
            memory=memory,
            schedule=(Op(kind=OpKind.KERNEL, name="k", bytes=1e12),),
        )
        return CompileResult(settings=settings, program=program)

    def gib(self, settings: Mapping[str, str]) -> float:
        """The memory that a step takes."""
        return self.peak_gib + (60.0 if BUFFER in settings else 0.0)

    def canaries(self, settings: FlagSet) -> list[str]:
        """The canaries that a set holds: they change every program, as on real compilers."""
        return [f"canary {c}" for c in (*GPU_CANARIES, *CPU_CANARIES) if settings.merge(c) == settings]

    def progress(self, done: str) -> None:
        """Nothing is shown."""

    def abort(self) -> None:
        """Nothing runs on."""

    def forget(self, sets: Sequence[FlagSet]) -> None:
        """Nothing is kept."""

    def name(self, settings: Mapping[str, str]) -> str:
        parts = [f"combine {settings[COMBINE]}"] if settings.get(COMBINE, "7") != "7" else []
        if settings.get(BUFFER) == "true":
            parts.append("buffered")
            if OVERLAP in settings:  # acts only with another
                parts.append(f"overlap {settings[OVERLAP]}")
        if settings.get(P2P) == "true" and DECOMPOSE in settings:  # each alone does nothing
            parts.append(f"permutes decomposed at {settings[DECOMPOSE]}")
        if settings.get(TRITON) == "false":
            parts.append("cuBLAS")
            if settings.get(GRAPHS) == "FUSION,CUSTOM_CALL":  # a graph of fusions holds all there is with Triton
                parts.append("fewer kernels in graphs")
        return "; ".join(parts) or "plain"


class Deaf(Rules):
    """A compiler to which no flag arrives: every set is the reference's program. It notes what is to be forgotten."""

    def __init__(self, target: str | None = "h100-sxm") -> None:
        super().__init__(target)
        self.forgotten: set[FlagSet] = set()

    def name(self, settings: Mapping[str, str]) -> str:
        return "always the same"

    def canaries(self, settings: FlagSet) -> list[str]:
        return []

    def forget(self, sets: Sequence[FlagSet]) -> None:
        self.forgotten |= set(sets)


def screen(rules: Rules, baseline: Mapping[str, str] | None = None) -> Screener:
    return Screener(rules, baseline=FlagSet(baseline or {}))  # type: ignore[arg-type]


def space() -> SearchSpace:
    def one(name: str, *choices: str, condition: dict[str, tuple[str, ...]] | None = None) -> Parameter:
        return Parameter(name=name, choices=choices, default=choices[0], condition=condition)

    return SearchSpace(
        (
            one(COMBINE, "7", "11", "13"),
            one(BUFFER, "false", "true"),
            one(SLOP, "95", "17"),
            one(OVERLAP, "1", "2", condition={BUFFER: ("true",)}),
            one("NCCL_PROTO", "(default)", "LL", condition={SLOP: ("17",)}),
            one("NCCL_ALGO", "(default)", "Ring", condition={SLOP: ("95",)}),
        ),
        {"other": "not asked for"},
    )
