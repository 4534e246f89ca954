"""The command that looks after a run directory: `fsck`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options
from autotune.cli.printing import print_json, print_lines

if TYPE_CHECKING:
    from autotune.rundir import RunCheck


def fsck(
    run_path: options.Run,
    mend: Annotated[
        bool, typer.Option("--mend", help="Mend what can be mended; what is dropped goes to RUN/lost+found/.")
    ] = False,
    unlock: Annotated[
        bool, typer.Option("--unlock", help="Take away the lock of a driver that died on another machine.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Says what is wrong with a run directory, after a power cut or a failed disk, and mends it.

    Ends with status 1 if anything is wrong still.
    """
    from autotune.rundir import check_run, mend_run
    from autotune.rundir import unlock as take_lock_away

    dead = take_lock_away(run_path) if unlock else None
    found = mend_run(run_path) if mend else check_run(run_path)
    if as_json:
        print_json(found)
    else:
        if unlock:
            print_lines([f"the lock of {dead} is taken away" if dead else "no lock was left"])
        print_lines(_describe(found))
    if found.problems:
        raise typer.Exit(1)


def _describe(found: RunCheck) -> Iterator[str]:
    """One line for each thing that was found, and what to do."""
    if found.writer is not None:
        yield f"{found.writer} is writing this run now: the end of its files may be on the way still"
    for problem in found.mended:
        yield f"mended: {problem}: {problem.mending}"
    for problem in found.problems:
        yield f"{problem}" + (f"; `--mend`: {problem.mending}" if problem.mending else "")
    if not found.problems:
        yield f"{found.run}: {found.record_count} records, nothing wrong" + (" now" if found.mended else "")
    elif any(p.mending for p in found.problems):
        yield f"autotune fsck {found.run} --mend   # mends what can be mended; the study then goes on"
