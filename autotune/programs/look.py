"""Runs a user's program once to find how its steps are read, how long they take, and what it runs on."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.child.output import find, lines_of
from autotune.child.read_output import CARRIERS
from autotune.child.recognise import ALIKE, BAR, FEWEST_LINES, MEAN, Recognised, recognise, shape_of
from autotune.child.steps import MATCH_LIMIT_S, Step, StepReader, TooSlow, match_limit, plain
from autotune.machine.environment import caller_environment, child_environment, driver_python
from autotune.machine.files import COMPILES, Scratch
from autotune.machine.gpus import is_without_gpus, visible_gpus
from autotune.machine.host import processor_name
from autotune.model.block_sizes import WARMUP_STEPS
from autotune.model.errors import AutotuneError, LaunchError, StudyFileError
from autotune.model.files import plain_content
from autotune.model.flags import FlagSet, parse_tokens
from autotune.model.measurement import WorkloadFacts
from autotune.model.redaction import redact_command
from autotune.model.sections import ReadSpec
from autotune.model.spec import StudySpec
from autotune.model.units import format_seconds
from autotune.programs.arrival import DEVICE_COUNT, OwnSettings, marks_of, own_settings
from autotune.programs.probe import FIRST_LOOK, Probe, run_probe, written_lines
from autotune.workers.failures import advice_on, classify_failure
from autotune.workers.programs import dumped_options, partitions_in
from autotune.workers.settings_check import scripts_of

LEAST_STEPS = 10
"""Steps after warm-up that a study needs in each run."""

ENOUGH_STEPS = 12
ENOUGH_S = 4.0
PATIENCE_S = 60.0
SHOWN_LINES = 6
RECOGNISED_LINES = 600
"""Last lines of the output from which the format of steps is recognised."""

TELL_EVERY_S = 10.0
LOOK_AGAIN_S = 2.0
STUCK_S = 20.0
"""Seconds of lines of one shape, or of a file that grows, after which a look without a step ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A program to run once."""

    command: tuple[str, ...]
    cwd: Path
    platform: str
    rules: Mapping[str, Any] | None
    """The keys of `[workload.read]`; None to recognise them."""
    limit_s: float


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps among some lines: arrival and duration of each, and an example line without colours and progress bars."""

    at_s: tuple[float, ...]
    took_s: tuple[float, ...]
    example: str
    loss: float | None
    """The last one that was read; None if none was."""

    @property
    def step_s(self) -> float:
        """Median step in seconds, or the mean where lines came in bursts; never 0."""
        took_s = self.took_s[WARMUP_STEPS:]
        typical_s = statistics.median(took_s)
        return typical_s if typical_s > 1e-6 else max(1e-6, statistics.fmean(took_s))

    @property
    def line_s(self) -> float:
        """Mean seconds from line to line, which a study counts; at least a step, since buffered lines come at once."""
        came = self.at_s[WARMUP_STEPS - 1 :]
        return max(self.step_s, (came[-1] - came[0]) / (len(came) - 1))

    @property
    def start_s(self) -> float:
        """Seconds until the warm-up was over."""
        return self.at_s[min(WARMUP_STEPS, len(self.at_s) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The properties of a program that its study needs."""

    request: ProbeRequest
    probe: Probe
    """Its run, with all files that it wrote outside its folder."""
    steps: Steps
    rules: Mapping[str, Any]
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
    def names_python(self) -> bool:
        """Whether a study must name the interpreter because its command does not begin with it."""
        first, python = direct_python(self.request.command, self.request.cwd), self.probe.python
        if python is None or first is None:
            return python is not None
        one, two = Path(python), Path(first)
        return one.parent.resolve() != two.parent.resolve() or not one.samefile(two)


def read_steps(lines: Sequence[str], at_s: Sequence[float], rules: Mapping[str, Any]) -> Steps:
    """Reads the steps in lines by the keys of `[workload.read]`; ValueError if a rule cannot work."""
    read = [(now_s, line, step) for line, now_s, step in _read_each(rules, lines, at_s) if step is not None]
    timed = [(now_s, step.step_s, line) for now_s, line, step in read if step.step_s is not None]
    losses = [step.loss for _, _, step in read if step.loss is not None]
    came, took, shown = zip(*timed, strict=True) if timed else ((), (), ("",))
    return Steps(came, took, BAR.sub("…", plain(shown[-1])), losses[-1] if losses else None)


def _read_each(
    rules: Mapping[str, Any], lines: Sequence[str], at_s: Sequence[float]
) -> Iterator[tuple[str, float, Step | None]]:
    """Yields each line with its time and the step that it tells.

    Raises:
        AutotuneError: If a pattern takes longer than `MATCH_LIMIT_S` for one line: it may backtrack without an end.
    """
    reader = StepReader(rules)
    for line, now_s in zip(lines, at_s, strict=True):
        try:
            with match_limit():
                step = reader.read(line, now_s)
        except TooSlow:
            raise AutotuneError(
                f"a pattern must match within {MATCH_LIMIT_S:g} s but took over that for the line {line[:80]!r}; write "
                "it simpler, without a repetition inside a repetition"
            ) from None
        yield line, now_s, step


# ---------------------------------------------------------------------- one run


class StepWatch:
    """Reads the steps of a running program and decides when they are enough.

    Attributes:
        rules: The keys of `[workload.read]`; None while they are not known.
        best: The recognised format, where no rules were given.
        is_stuck: Whether the program has shown lines of one shape for long, without a step.
    """

    def __init__(self, request: ProbeRequest, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told_s, self._seen = 0.0, -1
        self._steps: Steps | None = None
        self._finds_out = request.rules is None
        self._began, self._looked_s = time.time(), 0.0
        self.is_stuck = False
        self.rules = request.rules
        self.best: Recognised | None = None

    def steps(self, probe: Probe) -> Steps | None:
        """Returns the steps among all lines so far; None if there are none."""
        lines, at_s = probe.lines, probe.at_s
        if self._seen != len(lines):
            self._seen = len(lines)
            if self._finds_out:
                self.best = _recognised(lines[-RECOGNISED_LINES:], at_s[-RECOGNISED_LINES:])
                self.rules = self.best.rules if self.best is not None else None
            self._steps = read_steps(lines, at_s, self.rules) if self.rules is not None else None
        return self._steps if self._steps is not None and self._steps.took_s else None

    def is_enough(self, probe: Probe) -> bool:
        """Whether the program has made enough steps, for long enough."""
        steps = self.steps(probe)
        count = len(steps.took_s) if steps is not None else 0
        if probe.took_s - self._told_s >= TELL_EVERY_S:
            self._told_s = probe.took_s
            seen = f"{count} steps" if count else f"{len(probe.lines)} lines, no step among them yet"
            self._tell(f"{format_seconds(probe.took_s)}: {seen}")
        if steps is None:
            self.is_stuck = self._are_of_one_shape(probe)
            return self.is_stuck
        since_s = probe.took_s - steps.at_s[0]
        is_long = (since_s >= ENOUGH_S and count >= ENOUGH_STEPS) or since_s >= PATIENCE_S
        return count > WARMUP_STEPS + 1 and is_long

    def _are_of_one_shape(self, probe: Probe) -> bool:
        """Whether lines without a step have been of one shape for long, or a file with steps has grown for long."""
        if probe.took_s - self._looked_s < LOOK_AGAIN_S:
            return False
        self._looked_s = probe.took_s
        came: dict[str, list[float]] = {}
        for line, now_s in zip(probe.lines, probe.at_s, strict=True):
            came.setdefault(shape_of(line), []).append(now_s)
        if any(len(at_s) >= FEWEST_LINES and at_s[-1] - at_s[0] >= STUCK_S for at_s in came.values()):
            return True
        is_late = self._finds_out and probe.took_s >= STUCK_S
        return is_late and self.in_a_file(probe) is not None

    def in_a_file(self, probe: Probe) -> Recognised | None:
        """Returns rules for the steps in the newest file of steps that the program writes; None if there is none."""
        files = probe.written or written_lines(probe.place, self._began)
        fits = ((path, _recognised(written)) for path, written in files.items())
        return next((replace(fit, rules={**fit.rules, "file": path}) for path, fit in fits if fit), None)


def _recognised(lines: Sequence[str], at_s: Sequence[float] | None = None) -> Recognised | None:
    """Returns the best format; None if there is none."""
    return next(iter(recognise(lines, at=at_s)), None)


def run_request(request: ProbeRequest, *, tell: Callable[[str], None]) -> tuple[Probe, StepWatch]:
    """Runs a program until enough steps came, else once more on a pseudo-terminal; LaunchError if it cannot start."""
    refuse_one_word(request.command)
    rules = request.rules or {}
    caller = caller_environment()
    environment = child_environment(
        caller, FlagSet(), platform_name=request.platform,
        virtual_devices=asked_cpu_devices(caller) if request.platform == "cpu" else None,
    )  # fmt: skip

    def run(*, terminal: bool) -> tuple[Probe, StepWatch]:
        watch = StepWatch(request, tell)
        with contextlib.closing(Scratch(COMPILES)) as dump:
            probe = run_probe(
                request.command, {**environment, "XLA_FLAGS": marks_of(dump.path)},
                cwd=request.cwd, limit_s=request.limit_s, is_enough=watch.is_enough, terminal=terminal,
                file=rules.get("file"),
            )  # fmt: skip
            probe.has_dumped = any(dump.path.iterdir())
            probe.options, probe.partitions = dumped_options(dump.path), partitions_in(dump.path)
            probe.outside = {f for f in probe.outside if not Path(f).is_relative_to(dump.path.resolve())}
        return probe, watch

    is_on_terminal = bool(rules.get("terminal"))
    probe, watch = run(terminal=is_on_terminal)
    steps = watch.steps(probe)
    is_mute = not probe.lines or (probe.status == 0 and (steps is None or len(steps.took_s) <= WARMUP_STEPS))
    if is_on_terminal or "file" in rules or not is_mute or probe.status or watch.in_a_file(probe) is not None:
        return probe, watch
    printed = "no steps" if probe.lines else "nothing"
    tell(f"it printed {printed} into a pipe; once more, with a terminal of its own")
    again, watch_again = run(terminal=True)
    if watch_again.steps(again) is None and (probe.lines or not again.lines):
        return probe, watch
    again.notes.append(f"it printed {printed} into a pipe: started once more on a pseudo-terminal (`terminal = true`)")
    return again, watch_again


def probe_program(request: ProbeRequest, *, tell: Callable[[str], None]) -> ProbeResult:
    """Runs a program once and returns the properties that its study needs.

    Raises:
        LaunchError: If it cannot be started, fails, takes no XLA_FLAGS, or makes no steps that can be read.
        StudyFileError: If a given rule cannot work.
    """
    if request.rules is not None:
        ReadSpec.refuse_bad(request.rules)
    caller = caller_environment()
    if request.platform == "cuda" and is_without_gpus(caller):
        raise LaunchError(
            "the program must run on a GPU but none is here (`autotune doctor` says why): call this where one is, or "
            "add --platform cpu. The program was not started"
        )
    probe, watch = run_request(request, tell=tell)
    steps = watch.steps(probe)
    count = len(steps.took_s) if steps is not None else 0
    if probe.status:
        raise LaunchError(_why_failed(request, probe))
    if steps is None or watch.rules is None or count <= WARMUP_STEPS:
        raise LaunchError(_why_no_steps(request, probe, count, watch))
    if probe.status is not None and count < WARMUP_STEPS + LEAST_STEPS + 1:
        raise LaunchError(
            f"the program must make at least {WARMUP_STEPS + LEAST_STEPS + 1} steps that can be read but ended by "
            f"itself after {count}; let it run longer (more steps, more epochs), or print a line at every step"
        )
    if request.platform == "cuda" and probe.processes and not probe.opens_gpu:
        raise LaunchError(
            "the program must run on a GPU but opened none, although this machine has some: mend its JAX (`autotune "
            "doctor --python INTERPRETER` says what is missing), or add --platform cpu"
        )
    own = own_settings(probe, request.command, request.cwd)
    count_of_devices, device = devices_of(request.platform, {**caller, **own.environment})
    rules = {**watch.rules, **({"terminal": True} if probe.terminal else {})}
    return ProbeResult(
        request=request, probe=probe, steps=steps, rules=rules, doubt=doubt_of(watch.best),
        how=_in_words(rules, is_given=request.rules is not None), device=device, device_count=count_of_devices,
        own=own,
    )  # fmt: skip


def refuse_without_xla(found: ProbeResult) -> None:
    """Refuses a program that has not loaded XLA, unless it works where its processes cannot be seen; LaunchError."""
    request, probe = found.request, found.probe
    scripts = " ".join(scripts_of(request.command, request.cwd).values())
    words = {*map(os.path.basename, request.command), *re.findall(r"[\w.]+", scripts)}
    if not probe.processes and not probe.has_dumped and CARRIERS.isdisjoint(words):
        raise LaunchError(
            "the program must use XLA but none of its processes has loaded jaxlib: no setting here can change it; "
            "name the program that trains with JAX"
        )


def refuse_one_word(command: Sequence[str]) -> None:
    """Refuses a whole command line in quotes, which no shell splits; LaunchError with the command to give."""
    if len(command) == 1 and len(words := command[0].split()) > 1 and not Path(command[0]).exists():
        raise LaunchError(
            f"the command must be given word by word but got one text, {command[0]!r}: write it without the quotes "
            f"(-- {shlex.join(words)}), or as bash -c {shlex.quote(command[0])}"
        )


# ---------------------------------------------------------------------- devices


def devices_of(platform: str, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Returns how many devices a program with this environment has, None if it asks for none, and the name of one."""
    if platform == "cpu":
        return asked_cpu_devices(environment), processor_name()
    gpus = visible_gpus(environment)
    return max(1, len(gpus)), gpus[0].name if gpus else "GPU"


def asked_cpu_devices(environment: Mapping[str, str]) -> int | None:
    """Returns the number of CPU devices that an environment asks for, JAX's own variable first; None without one."""
    flags = [t.value or "" for t in parse_tokens(environment.get("XLA_FLAGS", "")) if t.name == DEVICE_COUNT]
    asked = [environment.get("JAX_NUM_CPU_DEVICES", ""), *reversed(flags)]
    return next((int(text) for text in asked if text.isdigit() and int(text) > 0), None)


def default_platform() -> str:
    """Returns ``cuda`` if a GPU is visible, unless JAX_PLATFORMS begins with ``cpu``."""
    environment = caller_environment()
    is_for_cpu = environment.get("JAX_PLATFORMS", "").split(",")[0] == "cpu"
    return "cpu" if is_for_cpu or not visible_gpus(environment) else "cuda"


# ---------------------------------------------------------------------- interpreter


def program_python(spec: StudySpec, study_dir: Path, *, note: Callable[[str], None] | None) -> str:
    """Returns the interpreter that study or command name, else autotune's own; StudyFileError if it is missing."""
    command = spec.workload.command
    if (named := spec.workload.python) is not None:
        if (found := _there(named, study_dir) or shutil.which(named)) is None:
            raise StudyFileError(f"`workload.python` must be an interpreter that can be started but got {named!r}")
        return found
    if command is not None and (direct := direct_python(command, study_dir)) is not None:
        return direct
    if command is not None and note is not None:
        note(
            f"{command[0]} is no interpreter: that of autotune is asked which settings there are. If the program runs "
            'under another one, name it: [workload] python = "/path/to/python"'
        )
    return driver_python()


def direct_python(command: Sequence[str], folder: Path) -> str | None:
    """Returns the interpreter that a command run in `folder` begins with; None if it begins with none."""
    return _there(command[0], folder) if re.fullmatch(r"python[\d.]*", Path(command[0]).name) else None


def refuse_other_build(asked: str, python: str, spec: StudySpec, facts: WorkloadFacts | None) -> None:
    """Refuses a study whose reference ran on another jaxlib than `asked` of `python`; StudyFileError with both."""
    ran_on = (getattr(facts, "versions", None) or {}).get("jaxlib")
    if spec.workload.command is None or ran_on is None or ran_on == asked:
        return
    raise StudyFileError(
        f"the settings of a study must be those of the build that it runs on, but jaxlib {asked} of {python} was asked "
        f"and the program ran on jaxlib {ran_on}; name the interpreter that it runs under in the study file: "
        '[workload] python = "/path/to/python"'
    )


def _there(name: str, folder: Path) -> str | None:
    """Finds an interpreter; a name with a slash is relative to the folder in which the command runs."""
    return shutil.which(str(folder / Path(name).expanduser()) if "/" in name else name)


# ---------------------------------------------------------------------- reading without a study


def read_log(path: Path) -> Probe:
    """Reads a log or CSV file, or a folder's newest one; AutotuneError if it cannot be read, or holds no text."""
    log = find(path)
    if log is None:
        raise AutotuneError(f"a log must be a file, or a folder with a .jsonl or .csv file, but {path} is none")
    try:
        content = plain_content(log)
        if b"\0" in content[:4096]:
            raise ValueError("it is compressed, binary or UTF-16; unpack it, or export its metrics as CSV or JSON")
        lines = list(lines_of(log.name).feed(content + b"\n"))
    except (OSError, ValueError) as error:
        raise AutotuneError(f"a log must be readable text but {log}: {error}") from error
    return Probe(lines=lines, notes=[f"read {log}"] if log != path else [])


def reading_of(probe: Probe, rules: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the lines of a run or a log by some rules; returns each line's step and totals, as data.

    Args:
        rules: The legal keys of `[workload.read]`; empty if none are known.
    """
    rows: list[dict[str, Any]] = []
    at_s = probe.at_s or [math.nan] * len(probe.lines)
    read: Iterable[tuple[str, float, Step | None]] = ((line, math.nan, None) for line in probe.lines)
    for line, _, step in _read_each(rules, probe.lines, at_s) if rules else read:
        took, loss = (step.step_s, step.loss) if step is not None else (None, None)
        # By the clock a saved log has steps, but no durations.
        rows.append({"line": line, "step_s": took if took == took else None, "loss": loss, "is_step": took is not None})
    times = [row["step_s"] for row in rows if row["step_s"] is not None]
    losses = [row["loss"] for row in rows if row["loss"] is not None]
    return {
        "steps": sum(bool(row["is_step"]) for row in rows), "step_s": statistics.median(times) if times else None,
        "losses": len(losses), "loss": losses[-1] if losses else None, "rules": dict(rules),
        "terminal": probe.terminal, "status": probe.status, "notes": probe.notes, "lines": rows,
    }  # fmt: skip


# ---------------------------------------------------------------------- words


def _in_words(rules: Mapping[str, Any], *, is_given: bool) -> str:
    said = "as you say" if is_given else "recognised"
    if rules.get("preset"):
        return f"lines of {rules['preset']} ({said})"
    if rules.get("json_key"):
        return f"key {rules['json_key']} of JSON lines, in {rules.get('unit', 'step_s')} ({said})"
    duration = re.search(r"\(\?P<(step_\w+|steps_per_s|tokens_per_s|value)>", rules["pattern"])
    if duration is None:
        return f"a line for each step; the time between them counts ({said})"
    return f"durations that are printed, as {duration[1]} ({said})"


def doubt_of(fit: Recognised | None) -> str:
    """Formats the reason not to trust the durations of a recognised format; empty if there is none."""
    if fit is not None and fit.by_clock and fit.in_bursts:
        return "most lines came at once, so the time between them says little: let the program flush what it prints"
    if fit is not None and fit.left_out:
        return f"{len(fit.left_out)} lines of steps are not read, such as: {fit.left_out[0].strip()[:100]}"
    if fit is not None and fit.name_rank == MEAN:
        return "only a mean of several steps is printed: print the duration of each"
    if fit is None or fit.is_within(ALIKE):
        return ""
    return (
        f"a step is said to take {fit.agrees:.2g} times what passes between its lines: a loop that does not wait for "
        "the device (jax.block_until_ready) prints too little; a pattern with a group `step` alone reads the clock"
    )


def _last_lines(lines: Sequence[str]) -> str:
    shown = "".join(f"\n    {line[:160]}" for line in lines[-SHOWN_LINES:])
    return f"Its last lines:{shown}" if shown else "It printed nothing."


def _why_failed(request: ProbeRequest, probe: Probe) -> str:
    lines = list(probe.last_lines) if "file" in (request.rules or {}) else probe.lines or list(probe.last_lines)
    ending = classify_failure(
        exit_status=probe.status, phase="run", error_type=None, message=None, last_lines=tuple(lines), log=None,
        platform=request.platform,
    )  # fmt: skip
    advice = advice_on(ending) or f"run it by hand until it works: {shlex.join(redact_command(request.command))}"
    return (
        f"the program must run but failed after {format_seconds(probe.took_s)}: {ending.message}. {_last_lines(lines)}"
        f"\n  {advice[0].upper()}{advice[1:]}"
    )


def _why_no_steps(request: ProbeRequest, probe: Probe, steps: int, watch: StepWatch) -> str:
    how = "was stopped" if watch.is_stuck else "was stopped by --look-limit"
    how = f"{how if probe.status is None else 'ended without standard input'} after {format_seconds(probe.took_s)}"
    if steps:
        return (
            f"the program must make more than {WARMUP_STEPS} steps that can be read but made {steps} and {how}. "
            f"{_last_lines(probe.lines)}\n  Let it run longer, or print a line at every step"
        )
    wanted = "no line fits the pattern that was given" if request.rules else "no line is known to be a step's"
    if any(BAR.search(plain(line)) for line in probe.lines[-SHOWN_LINES:]):
        wanted = "it draws a progress bar in which no step is known"
    return (
        f"the program must print steps that can be read but {wanted}; it {how}. {_last_lines(probe.lines)}\n  "
        f"{_how_to_read(watch.in_a_file(probe))}"
    )


def options_of(rules: Mapping[str, Any]) -> str:
    """Returns the options of `autotune tune` that say how steps are read."""
    return " ".join(
        f"{option} {shlex.quote(str(rules[key]))}" for key, option in FIRST_LOOK["options"].items() if key in rules
    )


def _how_to_read(fit: Recognised | None) -> str:
    """Formats what to do about steps that were not read, but perhaps are in a file."""
    if fit is None:
        return str(FIRST_LOOK["advice"])
    return (
        f"It writes steps to {fit.rules['file']}, such as:\n    {fit.example[:160]}\n  call the same with: "
        f"{options_of(fit.rules)}"
    )
