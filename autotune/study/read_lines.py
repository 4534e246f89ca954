"""What would be read of a program, without a study: its lines from a run or a saved log, each with what it says."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.child import LONGEST_LINE, Recognised, StepReader, find, recognise, records_of
from autotune.machine import caller_environment, child_environment, visible_gpus
from autotune.model import AutotuneError, FlagSet, StudyFileError, format_seconds
from autotune.workers import FirstLook, look_at

ENOUGH_STEPS = 200
SILENT_S = 1.0
"""Time that must be left to start a command once more, on a terminal, after it told no steps in half its time."""

READ_AT_ONCE = 1 << 22
_SILENT = (
    "it printed nothing, neither into a pipe nor on a terminal; let it print each step, write a file that "
    "`--file` or [workload.read] `file` names, or put autotune.hook.steps into its loop"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Lines of a run or a log.

    Attributes:
        lines: Without their ends.
        at: When each came, seconds on some clock; None where a log does not tell.
        terminal: Whether the program had a pseudo-terminal.
        status: How a command ended by itself, as `subprocess` counts; None if it was stopped, or for a log.
        notes: What a person should know of it.
    """

    lines: list[str]
    at: list[float] | None
    terminal: bool = False
    status: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown of it: lines for people, data for programs, and how many steps were read."""

    lines: list[str]
    data: dict[str, Any]
    steps: int


def read_log(path: Path) -> Seen:
    """The lines of a saved log or CSV file; of a folder the newest one.

    Raises:
        AutotuneError: If it cannot be read.
    """
    found = find(path)
    if found is None:
        raise AutotuneError(f"a folder must hold a log but there is no .jsonl or .csv in {path}")
    records, lines = records_of(found.name), list[str]()
    try:
        with found.open("rb") as stream:
            while data := stream.read(READ_AT_ONCE):
                lines += records.feed(data)
        lines += records.feed(b"\n")
    except (OSError, ValueError) as error:
        raise AutotuneError(f"a log must be readable but {found}: {error}") from error
    return Seen(lines=lines, at=None, notes=(f"read {found}",) if found != path else ())


def read_command(command: Sequence[str], *, limit_s: float, terminal: bool | None, rules: Mapping[str, Any]) -> Seen:
    """Runs a command for a while behind a guard and gives its lines; nothing of it lives on.

    Args:
        command: It and its arguments, run in this folder.
        limit_s: Longest time, seconds.
        terminal: Whether its output goes to a pseudo-terminal; None for one only where a pipe stays silent.
        rules: How its steps are read, if that is known: then it is stopped after enough of them.

    Raises:
        LaunchError: If it cannot be started.
    """
    platform = "cuda" if visible_gpus(caller_environment()) else "cpu"
    environment = child_environment(caller_environment(), FlagSet(), platform_name=platform)

    def is_enough(look: FirstLook) -> bool:
        return _steps(look, rules) >= ENOUGH_STEPS if rules else len(look.lines) >= 10 * ENOUGH_STEPS

    def in_vain(look: FirstLook) -> bool:
        return is_enough(look) or (look.took_s > limit_s / 2 and not _steps(look, rules))

    began, on_terminal, notes = time.monotonic(), bool(terminal), list[str]()
    stop = in_vain if terminal is None else is_enough
    look = look_at(command, environment, cwd=Path.cwd(), limit_s=limit_s, is_enough=stop, terminal=on_terminal)
    left_s = limit_s - (time.monotonic() - began)
    if terminal is None and left_s > SILENT_S and not look.status and not _steps(look, rules):
        shown = look_at(command, environment, cwd=Path.cwd(), limit_s=left_s, is_enough=is_enough, terminal=True)
        if _steps(shown, rules) or (shown.lines and not look.lines):
            told = "no steps" if look.lines else "nothing"
            notes.append(f"it printed {told} into a pipe: started once more on a pseudo-terminal (`terminal = true`)")
            look, on_terminal = shown, True
    if not look.lines:
        notes.append(_SILENT)
    if look.status:
        notes.append(f"it ended with status {look.status}")
    return Seen(
        lines=[line for _, line in look.lines],
        at=[at_s for at_s, _ in look.lines],
        terminal=on_terminal and bool(look.lines),
        status=look.status,
        notes=tuple(notes),
    )


def _steps(look: FirstLook, rules: Mapping[str, Any]) -> int:
    if not rules:
        fits = recognise([line for _, line in look.lines], at=[at_s for at_s, _ in look.lines])
        return fits[0].steps if fits else 0
    reader = StepReader(rules)
    told = (reader.read(line, at_s) for at_s, line in look.lines)
    return sum(step is not None and step.step_s is not None for step in told)


def show_reading(seen: Seen, fits: Sequence[Recognised], rules: Mapping[str, Any], *, most: int | None) -> Shown:
    """What some rules read in some lines, line by line, and what that makes.

    Args:
        seen: The lines.
        fits: What was recognised, best first; empty where the rules were given, or nothing fits.
        rules: As `StepReader` takes them; empty if none are known.
        most: Lines that are shown at most; None for all.

    Raises:
        StudyFileError: If a rule cannot work.
    """
    try:
        reader = StepReader(rules) if rules else None
    except ValueError as error:
        raise StudyFileError(f"how steps are read must work but: {error}") from error
    rows, times, losses = [], list[float](), list[float]()
    for i, line in enumerate(seen.lines):
        step = reader.read(line, seen.at[i] if seen.at else float("nan")) if reader is not None else None
        took = step.step_s if step is not None and step.step_s == step.step_s else None
        loss = step.loss if step is not None else None
        if step is not None and step.step_s is not None:
            times.append(step.step_s)
        if loss is not None:
            losses.append(loss)
        rows.append({"line": line, "step_s": took, "loss": loss, "is_step": bool(step and step.step_s is not None)})
    told = [t for t in times if t == t]
    median = statistics.median(told) if told else None
    shown = rows if most is None or len(rows) <= most else rows[: most // 2] + rows[-(most - most // 2) :]
    lines = [_row(row) for row in shown]
    if len(shown) < len(rows):
        lines.insert(
            most // 2 if most else 0, f"{'':21} ... {len(rows) - len(shown)} lines more (--all shows them) ..."
        )
    by = fits[0] if fits else None
    lines += ["", *_summary(seen, rules, by, len(times), median, losses)]
    data = {
        "steps": len(times), "step_s": median, "losses": len(losses), "loss": losses[-1] if losses else None,
        "rules": dict(rules), "terminal": seen.terminal, "status": seen.status, "notes": list(seen.notes),
        "lines": rows,
        "others": [{"rules": dict(f.rules), "steps": f.steps, "step_s": f.step_s} for f in fits[1:]],
    }  # fmt: skip
    return Shown(lines=lines, data=data, steps=len(times))


def _row(row: Mapping[str, Any]) -> str:
    took = format_seconds(row["step_s"]) if row["step_s"] is not None else "step" if row["is_step"] else ""
    loss = f"{row['loss']:.4g}" if row["loss"] is not None else ""
    return f"{took:>10} {loss:>10} | {row['line'][: LONGEST_LINE // 20]}"


def _summary(
    seen: Seen,
    rules: Mapping[str, Any],
    by: Recognised | None,
    steps: int,
    median: float | None,
    losses: Sequence[float],
) -> list[str]:
    if not rules:
        return [
            f"no steps were read in {len(seen.lines)} lines: name a --preset, or write a --pattern such as "
            r"'step_time=(?P<step_s>[\d.]+)'"
        ]
    found = [
        f"{steps} steps in {len(seen.lines)} lines" + (f", {format_seconds(median)} each (median)" if median else "")
    ]
    found[0] += f", {len(losses)} losses, the last {losses[-1]:.4g}" if losses else ", no loss"
    if by is not None and by.by_clock and seen.at is None:
        found.append("the time between lines counts, which a saved log does not tell; a command shows it")
    if by is not None and by.in_bursts:
        found.append("most lines came at once: print with flush=True, or `terminal = true`")
    if by is not None and by.agrees is not None and by.doubtful:
        found.append(
            f"what is printed is {by.agrees:.3g} times what passes between the lines: it does not wait for the device?"
        )
    if by is not None and by.needs_tokens and "tokens_per_step" not in rules:
        found.append("tokens each second are read: say --tokens-per-step to have steps of them")
    more = {**rules, **({"terminal": True} if seen.terminal else {})}
    if (tokens := more.pop("tokens_per_step", None)) is not None:
        found += ["", "[workload]", f"tokens_per_step = {tokens}"]
    return [*found, "", "[workload.read]", *(f"{key} = {_toml(value)}" for key, value in more.items())]


def _toml(value: Any) -> str:
    """A plain value as TOML writes it: a literal text where that can be, for expressions have backslashes."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if "'" not in value:
        return f"'{value}'"
    return f"'''{value}'''" if "'''" not in value and not value.endswith("'") else repr(value)
