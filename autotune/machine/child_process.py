"""A child process that exchanges JSON objects, one a line, over its stdin and stdout."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from autotune.child.channel import Message
from autotune.machine.environment import Environment
from autotune.model.clock import Stopwatch
from autotune.model.stop import LOOK_EVERY_S, check_stop

LAST_MOMENT_S = 2.0
LONGEST_LINE = 4_000_000  # bytes of an unfinished message after which it is dropped


def format_end(status: int) -> str:
    """Formats an exit status, below 0 a signal, as a clause."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


class ChildProcess:
    """One child in a session of its own, which never blocks its parent without a limit.

    `env` is its whole environment, `is_over` says whether its stdout has been read to its end. The
    constructor raises OSError if it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Environment,
        *,
        errors: int | IO[bytes],
        cwd: str | None = None,
    ) -> None:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=env,
            bufsize=0,
            start_new_session=True,
            cwd=cwd,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in = process.stdin
        self._out = process.stdout
        self.pid = process.pid
        os.set_blocking(self._out.fileno(), False)
        self._buffer = b""
        self.is_over = False

    @property
    def descriptor(self) -> int:
        """File descriptor to wait on for messages."""
        return self._out.fileno()

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def status(self) -> int | None:
        """Returns the exit status, None while it runs; one without stdout gets a moment to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=LAST_MOMENT_S if self.is_over else 0.0)
        return None

    def describe_end(self) -> str:
        """Formats how the process ended, as a clause of a message."""
        status = self.status()
        return "did not" if status is None else format_end(status)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message; the next receive notices a pipe that broke or was closed."""
        with contextlib.suppress(OSError, ValueError):
            self._in.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message]:
        """Returns the messages that have come, without waiting; ignores other lines."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._out.fileno(), 1 << 16):
                self._buffer += data
            self.is_over = True
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > LONGEST_LINE:
            self._buffer = b""
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    messages.append(message)
        return messages

    def messages(self, limit_s: float) -> Iterator[Message]:
        """Yields messages until stdout ends or `limit_s` seconds have passed; see `check_stop`."""
        watch = Stopwatch()  # does not count while both are suspended with their job
        while not self.is_over and (remaining := limit_s - watch.session_s) > 0:
            check_stop()
            select.select([self._out], [], [], min(remaining, LOOK_EVERY_S))
            yield from self.receive()

    def abort(self) -> None:
        """Closes the child's stdin, without waiting, from any thread."""
        with contextlib.suppress(OSError):
            self._in.close()

    def close(self, patience_s: float) -> None:
        """Closes the child's stdin, which should end it; kills it after `patience_s` seconds."""
        self.abort()
        deadline = time.monotonic() + patience_s
        while not self.is_over and (remaining := deadline - time.monotonic()) > 0:
            select.select([self._out], [], [], remaining)
            self.receive()  # the child's last messages must not block on a full pipe
        try:
            self._process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.is_over = True
        self._out.close()
