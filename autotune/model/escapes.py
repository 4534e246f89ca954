"""Text from outside, made harmless to look at: what a terminal would obey instead of show is spelt out.

Escape sequences retitle windows, hide lines or answer for the user; bidirectional overrides show text in another order
than it has. A name, a log line or a setting may hold any of them.
"""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 less tab and line end, DEL, C1
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # marks, overrides and isolates of direction
    "\\u2028\\u2029\\ud800-\\udfff]"  # line ends of Unicode's own; halves of pairs, which no encoding takes
)
_ENDS = re.compile(r"[\t\n]")


def visible(text: str) -> str:
    r"""Text with its control characters spelt ``\u001b``; tabs and line ends stay. Of JSON it makes equal JSON."""
    return _OBEYED.sub(_spell, text)


def visible_line(text: str) -> str:
    """The same on one line: one that pretends to be several would pass for the program's own."""
    return _ENDS.sub(_spell, visible(text))


def _spell(match: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(match[0], f"\\u{ord(match[0]):04x}")
