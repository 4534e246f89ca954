"""`autotune watch`: the report in a browser, while the study runs."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from autotune.cli import options


def watch(
    run_path: options.Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: where there is room.")] = 0,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser of this machine.")] = False,
) -> None:
    """Shows the report in a browser while the study runs: it moves as pairs arrive, and its tables sort and filter.

    The page is served on loopback only, at an address that nobody can guess, and changes nothing. Ctrl-C ends it; the
    study does not notice. From another machine: ssh -L 8000:127.0.0.1:8000 THERE, and --port 8000.
    """
    import webbrowser

    from autotune.results import LivePage

    page = LivePage(run_path, port=port)
    with contextlib.suppress(OSError):
        os.nice(19)  # what it takes to draw is not taken from what is measured
    print(page.address, flush=True)
    if browse:
        webbrowser.open(page.address)
    with contextlib.suppress(KeyboardInterrupt):
        page.serve()
