"""Runs a user's program once to find how its steps are read, their times, and what it runs on."""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from autotune.child.output import Lines, Output
from autotune.child.read_output import CARRIERS
from autotune.child.recognise import ALIKE, BAR, FEWEST_LINES, MEAN, Recognised, best_fit, shape_of
from autotune.child.steps import MATCH_LIMIT_S, Rules, Step, StepReader, TooSlow, match_limit, plain
from autotune.machine.environment import (
    Environment,
    caller_environment,
    child_environment,
    driver_python,
)
from autotune.machine.gpus import is_without_gpus, visible_gpus
from autotune.machine.host import processor_name
from autotune.model.block_sizes import WARMUP_STEPS
from autotune.model.errors import AutotuneError, LaunchError, StudyFileError
from autotune.model.files import packaged_table, plain_content
from autotune.model.flags import FlagSet, parse_tokens
from autotune.model.measurement import WorkloadFacts
from autotune.model.redaction import redact_command
from autotune.model.spec import StudySpec
from autotune.model.texts import Note
from autotune.model.units import format_seconds
from autotune.programs.arrival import DEVICE_COUNT, OwnSettings, own_settings
from autotune.programs.probe import Probe, ProbeRequest, run_probe
from autotune.workers.failures import advice_on, classify_failure
from autotune.workers.settings_check import scripts_of

LEAST_STEPS = 10  # steps after warm-up that a study needs in each run
ENOUGH_STEPS = 12
ENOUGH_S = 4.0
PATIENCE_S = 60.0
SHOWN_LINES = 6
MOST_FILES = 1_000  # that are looked at for steps
READ_BYTES = 1 << 18  # of one of them
RECOGNISED_LINES = 600  # the last ones, from which the format of steps is recognised
NOTE_EVERY_S = 10.0
STUCK_S = 20.0  # of lines of one shape, or a file, without a step: ends a look


class Steps(NamedTuple):
    """Steps among some lines: arrival and duration of each, a plain example line, the last loss."""

    at_s: Sequence[float] = ()
    took_s: Sequence[float] = ()
    example: str = ""
    loss: float | None = None

    @property
    def step_s(self) -> float:
        """Median step in seconds, or the mean where lines came in bursts; never 0."""
        took_s = self.took_s[WARMUP_STEPS:]
        typical_s = statistics.median(took_s)
        return typical_s if typical_s > 1e-6 else max(1e-6, statistics.fmean(took_s))

    @property
    def line_s(self) -> float:
        """Mean seconds from line to line, at least a step: buffered lines come at once."""
        came = self.at_s[WARMUP_STEPS - 1 :]
        return max(self.step_s, (came[-1] - came[0]) / (len(came) - 1))

    @property
    def start_s(self) -> float:
        """Seconds until the warm-up was over."""
        return self.at_s[WARMUP_STEPS]


class ProbeResult(NamedTuple):
    """The properties of a program that its study needs."""

    request: ProbeRequest
    probe: Probe
    steps: Steps
    rules: Rules  # the keys of `[workload.read]`
    how: str  # the same in words
    doubt: str  # reason not to trust the printed durations
    device: str
    device_count: int | None  # None on a CPU without a wanted number of devices
    own: OwnSettings

    @property
    def named_python(self) -> str | None:
        """The interpreter that a study must name, because its command does not begin with one."""
        if direct_python(self.request.command, self.request.cwd):
            return None
        return self.probe.python


def read_steps(lines: Output, at_s: Sequence[float], rules: Rules) -> Steps:
    """Reads the steps in lines by the keys of `[workload.read]`; ValueError for bad ones."""
    came_s = []
    took_s = []
    example = ""
    loss = None
    for line, now_s, step in zip(lines, at_s, _read_each(rules, lines, at_s), strict=True):
        if step.step_s is not None:
            came_s.append(now_s)
            took_s.append(step.step_s)
            example = line
        if step.loss is not None:
            loss = step.loss
    return Steps(came_s, took_s, BAR.sub("…", plain(example)), loss)


_NO_STEP = Step(None, None)


def _read_each(rules: Rules, lines: Output, at_s: Sequence[float]) -> list[Step]:
    """Returns the step of each line, if any; AutotuneError if that takes over `MATCH_LIMIT_S`."""
    if not rules:
        return [_NO_STEP] * len(lines)
    reader = StepReader(rules)
    steps = []
    for line, now_s in zip(lines, at_s, strict=True):
        try:
            with match_limit():
                steps.append(reader.read(line, now_s) or _NO_STEP)
        except TooSlow:
            raise AutotuneError(
                f"a pattern must match within {MATCH_LIMIT_S:g} s but took over that for the "
                f"line {line[:80]!r}; write it simpler, without a repetition inside a repetition"
            ) from None
    return steps


