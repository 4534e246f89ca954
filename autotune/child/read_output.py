"""Runs a user's program between guard and driver, and reads its output. Standard library only.

For a ``job`` over the channel (`autotune.child.channel`) it reads steps and answers with ``phase``,
``ready``, ``block``, ``error`` as workers do; the program does not wait, so a ``block`` is its next
steps. After a ``pause`` all its processes are stopped between blocks: a block is then of steps
after the first `PAUSED_LINES` lines, timed here and never by the program's own clock. For a
``probe`` it sends ``lines`` (each with its time in seconds), ``processes`` (of `xla_processes`),
``writes`` (files open for writing) and ``ended``.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from autotune.child.channel import Channel, Message
from autotune.child.devices import memory_in_use
from autotune.child.gpus import machine_report
from autotune.child.guard import (
    CANNOT_START,
    descendants,
    end_descendants,
    send,
    start_program,
    write_all,
)
from autotune.child.output import PIECE, Follow, Lines, Output
from autotune.child.processes import names_of, open_for_writing, xla_processes
from autotune.child.steps import MATCH_LIMIT_S, StepReader, TooSlow, match_limit, plain, read_table

POLL_S = 0.1
LOOK_EVERY_S = 0.5
FILES_EVERY_S = 0.1
KEPT_LINES = 400
PAUSED_LINES = 2  # never count after a pause: the one in which it falls, the next
FEW_LINES = 0.05  # share of a block's lines that may be read at once at its ends
MOST_LATE = 0.5  # share by which a block may begin later for that

_STARTERS = {"salloc", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"}
# Programs whose work runs where no signal to their own processes reaches it.
CARRIERS = {*_STARTERS, "srun", "docker", "podman", "ssh", "raylet"}

LINES_AT_ONCE = 40  # of a message: long records, too, stay below the driver's limit
MOST_LINES = 20_000  # reported lines, the first ones


class ProgramRun:
    """Runs the ``command`` of a job, OSError if it cannot; a subclass handles the lines."""

    def __init__(self, channel: Channel, job: Message) -> None:
        self.channel = channel
        self.job = job
        self._lines = Lines()
        self.last_lines = collections.deque[str](maxlen=KEPT_LINES)
        path = job["rules"].get("file")
        self.file = Follow(Path(job["cwd"]) / path) if path else None
        for number in (signal.SIGINT, signal.SIGTERM):  # the program ends first
            signal.signal(number, lambda *_: None)
        self.program, self.output = start_program(job["command"], cwd=job["cwd"])

    def run(self) -> int:
        """Runs the program to its end or until ``stop``; returns the exit status."""
        sources = [self.output, self.channel.fileno()]
        while True:
            is_over = self.program.poll() is not None  # before its last words
            readable, _, _ = select.select(sources, [], [], POLL_S)
            if self.output in readable and not self.take_output():
                sources.remove(self.output)
            if self.channel.fileno() in readable and not self.take_orders():
                return 0
            if self.file is not None:
                self.take(list(self.file.read()))
            status = self.look()
            if status is not None:
                return status
            if is_over and self.output not in readable:
                return self.ended()

    def take_output(self) -> bool:
        """Passes a piece of the output on, and handles its lines; False at its end."""
        data = os.read(self.output, PIECE)
        write_all(data)
        lines = list(self._lines.feed(data or b"\n"))
        self.last_lines.extend(lines)
        if self.file is None:
            self.take(lines)
        return bool(data)

    def has_output(self, wait_s: float) -> bool:
        """Handles a piece of the output; False if none came within `wait_s` seconds, or will."""
        return bool(select.select([self.output], [], [], wait_s)[0]) and self.take_output()

    def end(self) -> None:
        """Ends the program and what it started; the guard ends what is left."""

        def wait() -> None:
            if not self.has_output(0.05):  # else it would block on a full pipe
                time.sleep(0.01)
            self.program.poll()

        end_descendants(wait)
        while self.has_output(0.0):
            continue

    def take_orders(self) -> bool:
        """Receives messages of the driver; False ends the run."""
        return False

    def take(self, lines: Output) -> None:
        """Handles lines of the file that the program writes or, without one, of its output."""
        raise NotImplementedError

    def look(self) -> int | None:
        """Runs several times a second; an exit status ends the run."""
        raise NotImplementedError

    def ended(self) -> int:
        """Handles the program's own end; returns the exit status."""
        raise NotImplementedError


