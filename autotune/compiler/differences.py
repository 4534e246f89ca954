"""What differs between two programs, in words; and one program as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.compiler import program as programs
from autotune.compiler.program import CompiledProgram
from autotune.model import format_bytes


def changes(reference: CompiledProgram, candidate: CompiledProgram) -> Iterator[str]:
    """Clauses such as ``all-gather (async): 9 -> 3``; empty for equal programs, never for different ones."""
    if reference.fingerprint == candidate.fingerprint:
        return
    before, after = programs.figures(reference), programs.figures(candidate)
    found = False
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            found = True
            yield _clause(name, old, new)
    if not found:
        yield "same figures, but other machine code, buffers or order"


def _clause(name: str, old: Any, new: Any) -> str:
    if "bytes" in name:
        moved = ("+" if new > old else "-") + format_bytes(abs(new - old))
        return f"{name.replace(' bytes', '')}: {format_bytes(old)} -> {format_bytes(new)} ({moved})"
    return f"{name}: {old} -> {new}"
