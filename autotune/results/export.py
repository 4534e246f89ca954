"""A proven winner as a file that other programs read, quoted for each, with its evidence in comments.

Every consumer has its own grammar, and a value may hold any printable text. Where a format cannot carry a
value, that is an error which says so: a setting that arrives changed was never measured.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from autotune.model import AutotuneError, FlagSet, artefacts_of, dotted, plain
from autotune.results.artefacts import loading_kernels, put_beside
from autotune.results.carried import comment_line
from autotune.results.losses import require_loss
from autotune.results.winner import Winner, winner_of
from autotune.results.words import evidence
from autotune.rundir import Store


class ExportFormat(StrEnum):
    """What the file is for."""

    ENV = "env"
    SHELL = "shell"
    DOCKER = "docker"
    SBATCH = "sbatch"
    K8S = "k8s"
    JSON = "json"
    MAXTEXT = "maxtext"
    ARGUMENTS = "arguments"


USE = {
    ExportFormat.ENV: ". ./{file}",
    ExportFormat.SHELL: "sh {file} python train.py",
    ExportFormat.DOCKER: "docker run --env-file {file} ...",
    ExportFormat.SBATCH: "sbatch {file} python train.py",
    ExportFormat.K8S: "put its `env:` into the container of your Job",
    ExportFormat.JSON: "read its `environment`",
    ExportFormat.MAXTEXT: "bash {file} CONFIG.yml run_name=...",
    ExportFormat.ARGUMENTS: "python train.py --flagfile={file} (absl), beside another format for the variables",
}
"""What to type next, for each format."""

LONGEST_DOCKER_LINE = 65_535
"""Docker reads env-files with a scanner whose lines have at most 64 KiB, comments included."""


def render_export(
    store: Store,
    form: ExportFormat,
    *,
    even_unjudged: bool = False,
    folder: Path | None = None,
    same_kernels: bool = False,
    needs_loss: bool = False,
) -> str:
    """The winner of a run as text in one format; what it needs is put beside it.

    Args:
        store: The run directory.
        form: The format.
        even_unjudged: Write even a winner whose loss could not be judged; the text says so.
        folder: Where the text will lie, and what belongs to it lies then; None if that is nowhere.
        same_kernels: Let it load the autotuner's results of its soak.
        needs_loss: Refuse one whose loss was not compared with the default's.

    Raises:
        AutotuneError: If there is no proven winner, or none whose loss was compared and that is needed, or the format
            cannot carry one of its values.
    """
    winner = winner_of(store, even_unjudged=even_unjudged)
    if needs_loss:
        require_loss(winner)
    if same_kernels:
        winner = loading_kernels(winner)
    text = render_winner(winner, form, folder)
    if folder is not None:
        put_beside(winner, store, folder)
    return text


def render_winner(winner: Winner, form: ExportFormat, folder: Path | None = None) -> str:
    """A winner as text in one format.

    Args:
        winner: What was proven.
        form: The format.
        folder: Where the text and its artefacts will lie: the text holds their paths.

    Raises:
        AutotuneError: If the format cannot carry one of its values, or its artefacts have no folder.
    """
    if form is ExportFormat.JSON and folder is None and artefacts_of(winner.in_force):
        return _json(winner, FlagSet())  # for a library: `autotune exec` puts the paths in place
    return _WRITERS[form](winner, winner.settings_in(folder))


def is_unchanged(text: str, winner: Winner, folder: Path | None = None) -> bool:
    """Whether an exported text is still what some format makes of the winner it carries.

    One that holds paths is bound to its folder, and so is a change of them found out.

    Args:
        text: As it lies there.
        winner: That it carries.
        folder: Where it lies.
    """
    for form, place in itertools.product(ExportFormat, (folder, None)):
        try:
            if render_winner(winner, form, place) == text:
                return True
        except AutotuneError:
            continue
    return False


def _comments(winner: Winner) -> str:
    return "".join(f"# {line}\n" for line in [*evidence(winner), comment_line(winner)])


def _exports(settings: FlagSet) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.to_environment().items())


def _env(winner: Winner, settings: FlagSet) -> str:
    """To be sourced by any POSIX shell."""
    return _comments(winner) + _exports(settings)


def _shell(winner: Winner, settings: FlagSet) -> str:
    """A script that runs a command under the winner; your own XLA_FLAGS come first, so the winner's count."""
    lines = []
    for name, value in settings.to_environment().items():
        own = '"${XLA_FLAGS:+$XLA_FLAGS }"' if name == "XLA_FLAGS" else ""
        lines.append(f"export {name}={own}{shlex.quote(value)}\n")
    return f"#!/bin/sh\n{_comments(winner)}{''.join(lines)}" + 'exec "$@"\n'


