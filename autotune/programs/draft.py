"""Drafts a study of a program from one run of it, and writes the commented study file."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.model.block_sizes import WARMUP_STEPS
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.options import plain_value
from autotune.model.redaction import redact_command
from autotune.model.spec import FEWEST_TRIALS, SOAK_STEPS_OF_RUNS, StudySpec, parse_study
from autotune.model.units import format_seconds
from autotune.programs.look import LEAST_STEPS, ProbeResult
from autotune.stats.long_run import soak_arm_s
from autotune.stats.proof import LEAST_PAIRS

GROUPS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "one GPU": ("gemm", "fusion", "command_buffer", "scheduling", "loops"),
    "several GPUs": (
        "combining", "pipelining", "scheduling", "async", "collective_kernels", "command_buffer", "loops",
        "optimization_level",
    ),
}  # fmt: skip
"""Groups of the catalogue that are searched, by kind of devices; the example studies have the same."""

WHY: Mapping[str, str] = {
    "cpu": "all settings of XLA's CPU compiler that are known to change a program",
    "one GPU": "matrix products, fusions, launches: with one device no setting of collectives acts",
    "several GPUs": "how collectives are combined, overlapped and pipelined comes before single kernels",
}

RUN_SHARE, SHORTEST_RUN_S, LONGEST_RUN_S = 0.5, 2.0, 30.0
"""Counted part of a run: this share of its start-up time, within bounds in seconds."""

MOST_STEPS = 1000
FINALISTS, PROCESSES = 2, 20
PAIRS_CAP, ABA_RUNS = 26, 2
"""`measure.pairs_cap`, and the ABA runs of a trial that it stands for: a trial nominates, fresh processes decide."""

SOAK_S = 30.0
LEAST_BUDGET_S = 600.0
BUDGET_SLACK = 1.25
"""The default budget over what a few trials and one proof take; at least `LEAST_BUDGET_S`."""

Section = tuple[str, str, Mapping[str, Any]]
"""Name of a table, a comment (lines after the first begin with ``#``) and the keys."""

SCHEMA = Path(str(resources.files("autotune") / "data" / "study.schema.json"))
"""JSON schema by which editors complete keys; written by `docs/write_study_file.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A drafted study, its file, and its durations."""

    spec: StudySpec
    text: str
    kind: str
    """A key of `GROUPS`."""
    run_s: float
    """Seconds of one run of the program."""
    starts: int
    """Most times that the study starts it, within its budget."""
    trial_s: float
    budget_s: float
    needed_s: float
    """Seconds in which an A/A run, `FEWEST_TRIALS` trials and the proof of one set fit."""


def plan_of(found: ProbeResult, *, name: str, trials: int, budget_s: float | None, said: str) -> Plan:
    """Drafts the study of a probed program.

    Args:
        budget_s: Seconds for the whole study; None derives it from the run.
        said: The command line that asked for it, for a comment of the file.

    Raises:
        StudyFileError: If the study would not be legal.
    """
    asked, seen = found.request, found.steps
    steps, soak_s = _sizes(found)
    run_s = seen.start_s + steps * seen.line_s
    trial_s = ABA_RUNS * 3 * run_s
    needed_s = (1 + FEWEST_TRIALS) * trial_s + LEAST_PAIRS * 2 * run_s
    least_s = max(soak_s, SOAK_STEPS_OF_RUNS * seen.line_s)
    needed_s += 2 * soak_arm_s(least_s, step_s=seen.line_s, start_s=seen.start_s, run_steps=steps)
    budget_s = budget_s or max(LEAST_BUDGET_S, 300.0 * math.ceil(BUDGET_SLACK * needed_s / 300.0))
    kind = kind_of_devices(asked.platform, found.device_count)
    workload: dict[str, Any] = {"command": list(asked.command)}
    if found.names_python:
        workload["python"] = found.probe.python
    sections: list[Section] = [
        ("workload", "What runs, in the folder of this file; {folder} in an argument: that of the trial.", workload),
        (
            "workload.read",
            f"How its steps are read: {found.how}.\n# Seen: {_one_line(seen.example)}",
            found.rules,
        ),
        _devices(asked.platform, found.device_count, found.device),
        *_baseline(found.own.settings),
        _search(kind, trials, budget_s),
        (
            "measure",
            f"A step takes about {format_seconds(seen.step_s)} here, and a run is ready after about "
            f"{format_seconds(seen.start_s)}. Steps are counted by the lines that name them.",
            {"run_steps": steps, "pairs_cap": PAIRS_CAP},
        ),
        (
            "confirm",
            "A winner must prove itself in fresh processes, then run for a while by itself.",
            {"finalists": FINALISTS, "processes": PROCESSES, "soak": soak_s},
        ),
    ]
    text = study_text(name, _for_command(asked.command), sections, said=said)
    starts = min(budget_s / run_s, ABA_RUNS * 3 * (1 + trials) + 2 * FINALISTS * PROCESSES + 2)
    return Plan(
        spec=checked(text), text=text, kind=kind, run_s=run_s, starts=math.ceil(starts), trial_s=trial_s,
        budget_s=budget_s, needed_s=needed_s,
    )  # fmt: skip


def kind_of_devices(platform: str, count: int) -> str:
    """Returns the kind of devices, a key of `GROUPS`."""
    return "cpu" if platform == "cpu" else "one GPU" if count == 1 else "several GPUs"


def checked(text: str) -> StudySpec:
    """Parses the text of a study file.

    Raises:
        StudyFileError: If it is not legal.
    """
    return parse_study(tomllib.loads(text), source="the study that was drawn up")


def _sizes(found: ProbeResult) -> tuple[int, float]:
    """Returns the counted steps of a run and the seconds of the soak, within the program's own length if it ended."""
    seen = found.steps
    run_s = min(LONGEST_RUN_S, max(SHORTEST_RUN_S, RUN_SHARE * seen.start_s))
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(run_s / seen.line_s)))
    soak_s = SOAK_S
    if found.probe.status is not None:
        left = len(seen.at_s) - WARMUP_STEPS - 1
        steps = min(steps, left)
        soak_s = min(soak_s, math.floor(10 * 0.8 * left * seen.line_s) / 10)
    return steps, soak_s


