"""Checks that XLA applied the flags of a compilation.

XLA writes the debug options in force beside its dump, as far as they differ from its defaults. It parses XLA_FLAGS
once in a process: if the options of the step's module name the dump folder of this compilation, all its flags were
parsed. The listed options are compared with the given ones, which also finds a workload that adds to XLA_FLAGS
itself. Without this check an unchanged program does not show that a set is a no-op.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.workers.settings_check import check_debug_options, check_options, parse_debug_options


class FlagsLostError(LaunchError):
    """Flags of a compilation were not applied, or nothing proves that they were."""


def require_applied(
    settings: FlagSet, asked: FlagSet, *, marker: str, written: str, jax_options: Mapping[str, str]
) -> None:
    """Checks that one compilation ran under its flags.

    Args:
        marker: The dump folder, which only this compilation uses.
        written: XLA's text of the options of the step's module; may be empty.

    Raises:
        FlagsLostError: If it did not, or nothing proves it.
    """
    options = parse_debug_options(written)
    lost = [*check_options(asked, jax_options), *check_debug_options(asked, options)]
    if options.get("xla_dump_to") != [marker]:
        lost = ["XLA does not say that it read them"]
    missing = [n for n in asked.of_kind("jax") if n not in jax_options]
    if lost or missing:
        why = "; ".join([*lost, *(f"{n}: this JAX has no such option" for n in missing)])
        raise FlagsLostError(
            f"the flags of a compilation must be applied by XLA but those of [{settings}] were not: {why}; a workload "
            "must leave XLA_FLAGS and jax.config to autotune and compile nothing before it is asked to"
        )
