"""Layout of `--help`: commands by purpose, and an example for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Tune": ("tune", "init", "run", "recheck"),
    "Look": ("status", "show", "report", "compare", "compare-builds", "repro", "fsck"),
    "Use": ("export", "exec", "verify", "library", "best"),
    "Ask": (
        "read", "space", "flags", "recipes", "atlas", "symptoms", "doctor", "screen", "explain", "predict", "targets",
        "schema",
    ),
    "Cluster": ("submit",),
}  # fmt: skip
"""Commands by purpose, in display order."""

EXAMPLES: Mapping[str, str] = {
    "tune": "autotune tune --time-budget 30m -- python train.py",
    "init": "autotune init --entry llama",
    "run": "autotune run studies/quickstart.toml --trials 20",
    "recheck": "autotune recheck winner.env",
    "status": "autotune status",
    "show": "autotune show runs/quickstart 3",
    "report": "autotune report runs/quickstart --html report.html",
    "compare": "autotune compare runs/a runs/b --by jaxlib",
    "compare-builds": "autotune compare-builds old/bin/python new/bin/python -- train.py",
    "repro": "autotune repro runs/quickstart 3",
    "fsck": "autotune fsck runs/quickstart",
    "export": "autotune export runs/quickstart --format env -o winner.env",
    "exec": "autotune exec winner.env -- python train.py",
    "verify": "autotune verify winner.env",
    "library add": "autotune library add runs/quickstart",
    "best": 'autotune best --gpu "NVIDIA H200" --count 8',
    "read": "autotune read -- python train.py",
    "space": "autotune space studies/quickstart.toml --why",
    "flags": "autotune flags check --file train.sh",
    "flags list": "autotune flags list",
    "flags show": "autotune flags show xla_gpu_enable_command_buffer",
    "flags check": "autotune flags check '--xla_gpu_enable_async_collectives=true'",
    "flags migrate": "autotune flags migrate --file train.sh",
    "recipes list": "autotune recipes list",
    "recipes show": "autotune recipes show jax_docs_head",
    "atlas show": "autotune atlas show xla_gpu_enable_latency_hiding_scheduler",
    "symptoms": 'autotune symptoms "many small collectives"',
    "doctor": "autotune doctor",
    "screen": "autotune screen STUDY.toml --target h100-sxm --topology 8x8",
    "explain": "autotune explain STUDY.toml --set '--xla_gpu_autotune_level=0'",
    "predict": "autotune predict STUDY.toml --target h100-sxm",
    "targets list": "autotune targets list",
    "schema": "autotune schema > schema.json",
    "submit": "autotune submit STUDY.toml --nodes 4 --gpus-per-node 8",
}
"""One-line example for each command."""


class Grouped(TyperGroup):
    """Lists the commands by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the lists of commands; see `click.Group`."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in known.items() if command is not None and not command.hidden}
        width = formatter.width - 6 - max(map(len, shown), default=0)
        for title, names in GROUPS.items():
            rows = [(name, shown[name].get_short_help_str(width)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=max(map(len, shown)), col_spacing=2)


def add_examples(app: typer.Typer, above: str = "") -> None:
    """Adds its example to the help of each command."""
    for group in app.registered_groups:
        if group.typer_instance is not None and group.name:
            first = group.typer_instance.registered_commands[0].name
            group.epilog = _example(group.name) or _example(f"{group.name} {first}")
            add_examples(group.typer_instance, f"{group.name} ")
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").rstrip("_").replace("_", "-")
        command.epilog = _example(above + name)


def _example(name: str) -> str | None:
    return f"Example: {EXAMPLES[name]}" if name in EXAMPLES else None
