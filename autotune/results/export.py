"""A proven winner as a file that other programs read, quoted for each, with its evidence in comments.

Every consumer has its own grammar, and a value may hold any printable text. Where a format cannot carry a
value, that is an error which says so: a setting that arrives changed was never measured.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from autotune.model import PREDICTED, AutotuneError, dotted, plain
from autotune.results.winner import Winner, comment_line, winner_of
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
    TOML = "toml"
    PYTHON = "python"
    MAXTEXT = "maxtext"
    ARGUMENTS = "arguments"
    OVERRIDES = "overrides"


USE = {
    ExportFormat.ENV: ". ./{file}",
    ExportFormat.SHELL: "sh {file} python train.py",
    ExportFormat.DOCKER: "docker run --env-file {file} ...",
    ExportFormat.SBATCH: "sbatch {file} python train.py",
    ExportFormat.K8S: "put its `env:` into the container of your Job",
    ExportFormat.JSON: "read its `environment`",
    ExportFormat.TOML: "paste its [baseline] into a study, or read its [environment]",
    ExportFormat.PYTHON: "import it before jax and call apply()",
    ExportFormat.MAXTEXT: "bash {file} CONFIG.yml run_name=...",
    ExportFormat.ARGUMENTS: "python train.py --flagfile={file} (absl), beside another format for the variables",
    ExportFormat.OVERRIDES: 'mapfile -t own < <(grep -v "^#" {file}); python train.py "${{own[@]}}" (Hydra and alike)',
}
"""What to type next, for each format."""

LONGEST_DOCKER_LINE = 65_535
"""Docker reads env-files with a scanner whose lines have at most 64 KiB, comments included."""


def render_export(store: Store, form: ExportFormat, *, trial: int | None = None, even_predicted: bool = False) -> str:
    """The winner of a run, or a set of its front, as text in one format.

    Args:
        store: The run directory.
        form: The format.
        trial: A set of the front, in a study by several objectives; None for the winner, or the fastest set.
        even_predicted: Write the favourite of a study in which nothing was measured, or a winner whose loss could not
            be judged; the text says so.

    Raises:
        AutotuneError: If there is no proven winner, or the format cannot carry one of its values.
    """
    return render_winner(winner_of(store, trial, even_predicted=even_predicted), form)


def render_winner(winner: Winner, form: ExportFormat) -> str:
    """A winner as text in one format.

    Raises:
        AutotuneError: If the format cannot carry one of its values.
    """
    return _WRITERS[form](winner)


def is_unchanged(text: str, winner: Winner) -> bool:
    """Whether an exported text is still what some format makes of the winner it carries."""
    for form in ExportFormat:
        try:
            if render_winner(winner, form) == text:
                return True
        except AutotuneError:
            continue
    return False


_PYTHON_HEAD = '''"""Settings {how} by autotune: import this before jax and call `apply()`."""

import os
import sys

'''
_PYTHON_TAIL = '''

def apply(environment=os.environ):
    """Sets the variables; jax reads them when it is imported."""
    if "jax" in sys.modules:
        raise RuntimeError("apply() must be called before jax is imported")
    environment.update(ENVIRONMENT)
'''


def _comments(winner: Winner) -> str:
    return "".join(f"# {line}\n" for line in [*evidence(winner), comment_line(winner)])


def _exports(winner: Winner) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in winner.environment.items())


def _env(winner: Winner) -> str:
    """To be sourced by any POSIX shell."""
    return _comments(winner) + _exports(winner)


def _shell(winner: Winner) -> str:
    """A script that runs a command under the winner; your own XLA_FLAGS come first, so the winner's count."""
    lines = []
    for name, value in winner.environment.items():
        own = '"${XLA_FLAGS:+$XLA_FLAGS }"' if name == "XLA_FLAGS" else ""
        lines.append(f"export {name}={own}{shlex.quote(value)}\n")
    return f"#!/bin/sh\n{_comments(winner)}{''.join(lines)}" + 'exec "$@"\n'