class Session(ProgramRun):
    """A run that reads steps and sends them in blocks."""

    def __init__(self, channel: Channel, job: Message) -> None:
        channel.enter("start")
        self._reader = StepReader(job["rules"])
        super().__init__(channel, job)
        self._times: list[float] = []
        self._gaps_s: list[float] = []
        self._arrived_s = 0.0
        self._warm: int = job["warmup_steps"]
        self._sent = 0
        self._losses: list[tuple[int, float]] = []
        self._numbers: list[int | None] = []
        self._order: Message | None = None
        self._together: list[int] = []
        self._pauses = False
        self._line_count = self._step_line = 0
        self._started = time.monotonic()

    def run(self) -> int:
        """Runs the program; reports a pattern that takes too long."""
        try:
            return super().run()
        except TooSlow:
            return self.no_result(
                f"a pattern of [workload.read] took over {MATCH_LIMIT_S:.0f} s for one line; "
                "write it simpler"
            )

    def take_orders(self) -> bool:
        """Receives at least one order; ends the program on ``stop``."""
        while (message := self.channel.receive())["type"] in ("block", "pause"):
            if message["type"] == "pause":
                self._pauses = True
                self._pause()
            else:
                self._order = message
                if self._pauses:
                    self._resume()
            if not self.channel.has_message:
                return True
        self.end()
        return False

    def take(self, lines: Output) -> None:
        """Reads the steps in lines."""
        before = len(self._times)
        with match_limit():
            for line in lines:
                self._line_count += 1
                self._read(line)
        count = len(self._times) - before
        self._together += [count] * count

    def look(self) -> int | None:
        """Sends complete blocks."""
        self._answer()
        if self._times or time.monotonic() - self._started <= self.job["limit_s"]:
            return None
        self.end()
        return self.no_result(self._why_too_few())

    def _pause(self) -> None:
        """Stops the program's processes, parents first, until no new one appears."""
        stopped = {os.getpid()}
        while running := [pid for pid in descendants(os.getppid()) if pid not in stopped]:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped.update(running)

    def _resume(self) -> None:
        """Reads what came before the pause; continues children first: parents see none stopped."""
        while self.has_output(0.0):
            continue
        self._earliest = len(self._times) + PAUSED_LINES
        send(reversed(descendants(os.getppid())), signal.SIGCONT)

    def _read(self, line: str) -> None:
        now_s = time.perf_counter()
        step = self._reader.read(line, now_s)
        if step is None:
            return
        if step.step_s is not None:
            if not self._times:
                self.channel.enter("warm-up")
            self._times.append(step.step_s)
            self._step_line = self._line_count
            self._numbers.append(step.number)
            self._gaps_s.append(now_s - self._arrived_s)
            self._arrived_s = now_s
        if step.loss is not None:
            self._losses.append((len(self._times), step.loss))

    def _answer(self) -> None:
        """Sends ``ready`` and the wanted block, when the next step shows that they are whole."""
        if self.channel.phase != "step" and len(self._times) > self._warm:
            self._send_ready()
        order = self._order
        if order is None:
            return
        steps = order["steps"]
        begin = self._paused_block(steps) if self._pauses else self._sent
        is_late = self._pauses and begin > self._earliest + 1 + MOST_LATE * steps
        if len(self._times) < begin + steps and not is_late:
            return
        self._order = None
        if self._pauses:
            self._pause()
        if is_late:
            self.channel.send(
                "block",
                no_pause="it prints several lines at once, as if it did not flush them or had "
                "gone on while it was paused",
            )
        else:
            memory = memory_in_use(self.program.pid) if order.get("memory") else None
            self._send_block(begin, begin + steps, memory=memory)

    def _send_ready(self) -> None:
        """Sends ``ready``, with the machine's libraries: the program's cannot be asked."""
        warm = self._warm
        losses = [loss for step, loss in self._losses if step <= warm]
        self._sent = warm
        self.channel.phase = "step"
        self.channel.send(
            "ready",
            report={
                "warmup_step_times_s": self._times[:warm],
                "losses": losses[: self.job["check_steps"]],
                "step_numbers": [number for number in self._numbers if number is not None],
                "line_s": sorted(self._gaps_s[1 : warm + 1])[warm // 2],
            },
            no_pause=self._why_no_pause(),
            processes=xla_processes(self.program.pid, self.job["variables"]),
            ran_on=machine_report(range(self.job["device_count"] or 1)),
        )

    def _paused_block(self, steps: int) -> int:
        """Returns the first step of a block that begins and ends at lines read with few others."""
        end = len(self._times) - steps + 1
        for begin in range(self._earliest, end):
            at_once = max(self._together[begin - 1], self._together[begin + steps - 1])
            if at_once <= 1 + FEW_LINES * steps:
                return begin
        return end

    def _send_block(self, first: int, last: int, **fields: Any) -> None:
        """Sends a block, and losses since the one before, without the last step's, perhaps cut."""
        step, loss = next((pair for pair in reversed(self._losses) if pair[0] < last), (last, 0.0))
        self.channel.send(
            "block",
            step_times_s=self._step_times(first, last),
            clock_s=sum(self._gaps_s[first:last]),
            loss=loss,
            loss_lag=last - step,
            dropped=first - self._sent,
            losses=[(at - 1, loss) for at, loss in self._losses if self._sent <= at < last],
            **fields,
        )
        self._sent = last
        self._losses = [pair for pair in self._losses if pair[0] >= step]

    def _step_times(self, first: int, last: int) -> list[float]:
        """Returns the seconds of steps; those of paused programs by the clock of this process."""
        if self._reader.uses_clock or not self._pauses:
            return self._times[first:last]
        return [  # a line is of as many steps as its number says
            self._gaps_s[at] / max(1, (self._numbers[at] or 0) - (self._numbers[at - 1] or 0))
            for at in range(first, last)
        ]

    def _why_no_pause(self) -> str:
        """Says why this program cannot be measured by pausing it, as a clause; empty if it can."""
        if self.file is not None:
            return "its steps are read from a file, which does not tell when a line was written"
        if not self._reader.uses_clock and None in self._numbers:
            return (
                "its lines have no number of the step, so only its own clock says how long a "
                "step takes"
            )
        if sum(count > 1 for count in self._together[: self._warm]) > self._warm // 2:
            return "it prints several lines at once, which do not tell when their steps ended"
        carrier = min(CARRIERS & names_of(os.getppid()), default="")
        if carrier:
            return f"its work may run outside of its own processes, which {carrier} starts"
        return ""

    def ended(self) -> int:
        """Reports why there is no result, or waits for further orders."""
        status = self.program.returncode
        if status < 0:
            if -status not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)  # for the guard's report
        while status == 0 and self.channel.phase == "step" and self._order is None:
            if not self.take_orders():
                return 0
            self._answer()
        lines = self.last_lines
        if status == 0 and self.file is None:  # an exception before a step was none
            lines = collections.deque(lines, self._line_count - self._step_line)
        error = last_exception(lines)
        may_end = self._order is not None and self._order.get("may_end", False)
        if error is not None:
            self.channel.send_error(*error)
        elif status == 0 and may_end and len(self._times) > self._sent:
            self._send_block(self._sent, len(self._times), has_ended=True)
        elif status == 0:
            self.no_result(self._why_too_few())
        return status

    def _why_too_few(self) -> str:
        if self._times:
            needed = self._warm + self.job["run_steps"] + 1
            return (
                f"the program ended by itself after {len(self._times)} steps that could be read "
                f"but {needed} are needed (warm-up, measure.run_steps and one more); if it ends "
                "there without these settings too, let it run longer"
            )
        where = "among its output" if self.file is None else f"in {self.job['rules']['file']}"
        lines = " | ".join(line[:120] for line in list(self.last_lines)[-3:])
        if lines:
            lines = f"; the last ones were: {lines}"
        return (
            f"no step could be read {where} ({self._line_count} lines){lines}. Check "
            "[workload.read] of the study"
        )

    def no_result(self, message: str) -> int:
        """Reports why there is no result; returns the exit status."""
        self.channel.send_error("NoResult", message)
        return 1


