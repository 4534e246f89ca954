"""Every process on a GPU leaves what XLA's autotuner chose in it beside its log; see `autotune.model.kernels`.

The program is the same with it (tests/compiler/test_profiles.py), and the text of XLA_FLAGS is the same in every
process of a set, whichever arm it is.
"""

from __future__ import annotations

from pathlib import Path

from autotune.model import DUMP_HERE, DUMP_VARIABLE, KERNELS, Failure, FlagSet, StudySpec


def keeps_kernels(spec: StudySpec) -> bool:
    """Whether processes of a study are told to leave their results.

    Several ranks would write over each other, and a program of the user's own may have another use for the variable.
    """
    return spec.device.platform == "cuda" and spec.workload.entry is not None and spec.device.rank_count == 1


def where_to_leave(settings: FlagSet, folder: Path) -> dict[str, str]:
    """The variables that make a process do so; none where its settings say themselves what becomes of results.

    Args:
        settings: All that the process runs under.
        folder: Where its log goes.
    """
    if KERNELS in settings or any(name in settings for name in DUMP_HERE):
        return {}
    flags = settings.merge(DUMP_HERE).to_environment()["XLA_FLAGS"]
    return {"XLA_FLAGS": flags, DUMP_VARIABLE: str(folder.resolve())}


def is_refused(failure: Failure) -> bool:
    """Whether a process ended because it does not take that."""
    words = (failure.message, *failure.last_lines)
    return any(name in line for name in DUMP_HERE for line in words)
