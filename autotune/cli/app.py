"""All commands under one name; each lives beside what it is about. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from autotune.cli import cluster as cli_cluster
from autotune.cli import compile as cli_screen
from autotune.cli import flags as cli_flags
from autotune.cli import results as cli_results
from autotune.cli import run as cli_run
from autotune.cli import show as cli_show

app = typer.Typer(
    name="autotune",
    help="Finds, proves and exports the fastest XLA / NCCL / JAX settings for a training step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(cli_flags.flags_app, name="flags")
app.add_typer(cli_flags.recipes_app, name="recipes")
app.add_typer(cli_screen.targets_app, name="targets")
app.add_typer(cli_results.library_app, name="library")
app.add_typer(cli_results.t4_app, name="t4")
_COMMANDS: tuple[Callable[..., None], ...] = (
    cli_run.run,
    cli_run.worker,
    cli_show.status,
    cli_show.show,
    cli_show.repro,
    cli_results.report,
    cli_results.compare,
    cli_results.export,
    cli_results.verify,
    cli_results.recheck,
    cli_results.best,
    cli_flags.space,
    cli_flags.symptoms,
    cli_flags.doctor,
    cli_screen.screen,
    cli_screen.explain,
    cli_screen.predict,
    cli_cluster.submit,
    cli_show.schema,
)
for _command in _COMMANDS:
    app.command()(_command)
app.command("exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(cli_results.exec_)


def main() -> None:
    """Console entry: errors a user can mend are one message and exit status 2, never a traceback."""
    from autotune.model import STOPPED, AutotuneError, NodeLostError

    try:
        app(standalone_mode=True)
    except NodeLostError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(STOPPED)
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)


if __name__ == "__main__":
    main()
