"""Finds the steps of one program in the profile of a GPU, and where the time of each went."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autotune.compiler.predict import OTHERS, PRODUCTS, kind_of_work
from autotune.compiler.program import CompiledProgram, Op, OpKind
from autotune.compiler.schedule import COLLECTIVE_OPCODES
from autotune.compiler.xplane import Activity, DeviceProfile
from autotune.model import StudyFileError

LEAST_STEPS = 3
"""Whole steps of a profile, the first of them, which carries the profiler's own start, included."""

KERNELS = "kernels"

HOW = (
    "profile the study's workload under its baseline, on the GPUs that --target and --topology name, with the jaxlib "
    "that is installed here"
)

_BY_NAME = {
    "allgather": "all-gather", "allreduce": "all-reduce", "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all", "sendrecv": "collective-permute", "broadcast": "collective-broadcast",
}  # fmt: skip
_PRODUCT = re.compile(r"gemm|matmul|\bdot|_dot|cublas|cutlass|xmma|nvjet|fmha|attn|attention|cudnn", re.IGNORECASE)

Intervals = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Where the time of one step went; the four parts are all of it.

    Attributes:
        step_s: Seconds from its start to that of the next one.
        compute_s: Kernels on the stream that computes.
        exposed_s: Other streams or collectives run, and that one does not.
        gap_s: Nothing runs, within the step.
        outside_s: Between two steps: the host, and kernels of other programs.
        work_s: Seconds of each kind of work (see `autotune.compiler.predict.kind_of_work`), hidden ones included.
        counts: Instructions of each kind of work that were run, kernels of all kinds as one.
    """

    step_s: float
    compute_s: float
    exposed_s: float
    gap_s: float
    outside_s: float
    work_s: Mapping[str, float]
    counts: Mapping[str, int]


def of_program(found: DeviceProfile, program: CompiledProgram) -> tuple[str, list[Activity]]:
    """The module whose instructions are most of what the program's names cover, and its activities."""
    names = {op.name for op, _ in launched(program.schedule)}
    covered: dict[str, int] = defaultdict(int)
    for a in found.activities:
        if a.module and a.op in names:
            covered[a.module] += a.end_ps - a.start_ps
    if not covered:
        modules = ", ".join(sorted({a.module for a in found.activities if a.module})) or "none that is named"
        raise StudyFileError(
            "to calibrate, a profile must be of the study's own step but of the instructions that "
            f"{found.path} names (modules: {modules}) the compiled program has none; {HOW}"
        )
    module = max(covered, key=lambda m: covered[m])
    return module, [a for a in found.activities if a.module == module or (a.is_graph and not a.module)]


def whole_steps(found: DeviceProfile, mine: Sequence[Activity], program: CompiledProgram) -> list[MeasuredStep]:
    """All whole steps but the first."""
    starts = _starts(mine, program)
    if len(starts) - 1 < LEAST_STEPS:
        raise StudyFileError(
            f"to calibrate, a profile must hold at least {LEAST_STEPS} whole steps but {found.path} has "
            f"{max(0, len(starts) - 1)}; profile about ten"
        )
    main, kinds, own = _main_stream(mine, program), _kinds(mine, program), {id(a) for a in mine}
    began = [a.start_ps for a in found.activities]
    longest = max(a.end_ps - a.start_ps for a in found.activities)

    def near(start: int, end: int) -> list[Activity]:
        window = found.activities[bisect_left(began, start - longest) : bisect_left(began, end)]
        return [a for a in window if a.end_ps > start]

    return [_measure(start, end, near(start, end), own, kinds, main) for start, end in list(pairwise(starts))[1:]]


def _starts(mine: Sequence[Activity], program: CompiledProgram) -> list[int]:
    """When each step began: where the first instruction ran that a step runs once.

    An instruction of that name may be another one on the device, so the number of steps is what most of them say.
    """
    once = [op.name for op, times in launched(program.schedule) if times == 1]
    began: dict[str, list[int]] = defaultdict(list)
    for a in _first_of_each(mine):
        began[a.op].append(a.start_ps)
    known = [name for name in once if name in began]
    if not known:
        return []
    count = Counter(len(began[name]) for name in known).most_common(1)[0][0]
    return next(began[name] for name in known if len(began[name]) == count)