class StepWatch:
    """Reads the steps of a running program and decides when they are enough."""

    def __init__(self, request: ProbeRequest, note: Note) -> None:
        self._note = note
        self._reported_s = 0.0
        self._began = time.time()
        self._line_count = 0
        self._steps = Steps()
        self.request = request
        self.file = ""  # with the steps of a program that prints none
        self.is_stuck = False  # long in lines of one shape, or such a file
        self.rules = request.rules if request.says_how else {}
        self.best: Recognised | None = None  # the format, where no rules were given

    def steps(self, probe: Probe) -> Steps:
        """Returns the steps among all lines so far."""
        if len(probe.lines) == self._line_count:
            return self._steps
        self._line_count = len(probe.lines)
        if not self.request.says_how:
            newest = slice(-RECOGNISED_LINES, None)
            self.best = best_fit(probe.lines[newest], probe.at_s[newest])
            self.rules = {**self.request.rules, **self.best.rules} if self.best else {}
        self._steps = read_steps(probe.lines, probe.at_s, self.rules)
        return self._steps

    def is_enough(self, probe: Probe) -> bool:
        """Returns whether the program has made enough steps, for long enough."""
        steps = self.steps(probe)
        count = len(steps.took_s)
        if probe.took_s - self._reported_s >= NOTE_EVERY_S:
            self._reported_s = probe.took_s
            progress = f"{count} steps"
            if not count:
                progress = f"{len(probe.lines)} lines, no step among them yet"
            self._note(f"{format_seconds(probe.took_s)}: {progress}")
        if not count:
            if probe.took_s >= STUCK_S:
                self.file = self._file_with_steps(probe)
            self.is_stuck = bool(self.file) or self._are_of_one_shape(probe)
            return self.is_stuck
        since_s = probe.took_s - steps.at_s[0]
        is_long = (since_s >= ENOUGH_S and count >= ENOUGH_STEPS) or since_s >= PATIENCE_S
        return count > WARMUP_STEPS + 1 and is_long

    def _are_of_one_shape(self, probe: Probe) -> bool:
        """Returns whether lines without a step have been of one shape for long."""
        came: dict[str, list[float]] = {}
        for line, now_s in zip(probe.lines, probe.at_s, strict=True):
            came.setdefault(shape_of(line), []).append(now_s)
        return any(
            len(at_s) >= FEWEST_LINES and at_s[-1] - at_s[0] >= STUCK_S for at_s in came.values()
        )

    def _file_with_steps(self, probe: Probe) -> str:
        """Returns the newest file of JSON lines that the program writes, if it has steps."""
        if self.request.rules:
            return ""
        try:
            files = list(itertools.islice(probe.place.rglob("*.jsonl"), MOST_FILES))
            newest = max(files, key=lambda file: file.stat().st_mtime)
            content = plain_content(newest, most=READ_BYTES)
            is_new = newest.stat().st_mtime >= self._began
        except (OSError, ValueError):  # removed meanwhile, or none is there
            return ""
        has_steps = is_new and best_fit(list(Lines().feed(content))) is not None
        return newest.relative_to(probe.place).as_posix() if has_steps else ""


def run_request(request: ProbeRequest, *, note: Note) -> tuple[Probe, StepWatch]:
    """Runs a program until enough steps came; LaunchError if it cannot start."""
    caller = caller_environment()
    environment = child_environment(
        caller,
        FlagSet(),
        platform_name=request.platform,
        virtual_devices=cpu_device_count(caller) if request.platform == "cpu" else None,
    )
    watch = StepWatch(request, note)
    return run_probe(request, environment, is_enough=watch.is_enough), watch


