"""The guard: a small process between driver and worker; no process of the worker outlives it.

Run as ``python -I -S guard.py LOG LOG_BYTES [--remote] -- COMMAND ...`` by a launcher, locally or through ``srun``.
Standard library only, to start in milliseconds. It

* starts the command in a session of its own, with a socket whose number is in ``AUTOTUNE_CHANNEL``;
* relays lines between its stdin/stdout and that socket, so that no worker needs a listening port;
* keeps the first and the last half of ``LOG_BYTES`` of the worker's output;
* when its stdin ends (the driver stopped for any reason), or the command ends, ends every process that descends from
  the command, those that left its session included (it is their "child subreaper", see prctl(2)), by `ENDING`;
* reports as its last line how the command ended.

With ``--remote`` it first reads one line from stdin, ``{"environment": {...}, "keep": [...]}``: the command's whole
environment except for the variables to keep, which the node sets. It answers with a line ``hello``: its node and step,
and a free port.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CHANNEL_VARIABLE = "AUTOTUNE_CHANNEL"
CANNOT_START = "cannot start"
GUARD_PROGRAM = __file__
KILL = ((signal.SIGKILL, 10.0),)
ENDING = ((signal.SIGINT, 2.0), (signal.SIGTERM, 2.0), *KILL)
"""Signals that end processes, each with the seconds before the next."""

STRUCK = b"***"
LAST_LINES, LAST_BYTES = 20, 20_000
"""Limits of the output in the last message."""


class BoundedLog:
    """Writes the first half of its limit at once, and the last half when closed; a full disk ends no running trial."""

    def __init__(self, path: str, limit: int, secrets: Sequence[str] = ()) -> None:
        self._secrets = [os.fsencode(value) for value in secrets]
        self._held = b""
        mode = os.stat(os.path.dirname(path) or ".").st_mode & 0o666 | 0o600  # noqa: PTH116, PTH120 (as above, of time)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        self._half = limit // 2
        self._head = 0
        self._tail = bytearray()
        self._last = b""
        self.total = 0

    def write(self, data: bytes) -> None:
        """Adds a piece of output, in which secrets are struck out."""
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, STRUCK)
        self._held = self._begun_secret(data)
        self._add(data[: len(data) - len(self._held)])

    def _begun_secret(self, data: bytes) -> bytes:
        """The longest end of a piece with which a secret begins: the next piece may go on with it."""
        longest = max(map(len, self._secrets), default=1) - 1
        ends = (data[-n:] for n in range(min(longest, len(data)), 0, -1))
        return next((end for end in ends if any(secret.startswith(end) for secret in self._secrets)), b"")

    def _add(self, data: bytes) -> None:
        self.total += len(data)
        self._last = (self._last + data)[-LAST_BYTES:]
        if self._head < self._half:
            piece = data[: self._half - self._head]
            data = data[self._half - self._head :]
            self._head += len(piece)
            self._put(piece)
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def last_lines(self) -> list[str]:
        """The last lines of the output, each cut to 500 characters."""
        text = (self._last + self._held).decode("utf-8", errors="replace")
        return [line[:500] for line in text.splitlines() if line.strip()][-LAST_LINES:]

    def close(self) -> None:
        """Writes the last half, with a note on the number of omitted bytes."""
        self._add(self._held)
        tail = bytes(self._tail[-self._half :])
        dropped = self.total - self._head - len(tail)
        if dropped > 0:
            self._put(f"\n[... {dropped} bytes of output left out here ...]\n".encode())
        self._put(tail)
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
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_descendants(wait: Callable[[], object], signals: Sequence[tuple[int, float]] = ENDING) -> None:
    """Ends all descendants of this process, also new ones, by signals as in `ENDING`; calls `wait` meanwhile."""
    for number, patience_s in signals:
        told = set[int]()
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            alive = descendants(os.getpid())
            for pid in set(alive) - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)  # a paused process gets no other signal before
            told.update(alive)
            if not alive:
                return
            wait()


def pause_descendants(root: int, *, but: int) -> None:
    """Stops all descendants of a process, also new ones, but one; parents first, which then start no more."""
    told = {but}
    while new := [pid for pid in descendants(root) if pid not in told]:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        told.update(new)


def resume_descendants(root: int) -> None:
    """Continues all descendants of a process; children first, so that no parent sees a stopped one."""
    for pid in reversed(descendants(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


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


def start(command: list[str], channel: socket.socket, output: int) -> int:
    """Forks and runs the command in a session of its own; returns its process number."""
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        die_with_parent(guard)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(channel.fileno(), True)
        os.environ[CHANNEL_VARIABLE] = str(channel.fileno())
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        os.write(2, f"{CANNOT_START} {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def run(log: BoundedLog, command: list[str], received: bytes = b"") -> dict[str, object]:
    """Runs one command to its end, or to that of stdin, of which `received` was read; returns the message ``exit``."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair()
    out_read, out_write = os.pipe2(os.O_CLOEXEC)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    pid = start(command, theirs, out_write)
    theirs.close()
    os.close(out_write)
    relay = Relay(ours)
    ours.sendall(received)
    status: int | None = None
    stopped = False
    poll = select.poll()
    for descriptor in (0, ours.fileno(), out_read, wake_read):
        poll.register(descriptor, select.POLLIN)
    while status is None and not stopped:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                stopped = not relay.to_worker()
            elif descriptor == ours.fileno():
                if not relay.to_driver():
                    poll.unregister(descriptor)
            elif descriptor == out_read:
                data = os.read(out_read, 1 << 16)
                log.write(data)
                if not data:
                    poll.unregister(descriptor)
            else:
                woken = os.read(wake_read, 256)
                stopped = stopped or any(n in woken for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        with contextlib.suppress(ChildProcessError):
            done, code = os.waitpid(pid, os.WNOHANG)
            status = code if done else None

    def wait() -> None:
        _drain(out_read, log)
        reap_all()

    end_descendants(wait)
    reap_all()
    _drain(out_read, log)
    while relay.to_driver():
        pass
    relay.end_line()
    return {
        "type": "exit",
        "exit_status": os.waitstatus_to_exitcode(status) if status is not None else None,
        "stopped": stopped,
        "last_lines": log.last_lines(),
    }


class Relay:
    """Relays bytes between stdin/stdout and the worker's socket."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._in_line = False

    def to_worker(self) -> bool:
        """Relays a piece of stdin; False at its end."""
        data = os.read(0, 1 << 16)
        if data:
            with contextlib.suppress(OSError):
                self._channel.sendall(data)
        return bool(data)

    def to_driver(self) -> bool:
        """Relays a piece from the worker; False when its end is closed."""
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            return False
        if data:
            write_all(data)
            self._in_line = not data.endswith(b"\n")
        return bool(data)

    def end_line(self) -> None:
        """Ends a line that the worker left open."""
        if self._in_line:
            write_all(b"\n")


def write_all(data: bytes) -> None:
    """Writes to stdout; does nothing once its reader is gone."""
    with contextlib.suppress(OSError):  # the end of stdin shows that the driver is gone
        while data:
            data = data[os.write(1, data) :]


def _drain(descriptor: int, log: BoundedLog) -> None:
    """Reads what the output pipe holds."""
    os.set_blocking(descriptor, False)
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 1 << 16):
            log.write(data)


def take_environment() -> bytes:
    """Sets the environment from stdin's first line, says ``hello``, returns the rest; SystemExit if stdin ended."""
    data = b""
    while b"\n" not in data:
        piece = os.read(0, 1 << 16)
        if not piece:
            raise SystemExit(1)
        data += piece
    line, _, rest = data.partition(b"\n")
    message = json.loads(line)
    own = {name: os.environ[name] for name in message["keep"] if name in os.environ}
    node = os.environ.get("SLURMD_NODENAME", "")
    step = os.environ.get("SLURM_STEP_ID", "")
    os.environ.clear()
    os.environ.update({**message["environment"], **own})
    with socket.socket() as probe:
        probe.bind(("", 0))  # never listens: only asks the kernel which port is free
        port = probe.getsockname()[1]
    write_all(json.dumps({"type": "hello", "node": node, "step": step, "port": port}).encode() + b"\n")
    return rest


def main(arguments: list[str]) -> int:
    """Runs the command of the arguments."""
    path, limit, *rest = arguments
    remote = rest[:1] == ["--remote"]
    secrets, dashes, *command = rest[remote:]
    if dashes != "--" or not command:
        raise SystemExit("usage: guard.py LOG LOG_BYTES [--remote] SECRET_VARIABLE,... -- COMMAND ...")
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # A cluster sends them to a whole step before its time limit; only the driver reacts.
        signal.signal(number, signal.SIG_IGN)
    received = take_environment() if remote else b""
    log = BoundedLog(path, int(limit), [os.environ[n] for n in secrets.split(",") if os.environ.get(n)])
    try:
        end = run(log, command, received)
    finally:
        end_descendants(reap_all, KILL)
        log.close()
    write_all(json.dumps(end).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
