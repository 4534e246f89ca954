"""Runs a user's program once to find how its steps are read, how long they take, and what it runs
on.
"""

from __future__ import annotations

import contextlib
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

from autotune.child.output import Lines
from autotune.child.read_output import CARRIERS
from autotune.child.recognise import ALIKE, BAR, FEWEST_LINES, MEAN, Recognised, recognise, shape_of
from autotune.child.steps import MATCH_LIMIT_S, Rules, Step, StepReader, TooSlow, match_limit, plain
from autotune.machine.environment import (
    Environment,
    caller_environment,
    child_environment,
    driver_python,
)
from autotune.machine.files import COMPILES, Scratch
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
from autotune.programs.arrival import DEVICE_COUNT, OwnSettings, marks_of, own_settings
from autotune.programs.probe import Probe, ProbeRequest, run_probe
from autotune.workers.failures import advice_on, classify_failure
from autotune.workers.programs import dumped_options, partitions_in
from autotune.workers.settings_check import scripts_of

LEAST_STEPS = 10
"""Steps after warm-up that a study needs in each run."""

ENOUGH_STEPS = 12
ENOUGH_S = 4.0
PATIENCE_S = 60.0
SHOWN_LINES = 6
MOST_FILES, READ_BYTES = 1_000, 1 << 18
"""Limits of the files that are looked at, and of what is read of one."""

RECOGNISED_LINES = 600
"""Last lines of the output from which the format of steps is recognised."""

TELL_EVERY_S = 10.0
STUCK_S = 20.0
"""Seconds of lines of one shape, or of a file that grows, after which a look without a step
ends.
"""


class Steps(NamedTuple):
    """Steps among some lines: arrival and duration of each, and an example line without colours and
    progress bars.
    """

    at_s: tuple[float, ...] = ()
    took_s: tuple[float, ...] = ()
    example: str = ""
    loss: float | None = None
    """The last one that was read; None if none was."""

    @property
    def step_s(self) -> float:
        """Median step in seconds, or the mean where lines came in bursts; never 0."""
        took_s = self.took_s[WARMUP_STEPS:]
        typical_s = statistics.median(took_s)
        return typical_s if typical_s > 1e-6 else max(1e-6, statistics.fmean(took_s))

    @property
    def line_s(self) -> float:
        """Mean seconds from line to line, which a study counts; at least a step, since buffered
        lines come at once.
        """
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
    """Its run, with all files that it wrote outside its folder."""
    steps: Steps
    rules: Rules
    """The keys of `[workload.read]`."""
    how: str
    """`rules` in words."""
    doubt: str
    """Reason not to trust the printed durations; empty if there is none."""
    device: str
    device_count: int | None
    """None on a CPU of which the program asks for no number of devices."""
    own: OwnSettings
    """The settings that it sets itself."""

    @property
    def named_python(self) -> str | None:
        """The interpreter that a study must name, because its command does not begin with one."""
        return None if direct_python(self.request.command, self.request.cwd) else self.probe.python


def read_steps(lines: Sequence[str], at_s: Sequence[float], rules: Rules) -> Steps:
    """Reads the steps in lines by the keys of `[workload.read]`; ValueError if a rule cannot
    work.
    """
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
    return Steps(tuple(came_s), tuple(took_s), BAR.sub("…", plain(example)), loss)


_NO_STEP = Step(None, None)


def _read_each(rules: Rules, lines: Sequence[str], at_s: Sequence[float]) -> list[Step]:
    """Returns the step that each line tells, `_NO_STEP` if it tells none.

    Raises:
        AutotuneError: If a pattern takes longer than `MATCH_LIMIT_S` for one line: it may backtrack
            without an end.
    """
    reader = StepReader(rules)
    steps = []
    for line, now_s in zip(lines, at_s, strict=True):
        try:
            with match_limit():
                steps.append(reader.read(line, now_s) or _NO_STEP)
        except TooSlow:
            raise AutotuneError(
                f"a pattern must match within {MATCH_LIMIT_S:g} s but took over that for the "
                f"line {line[:80]!r}; write "
                "it simpler, without a repetition inside a repetition"
            ) from None
    return steps


