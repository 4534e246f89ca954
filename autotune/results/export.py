"""Exports a proven winner to a file with its evidence in comments, and reads it back."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from autotune.model.errors import AutotuneError, close_matches, first_problem
from autotune.model.files import packaged_templates, plain_text
from autotune.model.options import dotted, is_nested_deeper, plain
from autotune.model.plugins import CLASS_PATH, load_class
from autotune.model.redaction import visible_line
from autotune.model.units import format_gain, format_seconds
from autotune.results.format import format_estimate, further_lines, time_of
from autotune.results.winner import WINNER_VERSION, Winner, winner_of
from autotune.rundir.store import Store

if TYPE_CHECKING:
    import jinja2

COMMENTS = """\
{% for line in evidence %}
# {{ line }}
{% endfor %}
# {{ record }}
"""

# Variables for any POSIX shell; the caller's XLA_FLAGS go first, so that the winner's win.
EXPORTS = """\
{% for name, value in winner.environment.items() %}
export {{ name }}={% if name == "XLA_FLAGS" %}"${XLA_FLAGS:+$XLA_FLAGS }"{% endif -%}
{{ value | quote }}
{% endfor %}
"""


class Exporter:
    r"""A file format of proven winners.

    A format of your own is named by its class: ``autotune export RUN --format my_format:Quiet``.

    Example:
        class Quiet(Exporter):
            use = "sh {file} COMMAND"
            head = "#!/bin/sh\n"
            body = EXPORTS + 'exec "$@" > log\n'

    Attributes:
        use: How a file is used, for people; ``{file}`` is its quoted path.
        head: Lines of the file above its comments, as a template of Jinja, in which no value ends a
            line. It knows `winner`, functions `plain` and `dotted` for options, and the filter
            `quote` for shells.
        body: Lines below the comments, likewise.
    """

    use = "{file}"
    head = ""
    body = EXPORTS

    def render(self, winner: Winner) -> str:
        """Writes a winner as the text of a file.

        Raises:
            AutotuneError: If the format cannot hold one of the winner's values unchanged.
        """
        record = winner.model_dump(mode="json", exclude_none=True)
        text = json.dumps(record, separators=(",", ":"))  # ASCII without line ends
        template = _templates().from_string(self.head + COMMENTS + self.body)
        return template.render(
            winner=winner,
            evidence=format_evidence(winner),
            record=MARK + text,
            plain=plain,
            dotted=dotted,
        )


class Env(Exporter):
    """Variables for any POSIX shell to source."""

    use = ". {file}"


class Shell(Exporter):
    """A script that runs a command under the winner."""

    use = "sh {file} COMMAND"
    head = "#!/bin/sh\n"
    body = EXPORTS + 'exec "$@"\n'


class Docker(Exporter):
    """For `docker --env-file`: a value extends to the end of its line, without quoting."""

    use = "docker run --env-file {file} ..."
    body = """\
{% for name, value in winner.environment.items() %}
{{ name }}={{ value }}
{% endfor %}
"""


class Sbatch(Exporter):
    """A job script that exports the values: `--export=NAME=value` would split them at commas."""

    use = "sbatch {file} COMMAND"
    head = """\
#!/bin/bash
#SBATCH --job-name={{ winner.study }}
#SBATCH --nodes={{ winner.node_count }}
{% if winner.conditions.platform == "cuda" and winner.conditions.device_count %}
#SBATCH --gpus-per-node={{ winner.conditions.device_count }}
{% endif %}
#SBATCH --ntasks-per-node={{ [1, winner.process_count // winner.node_count] | max }}
#SBATCH --export=ALL
"""
    body = EXPORTS + 'exec srun --export=ALL "$@"\n'


class Json(Exporter):
    """Data for programs."""

    use = "read its `environment`"

    def render(self, winner: Winner) -> str:
        """See `Exporter`."""
        data = {
            "environment": winner.environment,
            "loss_checked": winner.loss and bool(winner.loss.is_ok),
            "options": winner.options or None,
            "evidence": format_evidence(winner),
            "winner": winner.model_dump(mode="json", exclude_none=True),
        }
        fields = {key: value for key, value in data.items() if value is not None}
        return json.dumps(fields, indent=1) + "\n"


class MaxText(Exporter):
    """A launch script for GPUs like MaxText's own since 0.2.5: variables, trainer, options."""

    use = "bash {file} CONFIG.yml run_name=..."
    head = "#!/bin/bash\n"
    body = (
        EXPORTS
        + """\
exec python3 -m maxtext.trainers.pre_train.train "$@"
{%- for name, value in dotted(winner.options).items() %}
{{- " " ~ (name ~ "=" ~ plain(value)) | quote }}
{%- endfor +%}
"""
    )


