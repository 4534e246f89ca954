"""Commands on results: pages, comparisons, exports and their checks, and the library."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from autotune.cli import options
from autotune.cli.options import MaybeCount, MaybePath, MaybePaths, MaybeText
from autotune.cli.printing import note, plain, print_json, print_lines, write_text
from autotune.cli.run import print_conclusion, run_to_conclusion
from autotune.model.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.results.verify import Verification
    from autotune.results.winner import Winner

UNCHECKED = 3  # exit status if nothing differs but the run is not here


def report(
    run: options.Run,
    html: Annotated[MaybePath, Option(help="Where to write the page; default: RUN.html.")] = None,
    markdown: Annotated[bool, Option("--md", help="Print Markdown instead.")] = False,
) -> None:
    """Makes one page of a study.

    It loads nothing: verdict, intervals, raw steps, failures, provenance.
    """
    from autotune.results.report import render_html, render_markdown
    from autotune.rundir.store import Store

    store = Store.open(run)
    folder = run.resolve()  # into which only the study writes
    page = html or folder.with_name(f"{folder.name}.html")
    if markdown:
        sys.stdout.write(render_markdown(store))
    else:
        write_text(render_html(store), page, "open it in a browser")


def compare(
    runs: Annotated[list[Path], Argument(metavar="RUN RUN...", help="Run directories.")],
    by: Annotated[
        str,
        Option(
            help="Fields that may differ: gpu, count, jaxlib, plugin, driver, workload, mesh; "
            "comma separated."
        ),
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Compares studies as Markdown.

    Shows winners, settings that agree and no-ops; refuses what is not comparable.
    """
    from autotune.results.comparison import compare_stores
    from autotune.rundir.store import Store

    fields = [field.strip() for field in by.split(",") if field.strip()]
    table = compare_stores([Store.open(run) for run in runs], by=fields)
    if as_json:
        print_json(table.to_json())
    else:
        sys.stdout.write(table.to_markdown())


def export(
    run_path: options.Run,
    form: Annotated[
        str, Option("--format", help="One of docs/results.md, such as shell, or MODULE:CLASS.")
    ] = "env",
    output: options.Output = None,
    force: Annotated[
        bool,
        Option(
            "--force", help="Write a winner whose loss could not be checked, too; the file says so."
        ),
    ] = False,
    needs_loss: options.RequireLoss = False,
    recheck: Annotated[
        MaybePaths,
        Option(
            help="Run in which `autotune recheck` proved it with another study, repeatable; its "
            "ratio is written."
        ),
    ] = None,
) -> None:
    """Writes the proven winner as a file. Its evidence stands in comments."""
    from autotune.results.export import exporter_named, how_to_use
    from autotune.results.winner import require_loss, winner_of, with_rechecks
    from autotune.rundir.store import Store

    exporter = exporter_named(form)
    winner = winner_of(Store.open(run_path), even_unjudged=force)
    if needs_loss:
        require_loss(winner)
    winner = with_rechecks(winner, [Store.open(path) for path in recheck or ()])
    hint = f"use it: {how_to_use(exporter, output)}" if output else ""
    write_text(exporter.render(winner), output, hint)


def verify(
    file: options.WinnerFile,
    study: Annotated[
        MaybePath, Option(help="Study file of the workload to run; it is compared, too.")
    ] = None,
    run: options.FromRun = None,
    as_json: options.Json = False,
) -> None:
    """Checks that this machine still is what a winner needs.

    Exits with 1 if it is another than when that was proven, with 3 if nothing differs but the run
    that proves the file is not here: it is unchecked.
    """
    from autotune.results.export import read_winner
    from autotune.results.verify import check_records
    from autotune.study.recheck import verify_winner

    winner = read_winner(file)
    verification = verify_winner(winner, file, check_records(winner, file, run=run), study=study)
    if as_json:
        print_json(plain(verification, status=verification.status))
    else:
        print_lines(f"differs  {difference}" for difference in verification.differences)
        notes = (verification.unchecked, *verification.notes)
        print_lines(f"note     {text}" for text in notes if text)
        sentences = {
            "holds": "holds    {}: this machine is as it was when it was proven",
            "unchecked": "unchecked  {}: this machine is as the file says; no run was looked at",
        }
        if verification.status in sentences:
            print_lines([sentences[verification.status].format(winner.study)])
    statuses = {"holds": 0, "differs": 1, "unchecked": UNCHECKED}
    raise typer.Exit(statuses[verification.status])


def exec_(
    context: typer.Context,
    file: options.WinnerFile,
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Run although this machine is not what it was proven on, or it is unchecked.",
        ),
    ] = False,
    run: options.FromRun = None,
    needs_loss: options.RequireLoss = False,
) -> None:
    """Runs a command under a winner and your XLA_FLAGS.

    For instance: autotune exec FILE -- python train.py. If the winner holds options of the program,
    the command must have a place for each: autotune exec FILE -- python train.py --batch {batch}.
    """
    from autotune.machine.environment import caller_environment, merge_for_exec
    from autotune.results.winner import require_loss
    from autotune.study.recheck import verify_winner

    command = context.args
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        example = "autotune exec FILE -- python train.py"
        raise AutotuneError(f"a command must follow, after --, but there is none: {example}")
    winner, records = _read_checked(file, run)
    if needs_loss:
        require_loss(winner)
    elif winner.loss and winner.loss.is_silent:
        note(winner.loss.words)
    differences = [str(d) for d in verify_winner(winner, file, records).differences]
    if records.unchecked:
        differences.append(records.unchecked)
    if differences and not force:
        raise AutotuneError(
            f"{file} must hold here but\n"
            + "\n".join(f"  - {line}" for line in differences)
            + "\n  measure again here (autotune recheck), or run it all the same with --force"
        )
    command = _with_options(command, winner, force=force)
    merged, lines = merge_for_exec(caller_environment(), winner.settings, winner.baseline)
    for difference in differences:
        note(f"not proven here, forced: {difference}")
    for line in lines:
        note(f"gives {line}")
    try:
        os.execvpe(command[0], command, merged)
    except OSError as why:
        raise AutotuneError(
            f"the command must be one that can be started but {command[0]}: {why.strerror}"
        ) from why