# ---------------------------------------------------------------------- one run


class StepWatch:
    """Reads the steps of a running program and decides when they are enough.

    Attributes:
        request: What is run.
        rules: The keys of `[workload.read]`; none while they are not known.
        best: The recognised format, where no rules were given.
        file: The file with steps that a program writes which prints none; empty if it is not known.
        is_stuck: Whether the program has shown lines of one shape for long, or such a file, without
            a step.
    """

    def __init__(self, request: ProbeRequest, tell: Note) -> None:
        self._tell = tell
        self._told_s = 0.0
        self._began = time.time()
        self._seen = -1
        self._steps = Steps()
        self.request = request
        self.file = ""
        self.is_stuck = False
        self.rules = request.rules if request.says_how else {}
        self.best: Recognised | None = None

    def steps(self, probe: Probe) -> Steps:
        """Returns the steps among all lines so far."""
        if self._seen == len(probe.lines):
            return self._steps
        self._seen = len(probe.lines)
        if not self.request.says_how:
            self.best = _recognised(probe.lines[-RECOGNISED_LINES:], probe.at_s[-RECOGNISED_LINES:])
            self.rules = {**self.request.rules, **self.best.rules} if self.best is not None else {}
        self._steps = read_steps(probe.lines, probe.at_s, self.rules) if self.rules else Steps()
        return self._steps

    def is_enough(self, probe: Probe) -> bool:
        """Returns whether the program has made enough steps, for long enough."""
        steps = self.steps(probe)
        count = len(steps.took_s)
        if probe.took_s - self._told_s >= TELL_EVERY_S:
            self._told_s = probe.took_s
            seen = (
                f"{count} steps" if count else f"{len(probe.lines)} lines, no step among them yet"
            )
            self._tell(f"{format_seconds(probe.took_s)}: {seen}")
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
        """Returns the newest file of JSON lines that the program writes, if it has steps and none
        other was named.
        """
        if self.request.rules:
            return ""
        try:
            files = list(itertools.islice(probe.place.rglob("*.jsonl"), MOST_FILES))
            newest = max(files, key=lambda file: file.stat().st_mtime)
            content = plain_content(newest, most=READ_BYTES)
            is_new = newest.stat().st_mtime >= self._began
        except (OSError, ValueError):  # removed meanwhile, or none is there
            return ""
        has_steps = is_new and _recognised(list(Lines().feed(content))) is not None
        return newest.relative_to(probe.place).as_posix() if has_steps else ""


def _recognised(lines: Sequence[str], at_s: Sequence[float] | None = None) -> Recognised | None:
    """Returns the best format; None if there is none."""
    return next(iter(recognise(lines, at=at_s)), None)


def run_request(request: ProbeRequest, *, tell: Note) -> tuple[Probe, StepWatch]:
    """Runs a program until enough steps came; LaunchError if it cannot start."""
    caller = caller_environment()
    environment = child_environment(
        caller,
        FlagSet(),
        platform_name=request.platform,
        virtual_devices=asked_cpu_devices(caller) if request.platform == "cpu" else None,
    )

    watch = StepWatch(request, tell)
    with contextlib.closing(Scratch(COMPILES)) as dump:
        environment["XLA_FLAGS"] = marks_of(dump.path)
        probe = run_probe(request, environment, is_enough=watch.is_enough)
        probe.has_dumped = any(dump.path.iterdir())
        probe.options = dumped_options(dump.path)
        probe.partitions = partitions_in(dump.path)
        probe.outside = {
            file for file in probe.outside if not Path(file).is_relative_to(dump.path.resolve())
        }
    return probe, watch


