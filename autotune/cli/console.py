"""Where text goes: streams and consoles that spell out control characters, whoever wrote them. Imports Rich."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autotune.model import visible


class VisibleConsole(Console):
    """A console whose own styles are obeyed, and nothing in what it prints: no escapes, no markup, no emoji."""

    def __init__(self, **more: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **more)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Every text that is printed passes here, cells of tables too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