def _with_options(command: list[str], winner: Winner, *, force: bool) -> list[str]:
    """Puts the winner's options, and those that it leaves as they were, into their places."""
    from autotune.model.options import filled_command, has_shell, placeholders, unsafe_for_shells
    from autotune.model.redaction import REDACTED

    lost = sorted(set(winner.options) - placeholders(command))
    if lost and not force:
        raise AutotuneError(
            f"the winner of {winner.study} holds options of the program "
            f"({', '.join(winner.options)}), so its command must have {{{lost[0]}}} where that "
            "goes but has not; write it, or run without by --force"
        )
    values = {n: v for n, v in winner.workload_options.items() if REDACTED not in str(v)}
    values |= winner.options
    unsafe = unsafe_for_shells(command, values)
    if unsafe and has_shell(command) and not force:
        raise AutotuneError(
            f"an option that a shell gets must be one word without quotes but {unsafe[0]} of the "
            f"winner is {values[unsafe[0]]!r:.200}; start the program without a shell, or run it "
            "all the same with --force"
        )
    return filled_command(command, values)


def _read_checked(file: Path, run: MaybePath = None) -> tuple[Winner, Verification]:
    """Reads a winner and compares it with its records, if found; a difference is an error."""
    from autotune.results.export import read_winner
    from autotune.results.verify import check_records

    winner = read_winner(file)
    verification = check_records(winner, file, run=run)
    if verification.differences:
        raise AutotuneError(
            f"{file} must hold what its run proved but differs in\n"
            + "\n".join(f"  - {d}" for d in verification.differences)
            + "\n  export it again"
        )
    return winner, verification


library_app = typer.Typer(help="A folder of proven winners, made for git.", no_args_is_help=True)


@library_app.command("add")
def library_add(
    runs: Annotated[
        list[Path], Argument(metavar="RUN|FILE...", help="Run directories or exported files.")
    ],
    library: options.Library = Path("library"),
) -> None:
    """Adds winners to the library; a newer proof replaces an older one of the same conditions."""
    from autotune.results.library import add_to_library

    for run in runs:
        winner, records = _read_checked(run)
        if records.unchecked:
            reason, _, _ = records.unchecked.partition("; name")
            remedy = "add the run, or the file beside it"
            raise AutotuneError(f"{run} must be held to its run but is {reason}; {remedy}")
        print(add_to_library(winner, library))


def best(
    gpu: Annotated[MaybeText, Option(help='Such as "NVIDIA H200".')] = None,
    count: Annotated[MaybeCount, Option(min=1, help="Devices.")] = None,
    jaxlib: Annotated[MaybeText, Option(help="A version or its beginning, such as 0.11.")] = None,
    workload: Annotated[MaybeText, Option(help="Such as llama3-8b, or its hash.")] = None,
    library: options.Library = Path("library"),
    as_json: options.Json = False,
) -> None:
    """Gives the best known winner for a GPU and a workload.

    Where there is none: the nearest one, labelled untested.
    """
    from autotune.results.library import best_known, format_match, library_entries

    winners = library_entries(library, note)
    match = best_known(winners, gpu=gpu, count=count, jaxlib=jaxlib, workload=workload)
    _, records = _read_checked(match.path)
    if as_json:
        query = {"tested": match.is_tested, "distance": match.distance}
        file = {"file": str(match.path), "status": records.status}
        print_json(plain(match.winner, **query, **file))
        return
    print_lines([*format_match(match), *filter(None, [records.unchecked])])


def recheck(
    file: options.WinnerFile,
    study: Annotated[
        MaybePaths,
        Option(help="Study file to measure with, repeatable; default: that of the run directory."),
    ] = None,
    run_dir: Annotated[
        MaybePath,
        Option(help="Run directory of the recheck; default runs/NAME-recheck-DATE, then DATE+2."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Proves a winner again, after an upgrade.

    Exits with 1 if it is not faster than the default any more. With several studies it is proven on
    the workload of each: autotune export RUN --recheck RUN2 writes their ratios.
    """
    from autotune.model.records import Outcome
    from autotune.results.export import read_winner
    from autotune.study.preflight import Setup
    from autotune.study.recheck import recheck_directory, recheck_study, recheck_winner

    winner = read_winner(file)
    studies = [recheck_study(file, path) for path in study or (None,)]
    if run_dir and len(studies) > 1:
        reason = f"is the directory of one recheck but {len(studies)} studies are given"
        raise AutotuneError(f"--run-dir {reason}; leave it out")
    is_lost = False
    for spec, folder in studies:
        path = run_dir or recheck_directory(options.RUNS, spec.name)
        measure = functools.partial(recheck_winner, winner=winner)
        session = run_to_conclusion(
            spec, path, study_dir=folder, as_json=as_json, setup=Setup(), do=measure
        )
        if as_json:
            print_conclusion(session, path)
        else:
            print_lines([session.conclusion.sentence, f"everything lies in {path}"])
        is_lost |= session.conclusion.outcome is not Outcome.WINNER
    if is_lost:
        raise typer.Exit(1)
