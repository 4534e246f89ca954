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

RUN_SHARE = 0.5  # counted part of a run over its start-up time, within these bounds
SHORTEST_RUN_S = 2.0
LONGEST_RUN_S = 30.0
MOST_STEPS = 1000
AA_STARTS = 5  # processes that an A/A run of paused ones starts
PAIRS_CAP = 26
ABA_RUNS = 2  # of a trial for this `measure.pairs_cap`: a trial nominates only
SOAK_S = 30.0
LEAST_BUDGET_S = 600.0
BUDGET_SLACK = 1.25  # the default budget over what a few trials and one proof take

SCHEMA = Path(str(resources.files("autotune") / "data" / "study.schema.json"))


class Plan(NamedTuple):
    """A drafted study, its file, why its groups of settings are searched, and its durations."""

    spec: StudySpec
    text: str
    why: str
    run_s: float
    trial_s: float
    is_paused: bool  # its processes take turns by pauses: a trial starts one, else six
    budget_s: float
    needed_s: float  # for an A/A run, `FEWEST_TRIALS` trials and the proof of one set


def plan_of(
    result: ProbeResult, *, name: str, trials: int, budget_s: float | None, command_line: str
) -> Plan:
    """Drafts the study of a probed program; its run gives the budget if none is given."""
    start_s = result.steps.start_s
    line_s = result.steps.line_s
    steps, soak_s = _sizes(result)
    run_s = start_s + steps * line_s
    is_paused = _can_be_paused(result)
    if is_paused:
        pair_s = 2 * (LEAST_LINES + PAUSED_LINES) * line_s
        trial_s = start_s + SequentialPlan(cap=PAIRS_CAP).looks[0] * pair_s
        starts = AA_STARTS + FEWEST_TRIALS + 2 * LEAST_PAIRS
        needed_s = starts * trial_s + ISOLATED_PAIRS * 2 * run_s
    else:
        trial_s = ABA_RUNS * 3 * run_s
        needed_s = (1 + FEWEST_TRIALS) * trial_s + LEAST_PAIRS * 2 * run_s
    needed_s += 2 * (max(soak_s, SOAK_STEPS_OF_RUNS * line_s) + start_s)
    budget_s = budget_s or max(LEAST_BUDGET_S, 300.0 * math.ceil(BUDGET_SLACK * needed_s / 300.0))
    kind = _KINDS["several_gpus"]
    if result.request.platform == "cpu":
        kind = _KINDS["cpu"]
    elif result.device_count == 1:
        kind = _KINDS["one_gpu"]
    filters = {
        "toml": to_toml,
        "comment": _one_line,
        "duration": _duration,
        "seconds": format_seconds,
    }
    text = packaged_template("drafted_study.toml.j2", filters).render(
        schema=SCHEMA.as_uri(),
        command_line=command_line,
        name=name,
        shown=" ".join(redact_command(result.request.command)),
        result=result,
        baseline={n: plain_value(v) for n, v in result.own.settings.items()},
        kind=kind,
        trials=trials,
        budget_s=budget_s,
        steps=steps,
        pairs_cap=PAIRS_CAP,
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


def _can_be_paused(result: ProbeResult) -> bool:
    """Returns whether processes of a program can take turns; one that ended is too short."""
    if result.probe.status is not None or "file" in result.rules:
        return False
    reader = StepReader(result.rules)
    step = reader.read(result.steps.example, 0.0)
    return reader.uses_clock or (step is not None and step.number is not None)


def _sizes(result: ProbeResult) -> tuple[int, float]:
    """Returns the counted steps of a run and the seconds of the soak; a program may be shorter."""
    line_s = result.steps.line_s
    run_s = min(LONGEST_RUN_S, max(SHORTEST_RUN_S, RUN_SHARE * result.steps.start_s))
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(run_s / line_s)))
    if result.probe.status is None:
        return steps, SOAK_S
    usable = len(result.steps.at_s) - WARMUP_STEPS - 1
    return min(steps, usable), min(SOAK_S, math.floor(10 * 0.8 * usable * line_s) / 10)


def _one_line(text: str) -> str:
    """Formats text for a comment: control characters escaped, at most 160 characters."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return line if len(line) <= 160 else line[:159] + "…"


def to_toml(value: Any) -> str:
    """Formats a value as a line of TOML, patterns in single quotes; StudyFileError if no UTF-8."""
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
