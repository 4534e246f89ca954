"""The child's end of the channel to the driver: JSON lines over a socket from the guard.

Standard library only, because every program with the hook imports it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from autotune.child.guard import CHANNEL_VARIABLE as CHANNEL_VARIABLE
from autotune.child.packages import workloads_root

Message = dict[str, Any]  # a JSON object between driver and child, or a part of one


class Channel:
    """Sends and receives messages; opened once, KeyError, OSError or ValueError without a study."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ[CHANNEL_VARIABLE]))
        self._socket.set_inheritable(False)
        del os.environ[CHANNEL_VARIABLE]  # processes of the program must not use it
        self._buffer = b""
        self.phase = "start"

    def fileno(self) -> int:
        """Descriptor to wait on while `has_message` is false."""
        return self._socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether a message is buffered."""
        return b"\n" in self._buffer

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; NaN and infinity are written as Python's json reads them."""
        self._socket.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def enter(self, phase: str) -> None:
        """Begins and reports a phase."""
        self.phase = phase
        self.send("phase", phase=phase)

    def send_error(self, error_type: str, message: str) -> None:
        """Reports the error that ends this process."""
        self.send("error", phase=self.phase, error_type=error_type, message=message[:4000])

    def receive(self) -> Message:
        """Waits for one message; returns ``stop`` if the driver ended."""
        while not self.has_message:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return {"type": "stop"}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message


Work = Callable[[Channel, Message], None]


def serve(work: Work, prepare: Work | None = None) -> int:
    """Has messages before the job prepared, and works on the job; returns the exit status.

    Any exception, ``SystemExit`` included, is the trial's result: reported and printed.
    """
    channel = Channel()
    job = channel.receive()
    while prepare is not None and job["type"] in {"import", "environment"}:
        prepare(channel, job)
        job = channel.receive()
    if job["type"] != "job":
        return 0
    try:
        sys.path[:0] = job["paths"]
        sys.path.append(str(workloads_root()))  # last: the user's own comes first
        work(channel, job)
    except BaseException as error:
        channel.send_error(type(error).__name__, str(error))
        traceback.print_exc()
        return 1
    return 0
