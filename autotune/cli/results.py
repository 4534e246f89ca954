"""Commands on results: `report`, `compare`, `export`, `verify`, `exec`, `library`, `best`, `recheck`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autotune.cli import options
from autotune.cli.printing import make_console, plain, print_json, print_lines, write_text

if TYPE_CHECKING:
    from autotune.results.winner import RecordCheck, Winner

WATCH_S = 10
"""Seconds between two pages; each costs about one second of a CPU that may be measuring."""

# ---------------------------------------------------------------------- report, compare


def report(
    run_path: options.Run,
    html: Annotated[Path | None, typer.Option(help="Where to write the page; default: RUN/report.html.")] = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown instead.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help=f"Write it again every {WATCH_S} s while the study runs; the page reloads.")
    ] = False,
) -> None:
    """Makes one page of a study that loads nothing: verdict, intervals, raw steps, failures, provenance."""
    from autotune.results.report import render_html, render_markdown
    from autotune.rundir.files import write_atomically
    from autotune.rundir.lock import is_held
    from autotune.rundir.store import Store

    store, page = Store.open(run_path), html or run_path / "report.html"
    if markdown:
        sys.stdout.write(render_markdown(store))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if watch and is_held(run_path):
            print(f"{page} follows the study; open it in a browser. Ctrl-C ends this, not the study", file=sys.stderr)
        while watch and is_held(run_path):
            write_atomically(page, render_html(Store.open(run_path), reload_s=WATCH_S))
            time.sleep(WATCH_S)
    write_text(render_html(Store.open(run_path)), page, hint="open it in a browser")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run directories.")],
    by: Annotated[
        str,
        typer.Option(
            help="Fields that may differ: gpu, count, jaxlib, plugin, driver, workload, mesh; comma separated."
        ),
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Compares studies as Markdown: winners, settings that agree, no-ops; refuses what is not comparable."""
    from autotune.results.comparison import compare_stores
    from autotune.rundir.store import Store

    table = compare_stores([Store.open(r) for r in runs], by=[f.strip() for f in by.split(",") if f.strip()])
    if as_json:
        print_json(table.to_json())
    else:
        sys.stdout.write(table.to_markdown())


# ---------------------------------------------------------------------- export, verify, exec


def export(
    run_path: options.Run,
    form: Annotated[
        str,
        typer.Option("--format", help="env, shell, docker, sbatch, json, maxtext or arguments."),
    ] = "env",
    output: options.Output = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write a winner whose loss could not be checked, too; the file says so."),
    ] = False,
    needs_loss: options.RequireLoss = False,
) -> None:
    """Writes the proven winner as a file, with its evidence in comments."""
    from autotune.model.errors import AutotuneError, close_matches
    from autotune.results.export import USE, ExportFormat, render_export
    from autotune.rundir.store import Store

    if form not in set(ExportFormat):
        legal = ", ".join(ExportFormat)
        raise AutotuneError(f"--format must be one of {legal} but got {form!r}{close_matches(form, ExportFormat)}")
    store = Store.open(run_path)
    text = render_export(store, ExportFormat(form), even_unjudged=force, needs_loss=needs_loss)
    write_text(text, output, hint=f"use it: {USE[ExportFormat(form)].format(file=output)}")


def verify(
    file: options.WinnerFile,
    study: Annotated[Path | None, typer.Option(help="Study file of the workload to run; it is compared, too.")] = None,
    run: options.FromRun = None,
    as_json: options.Json = False,
) -> None:
    """Checks that this machine is as it was when a winner was proven; exits with 1 if not."""
    from autotune.results.export import read_winner
    from autotune.study.recheck import verify_winner

    winner = read_winner(file)
    found = verify_winner(winner, file, study=study, run=run)
    if as_json:
        print_json(found)
    else:
        print_lines(f"differs  {difference}" for difference in found.differences)
        print_lines(f"note     {note}" for note in found.notes)
        if found.status == "holds":
            print_lines([f"holds    {winner.study}: this machine is as it was when it was proven"])
        elif found.status == "unchecked":
            print_lines([f"unchecked  {winner.study}: this machine is as the file says; no run was looked at"])
    if found.status == "differs":
        raise typer.Exit(1)


