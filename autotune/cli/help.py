"""Layout of `--help`: commands by purpose, and an example for each."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

from typer.core import TyperGroup

from autotune.model.files import packaged_table

_COMMANDS = packaged_table("commands.toml")

GROUPS: Mapping[str, Iterable[str]] = {
    title: dict.fromkeys(name.partition(" ")[0] for name in table)
    for title, table in _COMMANDS.items()
}

EXAMPLES: Mapping[str, str] = ChainMap(*_COMMANDS.values())


class Grouped(TyperGroup):
    """Lists the commands by purpose, and adds to the help of each its example."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _add_examples(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the lists of commands; see `click.Group`."""
        longest = max(map(len, self.commands))
        width = formatter.width - 6 - longest
        for title, names in GROUPS.items():
            rows = [(name, self.commands[name].get_short_help_str(width)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=longest, col_spacing=2)


def _add_examples(commands: Mapping[str, Any], above: str = "") -> None:
    """Adds examples to commands and those below; a group may have that of its first command."""
    for name, command in commands.items():
        below = getattr(command, "commands", {})
        names = [above + name, *(f"{name} {each}" for each in below)]
        examples = [EXAMPLES[n] for n in names if n in EXAMPLES]
        command.epilog = f"Example: {examples[0]}"
        _add_examples(below, f"{name} ")
