"""Answers, one JSON line per question, how this Python's jaxlib takes XLA_FLAGS texts.

Started by `autotune.settings.parser`, never imported. jaxlib parses XLA_FLAGS once per process and ends the process on
an error; so the library is loaded once, and each question is put to a fork of this process (milliseconds
each).

Questions on standard input: ``{"xla_flags": TEXT}``, ``{"jax_options": true}`` or ``{"usage": true}``.
Answers on standard output: ``{"exit_code": int, "log": str, "options": str | null}`` with the resolved
DebugOptions as a text proto, a mapping of JAX config options, or ``{"usage": str}``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

_MARK = b"\0options\0"
_USAGE_START = b"\nFlags:\n\t--"
_USAGE_PATIENCE_S = 10.0


def ask_parser(text: str) -> dict[str, Any]:
    """Starts a fork in which jaxlib parses `text`, and gives its exit code, log and resolved options."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        os.dup2(write_end, 2)
        _parse_and_exit(text, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        output = pipe.read()
    _, status = os.waitpid(pid, 0)
    log, mark, options = output.partition(_MARK)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "log": log.decode("utf-8", "replace"),
        "options": options.decode("utf-8", "replace") if mark else None,
    }


def _parse_and_exit(text: str, write_end: int) -> None:
    from jaxlib import xla_client

    os.environ["XLA_FLAGS"] = text
    # A temporary CompileOptions would be freed while its debug_options are read: keep both names.
    compile_options = xla_client.CompileOptions()
    build_options = compile_options.executable_build_options
    answer = _MARK + repr(build_options.debug_options).encode()
    while answer:
        answer = answer[os.write(write_end, answer) :]
    os._exit(0)


def read_usage() -> str:
    """The library's own text on every flag; empty if it cannot be had here.

    What the library prints is cut at 15,000 characters. So a fork prints into a pipe that is full: it stops in the
    middle of printing, with the whole text in its memory, where its parent may read it.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write_end, True)
    pid = os.fork()
    if pid == 0:
        os.dup2(write_end, 2)
        _parse_and_exit("--help", write_end)
    before, text = b"", b""
    deadline = time.monotonic() + _USAGE_PATIENCE_S
    try:
        while (not text or text != before) and time.monotonic() < deadline:  # twice the same: no longer growing
            time.sleep(0.02)
            before, text = text, _longest_usage(pid)
    except OSError:  # no such files, or no right to read them
        text = b""
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)
    return text.decode("utf-8", "replace")


def _longest_usage(pid: int) -> bytes:
    found = b""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:  # noqa: PTH123
        for line in maps:
            span, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") or inode != "0":
                continue
            low, high = (int(end, 16) for end in span.split("-"))
            memory.seek(low)
            data = memory.read(high - low)
            start = data.find(_USAGE_START)
            while start >= 0:
                end = data.find(b"\0", start)
                found = max(found, data[start : end if end >= 0 else None], key=len)
                start = data.find(_USAGE_START, start + 1)
    return found


def jax_options() -> dict[str, dict[str, Any]]:
    """Every option of `jax.config`: its type, its legal values if they are few, and its present value."""
    import jax

    # `meta` and `values` are not documented; without them the JAX options simply stay unknown.
    meta = getattr(jax.config, "meta", {})
    found = {}
    for name, value in getattr(jax.config, "values", {}).items():
        kind, _, details = meta.get(name, (str, [], {}))
        found[name] = {
            "type": kind if isinstance(kind, str) else kind.__name__,
            "values": [str(v) for v in details.get("enum_values") or ()],
            "default": None if value is None else str(value),
            "help": str(details.get("help") or ""),
        }
    return found


def main() -> None:
    """Answers questions until standard input ends."""
    import jaxlib.xla_client  # noqa: F401  (loaded before the forks, so that each is cheap)

    for line in sys.stdin:
        question = json.loads(line)
        if "usage" in question:
            answer: dict[str, Any] = {"usage": read_usage()}
        else:
            answer = jax_options() if "jax_options" in question else ask_parser(question["xla_flags"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
