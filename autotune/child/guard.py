"""The guard: a small process between driver and worker; no process of the worker outlives it.

Run as ``python -I -S guard.py LOG LOG_BYTES [--remote] SECRET_VARIABLE,... -- COMMAND ...`` by a
launcher, locally or through ``srun``. Standard library only, to start in milliseconds. It

* starts the command in a session of its own, with a socket whose number is in ``AUTOTUNE_CHANNEL``;
* relays lines between its stdin/stdout and that socket, so that no worker needs a listening port;
* keeps the first and the last half of ``LOG_BYTES`` of the worker's output;
* ends all descendants of the command, also those in other sessions (it is their subreaper, see
  prctl(2)), by `ENDING` when its stdin (with the driver) or the command ends;
* reports as its last line how the command ended.

With ``--remote`` it first reads one line from stdin, ``{"environment": {...}, "keep": [...]}``: the
command's environment without what the node sets; it answers ``hello``: node, step, a free port.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHANNEL_VARIABLE = "AUTOTUNE_CHANNEL"
CANNOT_START = "cannot start"
GUARD_PROGRAM = __file__
KILL = ((signal.SIGKILL, 10.0),)
ENDING = ((signal.SIGINT, 2.0), (signal.SIGTERM, 2.0), *KILL)  # seconds to the next
STRUCK = b"***"
LAST_LINES = 20  # limits of the output in the last message
LAST_BYTES = 20_000


Message = dict[str, object]


class BoundedLog:
    """Writes the first half of its limit at once, the last when closed; ignores a full disk."""

    def __init__(self, path: str, limit: int, secrets: Iterable[str]) -> None:
        self._secrets = [os.fsencode(value) for value in secrets]
        self._held = b""
        mode = os.stat(os.path.dirname(path) or ".").st_mode & 0o666 | 0o600  # noqa: PTH116, PTH120 (as above, of time)
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode
        )
        self._half = limit // 2
        self._kept = max(self._half, LAST_BYTES)
        self._head = 0
        self._last = bytearray()
        self._tail = 0

    def write(self, data: bytes) -> None:
        """Adds a piece of output, in which secrets are struck out."""
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, STRUCK)
        self._held = self._begun_secret(data)
        self._add(data[: len(data) - len(self._held)])

    def _begun_secret(self, data: bytes) -> bytes:
        """Returns the longest end of a piece with which a secret begins, and may go on."""
        longest = max(map(len, self._secrets), default=1) - 1
        for length in range(longest, 0, -1):
            if any(secret.startswith(data[-length:]) for secret in self._secrets):
                return data[-length:]
        return b""

    def _add(self, data: bytes) -> None:
        head = data[: self._half - self._head]
        self._head += len(head)
        self._tail += len(data) - len(head)
        self._put(head)
        self._last += data
        if len(self._last) > 2 * self._kept:
            del self._last[: -self._kept]

    def last_lines(self) -> list[str]:
        """The last lines of the output, each cut to 500 characters."""
        text = (self._last[-LAST_BYTES:] + self._held).decode("utf-8", errors="replace")
        return [line[:500] for line in text.splitlines() if line.strip()][-LAST_LINES:]

    def close(self) -> None:
        """Writes the last half, with a note on the number of omitted bytes."""
        self._add(self._held)
        dropped = max(0, self._tail - self._half)
        if dropped:
            self._put(f"\n[... {dropped} bytes of output left out here ...]\n".encode())
        self._put(bytes(self._last[len(self._last) - self._tail + dropped :]))
        os.close(self._descriptor)

    def _put(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)


def descendants(root: int) -> list[int]:
    """Every living descendant of a process, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib costs a third of the guard's start)
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:  # noqa: PTH123
                    fields = stream.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    tree = [root]
    for parent in tree:
        tree += children.get(parent, [])
    return tree[1:]


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to processes, as far as they are there and may get it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_descendants(
    wait: Callable[[], object], signals: Sequence[tuple[int, float]] = ENDING
) -> None:
    """Ends all descendants of this process, new ones too; calls `wait` after each look at them."""
    for number, patience_s in signals:
        signalled = set[int]()
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            alive = descendants(os.getpid())
            missed = set(alive) - signalled
            send(missed, number)
            send(missed, signal.SIGCONT)  # a paused process gets no other signal before
            signalled |= missed
            if not alive:
                return
            wait()