def probe_program(request: ProbeRequest, *, note: Note) -> ProbeResult:
    """Runs a program once and returns the properties that its study needs; LaunchError if not."""
    caller = caller_environment()
    if request.platform == "cuda" and is_without_gpus(caller):
        raise LaunchError(
            "the program must run on a GPU but none is here (`autotune doctor` says why): call "
            "this where one is, or add --platform cpu. The program was not started"
        )
    probe, watch = run_request(request, note=note)
    steps = watch.steps(probe)
    count = len(steps.took_s)
    if probe.status:
        raise LaunchError(_why_failed(request, probe))
    if count <= WARMUP_STEPS:
        raise LaunchError(_why_no_steps(probe, count, watch))
    needed = WARMUP_STEPS + LEAST_STEPS + 1
    if probe.status is not None and count < needed:
        raise LaunchError(
            f"the program must make at least {needed} steps that can be read but ended by itself "
            f"after {count}; let it run longer (more steps, more epochs), or print a line at "
            "every step"
        )
    if request.platform == "cuda" and probe.processes and not probe.opens_gpu:
        raise LaunchError(
            "the program must run on a GPU but opened none, although this machine has some: mend "
            "its JAX (`autotune doctor --python INTERPRETER` says what is missing), or add "
            "--platform cpu"
        )
    settings = own_settings(probe, request.command, request.cwd)
    environment = {**caller, **settings.environment}
    if request.platform == "cpu":
        device = processor_name()
        device_count = cpu_device_count(environment)
    else:
        gpus = visible_gpus(environment)
        device = gpus[0].name if gpus else "GPU"
        device_count = max(1, len(gpus))
    return ProbeResult(
        request=request,
        probe=probe,
        steps=steps,
        rules=watch.rules,
        doubt=doubt_of(watch.best),
        how=_in_words(watch.rules, is_given=request.says_how),
        device=device,
        device_count=device_count,
        own=settings,
    )


def refuse_without_xla(result: ProbeResult) -> None:
    """Raises LaunchError for a program without XLA, unless its processes run out of sight."""
    command = result.request.command
    scripts = " ".join(scripts_of(command, result.request.cwd).values())
    mentioned = re.findall(r"[\w.]+", re.sub(r"#.*", "", scripts))
    programs = {*map(os.path.basename, command), *mentioned}
    uses_xla = result.probe.processes or result.probe.has_dumped
    if not uses_xla and CARRIERS.isdisjoint(programs):
        raise LaunchError(
            "the program must use XLA but none of its processes has loaded jaxlib: no setting "
            "here can change it; name the program that trains with JAX"
        )


def cpu_device_count(environment: Environment) -> int | None:
    """Returns the number of CPU devices of an environment, JAX's own variable first, or None."""
    counts = [
        token.value or ""
        for token in parse_tokens(environment.get("XLA_FLAGS", ""))
        if token.name == DEVICE_COUNT
    ]
    counts.append(environment.get("JAX_NUM_CPU_DEVICES", ""))
    for count in reversed(counts):
        if count.isdigit() and int(count) > 0:
            return int(count)
    return None


def default_platform() -> str:
    """Returns ``cuda`` if a GPU is visible, unless JAX_PLATFORMS begins with ``cpu``."""
    environment = caller_environment()
    is_for_cpu = environment.get("JAX_PLATFORMS", "").split(",")[0] == "cpu"
    return "cpu" if is_for_cpu or not visible_gpus(environment) else "cuda"


def program_python(spec: StudySpec, study_dir: Path, *, note: Note | None) -> str:
    """Returns the interpreter of study or command, else autotune's; StudyFileError if missing."""
    command = spec.workload.command
    name = spec.workload.python
    if name is not None:
        path = _which(name, study_dir)
        if path is None:
            raise StudyFileError(
                f"`workload.python` must be an interpreter that can be started but got {name!r}"
            )
        return path
    if command is None:
        return driver_python()
    path = direct_python(command, study_dir)
    if path is None and note is not None:
        note(
            f"{command[0]} is no interpreter: that of autotune is asked which settings there "
            "are. If the program runs under another one, name it: [workload] python = "
            '"/path/to/python"'
        )
    return path or driver_python()


def direct_python(command: Sequence[str], folder: Path) -> str | None:
    """Returns the interpreter that a command run in `folder` begins with; None if there is none."""
    if re.fullmatch(r"python[\d.]*", Path(command[0]).name):
        return _which(command[0], folder)
    return None


def refuse_other_build(
    build: str, python: str, spec: StudySpec, facts: WorkloadFacts | None
) -> None:
    """Raises StudyFileError if the reference ran on another jaxlib than `build` of `python`."""
    ran_on = (getattr(facts, "versions", None) or {}).get("jaxlib")
    if spec.workload.command is None or ran_on in (None, build):
        return
    raise StudyFileError(
        f"the settings of a study must be those of the build that it runs on, but jaxlib {build} "
        f"of {python} was asked and the program ran on jaxlib {ran_on}; name the interpreter that "
        'it runs under in the study file: [workload] python = "/path/to/python"'
    )


def _which(name: str, folder: Path) -> str | None:
    """Returns the path of an interpreter; a name with a slash is relative to `folder`."""
    return shutil.which(str(folder / Path(name).expanduser()) if "/" in name else name)


def read_log(path: Path) -> Probe:
    """Reads a log; AutotuneError if it cannot be read, or holds no text."""
    try:
        content = plain_content(path)
        if b"\0" in content[:4096]:
            raise ValueError(
                "it is compressed, binary or UTF-16; unpack it, or export its metrics as JSON lines"
            )
    except (OSError, ValueError) as error:
        raise AutotuneError(f"a log must be readable text but {path}: {error}") from error
    return Probe(lines=list(Lines().feed(content + b"\n")))