def probe_program(request: ProbeRequest, *, tell: Note) -> ProbeResult:
    """Runs a program once and returns the properties that its study needs.

    Raises:
        LaunchError: If it cannot be started, fails, takes no XLA_FLAGS, or makes no steps that can
            be read.
    """
    caller = caller_environment()
    if request.platform == "cuda" and is_without_gpus(caller):
        raise LaunchError(
            "the program must run on a GPU but none is here (`autotune doctor` says why): call "
            "this where one is, or "
            "add --platform cpu. The program was not started"
        )
    probe, watch = run_request(request, tell=tell)
    steps = watch.steps(probe)
    count = len(steps.took_s)
    if probe.status:
        raise LaunchError(_why_failed(request, probe))
    if count <= WARMUP_STEPS:
        raise LaunchError(_why_no_steps(probe, count, watch))
    if probe.status is not None and count < WARMUP_STEPS + LEAST_STEPS + 1:
        raise LaunchError(
            f"the program must make at least {WARMUP_STEPS + LEAST_STEPS + 1} steps that can be "
            "read but ended by "
            f"itself after {count}; let it run longer (more steps, more epochs), or print a line "
            "at every step"
        )
    if request.platform == "cuda" and probe.processes and not probe.opens_gpu:
        raise LaunchError(
            "the program must run on a GPU but opened none, although this machine has some: mend "
            "its JAX (`autotune "
            "doctor --python INTERPRETER` says what is missing), or add --platform cpu"
        )
    own = own_settings(probe, request.command, request.cwd)
    count_of_devices, device = devices_of(request.platform, {**caller, **own.environment})
    return ProbeResult(
        request=request,
        probe=probe,
        steps=steps,
        rules=watch.rules,
        doubt=doubt_of(watch.best),
        how=_in_words(watch.rules, is_given=request.says_how),
        device=device,
        device_count=count_of_devices,
        own=own,
    )


def refuse_without_xla(found: ProbeResult) -> None:
    """Refuses a program that has not loaded XLA, unless it works where its processes cannot be
    seen; LaunchError.
    """
    command = found.request.command
    scripts = " ".join(scripts_of(command, found.request.cwd).values())
    words = {*map(os.path.basename, command), *re.findall(r"[\w.]+", scripts)}
    if not found.probe.processes and not found.probe.has_dumped and CARRIERS.isdisjoint(words):
        raise LaunchError(
            "the program must use XLA but none of its processes has loaded jaxlib: no setting "
            "here can change it; "
            "name the program that trains with JAX"
        )


# ---------------------------------------------------------------------- devices


def devices_of(platform: str, environment: Environment) -> tuple[int | None, str]:
    """Returns how many devices a program with this environment has, None if it asks for none, and
    the name of one.
    """
    if platform == "cpu":
        return asked_cpu_devices(environment), processor_name()
    gpus = visible_gpus(environment)
    return max(1, len(gpus)), gpus[0].name if gpus else "GPU"


def asked_cpu_devices(environment: Environment) -> int | None:
    """Returns the number of CPU devices that an environment asks for, JAX's own variable first;
    None without one.
    """
    flags = [
        t.value or ""
        for t in parse_tokens(environment.get("XLA_FLAGS", ""))
        if t.name == DEVICE_COUNT
    ]
    asked = [environment.get("JAX_NUM_CPU_DEVICES", ""), *reversed(flags)]
    return next((int(text) for text in asked if text.isdigit() and int(text) > 0), None)


def default_platform() -> str:
    """Returns ``cuda`` if a GPU is visible, unless JAX_PLATFORMS begins with ``cpu``."""
    environment = caller_environment()
    is_for_cpu = environment.get("JAX_PLATFORMS", "").split(",")[0] == "cpu"
    return "cpu" if is_for_cpu or not visible_gpus(environment) else "cuda"


# ---------------------------------------------------------------------- interpreter


def program_python(spec: StudySpec, study_dir: Path, *, note: Note | None) -> str:
    """Returns the interpreter that study or command name, else autotune's own; StudyFileError if it
    is missing.
    """
    command = spec.workload.command
    if (named := spec.workload.python) is not None:
        if (found := _there(named, study_dir)) is None:
            raise StudyFileError(
                f"`workload.python` must be an interpreter that can be started but got {named!r}"
            )
        return found
    if command is None:
        return driver_python()
    if (direct := direct_python(command, study_dir)) is not None:
        return direct
    if note is not None:
        note(
            f"{command[0]} is no interpreter: that of autotune is asked which settings there "
            "are. If the program runs "
            'under another one, name it: [workload] python = "/path/to/python"'
        )
    return driver_python()


