"""One set of settings, compiled for GPUs: what a step of it would take, and how it is told from the reference."""

from __future__ import annotations

from typing import Any

from autotune.compiler.explain import Side
from autotune.compiler.predict import predict_step
from autotune.compiler.targets import Target, Topology
from autotune.compiler.verdicts import Screener
from autotune.model import FlagSet, LaunchError, StudyFileError


def predict_set(screener: Screener, settings: FlagSet) -> dict[str, Any]:
    """The prediction of one set as plain data, or why there is none.

    Raises:
        StudyFileError: If it compiles for the CPU, of which no time is predicted.
    """
    target, topology = _gpus(screener)
    row: dict[str, Any] = {
        "settings": dict(settings),
        "target": target.name,
        "topology": str(topology),
    }
    result = screener.result(settings)
    if result.program is None:
        return {**row, "failure": result.failure.message if result.failure else ""}
    return {**row, **predict_step(result.program, target, topology).to_json()}


def explain_set(screener: Screener, settings: FlagSet) -> Side:
    """One set as a side of an explanation; predicted too where the GPU's rates are known.

    Raises:
        LaunchError: If it does not compile.
    """
    result = screener.result(settings)
    if result.program is None:
        assert result.failure is not None
        words = "\n  ".join([result.failure.message, *result.failure.last_lines[:6]])
        raise LaunchError(f"the set must compile to be explained but did not: {words}")
    target = screener.job.target
    is_known = target is not None and target.network is not None and bool(target.flops_per_s)
    prediction = predict_step(result.program, *_gpus(screener)) if is_known else None
    return Side(settings=str(screener.baseline.merge(settings)), program=result.program, prediction=prediction)


def _gpus(screener: Screener) -> tuple[Target, Topology]:
    if screener.job.target is None:
        raise StudyFileError("times are predicted for GPUs only: add --target, such as --target h100-sxm")
    return screener.job.target, screener.job.topology
