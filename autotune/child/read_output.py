"""Stands between the guard and a program that knows nothing of this project, and reads its steps.

Standard library only. Every line is seen however much is printed, and nothing that the driver does waits for a regular
expression. It gets a ``job`` over the channel (see `autotune.child.channel`), runs the program, passes its output on,
and speaks as a worker does: ``phase``, ``ready``, ``block``, ``error``. The program can not wait, so a ``block`` is the
next steps that it makes. Told to stop it ends the program politely (SIGTERM), then firmly.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel
from autotune.child.devices import memory_in_use
from autotune.child.gpus import is_on_gpus, ran_on
from autotune.child.output import Follow, Lines, read_piece, start_program
from autotune.child.processes import xla_processes
from autotune.child.steps import StepReader

MATCH_LIMIT_S = 2.0
"""CPU seconds that patterns may take for one piece of output: to backtrack for ever is an error, not a hang."""

POLITE_S = 5.0
FILE_POLL_S = 0.1
KEPT_LINES = 60


class TooSlow(Exception):
    """A pattern took longer than `MATCH_LIMIT_S` for one line."""


def _interrupt(*_: object) -> None:
    raise TooSlow


class Session:
    """One run of the user's program under a driver."""

    def __init__(self, channel: Channel, job: Mapping[str, Any]) -> None:
        self._channel = channel
        self._job = job
        self._reader = StepReader(job["rules"])
        self._times: list[float] = []
        self._sent = 0
        self._losses: list[tuple[int, float]] = []

        self._wanted: list[int] = []
        self._tells_memory = False
        self._line_count = 0
        self._last: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._started = time.monotonic()
        self._ready = False
        path = job["rules"].get("file")
        self._file = Follow(Path(job["cwd"]) / path) if path else None

    def run(self) -> int:
        """Runs the program to its end, or until told to stop; gives the status to end with."""
        self._channel.enter("start")
        program, output = start_program(
            self._job["command"], self._job["cwd"], terminal=bool(self._job["rules"].get("terminal"))
        )
        lines = Lines()
        waiting = [output, self._channel.fileno()]
        signal.signal(signal.SIGVTALRM, _interrupt)
        while True:
            readable, _, _ = select.select(waiting, [], [], FILE_POLL_S)
            if self._channel.fileno() in readable and not self._take_orders():
                _end(program, output)
                return 0
            if output in readable:
                data = read_piece(output)
                if not data:
                    waiting.remove(output)
                _pass_on(data)
                self._take(lines.feed(data), printed=True)
            if self._file is not None:
                self._take(self._file.read(), printed=False)
            self._answer(program.pid)
            if program.poll() is not None and output not in readable:
                return self._ended(program)
            if not self._times and time.monotonic() - self._started > self._job["limit_s"]:
                _end(program, output)
                return self.no_result(self._nothing_read())

    def _take_orders(self) -> bool:
        """Waits for an order of the driver and takes all that are there; False to stop."""
        while (message := self._channel.receive())["type"] == "block":
            self._wanted.append(message["steps"])
            self._tells_memory = bool(message.get("memory"))
            if not self._channel.has_message:
                return True
        return False

    def _take(self, lines: Iterable[str], *, printed: bool) -> None:
        """Looks at some lines; those that are only printed are kept for messages if a file is what is read."""
        signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_LIMIT_S)
        try:
            for line in lines:
                if printed:
                    self._last.append(line)
                if not printed or self._file is None:
                    self._line_count += 1
                    self._read(line)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _read(self, line: str) -> None:
        step = self._reader.read(line, time.perf_counter())
        if step is None:
            return
        if step.step_s is not None:
            if not self._times:
                self._channel.enter("warm-up")
            self._times.append(step.step_s)
        if step.loss is not None:
            self._losses.append((len(self._times), step.loss))

    def _answer(self, pid: int) -> None:
        """Sends what the driver waits for, if it is there."""
        warm = self._job["warmup_steps"]
        # One step more: what was printed of the last warm-up step is whole only when the next one is there.
        if not self._ready and len(self._times) > warm:
            losses = [loss for step, loss in self._losses if step <= warm]
            self._ready, self._sent = True, warm
            self._channel.phase = "step"
            self._channel.send(
                "ready",
                warmup_step_times_s=self._times[:warm],
                losses=losses[: self._job["check_steps"]],
                processes=xla_processes(pid, self._job["variables"]),
                # Of the machine: the program's own libraries are not to be asked from outside.
                ran_on=ran_on(range(self._job["device_count"] or 1)) if is_on_gpus() else {},
            )
        while self._wanted and self._ready and len(self._times) - self._sent >= self._wanted[0]:
            steps = self._wanted.pop(0)
            times = self._times[self._sent : self._sent + steps]
            self._sent += steps
            told = {"memory": memory_in_use(pid)} if self._tells_memory else {}
            # What was printed of the last step may not be whole yet: the loss is of one before, the same each time.
            step, loss = next((told for told in reversed(self._losses) if told[0] < self._sent), (self._sent, 0.0))
            self._channel.send("block", step_times_s=times, loss=loss, loss_lag=self._sent - step, **told)

    def _ended(self, program: subprocess.Popen[bytes]) -> int:
        """What to say and how to end when the program ended by itself."""
        status = program.returncode
        if status < 0:
            # Ends as the program did, so that the guard tells its signal.
            if -status not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        if status > 0:
            error = last_exception(self._last)
            if error is not None:
                self._channel.send_error(*error)
            return status
        if not self._times:
            return self.no_result(self._nothing_read())
        while self._ready and not self._wanted and self._take_orders():
            self._answer(program.pid)
        return self._too_few() if self._wanted or not self._ready else 0

    def _too_few(self) -> int:
        least = self._job["warmup_steps"] + self._job["run_steps"] + 1
        return self.no_result(
            f"the program ended by itself after {len(self._times)} steps that could be read but {least} are needed "
            "(measure.warmup_steps + measure.run_steps + 1); let it run longer"
        )

    def _nothing_read(self) -> str:
        where = f"in {self._job['rules']['file']}" if self._file is not None else "among its output"
        shown = "; the last ones were: " + " | ".join(x[:120] for x in list(self._last)[-3:]) if self._last else ""
        return f"no step could be read {where} ({self._line_count} lines){shown}. Check [workload.read] of the study"

    def no_result(self, message: str) -> int:
        """Tells why there is no result; gives the status to end with."""
        self._channel.send_error("NoResult", message)
        return 1

    def pattern_too_slow(self) -> int:
        """The end of a session whose pattern backtracks for ever."""
        return self.no_result(
            f"a pattern of [workload.read] took over {MATCH_LIMIT_S:.0f} s for one line; write it simpler"
        )


