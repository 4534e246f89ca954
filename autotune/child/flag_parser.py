"""Parses XLA_FLAGS texts with the jaxlib of this Python, one JSON line per question and answer.

jaxlib parses XLA_FLAGS once per process and ends the process on an error; so each question goes to
a fork of this process, which has loaded the library.

Questions are ``{"xla_flags": TEXT}`` or ``{"jax_options": true}``, answers ``{"exit_code": int,
"log": str, "options": str | null}`` (DebugOptions as a text proto), or JAX's config options.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_MARK = b"\0options\0"


def ask_parser(text: str) -> dict[str, Any]:
    """Parses a text in a fork; returns its exit code, log and resolved options."""
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
    compile_options = xla_client.CompileOptions()  # kept while its debug_options are read
    build_options = compile_options.executable_build_options
    answer = _MARK + repr(build_options.debug_options).encode()
    while answer:
        answer = answer[os.write(write_end, answer) :]
    os._exit(0)


def jax_options() -> dict[str, dict[str, Any]]:
    """Returns type, legal values if they are few, and value of every option of `jax.config`."""
    import jax
    from jax._src import xla_bridge

    meta = getattr(jax.config, "meta", {})  # not documented: the options may stay unknown
    options = {}
    for name, value in getattr(jax.config, "values", {}).items():
        kind, _, details = meta.get(name, (str, [], {}))
        options[name] = {
            "type": getattr(kind, "__name__", kind),
            "values": [str(v) for v in details.get("enum_values") or ()],
            "default": None if value is None else str(value),
        }
    xla_bridge.discover_pjrt_plugins()
    backends = getattr(xla_bridge, "_backend_factories", ())  # not documented
    # Its value is that of this process; `gpu` would ask for ROCm's backend as well.
    legal = sorted(backends and {"cuda", *backends})
    options.get("jax_platforms", {}).update(values=legal, default=None)
    return options


def main() -> None:
    """Answers questions until standard input ends."""
    import jaxlib.xla_client  # noqa: F401  (loaded before the forks, so that each is cheap)

    for line in sys.stdin:
        question = json.loads(line)
        answer = jax_options() if "jax_options" in question else ask_parser(question["xla_flags"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