def direct_python(command: Sequence[str], folder: Path) -> str | None:
    """Returns the interpreter that a command run in `folder` begins with; None if it begins with
    none.
    """
    return (
        _there(command[0], folder) if re.fullmatch(r"python[\d.]*", Path(command[0]).name) else None
    )


def refuse_other_build(
    asked: str, python: str, spec: StudySpec, facts: WorkloadFacts | None
) -> None:
    """Refuses a study whose reference ran on another jaxlib than `asked` of `python`;
    StudyFileError with both.
    """
    ran_on = (getattr(facts, "versions", None) or {}).get("jaxlib")
    if spec.workload.command is None or ran_on is None or ran_on == asked:
        return
    raise StudyFileError(
        f"the settings of a study must be those of the build that it runs on, but jaxlib {asked} "
        f"of {python} was asked "
        f"and the program ran on jaxlib {ran_on}; name the interpreter that it runs under in the "
        "study file: "
        '[workload] python = "/path/to/python"'
    )


def _there(name: str, folder: Path) -> str | None:
    """Finds an interpreter; a name with a slash is relative to the folder in which the command
    runs.
    """
    return shutil.which(str(folder / Path(name).expanduser()) if "/" in name else name)


# ---------------------------------------------------------------------- reading without a study


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
    """Reads the lines of a run or a log by some rules; returns each line's step and totals, as
    data.

    Args:
        rules: The legal keys of `[workload.read]`; empty if none are known.
    """
    steps = [_NO_STEP] * len(probe.lines)
    if rules:
        steps = _read_each(rules, probe.lines, probe.at_s or [math.nan] * len(probe.lines))
    rows: list[dict[str, Any]] = []
    for line, step in zip(probe.lines, steps, strict=True):
        is_step = step.step_s is not None
        step_s = (
            None if step.step_s is None or math.isnan(step.step_s) else step.step_s
        )  # a saved log has no clock
        rows.append({"line": line, "step_s": step_s, "loss": step.loss, "is_step": is_step})
    times = [row["step_s"] for row in rows if row["step_s"] is not None]
    losses = [step.loss for step in steps if step.loss is not None]
    return {
        "steps": sum(step.step_s is not None for step in steps),
        "step_s": statistics.median(times) if times else None,
        "losses": len(losses),
        "loss": losses[-1] if losses else None,
        "rules": dict(rules),
        "status": probe.status,
        "notes": probe.notes,
        "lines": rows,
    }


# ---------------------------------------------------------------------- words


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
    """Formats the reason not to trust the durations of a recognised format; empty if there is
    none.
    """
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
        return "only a mean of several steps is printed: print the duration of each"
    if fit.is_within(ALIKE):
        return ""
    return (
        f"a step is said to take {fit.agrees:.2g} times what passes between its lines: a loop "
        "that does not wait for "
        "the device (jax.block_until_ready) prints too little; a pattern with a group `step` "
        "alone reads the clock"
    )


def _last_lines(lines: Sequence[str]) -> str:
    shown = "".join(f"\n    {line[:160]}" for line in lines[-SHOWN_LINES:])
    return f"Its last lines:{shown}" if shown else "It printed nothing."


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
    how = "ended without standard input"
    if probe.status is None:
        how = "was stopped" if watch.is_stuck else "was stopped by --look-limit"
    how = f"{how} after {format_seconds(probe.took_s)}"
    if steps:
        return (
            f"the program must make more than {WARMUP_STEPS} steps that can be read but made "
            f"{steps} and {how}. "
            f"{_last_lines(probe.lines)}\n  Let it run longer, or print a line at every step"
        )
    wanted = (
        "no line fits the pattern that was given"
        if watch.request.says_how
        else "no line is known to be a step's"
    )
    if any(BAR.search(plain(line)) for line in probe.lines[-SHOWN_LINES:]):
        wanted = "it draws a progress bar in which no step is known"
    advice = packaged_table("first_look.toml")["advice"]
    if watch.file:
        advice = (
            f"It writes steps to {watch.file}; call the same with: --step-file "
            f"{shlex.quote(watch.file)}"
        )
    return (
        f"the program must print steps that can be read but {wanted}; it {how}. "
        f"{_last_lines(probe.lines)}\n  {advice}"
    )
