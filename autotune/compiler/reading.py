"""Reads what a fork of the compile worker leaves in its folder: the program, or the compiler's last words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.compiler import schedule
from autotune.compiler.hlo import parse_module
from autotune.compiler.program import CompiledProgram, Memory
from autotune.model import LaunchError

# Names of the worker's files; it is never imported here.
HLO, THUNKS, NAMES, OPTIONS, LOG, RESULT = (
    "optimized.hlo",
    "thunks.txt",
    "thunk_names.txt",
    "debug_options.txt",
    "compile.log",
    "result.json",
)

FATAL = re.compile(r"[EF]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] (.*)")
_HARMLESS = re.compile(r"cuda drivers|InitializeLog|cuInit|computation_placer|Unable to register")


def read_program(
    folder: Path, found: Mapping[str, Any], *, is_gpu: bool, device_count: int, gpus_per_node: int
) -> CompiledProgram:
    """The program that a fork of the worker left in its folder.

    Raises:
        LaunchError: If it left none: nothing that a step does can be read.
    """
    hlo, thunks, names = (read_text(folder / name) for name in (HLO, THUNKS, NAMES))
    module = parse_module(hlo)
    parsed = schedule.parse_thunks(thunks)
    if not any(c.instructions for c in module.computations.values()) or (is_gpu and not parsed):
        what = "thunks" if hlo else "optimized HLO"
        raise LaunchError(
            f"a compiled step must have instructions and a GPU's must have thunks but XLA's dump holds no {what}; "
            "a workload may have switched it off (xla_dump_to): leave XLA_FLAGS to autotune"
        )
    reader = schedule.Reader(
        module, schedule.parse_names(names), device_count=device_count, gpus_per_node=gpus_per_node
    )
    opcodes, custom_calls = schedule.counts(module)
    return CompiledProgram(
        fingerprint=found.get("fingerprint") or schedule.fingerprint(found["hlo_digest"], thunks),
        versions=found["versions"],
        compile_s=found["compile_s"],
        memory=Memory(**found["memory"]) if found["memory"] else None,
        schedule=reader.schedule(parsed),
        opcodes=opcodes,
        custom_calls=custom_calls,
        flops_per_step=found.get("flops_per_step"),
        tokens_per_step=found.get("tokens_per_step"),
        mesh=found.get("mesh", {}),
        layer_bytes=found.get("layer_bytes", {}),
    )


def read_text(path: Path) -> str:
    """The text of a file; empty without it."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def last_lines(log: Path, count: int = 12) -> tuple[str, ...]:
    """The end of a compiler's output, less what it says in every run, each line cut to 500 characters."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    usage = text.find("\nusage: ")  # of a bad value: all flags follow
    lines = [
        line[:500]
        for line in text[: usage if usage >= 0 else None].splitlines()
        if line.strip() and not _HARMLESS.search(line)
    ]
    fatal = [line for line in lines if FATAL.match(line)][:2]
    return (*fatal, *(line for line in lines[-count:] if line not in fatal))
