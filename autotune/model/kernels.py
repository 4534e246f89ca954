"""Which kernels XLA's autotuner chose in a process: it times them anew in each, and two may end with different ones.

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
"""Variable whose name XLA replaces by its value in that path: so every process has its own file under one text of
XLA_FLAGS, and a set's name for its program stays the same in all of them."""

DUMP_HERE = {DUMPED_KERNELS: f"{DUMP_VARIABLE}/{DUMP_FILE}"}
"""What makes a process leave its results where that variable says."""

MOST_NAMED = 8
"""Kernels that are named where more than those differ."""

DEEPEST = 50
"""Messages within each other; XLA's have six."""

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[{}]|\[[^\]\n]*\]|[^\s{}"\'\[\]:;,<>]+')
_TIMES = frozenset({"run_time", "scratch_bytes", "optimal_backend_version"})
"""What is said of a choice and is none."""


class OtherKernel(Record):
    """A kernel for which a process chose otherwise than the first process of the same set.

    Attributes:
        what: Its name: the beginning of its HLO, or a fingerprint.
        chose: What this process runs; empty if it has no such kernel.
        instead_of: What the first one runs; empty if that has none.
    """

    what: str
    chose: str
    instead_of: str


class Kernels(Record):
    """What one process chose.

    Attributes:
        count: Kernels for which there was a choice.
        digest: Equal for equal choices.
        other_count: For how many of them the first process of the same set, on the same lane, chose otherwise.
        others: The first few of those.
    """

    count: Count
    digest: str
    other_count: Count = 0
    others: tuple[OtherKernel, ...] = ()


class KernelSpread(Record):
    """What equal processes chose.

    Attributes:
        processes: How many told.
        others: How many of them chose otherwise than most did.
        kernels: Of how many kernels at least one process chose otherwise than the first, at most.
        which: The first few of those.
        apart: By how much longer a step of the others takes than of most, as a log ratio; None where that is not known.
    """

    processes: Count
    others: Count
    kernels: Count = 0
    which: tuple[OtherKernel, ...] = ()
    apart: LogRatio | None = None


def read_choices(text: str) -> dict[str, str]:
    """What was chosen for each kernel, by its name.

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


def kernels_of(choices: Mapping[str, str], first: Mapping[str, str]) -> Kernels:
    """What a process chose, beside the first process of the same set."""
    apart = [n for n in sorted({**choices, **first}) if choices.get(n) != first.get(n)]
    others = [OtherKernel(what=n, chose=choices.get(n, ""), instead_of=first.get(n, "")) for n in apart[:MOST_NAMED]]
    body = "\n".join(f"{name}={choice}" for name, choice in sorted(choices.items()))
    return Kernels(count=len(choices), digest=_digest(body), other_count=len(apart), others=tuple(others))


def kernel_spread(
    processes: Sequence[Kernels | None], log_times: Sequence[float | None] | None = None
) -> KernelSpread | None:
    """What equal processes chose; None where fewer than two of them told.

    Args:
        processes: Of each what it chose, None where it did not tell.
        log_times: Of each the logarithm of its step time, against whatever they all are against.
    """
    times = log_times or [None] * len(processes)
    told = [(k, t) for k, t in zip(processes, times, strict=True) if k is not None]
    if len(told) < 2:
        return None
    usual, most = Counter(k.digest for k, _ in told).most_common(1)[0]
    which = {o.what: o for k, _ in told for o in k.others}
    slow, base = (
        [t for k, t in told if t is not None and (k.digest == usual) is is_usual] for is_usual in (False, True)
    )
    return KernelSpread(
        processes=len(told),
        others=len(told) - most,
        kernels=max(len(which), *(k.other_count for k, _ in told)),
        which=tuple(which[name] for name in sorted(which)[:MOST_NAMED]),
        apart=fmean(slow) - fmean(base) if slow and base else None,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(text: str) -> list[Any]:
    """The fields of a message in protobuf's text form: pairs of a name and a word, or the fields of another message.

    Raises:
        ValueError: If braces do not match or are too many, or a field has no value.
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
    """Fields in one line, whatever their order was."""
    parts = [f"{n} {{{_render(v)}}}" if isinstance(v, list) else f"{n}: {v}" for n, v in fields]
    return ", ".join(sorted(parts))
