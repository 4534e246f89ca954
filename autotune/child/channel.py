"""The child's end of the channel to the driver: one JSON object a line, over a socket that the guard passes on.

Standard library only, because every program with the hook imports it.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import traceback
import zlib
from collections.abc import Callable
from typing import Any

from autotune.child.guard import CHANNEL_VARIABLE as CHANNEL_VARIABLE
from autotune.child.packages import workloads_root


class Channel:
    """Sends and receives messages; may be opened once in a process.

    Raises:
        KeyError: If this process was not started by a study.
        OSError: If the channel is not open in this process.
        ValueError: Likewise.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ[CHANNEL_VARIABLE]))
        self._socket.set_inheritable(False)
        del os.environ[CHANNEL_VARIABLE]  # a process that the program starts must not speak for it
        self._buffer = b""
        self.phase = "start"

    def fileno(self) -> int:
        """The descriptor to wait on while `has_message` is false."""
        return self._socket.fileno()

    @property
    def has_message(self) -> bool:
        """Whether a message has been received already."""
        return b"\n" in self._buffer

    def send(self, kind: str, **fields: Any) -> None:
        """Sends one message; NaN and infinity are written as Python reads them back."""
        self._socket.sendall(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def enter(self, phase: str) -> None:
        """Reports the phase that begins."""
        self.phase = phase
        self.send("phase", phase=phase)

    def send_error(self, error_type: str, message: str) -> None:
        """Reports why this process is about to end."""
        self.send("error", phase=self.phase, error_type=error_type, message=message[:4000])

    def receive(self) -> dict[str, Any]:
        """Waits for one message; returns ``stop`` if the driver has ended."""
        while not self.has_message:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                return {"type": "stop"}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))


def serve(work: Callable[[Channel, dict[str, Any]], None]) -> int:
    """Receives the job and works on it; returns the exit status.

    Whatever the work raises, ``SystemExit`` included, is the trial's result: it is reported and printed.
    """
    channel = Channel()
    job = channel.receive()
    if job["type"] != "job":
        return 0
    try:
        sys.path[:0] = job["paths"]
        sys.path.append(str(workloads_root()))  # last: whoever has a `workloads` of his own means that one
        work(channel, job)
    except BaseException as error:
        channel.send_error(type(error).__name__, str(error))
        traceback.print_exc()
        return 1
    return 0


def pack(content: bytes) -> str:
    """Packs bytes for a message: deflated and in base64, because the length of a line is limited."""
    return base64.b64encode(zlib.compress(content, 9)).decode()