class ProbedRun(ProgramRun):
    """A run that reports its lines, processes and files."""

    def __init__(self, channel: Channel, job: Message) -> None:
        super().__init__(channel, job)
        self._began = self._looked = self._watched = time.monotonic()
        self._count = 0
        self._variables = re.compile(job["variables"])
        self._processes: list[Message] = []
        self._writes = set[str]()

    def take(self, lines: Output) -> None:
        """Sends lines, with their time."""
        at_s = time.monotonic() - self._began
        rows = [(at_s, line) for line in lines[: MOST_LINES - self._count]]
        self._count += len(rows)
        for begin in range(0, len(rows), LINES_AT_ONCE):
            self.channel.send("lines", lines=rows[begin : begin + LINES_AT_ONCE])

    def look(self) -> None:
        """Sends files that are new, and the processes that have loaded XLA, if they changed."""
        now_s = time.monotonic()
        guard = os.getppid()  # it inherits orphans: a launcher may leave a daemon
        if now_s - self._watched >= FILES_EVERY_S:
            self._watched = now_s
            files = open_for_writing(guard) - self._writes
            if files:
                self._writes |= files
                self.channel.send("writes", files=sorted(files))
        if now_s - self._looked >= (LOOK_EVERY_S if self._processes else FILES_EVERY_S):
            self._looked = now_s
            processes = xla_processes(guard, self._variables)
            if processes != self._processes:
                self._processes = processes
                self.channel.send("processes", processes=processes)

    def ended(self) -> int:
        """Sends the program's status."""
        self.channel.send("ended", status=self.program.returncode)
        return 0


