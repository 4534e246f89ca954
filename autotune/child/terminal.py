"""Starts a program with its output into a pipe, or into a pseudo-terminal: some print only, or only at once, to those.

Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Sequence

ROWS, COLUMNS = 50, 200
"""Size of the pseudo-terminal: bars are drawn to its width, and a line that does not fit is cut by them."""

CANNOT_DRAW = ("", "dumb", "unknown")
"""What ``TERM`` is where no terminal is (cron, CI, an editor): rich would draw nothing on the one that is lent."""


def start(command: Sequence[str], cwd: str, *, terminal: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program in a session of its own, without input; gives it and the descriptor of its output.

    Args:
        command: It and its arguments.
        cwd: Folder to run in.
        terminal: Whether its output goes to a pseudo-terminal.

    Raises:
        OSError: If it cannot be started.
    """
    if not terminal:
        program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert program.stdout is not None
        return program, program.stdout.fileno()
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        term = os.environ.get("TERM", "")
        environment = {**os.environ, "TERM": "xterm" if term.lower() in CANNOT_DRAW else term}
        program = subprocess.Popen(
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
            env=environment,
        )  # fmt: skip
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return program, ours


def read(descriptor: int, size: int = 1 << 16) -> bytes:
    """What came; empty at the end, which a pseudo-terminal tells by an error (EIO, see pty(7))."""
    try:
        return os.read(descriptor, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
