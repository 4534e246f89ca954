"""Layout of `--help`: commands by purpose, and an example for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from autotune.model.files import packaged_table

_COMMANDS = packaged_table("commands.toml")

GROUPS: Mapping[str, Iterable[str]] = {
    title: dict.fromkeys(name.partition(" ")[0] for name in table) for title, table in _COMMANDS.items()
}
"""Commands by purpose, in display order."""

EXAMPLES: Mapping[str, str] = {name: line for table in _COMMANDS.values() for name, line in table.items()}
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