class Arguments(Exporter):
    """A flag file of absl: one argument a line, comments, no quoting."""

    use = "COMMAND --flagfile={file} (absl), beside another format for the variables"
    body = """\
{% for name, value in winner.options.items() %}
--{{ name }}={{ plain(value) }}
{% endfor %}
"""


FORMATS = {kind.__name__.lower(): kind() for kind in Exporter.__subclasses__()}


def exporter_named(name: str) -> Exporter:
    """Returns a built-in exporter, or one by MODULE:CLASS; AutotuneError if there is none."""
    if CLASS_PATH.fullmatch(name):
        exporter: Exporter = load_class(name, Exporter, str(Path.cwd()), key="--format")()
        return exporter
    if name not in FORMATS:
        raise AutotuneError(
            f"--format must be one of {', '.join(FORMATS)}, or MODULE:CLASS, but got "
            f"{name!r}{close_matches(name, FORMATS)}"
        )
    return FORMATS[name]


def render_winner(winner: Winner, form: str) -> str:
    """Renders a winner in a built-in format; raises as `Exporter.render`."""
    return FORMATS[form].render(winner)


def how_to_use(exporter: Exporter, file: Path) -> str:
    """Formats how a file is used; a shell looks for a name without a slash elsewhere."""
    place = file if file.is_absolute() else f"./{file}"
    return exporter.use.format(file=shlex.quote(str(place)))


def is_unchanged(text: str, winner: Winner) -> bool:
    """Returns whether a text equals an export of the winner in some built-in format."""
    for exporter in FORMATS.values():
        with contextlib.suppress(AutotuneError):
            if exporter.render(winner) == text:
                return True
    return False


def format_evidence(winner: Winner) -> list[str]:
    """Formats result, conditions, versions and date of a proof, one fact a line."""
    template = _templates().get_template("export/evidence.j2")
    return template.render(
        winner=winner,
        format_gain=format_gain,
        format_estimate=format_estimate,
        format_seconds=format_seconds,
        further_lines=further_lines,
        time_of=time_of,
        plain=plain,
    ).splitlines()


@functools.cache
def _templates() -> jinja2.Environment:
    """Returns what renders the texts of files; no value ends a line."""
    return packaged_templates(
        {"quote": shlex.quote}, finalize=lambda value: visible_line(str(value))
    )


MARK = "autotune-winner: "  # before the record in an exported file


def read_winner(path: Path) -> Winner:
    """Reads the winner of a run directory or an exported file; AutotuneError without one."""
    if path.is_dir():
        return winner_of(Store.open(path))
    try:
        text = plain_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is nothing of that name; `autotune status` lists the runs of this folder"
        if not isinstance(error, FileNotFoundError):
            reason = str(error)
        raise AutotuneError(
            f"{path} must be a run directory or a file of `autotune export` but: {reason}"
        ) from error
    return parse_winner(text, source=str(path))


def parse_winner(text: str, *, source: str) -> Winner:
    """Parses the winner in the text of an exported file; raises as `read_winner`."""
    try:
        marked = re.search(rf"^# {MARK}(.*)$", text, re.MULTILINE)
        data = json.loads(marked[1]) if marked else json.loads(text)["winner"]
        if is_nested_deeper(data):
            raise ValueError("its lists or tables lie too deep in each other")
        return Winner.model_validate(data)
    except ValidationError as error:
        raise AutotuneError(
            f"{source} must hold a winner of form {WINNER_VERSION} but {first_problem(error)}; "
            "export it again"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AutotuneError(
            f"{source} must be a file of `autotune export` (with its `# {MARK.strip()}` line) "
            "but is not; export it again"
        ) from error
