"""Assembles the command line; commands import heavy modules when they run."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from autotune import __version__
from autotune.cli import ab, cluster, compile, flags, read, results, run, show, tune
from autotune.cli.help import Grouped
from autotune.cli.printing import guard_streams
from autotune.model.errors import STOPPED, AutotuneError, StoppedError

app = typer.Typer(
    name="autotune",
    help="Finds, proves and exports the fastest XLA / NCCL / JAX settings for a training step.",
    cls=Grouped,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(flags.flags_app, name="flags")
app.add_typer(flags.recipes_app, name="recipes")
app.add_typer(compile.targets_app, name="targets")
app.add_typer(results.library_app, name="library")
for _command in (
    run.run,
    show.status,
    show.show,
    results.report,
    results.compare,
    results.export,
    results.verify,
    results.recheck,
    results.best,
    flags.space,
    flags.symptoms,
    flags.doctor,
    compile.screen,
    compile.predict,
    cluster.submit,
):
    app.command()(_command)
# Options after a program are the program's.
for _of_program in (tune.tune, ab.ab, read.read):
    app.command(context_settings={"allow_interspersed_args": False})(_of_program)
_TAKES_ALL = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command("exec", context_settings=_TAKES_ALL)(results.exec_)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    guard_streams()


def main() -> None:
    """Runs the command line; a user's error gives a message and status 2, without a traceback."""
    # A study that begins takes them over.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(os.EX_TEMPFAIL))
    guard_streams()
    try:
        app()
    except BrokenPipeError:
        sys.exit(141)
    except Exception as error:
        from autotune.machine.environment import without_secrets
        from autotune.rundir.files import cannot_write, is_fault_of_disk

        if isinstance(error, OSError) and is_fault_of_disk(error):
            error = cannot_write(Path(error.filename or "the run directory"), error)
        if not isinstance(error, AutotuneError):
            traceback.print_exc()
            sys.exit(os.EX_SOFTWARE)  # 1 would say something of a comparison
        # Quoted text must not pass for a message, so all lines but the first are indented.
        text = re.sub(r"\n(?!  )", "\n  ", without_secrets(str(error)))
        print(f"autotune: {text}", file=sys.stderr)
        sys.exit(STOPPED if isinstance(error, StoppedError) else 2)