def exec_(
    context: typer.Context,
    file: options.WinnerFile,
    prefer: Annotated[
        Literal["winner", "mine"] | None,
        typer.Option(help="Whose value counts where both set a flag."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run although this machine is not what it was proven on.")
    ] = False,
    needs_loss: options.RequireLoss = False,
) -> None:
    """Runs a command under the winner, merged with your XLA_FLAGS: autotune exec FILE -- python train.py.

    If the winner holds options of the program, the command must have a place for each: autotune exec FILE -- python
    train.py --batch {batch}.
    """
    from autotune.machine.environment import caller_environment, merge_for_exec
    from autotune.model.errors import AutotuneError
    from autotune.results.winner import require_loss
    from autotune.study.recheck import verify_winner

    command = [a for i, a in enumerate(context.args) if not (i == 0 and a == "--")]
    if not command:
        raise AutotuneError("a command must follow, after --, but there is none: autotune exec FILE -- python train.py")
    winner, _ = _read_checked(file)
    if needs_loss:
        require_loss(winner)
    elif winner.loss is not None and winner.loss.is_silent:
        _say(winner.loss.words)
    found = verify_winner(winner, file).differences
    if found and not force:
        raise AutotuneError(
            f"this machine must be as it was when {winner.study} was proven but differs in\n"
            + "\n".join(f"  - {d}" for d in found)
            + "\n  measure again here (autotune recheck), or run it all the same with --force"
        )
    command = _with_options(command, winner, force=force)
    merged, lines = merge_for_exec(caller_environment(), winner.settings, prefer=prefer)
    print_lines(
        (f"autotune: {line}" for line in (*(f"not proven here, forced: {d}" for d in found), *lines)), stderr=True
    )
    sys.stderr.flush()
    try:
        os.execvpe(command[0], command, merged)
    except OSError as error:
        raise AutotuneError(
            f"the command must be one that can be started but {command[0]}: {error.strerror}"
        ) from error


def _with_options(command: list[str], winner: Winner, *, force: bool) -> list[str]:
    """Puts the winner's options into their places in the command; a missing place is an error."""
    from autotune.model.errors import AutotuneError
    from autotune.model.options import filled, placeholders

    if (lost := sorted(set(winner.options) - placeholders(command))) and not force:
        raise AutotuneError(
            f"the winner of {winner.study} holds options of the program ({', '.join(winner.options)}), so its command "
            f"must have {{{lost[0]}}} where that goes but has not; write it, or run without by --force"
        )
    return [filled(part, winner.options) for part in command]


def _read_checked(file: Path) -> tuple[Winner, RecordCheck]:
    """Reads a winner and compares it with its records, if found; a difference is an error even with `exec --force`."""
    from autotune.model.errors import AutotuneError
    from autotune.results.export import read_winner
    from autotune.results.winner import RecordCheck, check_records

    winner, found = read_winner(file), RecordCheck()
    if file.is_file():
        found = check_records(winner, file)
        if found.unchecked is not None:
            _say(f"{file}: {found.unchecked}")
        if found.differences:
            raise AutotuneError(
                f"{file} must hold what its run proved but differs in\n"
                + "\n".join(f"  - {d}" for d in found.differences)
                + "\n  export it again"
            )
    return winner, found


def _say(line: str) -> None:
    print(f"autotune: {line}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- library, recheck

library_app = typer.Typer(help="A folder of proven winners, made for git.", no_args_is_help=True)


@library_app.command("add")
def library_add(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN|FILE...", help="Run directories or exported files.")],
    library: options.Library = Path("library"),
) -> None:
    """Adds winners to the library; a newer proof replaces an older one under the same conditions."""
    from autotune.results.library import add_to_library

    for run in runs:
        print(add_to_library(_read_checked(run)[0], library))


@library_app.command("list")
def library_list(library: options.Library = Path("library"), as_json: options.Json = False) -> None:
    """Lists the winners of the library."""
    from autotune.results.format import format_estimate
    from autotune.results.library import library_entries
    from autotune.results.winner import check_records

    known = [(e, check_records(e.winner, e.path)) for e in library_entries(library)]
    if as_json:
        print_json([plain(e.winner, file=str(e.path), status=check.status) for e, check in known])
        return
    for e, check in known:
        c, found = e.winner.conditions, e.winner.estimate
        ratio = format_estimate(found) if found else "-"
        line = f"{ratio}  {e.count} x {e.gpu}, jaxlib {c.jaxlib}, {e.winner.workload_entry}: {e.winner.settings}"
        print_lines(["; ".join([line, *(str(told) for told in (check.unchecked, *check.differences) if told)])])


def best(
    gpu: Annotated[str | None, typer.Option(help='Such as "NVIDIA H200".')] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Devices.")] = None,
    jaxlib: Annotated[str | None, typer.Option(help="A version or its beginning, such as 0.11.")] = None,
    workload: Annotated[str | None, typer.Option(help="Such as llama3-8b, or its hash.")] = None,
    library: options.Library = Path("library"),
    as_json: options.Json = False,
) -> None:
    """Gives the best known winner for a GPU, count, jaxlib and workload, or the nearest one, labelled untested."""
    from autotune.results.library import LibraryQuery, best_known, format_match, library_entries

    match = best_known(library_entries(library), LibraryQuery(gpu=gpu, count=count, jaxlib=jaxlib, workload=workload))
    status = _read_checked(match.entry.path)[1].status
    if as_json:
        tested, file = match.is_tested, str(match.entry.path)
        print_json(plain(match.entry.winner, tested=tested, distance=match.distance, file=file, status=status))
        return
    print_lines(format_match(match))


def recheck(
    file: options.WinnerFile,
    study: Annotated[
        Path | None, typer.Option(help="Study file to measure with; default: that of the run directory.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run directory of the recheck; default runs/NAME-recheck-DATE, then DATE+2.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Proves a winner against the default again, after an upgrade; exits with 1 if it is not faster any more."""
    from autotune.cli.live import LineView
    from autotune.model.clock import Stopwatch
    from autotune.model.records import Outcome
    from autotune.results.export import read_winner
    from autotune.study.recheck import new_recheck, recheck_directory, recheck_study, recheck_winner

    winner = read_winner(file)
    spec, folder = recheck_study(file, study)
    path = run_dir or recheck_directory(options.RUNS, spec.name)
    watch = Stopwatch()
    view = LineView(make_console(stderr=as_json), watch, min_effect=spec.measure.min_effect)
    run = new_recheck(spec, path, study_dir=folder, view=view, watch=watch, command=sys.argv)
    conclusion = recheck_winner(run, winner)
    if as_json:
        print_json(plain(conclusion, run=str(path)))
    else:
        print_lines([conclusion.sentence, f"everything lies in {path}"])
    if conclusion.outcome is not Outcome.WINNER:
        raise typer.Exit(1)
