"""Commands that compile without measuring: `screen`, `predict`, `targets`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from autotune.cli import options
from autotune.cli.options import MaybeText, MaybeTexts
from autotune.cli.printing import note, print_json, print_table
from autotune.model.errors import STOPPED

if TYPE_CHECKING:
    from autotune.compiler.screen import Screener
    from autotune.model.spec import StudySpec

targets_app = typer.Typer(help="The GPUs that can be compiled for.", no_args_is_help=True)


def screen(
    study: options.Study,
    target: options.Target = None,
    topology: options.Topology = None,
    time_limit: Annotated[
        MaybeText,
        Option(
            help="Show what is known after so long, such as 30m; the same command then goes on."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Says which settings change a program, without a GPU.

    Names those that do nothing there, and what does not fit.
    """
    from autotune.compiler.screen import chains, domains
    from autotune.machine.environment import driver_python
    from autotune.results.screen_words import describe_screen
    from autotune.settings.known import KnownSettings
    from autotune.settings.probe import probe_build
    from autotune.settings.space import build_space

    end_s = math.inf
    if time_limit is not None:
        end_s = time.monotonic() + options.seconds_of(time_limit, "--time-limit")
    with _open_screen(study, target, topology) as (spec, screener):
        build = probe_build(driver_python(), platform=spec.device.platform)
        settings = KnownSettings(build, screener.target_name)
        job = screener.job
        machines = job.target.scopes(job.topology) if job.target else None
        # Refuses wrong values before anything is lowered.
        build_space(spec, settings, None, machines=machines)
        try:
            space = build_space(spec, settings, screener.reference(), machines=machines)
            report = screener.run(
                domains(space),
                chains=chains(space),
                is_over=lambda: time.monotonic() > end_s,
            )
        except KeyboardInterrupt:
            note("stopped: run the same command again, what is compiled is kept")
            raise typer.Exit(STOPPED) from None
    if as_json:
        print_json(report)
    else:
        print("\n".join(describe_screen(report, has_values=True)))
    if report.skipped:
        note("the time is up: run the same command again, what is compiled is kept")
        raise typer.Exit(STOPPED)


def predict(
    study: options.Study,
    target: options.Target = None,
    topology: options.Topology = None,
    settings: Annotated[
        MaybeTexts,
        Option("--set", metavar="FLAGS", help="A set beside the reference; may be repeated."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Predicts step times of compiled programs.

    Needs no GPU, and says what each set changes in the program. A prediction is never a
    measurement. Sets of options have a step time too; what a flag gains is not predicted.
    """
    from autotune.compiler.predict import PUBLISHED, predict_set
    from autotune.model.flags import parse_set
    from autotune.model.texts import text_lines

    candidates = [parse_set(text) for text in ("", *(settings or ()))]
    with _open_screen(study, target, topology) as (_, screener):
        rows = [predict_set(screener, candidate) for candidate in candidates]
    if as_json:
        print_json(rows)
    else:
        agreement = PUBLISHED["words"]
        print("\n".join(text_lines("predict.txt.j2", rows=rows, agreement=agreement)))


@targets_app.command("list")
def list_targets(as_json: options.Json = False) -> None:
    """Lists the GPUs; with --json their memory, rates and links, too."""
    from autotune.compiler.targets import load_target, target_names
    from autotune.model.units import format_bytes

    targets = [load_target(name) for name in target_names()]
    if as_json:
        print_json(targets)
        return
    rows = [(t.name, t.title, format_bytes(t.memory_bytes)) for t in targets]
    print_table(("target", "GPU", "memory"), rows)


@contextlib.contextmanager
def _open_screen(
    study: Path, target: MaybeText, topology: MaybeText
) -> Iterator[tuple[StudySpec, Screener]]:
    """Yields the study for a cluster and its screener; progress goes to stderr."""
    from autotune.compiler.screen import open_screener
    from autotune.compiler.targets import load_target, parse_topology, target_here
    from autotune.machine.environment import default_cache_dir
    from autotune.model.spec import load_study

    spec = load_study(study)
    target_name = target or spec.screen.target
    gpu = None
    if target_name:
        gpu = load_target(target_name)
    elif spec.device.platform == "cuda":
        gpu = target_here()
    shape = topology
    if gpu:
        shape = topology or spec.screen.topology
    with open_screener(
        spec,
        study_dir=study.resolve().parent,
        target=gpu,
        topology=parse_topology(shape) if shape else None,
        cache_dir=default_cache_dir() / "screen",
        progress=note,
    ) as screener:
        yield screener
