"""Checks that the flags of a compilation were applied, by XLA's own word and not by the environment it was given.

XLA writes the debug options in force beside its dump, as far as they differ from its defaults. It parses XLA_FLAGS
once in a process: if the options of the step's module name the dump folder of this very compilation, all of its
flags were parsed with that. What is listed besides is compared with what was asked, so that a workload which adds
to XLA_FLAGS itself is found, too. Without this proof a compilation says nothing of a set, least of all that it is a
no-op.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping

from autotune.model import FlagSet, LaunchError
from autotune.workers import check_options

_LINE = re.compile(r"^(\w+): (.+)$", re.MULTILINE)
_DECIDED_LATER = frozenset(
    {
        "xla_backend_optimization_level",
        "xla_cpu_enable_fast_min_max",
        "xla_detailed_logging",
        "xla_gpu_cuda_data_dir",
        "xla_llvm_disable_expensive_passes",
        "xla_test_all_input_layouts",
    }
)
"""Options that JAX writes over for each compilation (jax/_src/compiler.py), and one that its CPU client does."""

_WORDS = {"true": "true", "1": "true", "false": "false", "0": "false"}


class FlagsLostError(LaunchError):
    """Flags of a compilation were not applied, or nothing proves that they were."""


def require_applied(
    settings: FlagSet, asked: FlagSet, *, marker: str, written: str, jax_options: Mapping[str, str]
) -> None:
    """Checks that one compilation ran under its flags.

    Args:
        marker: The dump folder of this compilation and no other.
        written: What XLA wrote of the options of the step's module; empty if it wrote nothing.

    Raises:
        FlagsLostError: If that is not proven.
    """
    options = parse_options(written)
    lost = [*check_options(asked, jax_options), *differing(asked, options)]
    if options.get("xla_dump_to") != [marker]:
        lost = ["XLA does not say that it read them"]
    missing = [n for n in asked.of_kind("jax") if n not in jax_options]
    if lost or missing:
        why = "; ".join([*lost, *(f"{n}: this JAX has no such option" for n in missing)])
        raise FlagsLostError(
            f"the flags of a compilation must be applied by XLA but those of [{settings}] were not: {why}; a workload "
            "must leave XLA_FLAGS and jax.config to autotune and compile nothing before it is asked to"
        )


def parse_options(written: str) -> dict[str, list[str]]:
    """Reads XLA's list of debug options: name to all listed values, quotes removed."""
    found: dict[str, list[str]] = {}
    for name, value in _LINE.findall(written):
        found.setdefault(name, []).append(_plain(value))
    return found


def differing(asked: FlagSet, options: Mapping[str, list[str]]) -> Iterator[str]:
    """Yields a clause for each flag whose listed value is not the requested one.

    What is not listed may be the default, or be kept under another name; lists and enumerations have several
    spellings. Nothing is said of those.
    """
    for name, wanted in asked.of_kind("xla").items():
        got = options.get(name, [])
        if (
            name not in _DECIDED_LATER
            and len(got) == 1
            and _are_comparable(wanted, got[0])
            and not _are_equal(wanted, got[0])
        ):
            yield f"{name}={wanted} became {got[0]}"


def _plain(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(ast.literal_eval(f"b{value}").decode(errors="replace"))
    except (SyntaxError, ValueError):
        return value


def _are_comparable(wanted: str, got: str) -> bool:
    both = (wanted.strip().lower(), got)
    return all(v in _WORDS for v in both) or all(_number(v) is not None for v in both)


def _are_equal(wanted: str, got: str) -> bool:
    one, two = _number(wanted), _number(got)
    if one is not None and two is not None:
        return math.isclose(one, two, rel_tol=1e-5, abs_tol=1e-6)  # XLA keeps 32 bits of some and prints six digits
    return _WORDS.get(wanted.strip().lower(), wanted) == _WORDS.get(got, got)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
