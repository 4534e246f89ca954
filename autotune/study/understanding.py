"""What one run of a program shows of it: how its steps are read, how long they take, what it runs on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child import Follow, Recognised, StepReader, last_exception, recognise
from autotune.machine import caller_environment, child_environment, processor_name, visible_gpus
from autotune.model import (
    WARMUP_STEPS,
    FlagSet,
    LaunchError,
    StudyFileError,
    format_seconds,
    parse_tokens,
    redact_command,
)
from autotune.study.interpreter import direct_python
from autotune.study.reading import Reading, read_steps
from autotune.workers import FirstLook, look_at

LEAST_STEPS = 10
"""Steps after warm-up that a study needs in each run."""

ENOUGH_STEPS = 12
ENOUGH_S = 4.0
PATIENCE_S = 60.0
SHOWN_LINES = 6
RECOGNISED_LINES = 600
"""Lines at the end of the output that are looked at to find out how steps are printed."""

TELL_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person says of a program.

    Attributes:
        command: It and its arguments.
        cwd: Folder to run it in.
        platform: ``cpu`` or ``cuda``.
        rules: How its steps are read, as `[workload.read]` has it; None to find out.
        limit_s: Longest time for the look, seconds.
    """

    command: tuple[str, ...]
    cwd: Path
    platform: str
    rules: Mapping[str, Any] | None
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """What is known of a program after one run.

    Attributes:
        asked: What was said of it.
        rules: How its steps are read.
        how: The same in words.
        doubt: What speaks against the durations that are printed; empty if nothing does.
        example: A line from which a step was read.
        step_s: Median of a step, seconds.
        line_s: Mean time from one line that tells a step to the next, seconds: of several steps where not each has a
            line, or only those that are not too soon after the one before. What a study counts is lines.
        start_s: Seconds until its warm-up was over.
        steps: Lines that told a step; all of them if it `ended`.
        ended: Whether it ended by itself.
        device: Kind of device, in words.
        device_count: How many of them.
        python: Interpreter that loaded jaxlib; None if none was seen to.
        jaxlib: Version of that, None if that is not told.
    """

    asked: Asked
    rules: Mapping[str, Any]
    how: str
    example: str
    doubt: str
    step_s: float
    line_s: float
    start_s: float
    steps: int
    ended: bool
    device: str
    device_count: int
    python: str | None
    jaxlib: str | None


def understand(asked: Asked, *, tell: Callable[[str], None]) -> Understood:
    """Runs a program once and finds out what a study of it must say.

    Args:
        asked: The program.
        tell: Told from time to time how far it is.

    Raises:
        LaunchError: If it cannot be started, fails, or makes no steps that can be read; the message shows its last
            lines and says what to do.
        StudyFileError: If a rule that was given cannot work.
    """
    refuse_one_word(asked.command)
    if asked.rules is not None:
        try:
            StepReader(asked.rules)
        except ValueError as error:
            raise StudyFileError(f"how steps are read must work but: {error}") from error
    count = device_count(asked.platform)
    environment = child_environment(
        caller_environment(), FlagSet(), platform_name=asked.platform,
        virtual_devices=count if asked.platform == "cpu" else None,
    )  # fmt: skip
    terminal = bool(asked.rules and asked.rules.get("terminal"))

    def run(*, terminal: bool) -> tuple[_Watch, FirstLook]:
        watch = _Watch(asked, tell)
        return watch, look_at(
            asked.command, environment, cwd=asked.cwd, limit_s=asked.limit_s, is_enough=watch.is_enough,
            terminal=terminal,
        )  # fmt: skip

    watch, look = run(terminal=terminal)
    found = watch.reading(look)
    is_mute = not look.lines or (look.status == 0 and (found is None or len(found[1].took_s) <= WARMUP_STEPS))
    if is_mute and not look.status and not terminal:  # a bar, too, shows its steps on a terminal only
        tell(f"it printed {'no steps' if look.lines else 'nothing'} into a pipe; once more, with a terminal of its own")
        again, shown = run(terminal=True)
        if (on_terminal := again.reading(shown)) is not None or not look.lines:
            watch, look, found, terminal = again, shown, on_terminal, bool(shown.lines)
    if found is not None and terminal:
        found = ({**found[0], "terminal": True}, found[1])
    return _understood(asked, look, found, watch.best, count)


