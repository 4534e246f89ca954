"""Reads which kernels XLA's autotuner chose in a process: it times them in each, and two processes may differ.

The results are left by the process itself (`xla_gpu_dump_autotune_results_to`), as text, in one of two forms: until
about jaxlib 0.10 a list of ``results`` by HLO text, since then one of ``entries`` by a fingerprint of it. Neither is a
format that XLA promises, so nothing is read but what names a kernel and what was chosen for it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from autotune.model.flags import DUMPED_KERNELS
from autotune.model.numbers import Count, LogRatio, Record

DUMP_FILE = "autotune.textproto"
"""Name of the file beside a process's log; XLA tells text from binary by it."""

DUMP_VARIABLE = "TEST_UNDECLARED_OUTPUTS_DIR"
"""Variable whose name XLA replaces by its value in that path: every process has its own file under the same XLA_FLAGS,
and programs keep their names."""

DUMP_HERE = {DUMPED_KERNELS: f"{DUMP_VARIABLE}/{DUMP_FILE}"}
"""What makes a process leave its results where that variable says."""

DEEPEST = 50
"""Messages within each other; XLA's have six."""

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[{}]|\[[^\]\n]*\]|[^\s{}"\'\[\]:;,<>]+')
_TIMES = frozenset({"run_time", "scratch_bytes", "optimal_backend_version"})
"""What is said of a choice and is none."""


class Kernels(Record):
    """Kernels that the autotuner chose in one process.

    Attributes:
        count: Kernels for which there was a choice.
        digest: Equal for equal choices.
    """

    count: Count
    digest: str


class KernelSpread(Record):
    """How the choices of equal processes differ.

    Attributes:
        processes: Those that reported theirs.
        others: Of these, how many chose otherwise than most did.
        apart: Log ratio of their step time over that of most; None where that is not known.
    """

    processes: Count
    others: Count
    apart: LogRatio | None = None


def read_choices(text: str) -> dict[str, str]:
    """Reads what was chosen for each kernel, by its name.

    Raises:
        ValueError: If the text is not what XLA leaves.
    """
    found: dict[str, str] = {}
    for name, entry in _parse(text):
        if name not in ("results", "entries") or not isinstance(entry, list):
            continue
        parts = dict(entry)
        named, chosen = parts.get("key", parts), parts.get("value", parts.get("result"))
        if not isinstance(chosen, list):
            raise ValueError(f"results of an autotuner must say what was chosen but one says {sorted(parts)}")
        named = dict(named) if isinstance(named, list) else named
        target = dict(named["target"]) if isinstance(named.get("target"), list) else named
        key = str(target.get("hlo", target.get("hlo_fingerprint", "")))
        found[f"{_digest(key)} {key[:80]}"] = _render([f for f in chosen if f[0] not in _TIMES])
    return found


def kernels_of(choices: Mapping[str, str]) -> Kernels:
    """The choices of one process, by which kernel they are for."""
    body = "\n".join(f"{name}={choice}" for name, choice in sorted(choices.items()))
    return Kernels(count=len(choices), digest=_digest(body))


def kernel_spread(
    processes: Sequence[Kernels | None], log_times: Sequence[float | None] | None = None
) -> KernelSpread | None:
    """Compares the choices of equal processes; None where fewer than two reported theirs.

    Args:
        processes: Choices of each.
        log_times: Log of each one's step time, against whatever they all are against.
    """
    times = log_times or [None] * len(processes)
    told = [(k.digest, t) for k, t in zip(processes, times, strict=True) if k is not None]
    if len(told) < 2:
        return None
    usual, most = Counter(digest for digest, _ in told).most_common(1)[0]
    others = [t for digest, t in told if digest != usual and t is not None]
    base = [t for digest, t in told if digest == usual and t is not None]
    apart = fmean(others) - fmean(base) if others and base else None
    return KernelSpread(processes=len(told), others=len(told) - most, apart=apart)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(text: str) -> list[Any]:
    """Parses a message in protobuf's text form into pairs of a name and a word, or of a name and fields.

    Raises:
        ValueError: If braces do not match or nest too deeply, or a field has no value.
    """
    stack: list[list[Any]] = [[]]
    name = ""
    for token in _TOKEN.findall(text):
        if token == "{":
            if len(stack) > DEEPEST:
                raise ValueError(f"results of an autotuner must not be nested deeper than {DEEPEST}")
            inner: list[Any] = []
            stack[-1].append((name, inner))
            stack.append(inner)
            name = ""
        elif token == "}":
            if len(stack) == 1 or name:
                raise ValueError("results of an autotuner must be a message in text form but braces do not match")
            stack.pop()
        elif not name:
            name = token
        else:
            stack[-1].append((name, token[1:-1] if token[0] in "\"'" else token))
            name = ""
    if len(stack) != 1 or name:
        raise ValueError("results of an autotuner must be a message in text form but they are cut off")
    return stack[0]


def _render(fields: Sequence[tuple[str, Any]]) -> str:
    """Renders fields on one line, in an order of their own."""
    parts = [f"{n} {{{_render(v)}}}" if isinstance(v, list) else f"{n}: {v}" for n, v in fields]
    return ", ".join(sorted(parts))
