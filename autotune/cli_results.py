"""The commands on results: report, compare, export, verify, exec, library, best, recheck."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from autotune.winner import Difference, Winner

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE|RUN", help="An exported file of any format, or a run directory.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")
]


class PreferChoice(StrEnum):
    """Which side wins a conflict between the winner and the caller's environment."""

    winner = "winner"
    mine = "mine"


# ---------------------------------------------------------------------- export, verify, exec


def export(
    run_path: RunArgument,
    form: Annotated[
        str,
        typer.Option("--format", help="env, shell, docker, sbatch, k8s, json, toml, python or maxtext."),
    ] = "env",
    output: OutputOption = None,
) -> None:
    """Writes the proven winner as a file, with its evidence in comments."""
    from autotune.errors import AutotuneError, close_matches
    from autotune.export import USE, Format, render
    from autotune.store import Store

    if form not in set(Format):
        legal = ", ".join(Format)
        raise AutotuneError(f"--format must be one of {legal} but got {form!r}{close_matches(form, Format)}")
    text = render(Store.open(run_path), Format(form))
    _write(text, output, hint=f"use it: {USE[Format(form)].format(file=output)}")


def verify(
    file: FileArgument,
    study: Annotated[
        Path | None, typer.Option(help="Study file of the workload that is meant to run; compared too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Says whether this machine is one on which a winner was proven; exits with 1 if not."""
    from autotune.winner import read_winner

    winner = read_winner(file)
    found, notes = _check(file, winner, study)
    if as_json:
        _print_json({"holds": not found, "differences": [d.model_dump() for d in found], "notes": notes})
    else:
        for difference in found:
            print(f"differs  {difference}")
        for note in notes:
            print(f"note     {note}")
        if not found:
            print(f"holds    {winner.study}: this machine is as it was when it was proven")
    if found:
        raise typer.Exit(1)


def _check(file: Path, winner: Winner, study: Path | None) -> tuple[list[Difference], list[str]]:
    """In what a machine, a workload or the file itself differ from the proof, and what was not checked."""
    from datetime import UTC, datetime

    from autotune.export import is_unchanged
    from autotune.spec import load_study
    from autotune.winner import Difference, differences, this_machine

    workload = load_study(study).workload_hash if study else None
    here = this_machine(platform=winner.conditions.platform, workload=workload)
    found, notes = differences(winner.conditions, here), []
    if file.is_file() and not is_unchanged(file.read_text(encoding="utf-8"), winner):
        found.append(Difference(field="file", proven="its text as exported", here="changed since"))
    if workload is None:
        notes.append(f"the workload is not checked (proven: {winner.workload_entry}); name it with --study")
    if winner.recheck_by and datetime.now(UTC).date().isoformat() > winner.recheck_by:
        notes.append(f"the proof is of {winner.ended[:10]}: repeat it with autotune recheck")
    if winner.soaked_s is None:
        notes.append("it was never soaked: watch the first long run for hangs")
    return found, notes


def exec_(
    context: typer.Context,
    file: FileArgument,
    prefer: Annotated[
        PreferChoice | None, typer.Option(help="Who wins where your environment and the winner differ.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run although this machine is not what it was proven on.")
    ] = False,
) -> None:
    """Runs a command under the winner, merged with your XLA_FLAGS: autotune exec FILE -- python train.py."""
    import os

    from autotune import environment
    from autotune.errors import AutotuneError
    from autotune.winner import read_winner

    command = [a for i, a in enumerate(context.args) if not (i == 0 and a == "--")]
    if not command:
        raise AutotuneError(
            "a command must follow, after --, but there is none: autotune exec FILE -- python train.py"
        )
    winner = read_winner(file)
    found, _ = _check(file, winner, None)
    if found and not force:
        raise AutotuneError(
            f"this machine must be as it was when {winner.study} was proven but differs in\n"
            + "\n".join(f"  - {d}" for d in found)
            + "\n  measure again here (autotune recheck), or run it all the same with --force"
        )
    merged, lines = environment.merge_for_exec(
        environment.caller(), winner.settings, prefer=prefer.value if prefer else None
    )
    for line in [*(f"not proven here, forced: {d}" for d in found), *lines]:
        print(f"autotune: {line}", file=sys.stderr, flush=True)
    try:
        os.execvpe(command[0], command, merged)
    except OSError as error:
        raise AutotuneError(
            f"the command must be one that can be started but {command[0]}: {error.strerror}"
        ) from error


# ---------------------------------------------------------------------- helpers


def _write(text: str, output: Path | None, *, hint: str = "") -> None:
    """Text to a file, whole or not at all, or to standard output."""
    from autotune.store import write_atomically

    if output is None:
        sys.stdout.write(text)
        return
    write_atomically(output, text)
    print(f"written to {output}" + (f"; {hint}" if hint else ""), file=sys.stderr)


def _print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=1, default=str) + "\n")