class _Watch:
    """Decides while a program runs whether enough was seen of it."""

    def __init__(self, asked: Asked, tell: Callable[[str], None]) -> None:
        self._asked = asked
        self._tell = tell
        self._told_s = 0.0
        self._seen = -1
        self._found: Reading | None = None
        self._rules = asked.rules
        path = (asked.rules or {}).get("file")
        self._follow = Follow(asked.cwd / path) if path else None
        self._written: list[tuple[float, str]] = []
        self.best: Recognised | None = None

    def reading(self, look: FirstLook) -> tuple[Mapping[str, Any], Reading] | None:
        """The steps among all lines so far, with the rules by which they are read; None if there are none."""
        lines = look.lines if self._follow is None else self._written
        if self._follow is not None:
            self._written += [(look.took_s, line) for line in self._follow.read()]
        if self._seen != len(lines):
            self._seen = len(lines)
            if self._asked.rules is None:
                self.best = _recognised(lines[-RECOGNISED_LINES:])
                self._rules = self.best.rules if self.best is not None else None
            self._found = read_steps(lines, self._rules) if self._rules is not None else None
        return (self._rules, self._found) if self._rules is not None and self._found and self._found.took_s else None

    def is_enough(self, look: FirstLook) -> bool:
        """Whether the program has made steps for a while."""
        found = self.reading(look)
        steps = len(found[1].took_s) if found is not None else 0
        if look.took_s - self._told_s >= TELL_EVERY_S:
            self._told_s = look.took_s
            seen = f"{steps} steps" if steps else f"{len(look.lines)} lines, no step among them yet"
            self._tell(f"{format_seconds(look.took_s)}: {seen}")
        if found is None:
            return False
        since_s = look.took_s - found[1].at_s[0]
        is_long = (since_s >= ENOUGH_S and steps >= ENOUGH_STEPS) or since_s >= PATIENCE_S
        return steps > WARMUP_STEPS + 1 and is_long


def _recognised(lines: Sequence[tuple[float, str]]) -> Recognised | None:
    """The best reading that says how long a step takes; of a rate of tokens nobody says how many a step has."""
    fits = recognise([line for _, line in lines], at=[at_s for at_s, _ in lines])
    return next((fit for fit in fits if not fit.needs_tokens), None)


def _understood(
    asked: Asked,
    look: FirstLook,
    found: tuple[Mapping[str, Any], Reading] | None,
    best: Recognised | None,
    count: int,
) -> Understood:
    program = shlex.join(redact_command(asked.command))
    if look.status:
        raise LaunchError(_why_failed(program, look))
    if found is None or len(found[1].took_s) <= WARMUP_STEPS:
        raise LaunchError(_why_no_steps(asked, look, len(found[1].took_s) if found else 0))
    rules, reading = found
    steps = len(reading.took_s)
    if look.status is not None and steps < WARMUP_STEPS + LEAST_STEPS + 1:
        raise LaunchError(
            f"the program must make at least {WARMUP_STEPS + LEAST_STEPS + 1} steps that can be read but ended by "
            f"itself after {steps}; let it run longer (more steps, more epochs), or print a line at every step"
        )
    if asked.platform == "cuda" and look.pythons and not look.opens_gpu:
        raise LaunchError(
            "the program must run on a GPU but opened none, although this machine has some: mend its JAX (`autotune "
            "doctor --python INTERPRETER` says what is missing), or add --platform cpu"
        )
    python = next(iter(look.pythons), None)
    return Understood(
        asked=asked, rules=rules, how=_in_words(rules, is_given=asked.rules is not None), example=reading.example,
        doubt=_doubt(best),
        step_s=reading.typical_s, line_s=reading.line_s,
        start_s=reading.at_s[min(WARMUP_STEPS, steps - 1)], steps=steps, ended=look.status is not None,
        device=device_words(asked.platform), device_count=count, python=python,
        jaxlib=look.pythons[python] if python else None,
    )  # fmt: skip


def device_count(platform: str) -> int:
    """Devices that a program started here has: the visible GPUs, or as many of the CPU as the caller asks XLA for."""
    environment = caller_environment()
    if platform == "cuda":
        return max(1, len(visible_gpus(environment)))
    asked = [environment.get("JAX_NUM_CPU_DEVICES", "")]
    for token in parse_tokens(environment.get("XLA_FLAGS", "")):
        if token.name == "xla_force_host_platform_device_count":
            asked.append(token.value or "")
    return max((int(text) for text in asked if text.isdigit() and int(text) > 0), default=1)


def device_words(platform: str) -> str:
    """The kind of device, as its driver or the kernel names it."""
    gpus = visible_gpus(caller_environment()) if platform == "cuda" else ()
    return gpus[0].name if gpus else "GPU" if platform == "cuda" else processor_name()


def default_platform() -> str:
    """``cuda`` where a GPU is to be seen, unless the caller's environment keeps JAX on the CPU."""
    environment = caller_environment()
    if environment.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return "cpu"
    return "cuda" if visible_gpus(environment) else "cpu"


