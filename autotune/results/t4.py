"""T4, the interchange format of autotuning results that Kernel Tuner and others read and write.

Times are milliseconds there, as Kernel Tuner writes them; here they stay seconds.

References:
    https://doi.org/10.1145/3629527.3651429 (the format). Schema 1.0.0 as in Kernel Tuner,
    ``kernel_tuner/schema/T4/1.0.0/results-schema.json``.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.model import PREDICTED, AutotuneError, FailureKind, FloorResult, SessionRecord
from autotune.results.analysis import ABSENT, settings_frame
from autotune.results.rows import TrialRow, trial_rows
from autotune.results.winner import workload_name
from autotune.rundir import Store

T4_VERSION = "1.0.0"
OBJECTIVE = "step_time_ratio"
"""What a study minimises: only ratios are compared; the step time stands beside it."""


class Invalidity(StrEnum):
    """Why a configuration has no result; `correct` if it has."""

    TIMEOUT = "timeout"
    COMPILE = "compile"
    RUNTIME = "runtime"
    CORRECTNESS = "correctness"
    CONSTRAINTS = "constraints"
    CORRECT = "correct"


_INVALIDITY = {
    FailureKind.UNKNOWN_FLAG: Invalidity.CONSTRAINTS,
    FailureKind.COMPILE_ERROR: Invalidity.COMPILE,
    FailureKind.HANG: Invalidity.TIMEOUT,
    FailureKind.WRONG_LOSS: Invalidity.CORRECTNESS,
}
"""Every other failure is one at run time."""


class _Part(BaseModel):
    """A part of a T4 file; fields of other writers are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Times(_Part):
    """Where the time of one configuration went, milliseconds; `runtimes` holds every run."""

    compilation_time: float | None = None
    runtimes: tuple[float, ...] = ()
    framework: float | None = None
    search_algorithm: float | None = None
    validation: float | None = None


class Measurement(_Part):
    """One named figure; a text in `value` says why there is none."""

    name: str
    value: float | str | tuple[float | str, ...]
    unit: str = ""


class Result(_Part):
    """One configuration and what became of it."""

    timestamp: str = ""
    configuration: dict[str, Any]
    objectives: tuple[str, ...] = ()
    times: Times
    invalidity: Invalidity
    correctness: float
    measurements: tuple[Measurement, ...] = ()

    def value(self, name: str) -> float:
        """A measurement's number; NaN if there is none."""
        found = next((m.value for m in self.measurements if m.name == name), math.nan)
        return float(found) if isinstance(found, int | float) else math.nan


class T4File(_Part):
    """A whole T4 file."""

    schema_version: Annotated[str, Field(pattern=r"^1\.[0-9]+\.[0-9]+$")] = T4_VERSION
    metadata: dict[str, Any] = Field(default_factory=dict)
    results: tuple[Result, ...]

    def frame(self) -> pd.DataFrame:
        """One row a configuration: its parameters, then `invalidity`, the objectives, and `runtimes` (milliseconds)."""
        rows = [
            {
                **r.configuration,
                "invalidity": str(r.invalidity),
                **{name: r.value(name) for name in r.objectives},
                "runtimes": list(r.times.runtimes),
            }
            for r in self.results
        ]
        return pd.DataFrame(rows)


def read_t4(path: Path) -> T4File:
    """Reads and checks a T4 file, gzipped or not.

    Raises:
        AutotuneError: If it is not one; the first offending field is named.
    """
    try:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        return T4File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "the file"
        raise AutotuneError(f"{path} must be a T4 file of schema 1.x but `{where}`: {first['msg']}") from error
    except (OSError, EOFError) as error:
        raise AutotuneError(f"{path} must be a readable T4 file but: {error}") from error


def render_t4(store: Store) -> str:
    """All trials of a run as a T4 file, step by step.

    Raises:
        AutotuneError: If it has no trial, or was not measured.
    """
    if store.spec.is_predicted:
        raise AutotuneError(f"a T4 file must hold measurements but {store.path} is {PREDICTED}")
    rows = trial_rows(store)
    if not rows:
        raise AutotuneError(f"a run must have trials to be exported but {store.path} has none yet")
    names, metadata = list(settings_frame(store).columns), _metadata(store)
    results = tuple(_result(store, row, names, metadata["started"]) for row in rows)
    file = T4File(metadata=metadata, results=results)
    return json.dumps(json.loads(file.model_dump_json(exclude_none=True)), indent=1) + "\n"


def _metadata(store: Store) -> dict[str, Any]:
    floor, session = store.last(FloorResult), store.last(SessionRecord)
    facts = floor.provenance if floor else {}
    report = floor.reference if floor else None
    return {
        "timeunit": "milliseconds",
        "study": store.spec.name,
        "workload": {"entry": workload_name(store.spec), "options": store.spec.workload.shown.options},
        "started": session.started if session else "",
        "hardware": {
            "device": report.device_kind if report else None,
            "count": report.device_count if report else None,
            "cpu": facts.get("cpu"),
        },
        "operating_system": facts.get("system"),
        "requirements": facts.get("versions", {}),
    }


def _result(store: Store, r: TrialRow, parameters: Sequence[str], started: str) -> Result:
    directory, failed = r.result.directory, r.result.failure
    steps = [t for p in store.pairs(directory) for t in p.candidate_s] if directory else []
    ratio: float | str = str(failed.kind) if failed else "none" if math.isnan(r.ratio) else r.ratio
    high = "unbounded" if r.high == math.inf else r.high
    measurements = [  # NaN, which equals nothing, is left out below
        Measurement(name=OBJECTIVE, value=ratio),
        Measurement(name=f"{OBJECTIVE}_low", value=r.low),
        Measurement(name=f"{OBJECTIVE}_high", value=high),
        Measurement(name="step_time", value=r.candidate_step_s * 1e3, unit="ms"),
        Measurement(name="reference_step_time", value=r.reference_step_s * 1e3, unit="ms"),
        Measurement(name="peak_memory", value=r.peak_bytes, unit="B"),
        Measurement(name="step_energy", value=r.step_j, unit="J"),
    ]
    return Result(
        timestamp=_when(started, r.at_s),
        configuration={name: r.result.settings.get(name, ABSENT) for name in parameters},
        objectives=(OBJECTIVE,),
        times=Times(
            compilation_time=0.0 if math.isnan(r.compile_s) else r.compile_s * 1e3,
            runtimes=tuple(t * 1e3 for t in steps),
            framework=max(0.0, r.duration_s - sum(steps)) * 1e3,
            search_algorithm=0.0,
            validation=0.0,
        ),
        invalidity=Invalidity.CORRECT if failed is None else _INVALIDITY.get(failed.kind, Invalidity.RUNTIME),
        correctness=1.0 if failed is None else 0.0,
        measurements=tuple(m for m in measurements if m.value == m.value),
    )


def _when(started: str, at_s: float) -> str:
    """When a trial ended, by the study's own clock, which stands still between two sessions."""
    try:
        return (datetime.fromisoformat(started) + timedelta(seconds=at_s)).isoformat()
    except (ValueError, OverflowError):  # nobody knows, or it was edited
        return ""
