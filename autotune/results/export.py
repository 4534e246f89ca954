"""Exports a proven winner to a file with its evidence in comments, and reads it back.

Every format has its own grammar, and a value may hold any printable text. A value that a format cannot carry is an
error: a setting that arrives changed was never measured. A profile that the winner needs lies beside it.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from autotune.model.artefacts import artefacts_of
from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.options import dotted, plain
from autotune.results.winner import WINNER_VERSION, Difference, Winner, format_evidence, require_loss, winner_of
from autotune.rundir.artefacts import (
    ARTEFACTS,
    artefact_problems,
    artefacts_for,
    in_force,
    place_artefacts,
    read_artefacts,
)
from autotune.rundir.store import Store


class ExportFormat(StrEnum):
    """Formats of exported files."""

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
"""How to use a file of each format."""

LONGEST_DOCKER_LINE = 65_535
"""Bytes; Docker's scanner of env-files takes at most 64 KiB a line, comments included."""


def render_export(
    store: Store,
    form: ExportFormat,
    *,
    even_unjudged: bool = False,
    folder: Path | None = None,
    needs_loss: bool = False,
) -> str:
    """Renders the winner of a run in one format, and writes its artefacts into `folder`.

    Args:
        even_unjudged: Write even a winner whose loss could not be judged; the text says so.
        folder: Where the text will lie, with what it needs beside it; None for standard output.
        needs_loss: Refuse one whose loss was not compared with the default's.

    Raises:
        AutotuneError: If there is no such winner, or the format cannot represent one of its values.
    """
    winner = winner_of(store, even_unjudged=even_unjudged)
    if needs_loss:
        require_loss(winner)
    text = render_winner(winner, form, folder)
    if folder is not None:
        put_beside(winner, store, folder)
    return text


def render_winner(winner: Winner, form: ExportFormat, folder: Path | None = None) -> str:
    """Renders a winner in one format, with the paths of its artefacts in `folder`.

    Raises:
        AutotuneError: If the format cannot represent one of its values, or its artefacts have no folder.
    """
    if form is ExportFormat.JSON and folder is None and artefacts_of(winner.settings):
        return _json(winner, FlagSet())  # for a library: `autotune exec` puts the paths in place
    return _WRITERS[form](winner, winner.settings_in(folder))


def is_unchanged(text: str, winner: Winner, folder: Path | None = None) -> bool:
    """Whether a text in a folder equals an export of the winner in some format."""
    for form, place in itertools.product(ExportFormat, (folder, None)):
        try:
            if render_winner(winner, form, place) == text:
                return True
        except AutotuneError:
            continue
    return False


def _comments(winner: Winner) -> str:
    return "".join(f"# {line}\n" for line in [*format_evidence(winner), comment_line(winner)])


def _exports(settings: FlagSet) -> str:
    """Renders variables for any POSIX shell; the caller's XLA_FLAGS go first, so the winner's win."""
    lines = []
    for name, value in settings.to_environment().items():
        own = '"${XLA_FLAGS:+$XLA_FLAGS }"' if name == "XLA_FLAGS" else ""
        lines.append(f"export {name}={own}{shlex.quote(value)}\n")
    return "".join(lines)


def _env(winner: Winner, settings: FlagSet) -> str:
    """Renders variables for any POSIX shell to source."""
    return _comments(winner) + _exports(settings)


def _shell(winner: Winner, settings: FlagSet) -> str:
    """Renders a script that runs a command under the winner."""
    return f"#!/bin/sh\n{_comments(winner)}{_exports(settings)}" + 'exec "$@"\n'


def _docker(winner: Winner, settings: FlagSet) -> str:
    """Renders a file for `docker --env-file`: a value extends to the end of its line, without quoting."""
    text = _comments(winner) + "".join(f"{name}={value}\n" for name, value in settings.to_environment().items())
    longest = max(len(line.encode()) for line in text.split("\n"))
    if longest > LONGEST_DOCKER_LINE:
        raise AutotuneError(
            f"a Docker env-file's lines must have at most {LONGEST_DOCKER_LINE} bytes but one has {longest}; "
            "use --format shell as the container's entry point"
        )
    return text


def _sbatch(winner: Winner, settings: FlagSet) -> str:
    """Renders a job script; `--export=NAME=value` would split values at commas, so the script exports them."""
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
    """Renders a container's `env:`; the kubelet expands `$(NAME)` in values and reads `$$` as one dollar."""
    items = "".join(
        f"- name: {name}\n  value: {json.dumps(value.replace('$', '$$'), ensure_ascii=False)}\n"
        for name, value in settings.to_environment().items()
    )
    return f"{_comments(winner)}env:\n{items}"