def _devices(platform: str, count: int, device: str) -> Section:
    return "device", f"{count} x {_one_line(device)}.", {"platform": platform, "count": count}


def _baseline(own: FlagSet) -> list[Section]:
    remark = "What the program sets itself: the reference has it, and every candidate."
    return [("baseline", remark, {n: plain_value(v) for n, v in own.items()})] if own else []


def _search(kind: str, trials: int, budget_s: float) -> Section:
    remark = (
        f"{WHY[kind][0].upper()}{WHY[kind][1:]}.\n# The time is for all of it; proofs are reserved first "
        "(docs/budgets.md). More to search: "
        '`settings = { xla_... = [...] }`,\n# `recipes = ["..."]` (`autotune recipes list`); '
        "what comes of it: `autotune space FILE`."
    )
    keys = {"trials": trials, "time_budget": _duration(budget_s), "groups": list(GROUPS[kind])}
    return "search", remark, keys


def _for_command(command: Sequence[str]) -> str:
    return f"Settings for {_one_line(' '.join(redact_command(command)))}"


# ---------------------------------------------------------------------- TOML


def study_text(name: str, description: str, sections: Sequence[Section], *, said: str) -> str:
    """Writes the file of a study.

    Raises:
        StudyFileError: If a text cannot be written as TOML.
    """
    lines = [
        f"#:schema {SCHEMA.as_uri()}",
        f"# Written by `{_one_line(said)}`.",
        "# Edit it as you like; `autotune run` with this file continues the study. All keys: docs/study-file.md.",
        f"name = {_toml(name)}",
        f"description = {_toml(description)}",
    ]
    for title, remark, keys in sections:
        lines += ["", f"# {remark}", f"[{title}]", *toml_lines(keys)]
    return "\n".join(lines) + "\n"


def toml_lines(keys: Mapping[str, Any]) -> list[str]:
    """Formats keys and values as lines of TOML.

    Raises:
        StudyFileError: If a value is text that is not Unicode.
    """
    return [f"{key} = {_toml(value)}" for key, value in keys.items()]


def _one_line(text: str) -> str:
    """Formats text for a comment: control characters escaped, at most 160 characters."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= 160 else shown[:159] + "…"


def _toml(value: Any) -> str:
    """Formats a value as TOML within one line: as JSON, but a pattern in single quotes, which keep it readable."""
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