def last_exception(lines: Iterable[str]) -> tuple[str, str] | None:
    """Type and message of the last Python traceback in some output, or None."""
    text = list(lines)
    starts = [i for i, line in enumerate(text) if line.startswith("Traceback (most recent call last)")]
    if not starts:
        return None
    for i in range(starts[-1] + 1, len(text)):
        found = re.fullmatch(r"([A-Za-z_][\w.]*)(?:: (.*))?", text[i])
        if found:
            return found.group(1).rpartition(".")[2], "\n".join([found.group(2) or "", *text[i + 1 : i + 4]]).strip()
    return None


def _pass_on(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _end(program: subprocess.Popen[bytes], output: int) -> None:
    """Ends the program and its group politely, then firmly; what escapes is the guard's."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)
        deadline = time.monotonic() + POLITE_S
        while program.poll() is None and time.monotonic() < deadline:
            # A program that says good-bye must not block on a full pipe.
            if select.select([output], [], [], 0.05)[0]:
                _pass_on(read_piece(output))
        if program.poll() is not None:
            return


def main() -> int:
    """Entry point; see the module's first lines."""
    channel = Channel()
    job = channel.receive()
    if job["type"] != "job":
        return 0
    session = Session(channel, job)
    try:
        return session.run()
    except TooSlow:
        return session.pattern_too_slow()
    except ValueError as error:  # of a file that is none of its kind
        return session.no_result(f"{job['rules'].get('file')}: {error}")
    except OSError as error:
        sys.stderr.write(f"cannot start {job['command'][0]}: {error.strerror}\n")
        return 127