def _docker(winner: Winner) -> str:
    """For `docker --env-file`: all behind the equals sign up to the line's end, no quoting of any kind."""
    text = _comments(winner) + "".join(f"{name}={value}\n" for name, value in winner.environment.items())
    longest = max(len(line.encode()) for line in text.split("\n"))
    if longest > LONGEST_DOCKER_LINE:
        raise AutotuneError(
            f"a Docker env-file's lines must have at most {LONGEST_DOCKER_LINE} bytes but one has {longest}; "
            "use --format shell as the container's entry point"
        )
    return text


def _sbatch(winner: Winner) -> str:
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
        + _exports(winner)
        + 'exec srun --export=ALL "$@"\n'
    )


def _k8s(winner: Winner) -> str:
    """A container's `env:`; the kubelet expands `$(NAME)` in values, and takes `$$` for one dollar."""
    items = "".join(
        f"- name: {name}\n  value: {_quoted(value.replace('$', '$$'))}\n" for name, value in winner.environment.items()
    )
    return f"{_comments(winner)}env:\n{items}"


def _json(winner: Winner) -> str:
    data = {
        "environment": winner.environment,
        **({"options": winner.options} if winner.options else {}),
        "evidence": evidence(winner),
        "winner": json.loads(winner.model_dump_json(exclude_none=True)),
    }
    return json.dumps(data, indent=1, ensure_ascii=True) + "\n"


def _toml(winner: Winner) -> str:
    """`[baseline]` for another study, `[environment]` for whatever reads TOML."""
    text = _comments(winner)
    settings = {n: v for n, v in winner.settings.items() if n not in winner.settings.of_kind("option")}
    for title, table in (("baseline", settings), ("environment", winner.environment)):
        text += f"\n[{title}]\n" + "".join(f"{name} = {_quoted(value)}\n" for name, value in table.items())
    if winner.options:
        text += "\n[workload.options]\n" + "".join(f"{n} = {_toml_value(v)}\n" for n, v in winner.options.items())
    return text


def _toml_value(value: Any) -> str:
    """Plain data as TOML writes it within one line.

    Raises:
        AutotuneError: If TOML cannot say it.
    """
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_quoted(k)} = {_toml_value(v)}' for k, v in value.items())}}}"
    if value is None:
        raise AutotuneError("TOML has no null but an option of the winner is null; use --format json")
    return json.dumps(value)


def _python(winner: Winner) -> str:
    """A module without dependencies."""
    items = "".join(f"    {name!a}: {value!a},\n" for name, value in winner.environment.items())
    head = _PYTHON_HEAD.format(how=f"({PREDICTED})" if winner.is_predicted else "proven")
    options = f"OPTIONS = {winner.options!a}\n" if winner.options else ""
    return f"{_comments(winner)}{head}ENVIRONMENT = {{\n{items}}}\n{options}{_PYTHON_TAIL}"


def _maxtext(winner: Winner) -> str:
    """A launch script like MaxText's own for GPUs: variables, then the trainer with your arguments and the options."""
    own = "".join(f" {shlex.quote(override)}" for override in _overriding(winner))
    return f'#!/bin/bash\n{_comments(winner)}{_exports(winner)}exec python3 -m MaxText.train "$@"{own}\n'


def _arguments(winner: Winner) -> str:
    """A flag file of absl: one argument a line, comments, no quoting of any kind."""
    return _comments(winner) + "".join(f"--{name}={plain(value)}\n" for name, value in winner.options.items())


def _overrides(winner: Winner) -> str:
    """One ``name=value`` a line, tables taken apart."""
    return _comments(winner) + "".join(f"{override}\n" for override in _overriding(winner))


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


_WRITERS: dict[ExportFormat, Callable[[Winner], str]] = {
    ExportFormat.ENV: _env,
    ExportFormat.SHELL: _shell,
    ExportFormat.DOCKER: _docker,
    ExportFormat.SBATCH: _sbatch,
    ExportFormat.K8S: _k8s,
    ExportFormat.JSON: _json,
    ExportFormat.TOML: _toml,
    ExportFormat.PYTHON: _python,
    ExportFormat.MAXTEXT: _maxtext,
    ExportFormat.ARGUMENTS: _arguments,
    ExportFormat.OVERRIDES: _overrides,
}
