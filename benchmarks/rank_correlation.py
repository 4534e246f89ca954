"""Rank correlation of predicted and measured step times, Spearman's and Kendall's, on GPUs.

Run as ``python -m benchmarks.rank_correlation [RUN ...]``: run directories of studies on GPUs, such
as those that `benchmarks.gpu.search` leaves. Each measured set is compiled for the GPUs it ran on,
without them, and predicted. Writes ``benchmarks/results/rank_correlation.json``. Where there is no
measurement on a GPU the file says so: XLA:CPU shows no schedule, so nothing is predicted for CPUs.

Left out are sets with a setting that is read at run time or decides the on-device autotuner: no
compilation shows what such a setting does.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

from autotune.compiler.predict import predict_step
from autotune.compiler.program import CompiledProgram
from autotune.compiler.screen import Screener, cluster_that_ran, open_screener
from autotune.compiler.targets import Target, Topology, compiler_versions
from autotune.model.errors import AutotuneError, LaunchError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, TrialResult, TrialStatus
from autotune.rundir.store import Store
from autotune.settings.catalog import Stage

RESULTS = Path(__file__).parent / "results"

LEAST_FOR_RANKS = 4
BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Measured:
    """One program that was both compiled and measured.

    Attributes:
        step_s: Seconds of a step: the reference's, times the paired ratio.
    """

    settings: FlagSet
    program: CompiledProgram
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well predicted step times order the measured ones.

    Attributes:
        count: Programs.
        spearman: Rank correlation, 1 for equal orders; None where too few differ.
        low: Lower end of its 95 % interval, by bootstrap over programs.
        high: Upper end.
        kendall: Kendall's tau-b.
    """

    count: int
    spearman: float | None = None
    low: float | None = None
    high: float | None = None
    kendall: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """What a run with measurements says of the model.

    Attributes:
        factor: Median of measured over predicted step times.
    """

    agreement: Agreement
    factor: float
    measured: tuple[Measured, ...]
    predicted_s: tuple[float, ...]
    target: str
    topology: str


def check_predictions(store: Store, *, cache_dir: Path | None = None) -> PredictionCheck:
    """Compiles what a run measured, and compares the predictions with the measurements.

    Args:
        store: A run on GPUs.
        cache_dir: Where compiled programs are kept.

    Raises:
        StudyFileError: If the run was not measured on a GPU that is described.
        LaunchError: If nothing of it compiles here.
    """
    target, topology = _cluster(store)
    with open_screener(
        store.spec,
        study_dir=Path(store.study_dir),
        target=target,
        topology=topology,
        cache_dir=cache_dir,
        progress=lambda what: print(what[:120], flush=True),
    ) as (_, screen):
        found = measured_programs(store, screen)
    if not found:
        raise LaunchError(
            f"a run must have measured a program that compiles here but of {store.path} none does"
        )
    predicted = [predict_step(m.program, target, topology).step_s for m in found]
    measured = [m.step_s for m in found]
    return PredictionCheck(
        agreement=agreement(predicted, measured),
        factor=factor(predicted, measured),
        measured=tuple(found),
        predicted_s=tuple(predicted),
        target=target.name,
        topology=str(topology),
    )


def _cluster(store: Store) -> tuple[Target, Topology]:
    """Where a run was measured."""
    spec, aa_run = store.spec, store.last(AaRecord)
    if aa_run is None or spec.device.platform != "cuda":
        raise StudyFileError(
            f"a run must be measured on GPUs but {store.path} has no measurement on a GPU"
        )
    target, topology = cluster_that_ran(spec, aa_run.reference)
    if target is None:
        raise StudyFileError(
            f"the GPU must be one of `autotune targets list` but {store.path} ran on "
            f"{aa_run.reference.device_kind!r}"
        )
    return target.on_network(spec.device.nic_bytes_per_s), topology


def measured_programs(store: Store, screen: Screener) -> list[Measured]:
    """The reference and every measured set of another program; equal programs once."""
    aa_run = store.last(AaRecord)
    assert aa_run is not None
    reference_s = aa_run.comparison.reference_step_s
    times: dict[str, list[tuple[FlagSet, float]]] = {}
    rows = [(FlagSet(), reference_s)]
    rows += [
        (r.settings, reference_s * r.comparison.estimate.ratio)
        for r in store.of(TrialResult)
        if r.status is TrialStatus.MEASURED and r.comparison is not None
    ]
    programs: dict[str, CompiledProgram] = {}
    for settings, step_s in rows:
        is_seen_whole = all(screen.stage(name) is Stage.PROGRAM for name in settings)
        program = screen.result(settings).program if is_seen_whole else None
        if program is not None:
            programs[program.fingerprint] = program
            times.setdefault(program.fingerprint, []).append((settings, step_s))
    return [
        Measured(t[0][0], programs[key], statistics.median(s for _, s in t))
        for key, t in times.items()
    ]


def factor(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """Median of measured over predicted step times."""
    return statistics.median(m / p for p, m in zip(predicted_s, measured_s, strict=True))


def agreement(predicted_s: Sequence[float], measured_s: Sequence[float]) -> Agreement:
    """Rank correlation of predictions with measurements, with a bootstrap interval.

    Args:
        predicted_s: Predicted seconds of a step, one for each program.
        measured_s: Measured seconds, in the same order.
    """
    x, y = np.asarray(predicted_s, dtype=float), np.asarray(measured_s, dtype=float)
    if len(x) < LEAST_FOR_RANKS or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Agreement(count=len(x))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(BOOTSTRAPS):
        i = rng.integers(0, len(x), len(x))
        if np.ptp(x[i]) > 0 and np.ptp(y[i]) > 0:
            drawn.append(float(spearmanr(x[i], y[i]).statistic))
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Agreement(
        count=len(x),
        spearman=float(spearmanr(x, y).statistic),
        low=float(low),
        high=float(high),
        kendall=float(kendalltau(x, y).statistic),
    )


def of_run(store: Store) -> dict[str, Any]:
    """One run: the figures of every program, and how well the orders agree."""
    try:
        found = check_predictions(store)
    except AutotuneError as error:
        return {"cannot": str(error)}
    rows = [
        {"settings": dict(m.settings), "predicted_s": predicted_s, "measured_s": m.step_s}
        for m, predicted_s in zip(found.measured, found.predicted_s, strict=True)
    ]
    return {
        "target": found.target,
        "topology": found.topology,
        "agreement": asdict(found.agreement),
        "factor": found.factor,
        "programs": rows,
    }


def main() -> None:
    """Compares every run that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    args = parser.parse_args()
    found = {str(run): of_run(Store.open(run)) for run in args.runs}
    data = {
        "versions": compiler_versions(),
        "runs": found,
        "note": ""
        if found
        else "no measurement on a GPU lies here: no rank correlation can be given",
    }
    path = RESULTS / "rank_correlation.json"
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
