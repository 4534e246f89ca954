"""A rank on another worker of a gang: the leader's side as a program, the member's side as a handler of its worker.

Run as ``python -m autotune.cluster.carry ADDRESS CA CERTIFICATE KEY GUARD ...`` where ``srun ...`` would stand: it
carries lines between its stdin/stdout and a guard on the member's machine, over the member's own TLS listener. When
either end is gone the connection breaks, the guard's stdin ends, and so does all below it. The member runs the rank
with its own Python, in a folder of its own; the log comes back at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed.comm import CommClosedError, connect
from distributed.comm.core import Comm
from distributed.core import Status
from distributed.security import Security

from autotune.machine import caller_environment, driver_python
from autotune.workers import GuardedProcess

RANK_OPERATION = "autotune_rank"
CONNECT_LIMIT_S = 30.0
CLOSE_PATIENCE_S = 15.0
LONGEST_LINE = 1 << 24
_HERE = ("env",)
"""What "carries" a guard that is on this machine already; it still takes its command's environment from its stdin."""


async def serve_rank(comm: Comm, command: list[str], log_bytes: int) -> Any:
    """Runs a rank on this machine until its end, or until the leader is gone. A handler of a Dask worker's.

    Args:
        comm: The connection, which is the rank's from here on.
        command: What the guard runs, but for the interpreter.
        log_bytes: How much of its output is kept.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-rank-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "rank.log"
        program = [driver_python(), *command]
        process = GuardedProcess(program, caller_environment(), log, log_bytes, cwd=folder, through=_HERE)
        down = asyncio.create_task(_to_rank(comm, process))
        try:
            await _from_rank(comm, process)
        finally:
            down.cancel()
            process.abort()
            await asyncio.to_thread(process.close, CLOSE_PATIENCE_S)
    return Status.dont_reply


async def _to_rank(comm: Comm, process: GuardedProcess) -> None:
    with contextlib.suppress(CommClosedError):
        while line := (await comm.read())["line"]:
            process.send(json.loads(line))
    process.abort()


async def _from_rank(comm: Comm, process: GuardedProcess) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.descriptor, ready.set)
    try:
        while process.end is None:
            await ready.wait()
            ready.clear()
            for message in process.receive():
                if message["type"] == "exit":  # the leader looks at the log when it has read this
                    await comm.write({"log": _text(process.log), "errors": _text(process.guard_log)})
                await comm.write({"line": json.dumps(message)})
    finally:
        loop.remove_reader(process.descriptor)
    await comm.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


async def carry(address: str, security: Security, guard: Sequence[str]) -> int:
    """The leader's side; gives the exit status.

    Args:
        address: The member's worker.
        security: With the pool's certificate.
        guard: The guard's whole command line, as it would be on the leader's machine.
    """
    at = guard.index("--remote")
    log, log_bytes, command = Path(guard[at - 2]), int(guard[at - 1]), list(guard[at + 3 :])
    comm = await connect(address, timeout=CONNECT_LIMIT_S, **security.get_connection_args("worker"))
    await comm.write({"op": RANK_OPERATION, "reply": False, "command": command, "log_bytes": log_bytes})
    down = asyncio.create_task(_from_stdin(comm))
    is_over = False
    try:
        while True:
            frame = await comm.read()
            if "log" in frame:
                log.write_text(frame["log"], encoding="utf-8")
                sys.stderr.write(frame["errors"])
                is_over = True
            else:
                sys.stdout.write(frame["line"] + "\n")
                sys.stdout.flush()
    except CommClosedError as error:
        if not is_over:
            print(f"the connection to {address} has ended: {error}", file=sys.stderr)
        return 0 if is_over else 1
    finally:
        down.cancel()


async def _from_stdin(comm: Comm) -> None:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    with contextlib.suppress(CommClosedError):
        async for line in reader:
            await comm.write({"line": line.decode()})
        await comm.write({"line": ""})


def main(arguments: Sequence[str]) -> int:
    """Entry point; see the module's first lines."""
    address, ca, certificate, key, *guard = arguments
    security = Security(require_encryption=True, tls_ca_file=ca, tls_worker_cert=certificate, tls_worker_key=key)
    try:
        return asyncio.run(carry(address, security, guard))
    except OSError as error:
        print(f"no connection to {address}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