def _json(winner: Winner, settings: FlagSet) -> str:
    data = {
        "environment": settings.to_environment(),
        **({"loss_checked": bool(winner.loss.is_ok)} if winner.loss is not None else {}),
        **({"options": winner.options} if winner.options else {}),
        "evidence": format_evidence(winner),
        "winner": json.loads(winner.model_dump_json(exclude_none=True)),
    }
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


def _maxtext(winner: Winner, settings: FlagSet) -> str:
    """Renders a launch script like MaxText's own for GPUs: variables, then the trainer with arguments and options.

    The trainer has been this module since 0.2.5 (https://github.com/AI-Hypercomputer/maxtext,
    src/maxtext/trainers/pre_train/train.py).
    """
    own = "".join(f" {shlex.quote(f'{name}={plain(value)}')}" for name, value in dotted(winner.options).items())
    head = f"#!/bin/bash\n{_comments(winner)}{_exports(settings)}"
    return f'{head}exec python3 -m maxtext.trainers.pre_train.train "$@"{own}\n'


def _arguments(winner: Winner, settings: FlagSet) -> str:
    """Renders a flag file of absl: one argument a line, comments, no quoting."""
    return _comments(winner) + "".join(f"--{name}={plain(value)}\n" for name, value in winner.options.items())


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


# ---------------------------------------------------------------------- reading it back


MARK = "autotune-winner: "
"""Prefix of the comment that holds the record in an exported file."""


def comment_line(winner: Winner) -> str:
    """Serialises a winner for one comment line: ASCII without line ends."""
    data = json.loads(winner.model_dump_json(exclude_none=True))
    return MARK + json.dumps(data, ensure_ascii=True, separators=(",", ":"))


def read_winner(path: Path) -> Winner:
    """Reads the winner of a run directory or an exported file of any format.

    Raises:
        AutotuneError: If there is none.
    """
    if path.is_dir():
        return winner_of(Store.open(path))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise AutotuneError(
            f"{path} must be a run directory or a file of `autotune export` but there is nothing of that name; "
            "`autotune status` lists the runs of this folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise AutotuneError(f"{path} must be a run directory or a file of `autotune export` but: {error}") from error
    return parse_winner(text, source=str(path))


def parse_winner(text: str, *, source: str) -> Winner:
    """Parses the winner in the text of an exported file.

    Raises:
        AutotuneError: If there is none, or it is damaged.
    """
    try:
        marked = re.search(rf"^# {MARK}(.*)$", text, re.MULTILINE)
        data = json.loads(marked[1]) if marked else json.loads(text)["winner"]
        return Winner.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where, said = ".".join(str(p) for p in first["loc"]), first["msg"].removeprefix("Value error, ")
        raise AutotuneError(
            f"{source} must hold a winner of form {WINNER_VERSION} but `{where}`: {said:.300}; export it again"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AutotuneError(
            f"{source} must be a file of `autotune export` (with its `# {MARK.strip()}` line) but is not; "
            "export it again"
        ) from error


# ---------------------------------------------------------------------- artefacts


def artefact_folder(file: Path) -> Path:
    """Returns the artefact folder of a run directory (in it) or of an exported file (beside it)."""
    return file / ARTEFACTS if file.is_dir() else file.parent


def settings_in_force(winner: Winner, file: Path) -> FlagSet:
    """Returns the set under which a program is started, with the paths of its artefacts.

    Raises:
        AutotuneError: If an artefact is missing, a link, not a plain file, or changed.
    """
    return in_force(winner.settings, artefact_folder(file))


def artefact_differences(winner: Winner, file: Path) -> list[Difference]:
    """The artefacts of a winner that are missing or were changed."""
    problems = artefact_problems(winner.settings, artefact_folder(file))
    return [Difference(field="artefact", proven="a file beside it", here=p) for p in problems]


def put_beside(winner: Winner, source: Store | Path, folder: Path) -> None:
    """Copies the artefacts that a winner needs from its run or file into a folder.

    Raises:
        AutotuneError: If one is missing or was changed.
        RunDirectoryError: If one cannot be written.
    """
    if isinstance(source, Store):
        found = artefacts_for(source, winner.settings)
    else:
        found = read_artefacts(winner.settings, artefact_folder(source))
    place_artefacts(found, folder)
    in_force(winner.settings, folder)


def keep_in_run(store: Store, settings: FlagSet) -> None:
    """Writes the artefacts of a run's winner into the run directory, for `exec` and `verify` of the run itself.

    Raises:
        RunDirectoryError: If they cannot be written.
    """
    if found := artefacts_for(store, settings):
        place_artefacts(found, store.folder(ARTEFACTS))
