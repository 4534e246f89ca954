"""Arguments and options shared by commands: ``trials: options.Trials = None``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from autotune.model.errors import StudyFileError
from autotune.model.units import parse_duration

MaybeText = str | None
MaybeTexts = list[str] | None
MaybePath = Path | None
MaybePaths = list[Path] | None
MaybeCount = int | None

RUNS = Path("runs")  # default folder of run directories
Study = Annotated[Path, Argument(metavar="STUDY.toml", help="The study file.")]
Run = Annotated[Path, Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]
WinnerFile = Annotated[
    Path, Argument(metavar="FILE|RUN", help="An exported file of any format, or a run directory.")
]
FromRun = Annotated[
    MaybePath,
    Option(
        "--run", help="Run directory that the file was exported from; default: looked for by name."
    ),
]
Flags = Annotated[MaybeTexts, Argument(help="XLA flags, as in XLA_FLAGS.")]

Json = Annotated[bool, Option("--json", help="Print JSON.")]
Output = Annotated[
    MaybePath, Option("-o", "--output", help="File to write; default: standard output.")
]
RunDir = Annotated[MaybePath, Option(help="Run directory, default runs/NAME.")]
Profile = Annotated[
    bool,
    Option("--profile", help="Trace a few steps of both sides afterwards, and say what differs."),
]
Trials = Annotated[MaybeCount, Option(min=1, help="Trials in all, over all sessions.")]
TimeBudget = Annotated[MaybeText, Option(help="Wall time for the whole study, such as 30m or 8h.")]
Devices = Annotated[
    MaybeText,
    Option(help="Lanes of this machine: 0-3,4-7 are two of four GPUs (or cores, in a CPU study)."),
]
Storage = Annotated[
    MaybeText,
    Option(
        envvar="AUTOTUNE_STORAGE",
        help="Optuna storage of the study, else RUN/optuna.log: sqlite:///..., "
        "postgresql+psycopg://..., journal:PATH.",
    ),
]
Tracker = Annotated[
    MaybeTexts,
    Option(
        metavar="wandb|mlflow|tensorboard",
        help="Write trials and proofs there as runs; may be repeated.",
    ),
]

Plugin = Annotated[
    Literal["auto", "cpu", "cuda"],
    Option(help="Which build is asked; auto: the CUDA plugin if it is installed."),
]
Python = Annotated[MaybeText, Option(help="Interpreter whose jaxlib is asked.")]
Script = Annotated[MaybePath, Option(help="A script with XLA flags and variables.", dir_okay=False)]

Target = Annotated[
    MaybeText,
    Option(help="GPU to compile for (`autotune targets list`), or a .toml file of that form."),
]
Topology = Annotated[MaybeText, Option(help="Nodes x GPUs on each, such as 8x8.")]
Library = Annotated[Path, Option(help="Folder of the library.")]
RequireLoss = Annotated[
    bool, Option("--require-loss", help="Refuse a winner whose loss was not checked.")
]


def seconds_of(text: str, option: str) -> float:
    """Parses the duration given to an option to seconds; StudyFileError if it is none."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise StudyFileError(
            f"{option} must look like 30m or 8h but got {text!r}; say its unit"
        ) from error