def _first_of_each(activities: Iterable[Activity]) -> Iterable[Activity]:
    """One activity for each run of an instruction, which may launch several kernels with nothing between them."""
    last: tuple[str, str] | None = None
    for a in activities:
        if a.is_graph or not a.op or last != (a.stream, a.op):
            yield a
        last = (a.stream, a.op)


def _kinds(mine: Sequence[Activity], program: CompiledProgram) -> dict[int, str]:
    """Kind of work of each activity, by its identity; by the program where that has the instruction, else by names."""
    known = {op.name: kind_of_work(op) for op, _ in launched(program.schedule)}
    return {id(a): known.get(a.op) or _kind_by_name(a) for a in mine}


def _kind_by_name(activity: Activity) -> str:
    for kind in sorted(COLLECTIVE_OPCODES, key=len, reverse=True):
        if activity.op.startswith(kind):
            return kind
    plain = activity.name.lower().replace("_", "")
    if "nccl" in plain:
        return next((kind for name, kind in _BY_NAME.items() if name in plain), "collective-permute")
    return PRODUCTS if _PRODUCT.search(f"{activity.op} {activity.name}") else OTHERS


def _main_stream(mine: Sequence[Activity], program: CompiledProgram) -> str:
    """The stream on which kernels of the program take the most time; copies beside it may take longer."""
    kernels = {op.name for op, _ in launched(program.schedule) if kind_of_work(op) in (PRODUCTS, OTHERS)}
    times = Counter[str]()
    for a in mine:
        if a.op in kernels or a.is_graph:
            times[a.stream] += a.end_ps - a.start_ps
    return times.most_common(1)[0][0] if times else ""


def _measure(
    start: int, end: int, near: Sequence[Activity], own: set[int], kinds: Mapping[int, str], main: str
) -> MeasuredStep:
    """Parts of the time from one start to the next."""
    work_ps: dict[str, int] = defaultdict(int)
    compute, waits, others = Intervals(), Intervals(), Intervals()
    for a in near:
        piece = (max(a.start_ps, start), min(a.end_ps, end))
        if id(a) not in own:
            others.append(piece)
            continue
        kind = kinds[id(a)]
        is_kernel = kind in (PRODUCTS, OTHERS)
        if a.stream == main or not is_kernel:
            work_ps[kind] += piece[1] - piece[0]
        (compute if is_kernel and a.stream == main else waits).append(piece)
    computed, worked = _length(compute), _length(compute + waits)
    ended = max((e for _, e in compute + waits), default=start)
    busy = _length(compute + waits + [(s, min(e, ended)) for s, e in others if s < ended])
    counts = Counter(
        kinds[id(a)] if kinds[id(a)] not in (PRODUCTS, OTHERS) else KERNELS
        for a in _first_of_each(a for a in near if id(a) in own and a.start_ps >= start)
    )
    return MeasuredStep(
        step_s=(end - start) * 1e-12,
        compute_s=computed * 1e-12,
        exposed_s=(worked - computed) * 1e-12,
        gap_s=(ended - start - busy) * 1e-12,
        outside_s=(end - ended + busy - worked) * 1e-12,
        work_s={kind: ps * 1e-12 for kind, ps in work_ps.items()},
        counts=counts,
    )


def _length(intervals: Intervals) -> int:
    """Of the union of some intervals."""
    total, reached = 0, -1
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def every(ops: Sequence[Op], times: int = 1) -> Iterable[tuple[Op, int]]:
    """Every entry with how often a step runs it; the condition of a loop of known length is never run."""
    for op in ops:
        yield op, times
        inner = times * (op.trip_count or 1) if op.kind is OpKind.LOOP else times
        if op.trip_count is None:
            yield from every(op.condition, inner)
        yield from every(op.content, inner)


def launched(ops: Sequence[Op]) -> Iterable[tuple[Op, int]]:
    """Entries that a GPU runs, with how often in a step."""
    run = (OpKind.KERNEL, OpKind.COPY, OpKind.COLLECTIVE)
    return ((op, times) for op, times in every(ops) if op.kind in run or op.collective is not None)


def without_graphs(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The schedule as it runs where command buffers are switched off."""
    found: list[Op] = []
    for op in ops:
        inside = without_graphs(op.content)
        if op.kind is OpKind.GRAPH:
            found += inside
        else:
            found.append(op.model_copy(update={"content": inside}))
    return tuple(found)
