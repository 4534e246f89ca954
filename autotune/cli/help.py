"""How `--help` is laid out: commands by what a person wants, and an example for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup
from typer.models import OptionInfo

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Tune": ("tune", "init", "run", "recheck"),
    "Look": ("status", "show", "report", "compare", "repro", "fsck"),
    "Use": ("export", "exec", "verify", "library", "best"),
    "Ask": (
        "read", "space", "flags", "recipes", "atlas", "symptoms", "doctor", "screen", "explain", "predict", "targets",
        "schema",
    ),
    "Cluster": ("submit", "worker"),
}  # fmt: skip
"""What a person wants, and the commands for it, in the order in which they are shown."""

EXAMPLES: Mapping[str, str] = {
    "tune": "autotune tune --time-budget 30m -- python train.py",
    "init": "autotune init --entry llama",
    "run": "autotune run studies/quickstart.toml --trials 20",
    "recheck": "autotune recheck winner.env",
    "status": "autotune status",
    "show": "autotune show runs/quickstart 3",
    "report": "autotune report runs/quickstart --html report.html",
    "compare": "autotune compare runs/a runs/b --by jaxlib",
    "repro": "autotune repro runs/quickstart 3",
    "fsck": "autotune fsck runs/quickstart --mend",
    "export": "autotune export runs/quickstart --format env -o winner.env",
    "exec": "autotune exec winner.env -- python train.py",
    "verify": "autotune verify winner.env",
    "library": "autotune library list",
    "library add": "autotune library add runs/quickstart",
    "library list": "autotune library list --json",
    "best": 'autotune best --gpu "NVIDIA H200" --count 8',
    "read": "autotune read -- python train.py",
    "space": "autotune space studies/quickstart.toml --why",
    "flags": "autotune flags check --file train.sh",
    "flags list": "autotune flags list",
    "flags show": "autotune flags show xla_gpu_enable_command_buffer",
    "flags check": "autotune flags check '--xla_gpu_enable_async_collectives=true'",
    "flags migrate": "autotune flags migrate --file train.sh",
    "recipes": "autotune recipes list",
    "recipes list": "autotune recipes list",
    "recipes show": "autotune recipes show jax_docs_head",
    "atlas": "autotune atlas show xla_gpu_enable_latency_hiding_scheduler",
    "atlas html": "autotune atlas html",
    "atlas build": "autotune atlas build --kind dense-fsdp --target h100-sxm",
    "atlas show": "autotune atlas show xla_gpu_enable_latency_hiding_scheduler",
    "symptoms": 'autotune symptoms "many small collectives"',
    "doctor": "autotune doctor",
    "screen": "autotune screen STUDY.toml --target h100-sxm --topology 8x8",
    "explain": "autotune explain STUDY.toml --set '--xla_gpu_autotune_level=0'",
    "predict": "autotune predict STUDY.toml --target h100-sxm",
    "targets": "autotune targets list",
    "targets list": "autotune targets list",
    "schema": "autotune schema > schema.json",
    "submit": "autotune submit STUDY.toml --nodes 4 --gpus-per-node 8",
}
"""Command to a call of it that a person may type; short enough to stay on one line."""


_WORDS: Mapping[Any, str] = {str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}
"""What stands for the value of an option that names nothing better, by the type of the value."""


def name_values(callback: Any) -> None:
    """Gives each option of a command a word for its value, so that no help shows a type of Python."""
    callback.__annotations__ = hints = get_type_hints(callback, include_extras=True)  # once, for the words to stay
    for hint in hints.values():
        kind, *infos = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        inner = [k for k in get_args(kind) if k is not type(None)] or [kind]
        for info in infos:
            if isinstance(info, OptionInfo) and info.metavar is None and len(inner) == 1:
                info.metavar = _WORDS.get(inner[0])


class Grouped(TyperGroup):
    """The commands under what a person wants; those that no group names come last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the lists of commands; see `click.Group`."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in known.items() if command is not None and not command.hidden}
        named = {name for names in GROUPS.values() for name in names}
        width = formatter.width - 6 - max(map(len, shown), default=0)
        for title, names in (*GROUPS.items(), ("More", tuple(n for n in shown if n not in named))):
            rows = [(name, shown[name].get_short_help_str(width)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=max(map(len, shown)), col_spacing=2)


def add_examples(app: typer.Typer, above: str = "") -> None:
    """Puts its example under the help of each command."""
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            group.epilog = _example(group.name)
            add_examples(group.typer_instance, f"{group.name} ")
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").rstrip("_").replace("_", "-")
        command.epilog = _example(above + name)
        if command.callback is not None:
            name_values(command.callback)


def _example(name: str) -> str | None:
    return f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
