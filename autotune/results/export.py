"""Exports a proven winner to a file with its evidence in comments, and reads it back.

Every format has its own grammar, and a value may hold any printable text. A value that a format cannot carry is an
error: a setting that arrives changed was never measured.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from autotune.model.errors import AutotuneError, first_problem
from autotune.model.files import packaged_template, plain_text
from autotune.model.options import dotted, is_nested_deeper, plain
from autotune.model.redaction import visible_line
from autotune.model.units import format_change, format_seconds
from autotune.results.format import format_estimate, further_lines, time_of
from autotune.results.winner import WINNER_VERSION, Winner, winner_of
from autotune.rundir.store import Store


class ExportFormat(StrEnum):
    """Formats of exported files."""

    ENV = "env"
    SHELL = "shell"
    DOCKER = "docker"
    SBATCH = "sbatch"
    JSON = "json"
    MAXTEXT = "maxtext"
    ARGUMENTS = "arguments"


USE = {
    ExportFormat.ENV: ". {file}",
    ExportFormat.SHELL: "sh {file} COMMAND",
    ExportFormat.DOCKER: "docker run --env-file {file} ...",
    ExportFormat.SBATCH: "sbatch {file} COMMAND",
    ExportFormat.JSON: "read its `environment`",
    ExportFormat.MAXTEXT: "bash {file} CONFIG.yml run_name=...",
    ExportFormat.ARGUMENTS: "COMMAND --flagfile={file} (absl), beside another format for the variables",
}
"""How to use a file of each format."""


def how_to_use(form: ExportFormat, file: Path) -> str:
    """Formats how a file of a format is used; a shell looks for a name without a slash elsewhere."""
    place = file if file.is_absolute() else f"./{file}"
    return USE[form].format(file=shlex.quote(str(place)))


LONGEST_DOCKER_LINE = 65_535
"""Bytes; Docker's scanner of env-files takes at most 64 KiB a line, comments included."""


def render_winner(winner: Winner, form: ExportFormat) -> str:
    """Renders a winner in one format; raises AutotuneError if that cannot represent one of its values."""
    if form is ExportFormat.JSON:
        return _json(winner)
    evidence, record = format_evidence(winner), comment_line(winner)
    text = _render(form, winner=winner, evidence=evidence, record=record)
    longest = max(len(line.encode()) for line in text.split("\n"))
    if form is ExportFormat.DOCKER and longest > LONGEST_DOCKER_LINE:
        raise AutotuneError(
            f"a Docker env-file's lines must have at most {LONGEST_DOCKER_LINE} bytes but one has {longest}; "
            "use --format shell as the container's entry point"
        )
    return text


def is_unchanged(text: str, winner: Winner) -> bool:
    """Whether a text equals an export of the winner in some format."""
    for form in ExportFormat:
        with contextlib.suppress(AutotuneError):
            if render_winner(winner, form) == text:
                return True
    return False


def format_evidence(winner: Winner) -> list[str]:
    """Formats result, conditions, versions and date of a proof, one fact a line."""
    return _render("evidence", winner=winner).splitlines()


def _render(name: str, **given: object) -> str:
    """Renders a template of `data/export`, one for each format but JSON; no value ends a line."""
    said = (format_change, format_estimate, format_seconds, further_lines, time_of, dotted, plain)
    functions = {f.__name__: f for f in said}
    filters, finalize = {"quote": shlex.quote}, lambda value: visible_line(str(value))
    return packaged_template(f"export/{name}.j2", filters, finalize=finalize).render(functions | given)


def _json(winner: Winner) -> str:
    data = {
        "environment": winner.environment,
        **({"loss_checked": bool(winner.loss.is_ok)} if winner.loss is not None else {}),
        **({"options": winner.options} if winner.options else {}),
        "evidence": format_evidence(winner),
        "winner": json.loads(winner.model_dump_json(exclude_none=True)),
    }
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


# ---------------------------------------------------------------------- reading it back


MARK = "autotune-winner: "
"""Prefix of the comment that holds the record in an exported file."""


def comment_line(winner: Winner) -> str:
    """Serialises a winner for one comment line: ASCII without line ends."""
    data = json.loads(winner.model_dump_json(exclude_none=True))
    return MARK + json.dumps(data, ensure_ascii=True, separators=(",", ":"))


def read_winner(path: Path) -> Winner:
    """Reads the winner of a run directory or an exported file of any format; raises AutotuneError without one."""
    if path.is_dir():
        return winner_of(Store.open(path))
    try:
        text = plain_text(path)
    except (OSError, UnicodeDecodeError) as error:
        missing = "there is nothing of that name; `autotune status` lists the runs of this folder"
        why = missing if isinstance(error, FileNotFoundError) else error
        raise AutotuneError(f"{path} must be a run directory or a file of `autotune export` but: {why}") from error
    return parse_winner(text, source=str(path))


def parse_winner(text: str, *, source: str) -> Winner:
    """Parses the winner in the text of an exported file; raises AutotuneError if there is none, or it is damaged."""
    try:
        marked = re.search(rf"^# {MARK}(.*)$", text, re.MULTILINE)
        data = json.loads(marked[1]) if marked else json.loads(text)["winner"]
        if is_nested_deeper(data):
            raise ValueError("its lists or tables lie too deep in each other")
        return Winner.model_validate(data)
    except ValidationError as error:
        raise AutotuneError(
            f"{source} must hold a winner of form {WINNER_VERSION} but {first_problem(error)}; export it again"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AutotuneError(
            f"{source} must be a file of `autotune export` (with its `# {MARK.strip()}` line) but is not; "
            "export it again"
        ) from error
