"""Predictions calibrated by one profile of the user's own step, as `jax.profiler` writes it on a GPU.

A profile tells what a run cannot: how long each kind of kernel and of collective takes, and what waits for what. The
step is found by an instruction that the program runs once; the step of median length, without the first, stands for
all. What is compared are kinds of work, never single kernels, for on the device XLA's autotuner may choose others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.compiler.job import Progress
from autotune.compiler.predict import OTHERS, PRODUCTS, SANE, Calibration, Prediction, predict_step
from autotune.compiler.profiled_step import (
    HOW,
    KERNELS,
    MeasuredStep,
    every,
    launched,
    of_program,
    whole_steps,
    without_graphs,
)
from autotune.compiler.program import CompiledProgram, OpKind
from autotune.compiler.schedule import COLLECTIVE_OPCODES
from autotune.compiler.targets import Target, Topology
from autotune.compiler.verdicts import Screener
from autotune.compiler.xplane import DeviceProfile, read_device
from autotune.model import FlagSet, LaunchError, StudyFileError, format_bytes, format_seconds, format_share

SAME = 0.2
"""How far kernels and collectives of a step may be from the program's in number: the autotuner splits some products."""

TOLD = 0.01
"""Share of a step from which what could not be matched is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCheck:
    """What a profile says of the model.

    Attributes:
        calibration: Under which the prediction of the reference meets the profile.
        step: The step of median length.
        step_count: Steps that were compared, the first left out.
        shortest_s, longest_s: Seconds of the shortest and the longest of them.
        predicted_s: Of the reference, calibrated; what of the step could not be matched is missing in it.
        notes: What could not be matched.
    """

    calibration: Calibration
    step: MeasuredStep
    step_count: int
    shortest_s: float
    longest_s: float
    predicted_s: float
    notes: tuple[str, ...]


def check_profile(path: Path, screener: Screener, *, progress: Progress = lambda what: None) -> ProfileCheck:
    """Compiles the reference of a study, and holds its prediction against a profile of it.

    Args:
        path: See `autotune.compiler.xplane.read_device`.
        screener: Of the study, for the GPUs that were profiled.
        progress: Told what is under way.

    Raises:
        StudyFileError: If there is no profile of GPUs, or it is of another program, GPU or number of GPUs.
        LaunchError: If the reference does not compile.
    """
    target, topology = screener.job.target, screener.job.topology
    if target is None:
        raise StudyFileError("times are predicted for GPUs only: add --target, such as --target h100-sxm")
    progress(f"reading {path}")
    found = read_device(path)
    _refuse_other_gpus(found, target, topology)
    result = screener.result(FlagSet())
    if result.program is None:
        said = result.failure.message if result.failure else ""
        raise LaunchError(f"the reference must compile to be held against a profile but did not: {said}")
    return fit_profile(found, result.program, target, topology)


def fit_profile(found: DeviceProfile, program: CompiledProgram, target: Target, topology: Topology) -> ProfileCheck:
    """Factors under which a program's prediction meets its profile.

    Kinds of work are scaled inside the simulation, so what hides behind what follows from them; what is left between
    simulated and measured parts of the step is scaled afterwards.

    Raises:
        StudyFileError: If the profile is of another program, or has too few steps of it.
    """
    module, mine = of_program(found, program)
    has_graphs = any(a.is_graph for a in mine)
    steps = whole_steps(found, mine, program)
    step = sorted(steps, key=lambda s: s.step_s)[(len(steps) - 1) // 2]
    _refuse_other_program(found, module, step, program, has_graphs=has_graphs)
    as_run = program if has_graphs else program.model_copy(update={"schedule": without_graphs(program.schedule)})
    # What a kernel took in a profile holds what the collectives beside it took from it: that is not counted twice.
    raw = predict_step(as_run, target, topology, Calibration(collective_cores=0))
    shares = Calibration(
        collective_cores=0,
        work_scales=_work_scales(step.work_s, raw.work_s),
        outside_s=step.outside_s,
        source=f"{len(steps)} steps of {module} in {found.path.name}",
    )
    notes: list[str] = []
    inner = predict_step(as_run, target, topology, shares)
    shares = replace(
        shares,
        compute_scale=_scale("kernels", step.compute_s, inner.compute_s, step, notes),
        exposed_scale=_scale("exposed communication", step.exposed_s, inner.exposed_s, step, notes, most=SANE),
        idle_scale=_scale("gaps", step.gap_s, inner.idle_s - step.outside_s, step, notes),
    )
    notes += _unmatched(step, raw, has_graphs=has_graphs, program=program)
    return ProfileCheck(
        calibration=shares,
        step=step,
        step_count=len(steps),
        shortest_s=min(s.step_s for s in steps),
        longest_s=max(s.step_s for s in steps),
        predicted_s=predict_step(as_run, target, topology, shares).step_s,
        notes=tuple(notes),
    )


# --- what is refused, and what is told ---


def _refuse_other_gpus(found: DeviceProfile, target: Target, topology: Topology) -> None:
    told, title = found.facts, f"{target.title} ({target.name})"
    vendor = str(told.get("device_vendor", "Nvidia"))
    cores, memory = told.get("core_count", target.core_count), told.get("memory_size", target.memory_bytes)
    if vendor.lower() != "nvidia":
        what = f"is of {vendor}'s"
    elif cores != target.core_count:
        what = f"is of one with {cores} multiprocessors, not {target.core_count}"
    elif isinstance(memory, int) and abs(memory / target.memory_bytes - 1) > 0.1:
        what = f"is of one with {format_bytes(memory)} of memory, not {format_bytes(target.memory_bytes)}"
    elif found.device_count > topology.gpus_per_node:
        what = f"has {found.device_count} GPUs of one machine, more than {topology} (nodes x GPUs) has"
    else:
        return
    raise StudyFileError(
        f"to calibrate, a profile must be of the GPUs that are predicted, {title}, but {found.path} {what}; name those "
        "that were profiled by --target and --topology"
    )


def _refuse_other_program(
    found: DeviceProfile, module: str, step: MeasuredStep, program: CompiledProgram, *, has_graphs: bool
) -> None:
    counts = Counter[str]()
    for op, times in launched(program.schedule):
        counts[op.collective.kind if op.collective else KERNELS] += times
    names = [KERNELS, *sorted({*counts, *step.counts} - {KERNELS})]
    if all(abs(step.counts.get(n, 0) - counts[n]) <= SAME * counts[n] for n in names):
        return
    told = ", ".join(f"{n} {step.counts.get(n, 0)} where the program has {counts[n]}" for n in names)
    hint = "; kernels in CUDA graphs are not told apart: take it under --xla_gpu_enable_command_buffer= (empty)"
    raise StudyFileError(
        f"to calibrate, a profile must be of the study's own step (numbers within {format_share(SAME)}) but a step of "
        f"{module} in {found.path} runs {told}; {HOW}{hint if has_graphs else ''}"
    )


def _unmatched(step: MeasuredStep, raw: Prediction, *, has_graphs: bool, program: CompiledProgram) -> Iterable[str]:
    """What the profile and the program do not share."""
    for kind in sorted({*step.work_s, *raw.work_s}):
        measured, predicted = step.work_s.get(kind, 0.0), raw.work_s.get(kind, 0.0)
        if (not measured or not predicted) and max(measured, predicted) > TOLD * step.step_s:
            where, seconds = ("profile", measured) if measured else ("program", predicted)
            yield f"{kind} are in the {where} alone ({format_seconds(seconds)}): scaled as others of their class"
    if not has_graphs and any(op.kind is OpKind.GRAPH for op, _ in every(program.schedule)):
        yield (
            "no CUDA graph ran under the profiler, as is XLA's default: gaps were held against the program without "
            "its graphs"
        )
    if step.outside_s > TOLD * step.step_s:
        yield (
            f"{format_seconds(step.outside_s)} of each step are outside of the program (the host, other programs): "
            "added to every prediction"
        )


# --- factors ---


def _work_scales(measured: Mapping[str, float], predicted: Mapping[str, float]) -> dict[str, float]:
    """Measured over predicted time of each kind of work; a kind without both takes the factor of its class."""
    found: dict[str, float] = {}
    for kinds in ((PRODUCTS, OTHERS), COLLECTIVE_OPCODES):
        both = [k for k in kinds if measured.get(k) and predicted.get(k)]
        total = sum(predicted[k] for k in both)
        shared = sum(measured[k] for k in both) / total if total else 1.0
        found |= {k: measured[k] / predicted[k] if k in both else shared for k in kinds}
    return found


def _scale(
    name: str, measured_s: float, predicted_s: float, step: MeasuredStep, notes: list[str], *, most: float = 0.0
) -> float:
    """Factor of a part of the step; 1, and a note, where the model has next to nothing to scale."""
    if predicted_s > 0 and (not most or measured_s <= most * predicted_s):
        return measured_s / predicted_s
    if abs(measured_s - predicted_s) > TOLD * step.step_s:
        notes.append(
            f"{name}: the profile has {format_seconds(measured_s)} a step, the model {format_seconds(predicted_s)}; "
            "that much is no factor, and stays out of the predictions"
        )
    return 1.0