def is_named(understood: Understood) -> bool:
    """Whether a study must name the interpreter, for its command does not begin with it."""
    asked = understood.asked
    return understood.python not in (None, direct_python(asked.command, asked.cwd))


def refuse_one_word(command: Sequence[str]) -> None:
    """Refuses a whole command line in quotes: no shell takes it apart.

    Raises:
        LaunchError: If it is one.
    """
    if len(command) == 1 and len(words := command[0].split()) > 1 and not Path(command[0]).exists():
        raise LaunchError(
            f"the command must be given word by word but got one text, {command[0]!r}: write it without the quotes "
            f"(-- {shlex.join(words)}), or as bash -c {shlex.quote(command[0])}"
        )


# ---------------------------------------------------------------------- words


def _in_words(rules: Mapping[str, Any], *, is_given: bool) -> str:
    said = "as you say" if is_given else "recognised"
    if rules.get("preset"):
        return f"lines of {rules['preset']} ({said})"
    if rules.get("json_key"):
        return f"key {rules['json_key']} of JSON lines, in {rules.get('unit', 'step_s')} ({said})"
    if is_given:
        return f"pattern {rules['pattern']} ({said})"
    unit = re.search(r"\(\?P<(step_\w+|steps_per_s|tokens_per_s|value)>", rules["pattern"])
    if unit is None:
        return "a line for each step; the time between them counts (recognised)"
    return f"lines that say {_UNIT_WORDS[unit[1]]} (recognised)"


_UNIT_WORDS = {
    "step_s": "the seconds of a step",
    "step_ms": "the milliseconds of a step",
    "step_us": "the microseconds of a step",
    "steps_per_s": "steps per second",
    "tokens_per_s": "tokens per second",
    "value": "how long a step takes, with its unit",
}


def _doubt(best: Recognised | None) -> str:
    if best is not None and best.by_clock and best.in_bursts:
        return "most lines came at once, so the time between them says little: let the program flush what it prints"
    if best is None or not best.doubtful or best.agrees is None:
        return ""
    return (
        f"a step is said to take {best.agrees:.2g} times what passes between its lines: a loop that does not wait for "
        "the device (jax.block_until_ready) prints too little; --step-pattern with a group `step` alone reads the clock"
    )


def _last_lines(lines: Sequence[str]) -> str:
    if not lines:
        return "It printed nothing."
    return "Its last lines:\n" + "\n".join(f"    {line[:160]}" for line in lines[-SHOWN_LINES:])


def _why_failed(program: str, look: FirstLook) -> str:
    status = look.status or 0
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    error = last_exception(_without_prompt(line) for _, line in look.lines)
    shown = _last_lines([line for _, line in look.lines] or list(look.log))
    advice = f"Run it by hand until it works: {program}"
    if error is not None and error[0] == "EOFError":
        advice = "It reads standard input, and a study gives a program none: give what it asks for as an argument"
    said = f": {error[0]}: {error[1].splitlines()[0] if error[1] else ''}" if error is not None else ""
    return f"the program must run but {how} after {format_seconds(look.took_s)}{said}. {shown}\n  {advice}"


def _without_prompt(line: str) -> str:
    """A traceback's first line as it is, though a question that was printed without an end may stand before it."""
    begins = line.find("Traceback (most recent call last)")
    return line[begins:] if begins > 0 else line


def _why_no_steps(asked: Asked, look: FirstLook, steps: int) -> str:
    lines = [line for _, line in look.lines]
    over = f"ended by itself after {format_seconds(look.took_s)}"
    how = over if look.status is not None else f"ran for {format_seconds(look.took_s)} (--look-limit)"
    if steps:
        more = "Let it run longer" if look.status is not None else "Give it a longer --look-limit"
        return (
            f"the program must make more than {WARMUP_STEPS} steps that can be read but made {steps} and {how}. "
            f"{_last_lines(lines)}\n  {more}, or print a line at every step"
        )
    if not lines:
        return (
            f"the program must print a line at each step but printed nothing and {how}. Let it print one, such as "
            '`print(f"step {i} {seconds:.4f} s loss {loss}", flush=True)`; or, if it writes one to a file, add '
            "--step-file FILE; or put one line into its loop (docs/tune.md, hook)"
        )
    wanted = "no line fits the pattern that was given" if asked.rules else "no line is known to be a step's"
    return (
        f"the program must print steps that can be read but {wanted}; it {how}. {_last_lines(lines)}\n"
        "  add one option that says how a step is printed:\n"
        "    --step-pattern 'step (?P<step>\\d+)'            a line a step: the time between lines counts\n"
        "    --step-pattern '(?P<step_s>[\\d.]+) s/step'     or a duration: step_s, step_ms, steps_per_s\n"
        "    --step-json perf.step_time                     JSON lines: the key of the seconds"
    )
