"""Drafts a study of a program from one run of it, and writes the commented study file."""

from __future__ import annotations

import json
import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from autotune.child.read_output import PAUSED_LINES
from autotune.child.steps import StepReader
from autotune.model.block_sizes import LEAST_LINES, WARMUP_STEPS
from autotune.model.errors import StudyFileError
from autotune.model.files import packaged_table, packaged_template
from autotune.model.measurement import ABA
from autotune.model.options import plain_value
from autotune.model.redaction import redact_command
from autotune.model.spec import FEWEST_TRIALS, SOAK_STEPS_OF_RUNS, StudySpec, parse_study
from autotune.model.units import format_seconds
from autotune.programs.look import LEAST_STEPS, ProbeResult
from autotune.stats.estimates import SequentialPlan
from autotune.stats.proof import ISOLATED_PAIRS, LEAST_PAIRS

_KINDS = packaged_table("device_kinds.toml")

RUN_SHARE, SHORTEST_RUN_S, LONGEST_RUN_S = 0.5, 2.0, 30.0
"""Counted part of a run: this share of its start-up time, within bounds in seconds."""

MOST_STEPS = 1000
FINALISTS, PROCESSES = 2, 20
AA_STARTS = 5
"""Processes that an A/A run of paused ones starts."""

PAIRS_CAP, ABA_RUNS = 26, 2
"""`measure.pairs_cap`, and the ABA runs of a trial that it stands for: a trial nominates, fresh
processes decide.
"""

SOAK_S = 30.0
LEAST_BUDGET_S = 600.0
BUDGET_SLACK = 1.25
"""The default budget over what a few trials and one proof take; at least `LEAST_BUDGET_S`."""

SCHEMA = Path(str(resources.files("autotune") / "data" / "study.schema.json"))
"""JSON schema by which editors complete keys; written by `docs/write_study_file.py`."""


class Plan(NamedTuple):
    """A drafted study, its file, and its durations."""

    spec: StudySpec
    text: str
    why: str
    """Why its groups of settings are searched."""
    run_s: float
    """Seconds of one run of the program."""
    trial_s: float
    is_paused: bool
    """Whether its processes are to take turns by pauses: a trial starts one then, else six."""
    budget_s: float
    needed_s: float
    """Seconds in which an A/A run, `FEWEST_TRIALS` trials and the proof of one set fit."""


def plan_of(
    found: ProbeResult, *, name: str, trials: int, budget_s: float | None, said: str
) -> Plan:
    """Drafts the study of a probed program.

    Args:
        budget_s: Seconds for the whole study; None derives it from the run.
        said: The command line that asked for it, for a comment of the file.

    Raises:
        StudyFileError: If the study would not be legal.
    """
    asked = found.request
    seen = found.steps
    steps, soak_s = _sizes(found)
    run_s = seen.start_s + steps * seen.line_s
    is_paused = _can_be_paused(found)
    if is_paused:
        pair_s = 2 * (LEAST_LINES + PAUSED_LINES) * seen.line_s
        trial_s = seen.start_s + SequentialPlan(cap=PAIRS_CAP).looks[0] * pair_s
        needed_s = (
            AA_STARTS + FEWEST_TRIALS + 2 * LEAST_PAIRS
        ) * trial_s + ISOLATED_PAIRS * 2 * run_s
    else:
        trial_s = ABA_RUNS * 3 * run_s
        needed_s = (1 + FEWEST_TRIALS) * trial_s + LEAST_PAIRS * 2 * run_s
    least_s = max(soak_s, SOAK_STEPS_OF_RUNS * seen.line_s)
    needed_s += 2 * (least_s + seen.start_s)
    budget_s = budget_s or max(LEAST_BUDGET_S, 300.0 * math.ceil(BUDGET_SLACK * needed_s / 300.0))
    kind = _KINDS[
        "cpu"
        if asked.platform == "cpu"
        else "one_gpu"
        if found.device_count == 1
        else "several_gpus"
    ]
    filters = {
        "toml": to_toml,
        "comment": _one_line,
        "duration": _duration,
        "seconds": format_seconds,
    }
    text = packaged_template("drafted_study.toml.j2", filters).render(
        schema=SCHEMA.as_uri(),
        said=said,
        name=name,
        shown=" ".join(redact_command(asked.command)),
        found=found,
        baseline={n: plain_value(v) for n, v in found.own.settings.items()},
        kind=kind,
        trials=trials,
        budget_s=budget_s,
        steps=steps,
        pairs_cap=PAIRS_CAP,
        finalists=FINALISTS,
        processes=PROCESSES,
        soak_s=soak_s,
        mode="auto" if is_paused else ABA,
    )
    return Plan(
        spec=parse_study(tomllib.loads(text), source="the study that was drawn up"),
        text=text,
        why=kind["why"],
        run_s=run_s,
        trial_s=trial_s,
        is_paused=is_paused,
        budget_s=budget_s,
        needed_s=needed_s,
    )


def _can_be_paused(found: ProbeResult) -> bool:
    """Whether processes of a program can take turns, as far as a look tells: one that ended by
    itself is too short.
    """
    if found.probe.status is not None or "file" in found.rules:
        return False
    reader = StepReader(found.rules)
    step = reader.read(found.steps.example, 0.0)
    return reader.uses_clock or (step is not None and step.number is not None)


def _sizes(found: ProbeResult) -> tuple[int, float]:
    """Returns the counted steps of a run and the seconds of the soak, within the program's own
    length if it ended.
    """
    seen = found.steps
    run_s = min(LONGEST_RUN_S, max(SHORTEST_RUN_S, RUN_SHARE * seen.start_s))
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(run_s / seen.line_s)))
    soak_s = SOAK_S
    if found.probe.status is not None:
        left = len(seen.at_s) - WARMUP_STEPS - 1
        steps = min(steps, left)
        soak_s = min(soak_s, math.floor(10 * 0.8 * left * seen.line_s) / 10)
    return steps, soak_s


# ---------------------------------------------------------------------- TOML


def _one_line(text: str) -> str:
    """Formats text for a comment: control characters escaped, at most 160 characters."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 160 else shown[:159] + "…"


def to_toml(value: Any) -> str:
    """Formats a value as TOML in one line: JSON, but patterns in single quotes; StudyFileError if
    it is no Unicode.
    """
    if isinstance(value, str) and "\\" in value and "'" not in value and value.isprintable():
        return f"'{value}'"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StudyFileError(
            f"an argument of the command must be UTF-8 text but got {value!r:.100}; rename it"
        ) from error
    return text


def _duration(seconds: float) -> str:
    """Formats seconds as `search.time_budget` takes them, such as ``25m``."""
    return f"{seconds / 60:g}m" if seconds % 60 == 0 else f"{seconds:g}s"