def _docker(winner: Winner, settings: FlagSet) -> str:
    """For `docker --env-file`: all behind the equals sign up to the line's end, no quoting of any kind."""
    text = _comments(winner) + "".join(f"{name}={value}\n" for name, value in settings.to_environment().items())
    longest = max(len(line.encode()) for line in text.split("\n"))
    if longest > LONGEST_DOCKER_LINE:
        raise AutotuneError(
            f"a Docker env-file's lines must have at most {LONGEST_DOCKER_LINE} bytes but one has {longest}; "
            "use --format shell as the container's entry point"
        )
    return text


def _sbatch(winner: Winner, settings: FlagSet) -> str:
    """A job script. `--export=NAME=value` would split values at commas, so the script itself exports."""
    head = [f"#SBATCH --job-name={winner.study}", f"#SBATCH --nodes={winner.node_count}"]
    if winner.conditions.platform == "cuda" and winner.conditions.device_count:
        head.append(f"#SBATCH --gpus-per-node={winner.conditions.device_count}")
    head.append(f"#SBATCH --ntasks-per-node={max(1, winner.process_count // winner.node_count)}")
    head.append("#SBATCH --export=ALL")
    return (
        "#!/bin/bash\n"
        + "\n".join(head)
        + "\n"
        + _comments(winner)
        + _exports(settings)
        + 'exec srun --export=ALL "$@"\n'
    )


def _k8s(winner: Winner, settings: FlagSet) -> str:
    """A container's `env:`; the kubelet expands `$(NAME)` in values, and takes `$$` for one dollar."""
    items = "".join(
        f"- name: {name}\n  value: {_quoted(value.replace('$', '$$'))}\n"
        for name, value in settings.to_environment().items()
    )
    return f"{_comments(winner)}env:\n{items}"


def _json(winner: Winner, settings: FlagSet) -> str:
    data = {
        "environment": settings.to_environment(),
        **({"loss_checked": bool(winner.loss.is_ok)} if winner.loss is not None else {}),
        **({"options": winner.options} if winner.options else {}),
        "evidence": evidence(winner),
        "winner": json.loads(winner.model_dump_json(exclude_none=True)),
    }
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


def _maxtext(winner: Winner, settings: FlagSet) -> str:
    """A launch script like MaxText's own for GPUs: variables, then the trainer with your arguments and the options.

    The trainer has been this module since 0.2.5 (https://github.com/AI-Hypercomputer/maxtext,
    src/maxtext/trainers/pre_train/train.py).
    """
    own = "".join(f" {shlex.quote(override)}" for override in _overriding(winner))
    head = f"#!/bin/bash\n{_comments(winner)}{_exports(settings)}"
    return f'{head}exec python3 -m maxtext.trainers.pre_train.train "$@"{own}\n'


def _arguments(winner: Winner, settings: FlagSet) -> str:
    """A flag file of absl: one argument a line, comments, no quoting of any kind."""
    return _comments(winner) + "".join(f"--{name}={plain(value)}\n" for name, value in winner.options.items())


def _overriding(winner: Winner) -> list[str]:
    return [f"{name}={plain(value)}" for name, value in dotted(winner.options).items()]


def _quoted(text: str) -> str:
    """Text in double quotes, with the escapes that YAML 1.2 and TOML 1.0 share."""
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if " " <= char <= "~":
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


_WRITERS: dict[ExportFormat, Callable[[Winner, FlagSet], str]] = {
    ExportFormat.ENV: _env,
    ExportFormat.SHELL: _shell,
    ExportFormat.DOCKER: _docker,
    ExportFormat.SBATCH: _sbatch,
    ExportFormat.K8S: _k8s,
    ExportFormat.JSON: _json,
    ExportFormat.MAXTEXT: _maxtext,
    ExportFormat.ARGUMENTS: _arguments,
}
