"""Arguments and options that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

RUNS = Path("runs")
"""Where run directories lie unless a command says otherwise."""

Effort = Literal["quick", "standard", "full"]
Plugin = Literal["auto", "cpu", "cuda"]

StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE|RUN", help="An exported file of any format, or a run directory.")
]
FlagsArgument = Annotated[list[str] | None, typer.Argument(help="XLA flags, as in XLA_FLAGS.")]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (schema: `autotune schema`).")]
OutputOption = Annotated[Path | None, typer.Option("-o", "--output", help="File to write; default: standard output.")]
RunDirOption = Annotated[Path | None, typer.Option(help="Run directory, default runs/NAME; all workers must see it.")]
TrialsOption = Annotated[int | None, typer.Option(min=1, help="Trials in all, over all sessions and workers.")]
BudgetOption = Annotated[str | None, typer.Option(help="Wall time for the whole study, such as 30m or 8h.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        envvar="AUTOTUNE_STORAGE",
        help="Optuna storage that mirrors the study: sqlite:///..., postgresql+psycopg://..., journal:PATH.",
    ),
]
SeedOption = Annotated[int | None, typer.Option(min=0, help="Seed of proposals, data and order.")]
EffortOption = Annotated[Effort, typer.Option(help="How much measuring.")]
SoakOption = Annotated[bool, typer.Option(help="Run a winner for a while before it counts as proven.")]

PluginOption = Annotated[Plugin, typer.Option(help="Which build is asked; auto: the CUDA plugin if it is installed.")]
PythonOption = Annotated[str | None, typer.Option(help="Interpreter whose packages are meant.")]
FileOption = Annotated[Path | None, typer.Option(help="A script with XLA flags and variables.", dir_okay=False)]

TargetOption = Annotated[
    str | None, typer.Option(help="GPU that is compiled for (`autotune targets list`), or a .txtpb file.")
]
TopologyOption = Annotated[str | None, typer.Option(help="Nodes x GPUs on each, such as 8x8.")]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help='Workload option instead of the study\'s: mesh={"fsdp":64}.'),
]
CacheOption = Annotated[bool, typer.Option(help="Take what was compiled before from the cache.")]
LimitOption = Annotated[float, typer.Option("--limit", min=1, help="Longest seconds for one compilation.")]
LibraryOption = Annotated[Path, typer.Option(help="Folder of the library.")]
