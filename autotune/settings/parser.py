"""The installed library's own XLA_FLAGS parser, asked in a child process."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from autotune.machine import ChildProcess, caller_environment
from autotune.model import LaunchError

_CHILD = Path(__file__).parents[1] / "child" / "flag_parser.py"
STOP_PATIENCE_S = 1.0
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_BAD_VALUE = re.compile(r"Couldn't interpret value .* for flag (xla_\w+)")
_USAGE = re.compile(r"^\t--(\w+)=(?:\".*?\"|\S*)\s*\t\w+\t(.*?)(?=\n\t--\w+=|\Z)", re.MULTILINE | re.DOTALL)
_BATCH = 100  # jaxlib cuts what it logs at 15,000 characters: the names of unknown flags, and the text of --help


@dataclass(frozen=True, slots=True)
class Answer:
    """How the parser took one text.

    Attributes:
        starts: Whether a process with this text in XLA_FLAGS would start.
        unknown: Names the parser does not know; it names them only if no value was refused.
        refused: Names of flags whose value was refused, as far as the parser names them.
        options: Every resolved option as text, lists joined by commas; empty if the process would not start.
        log: What the library wrote.
    """

    starts: bool
    unknown: tuple[str, ...]
    refused: tuple[str, ...]
    options: Mapping[str, str]
    log: str


def quiet_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child that only answers questions: nothing steers XLA or hides its messages."""
    steering = ("XLA_", "JAX_", "TF_", "LIBTPU", "NCCL_", "CUDA_")
    kept = {k: v for k, v in environment.items() if not k.startswith(steering)}
    return {**kept, "JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


class ParserProcess:
    """One child that has loaded jaxlib; each question costs it a fork of some milliseconds.

    Args:
        python: Interpreter whose jaxlib is asked.
        timeout_s: Longest life of the child, in seconds.
    """

    def __init__(self, python: str, *, timeout_s: float = 60.0) -> None:
        self._python = python
        # -P: modules beside the child's file must not hide others of the same name.
        self._timeout_s = timeout_s
        try:
            env = quiet_environment(caller_environment())
            self._child = ChildProcess([python, "-P", str(_CHILD)], env, errors=subprocess.DEVNULL)
        except OSError as error:
            raise LaunchError(f"{python} must be a working Python but could not be started: {error}") from error
        self._deadline = time.monotonic() + timeout_s

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close(STOP_PATIENCE_S)

    def ask(self, text: str) -> Answer:
        """How the parser takes one text.

        Raises:
            LaunchError: If the child does not answer.
        """
        reply = self._question({"xla_flags": text})
        log = str(reply["log"])
        found = _UNKNOWN.search(log)
        return Answer(
            starts=reply["exit_code"] == 0,
            unknown=tuple(re.findall(r"(?:^|\s)--([^\s=]+)", found.group(1))) if found else (),
            refused=tuple(_BAD_VALUE.findall(log)),
            options=parse_text_proto(str(reply["options"] or "")),
            log=log,
        )

    def sort_out(self, tokens: Mapping[str, str]) -> tuple[set[str], set[str]]:
        """Which of many one-flag texts the parser does not know, and which it refuses; in few questions.

        Args:
            tokens: Flag name to its text, such as ``--xla_gpu_autotune_level=1``.

        Returns:
            The unknown names and the refused names.
        """
        unknown: set[str] = set()
        refused: set[str] = set()
        names = list(tokens)
        pending = [names[i : i + _BATCH] for i in range(0, len(names), _BATCH)]
        while pending:
            group = pending.pop()
            answer = self.ask(" ".join(tokens[n] for n in group))
            named = set(group) & {*answer.unknown, *answer.refused}
            if answer.starts or not group:
                continue
            unknown |= named & set(answer.unknown)
            refused |= named - set(answer.unknown)
            if not named and len(group) == 1:
                refused |= set(group)
                continue
            rest = [n for n in group if n not in named]
            half = len(rest) if named else len(rest) // 2
            pending += [part for part in (rest[:half], rest[half:]) if part]
        return unknown, refused

    def jax_options(self) -> dict[str, dict[str, Any]]:
        """Type, legal values, present value and help text of every ``jax.config`` option.

        Raises:
            LaunchError: If the child does not answer.
        """
        return self._question({"jax_options": True})

    def help_texts(self) -> dict[str, str]:
        """What the library prints of its flags for ``--help``: the first quarter of them, for it cuts the text.

        Raises:
            LaunchError: If the child does not answer.
        """
        found = _USAGE.findall(self.ask("--help").log)
        return {name: " ".join(text.split()) for name, text in found[:-1]}  # the last may be cut itself

    def _question(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self._child.send(question)
        answer = next(self._child.messages(self._deadline - time.monotonic()), None)
        if answer is None:
            raise LaunchError(
                f"jaxlib's flag parser must answer within {self._timeout_s:g} s but {self._child.describe_end()}; "
                f"try: {self._python} -c 'import jaxlib.xla_client'"
            )
        return answer


def parse_text_proto(text: str) -> dict[str, str]:
    """Fields of a text proto; repeated ones joined by commas, map entries as ``key=value``."""
    fields: dict[str, list[str]] = {}
    inner: list[tuple[str, str]] = []
    blocks: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.endswith("{"):
            blocks.append(line[:-1].strip())
        elif line == "}" and blocks:
            block = blocks.pop()
            if not blocks:
                entry = dict(inner)
                is_map = entry.keys() <= {"key", "value"}
                pair = f"{entry.get('key', '')}={entry.get('value', '')}" if is_map else ";".join(map("=".join, inner))
                fields.setdefault(block, []).append(pair)
                inner = []
        elif match := re.fullmatch(r"(\w+): (.*)", line):
            name, value = match.groups()
            if value.startswith('"'):
                value = _unescape(value[1:-1])
            if blocks:
                inner.append((name, value))
            else:
                fields.setdefault(name, []).append(value)
    return {name: ",".join(values) for name, values in fields.items()}


def _unescape(text: str) -> str:
    """Undoes the escapes of a text proto, where bytes beyond ASCII are octal."""
    return (
        text.encode("ascii", "backslashreplace").decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
    )