def reap_all() -> None:
    """Waits for a moment, and reaps all dead children."""
    time.sleep(0.02)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends; ends at once if it already did."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def start_program(
    command: Sequence[str], *, cwd: str | None = None, files: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program in its own session, without input; returns it and its output's pipe.

    It ends with this process: nothing would continue it if it was paused. OSError if it cannot
    start.
    """
    ours, theirs = os.pipe()
    try:
        program = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
            pass_fds=files,
        )
    finally:
        os.close(theirs)
    return program, ours


def run(log: BoundedLog, command: list[str]) -> Message:
    """Runs one command to its end, or to that of stdin; returns the message ``exit``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    os.environ[CHANNEL_VARIABLE] = str(theirs.fileno())
    try:
        program, output = start_program(command, files=[theirs.fileno()])
    except OSError as error:
        log.write(f"{CANNOT_START} {command[0]}: {error.strerror}\n".encode())
        return _end(log, 127, stopped=False)
    theirs.close()
    stopped = False
    relays = {
        ours.fileno(): functools.partial(to_driver, ours),
        output: functools.partial(to_log, output, log),
    }
    poll = select.poll()
    for descriptor in (0, wake_read, *relays):
        poll.register(descriptor, select.POLLIN)
    while program.poll() is None and not stopped:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                stopped = not to_worker(ours)
            elif descriptor == wake_read:
                stopped = stopped or set(os.read(wake_read, 256)) != {signal.SIGCHLD}
            elif not relays[descriptor]():
                poll.unregister(descriptor)

    def wait() -> None:
        os.set_blocking(output, False)
        with contextlib.suppress(OSError):
            while to_log(output, log):
                pass
        reap_all()

    end_descendants(wait)
    wait()
    while to_driver(ours):
        pass
    return _end(log, program.returncode, stopped=stopped)


def _end(log: BoundedLog, status: int, *, stopped: bool) -> Message:
    return {
        "type": "exit",
        "exit_status": status,
        "stopped": stopped,
        "last_lines": log.last_lines(),
    }


def to_worker(channel: socket.socket) -> bool:
    """Relays a piece of stdin; False at its end."""
    data = os.read(0, 1 << 16)
    with contextlib.suppress(OSError):
        channel.sendall(data)
    return bool(data)


def to_driver(channel: socket.socket) -> bool:
    """Relays a piece from the worker to stdout; False when its end is closed."""
    data = b""
    with contextlib.suppress(OSError):
        data = channel.recv(1 << 16)
    write_all(data)
    return bool(data)


def to_log(output: int, log: BoundedLog) -> bool:
    """Reads a piece of the worker's output; False at its end."""
    data = os.read(output, 1 << 16)
    log.write(data)
    return bool(data)


def say(message: Message) -> None:
    """Writes a message to stdout, on a line of its own whatever the worker wrote before."""
    write_all(b"\n" + json.dumps(message).encode() + b"\n")


def write_all(data: bytes) -> None:
    """Writes to stdout; does nothing once its reader is gone."""
    with contextlib.suppress(OSError):  # the end of stdin shows that the driver is gone
        while data:
            data = data[os.write(1, data) :]


def take_environment() -> None:
    """Sets the environment from stdin's first line, and says ``hello``; SystemExit if it ended."""
    with open(0, "rb", buffering=0, closefd=False) as stream:
        line = stream.readline()  # without a buffer: what follows is the worker's
    if not line.endswith(b"\n"):
        raise SystemExit(1)
    message = json.loads(line)
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.environ.update({n: v for n, v in before.items() if n in message["keep"]})
    with socket.socket() as probe:
        probe.bind(("", 0))  # never listens: only asks the kernel which port is free
        port = probe.getsockname()[1]
    node = before.get("SLURMD_NODENAME", "")
    step = before.get("SLURM_STEP_ID", "")
    say({"type": "hello", "node": node, "step": step, "port": port})


def main(arguments: list[str]) -> int:
    """Runs the command of the arguments."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # a cluster's warning is for the driver
    if arguments[2] == "--remote":
        del arguments[2]
        take_environment()
    path, limit, secrets, _, *command = arguments
    log = BoundedLog(path, int(limit), filter(None, map(os.environ.get, secrets.split(","))))
    try:
        end = run(log, command)
    finally:
        end_descendants(reap_all, KILL)
        log.close()
    say(end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