def reading_of(probe: Probe, rules: Rules) -> dict[str, Any]:
    """Reads lines by keys of `[workload.read]`, if any are known; returns steps and totals."""
    steps = _read_each(rules, probe.lines, probe.at_s or [math.nan] * len(probe.lines))
    rows = []
    times = []
    for line, step in zip(probe.lines, steps, strict=True):
        is_step = step.step_s is not None
        row = {"line": line, "step_s": None, "loss": step.loss, "is_step": is_step}
        if step.step_s is not None and not math.isnan(step.step_s):  # no clock
            row["step_s"] = step.step_s
            times.append(step.step_s)
        rows.append(row)
    losses = [step.loss for step in steps if step.loss is not None]
    return {
        "steps": sum(step.step_s is not None for step in steps),
        "step_s": statistics.median(times) if times else None,
        "losses": len(losses),
        "loss": next(reversed(losses), None),
        "rules": dict(rules),
        "status": probe.status,
        "notes": probe.notes,
        "lines": rows,
    }


def _in_words(rules: Rules, *, is_given: bool) -> str:
    duration = re.search(
        r"\(\?P<(step_\w+|steps_per_s|tokens_per_s|value)>", rules.get("pattern", "")
    )
    if rules.get("preset"):
        how = f"lines of {rules['preset']}"
    elif rules.get("json_key"):
        how = f"key {rules['json_key']} of JSON lines, in {rules.get('unit', 'step_s')}"
    elif duration is not None:
        how = f"durations that are printed, as {duration[1]}"
    else:
        how = "a line for each step; the time between them counts"
    return f"{how} ({'as you say' if is_given else 'recognised'})"


def doubt_of(fit: Recognised | None) -> str:
    """Formats why the durations of a recognised format may be wrong; empty if nothing says so."""
    if fit is None:
        return ""
    if fit.by_clock and fit.in_bursts:
        return (
            "most lines came at once, so the time between them says little: let the program "
            "flush what it prints"
        )
    if fit.left_out:
        return (
            f"{len(fit.left_out)} lines of steps are not read, such as: "
            f"{fit.left_out[0].strip()[:100]}"
        )
    if fit.name_rank == MEAN:
        return "the durations may be of several steps, or their mean: print that of each step"
    if fit.is_within(ALIKE):
        return ""
    return (
        f"a step is said to take {fit.agrees:.2g} times what passes between its lines: a loop "
        "that does not wait for the device (jax.block_until_ready) prints too little; a pattern "
        "with a group `step` alone reads the clock"
    )


def _last_lines(lines: Output) -> str:
    text = "".join(f"\n    {line[:160]}" for line in lines[-SHOWN_LINES:])
    return f"Its last lines:{text}" if text else "It printed nothing."


def _why_failed(request: ProbeRequest, probe: Probe) -> str:
    lines = [*probe.lines, *probe.last_lines]
    ending = classify_failure(
        exit_status=probe.status,
        phase="run",
        error_type=None,
        message=None,
        last_lines=tuple(lines),
        log=None,
        platform=request.platform,
    )
    advice = (
        advice_on(ending)
        or f"run it by hand until it works: {shlex.join(redact_command(request.command))}"
    )
    return (
        f"the program must run but failed after {format_seconds(probe.took_s)}: "
        f"{ending.message}. {_last_lines(lines)}"
        f"\n  {advice[0].upper()}{advice[1:]}"
    )


def _why_no_steps(probe: Probe, steps: int, watch: StepWatch) -> str:
    end = "ended without standard input"
    if watch.is_stuck:
        end = "was stopped"
    elif probe.status is None:
        end = "was stopped by --look-limit"
    end = f"{end} after {format_seconds(probe.took_s)}. {_last_lines(probe.lines)}\n "
    if steps:
        return (
            f"the program must make more than {WARMUP_STEPS} steps that can be read but made "
            f"{steps} and {end} Let it run longer, or print a line at every step"
        )
    problem = "no line is known to be a step's"
    if any(BAR.search(plain(line)) for line in probe.lines[-SHOWN_LINES:]):
        problem = "it draws a progress bar in which no step is known"
    elif watch.request.says_how:
        problem = "no line fits the pattern that was given"
    advice = packaged_table("first_look.toml")["advice"]
    if watch.file:
        option = f"--step-file {shlex.quote(watch.file)}"
        advice = f"It writes steps to {watch.file}; call the same with: {option}"
    return f"the program must print steps that can be read but {problem}; it {end} {advice}"
