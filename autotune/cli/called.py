"""Command `ab` for callers of Python."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from autotune.cli import ab as command

if TYPE_CHECKING:
    from autotune.results.api import Study


class Answer(NamedTuple):
    """Result of a comparison."""

    study: Study
    """Its run: `study.verdict` is the sentence, `study.conclusion` the record with the estimate."""
    status: int
    """Exit status of the command: 0 B is no slower, 1 slower, 2 not compared, 3 not settled."""


def ab(a: str, b: str | None = None, **options: Any) -> Answer:
    """Compares two variants of a program as `autotune ab` does, and prints what that prints.

    Ctrl-C ends its processes and raises KeyboardInterrupt; the same call continues.

    Example:
        study, status = autotune.ab("python train.py", b_args="--remat=none", pairs=12)
        print(study.verdict)

    Args:
        a: Command line of A, quoted as for a shell.
        b: That of B, where it is another one.
        options: Options of the command (docs/ab.md), such as `drop_each=True`; those of how steps
            are read are `preset`, `pattern`, `json_key`, `unit`, `step_file` and `loss`.

    Raises:
        StudyFileError: If the variants are equal, or an option is not legal; nothing was measured.
        AutotuneError: If a variant does not run; records stay.
    """
    from autotune.results.api import Study

    command_line = shlex.split(a)
    run_directory = command.run_directory(command_line, options.get("name")).resolve()
    if b is not None:
        command_line += ["--", *shlex.split(b)]
    try:
        command.ab(command_line, **options)
    except typer.Exit as end:
        if end.exit_code > 3:
            raise KeyboardInterrupt from None
        return Answer(Study(run_directory), end.exit_code)
    raise AssertionError("the command ends by its exit status")