# A line of a traceback, after what a launcher writes before each line.
FRAME = re.compile(
    r"(.*?)(?:  File \".*\", line \d+(?:, in |$)|╭─+ Traceback \(most recent call last\))"
)

_RAISED = re.compile(r"([A-Za-z_](?:[\w.]|<locals>)*)(?:: (.*))?")
_CAUSED = re.compile(
    "direct cause of|Exception (?:ignored|in thread)|Logging error|Error in atexit"
)
# The time before a line, or a whole line of absl's log.
_STAMP = re.compile(
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)? "
    r"|^.*\b[IWEF](?:\d{4})? (?:[\d:.]+ +\d+ )?[\w./-]+:\d+\] .*"
)

_SAID = read_table("failures.toml")["texts"]
# Exceptions in a process that the end of another one causes.
FOLLOW_UP = re.compile("|".join(_SAID["reports"] + _SAID["peer"]))


class Raised(NamedTuple):
    """An exception, with the numbers of its line and of its traceback's last line of a place."""

    error_type: str
    message: str
    frame: int
    line: int


def last_raised(lines: Output) -> Raised | None:
    """Finds the last exception of a traceback in the output, also behind ``[rank0]: ``.

    Its direct cause, or XLA's error before it, counts in its place, what another process's end
    causes only if there is nothing else, and what Python ignores only if nothing came before.
    """
    text = [_STAMP.sub("", plain(line)) for line in lines]
    frames = {}
    exceptions: list[Raised] = []
    is_caused = False
    for i, line in enumerate(text):
        if _CAUSED.search(line):
            is_caused = True
        if "another exception occurred" in line and exceptions:
            is_caused |= exceptions[-1].error_type in ("JaxRuntimeError", "XlaRuntimeError")
        frame = FRAME.match(line)
        if frame:
            frames[frame[1]] = i
            continue
        for prefix, at in frames.items():
            raised = _RAISED.fullmatch(line.removeprefix(prefix))
            if raised is None or not line.startswith(prefix):
                continue
            if not is_caused or not exceptions:
                further = [x for x in text[i + 1 : i + 4] if x.startswith(prefix)]
                message = [raised[2] or "", *(x.removeprefix(prefix) for x in further)]
                name = raised[1].rpartition(".")[2]
                exceptions.append(Raised(name, "\n".join(message).strip(), at, i))
            del frames[prefix]
            is_caused = False
            break
    causes = [raised for raised in exceptions if not FOLLOW_UP.search(": ".join(raised[:2]))]
    return next(reversed(causes or exceptions), None)


def last_exception(lines: Output) -> tuple[str, str] | None:
    """Returns type and message of the exception that `last_raised` finds."""
    raised = last_raised(lines)
    return raised and raised[:2]


def main() -> int:
    """Receives the job and runs its program; returns the exit status, 127 if that cannot start."""
    channel = Channel()
    job = channel.receive()
    if job["type"] == "stop":
        return 0
    kind = ProbedRun if job["type"] == "probe" else Session
    try:
        program = kind(channel, job)
    except OSError as error:
        sys.stderr.write(f"{CANNOT_START} {job['command'][0]}: {error.strerror}\n")
        return 127
    return program.run()
