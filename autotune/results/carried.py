"""Files that carry a winner: the line in which every exported one holds it, and reading it back."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pydantic import ValidationError

from autotune.model import AutotuneError
from autotune.results.winner import WINNER_VERSION, Winner, winner_of
from autotune.rundir import Store

MARK = "autotune-winner: "
"""Starts the comment that holds the record in an exported file."""


def comment_line(winner: Winner) -> str:
    """The winner as text for one comment line: plain ASCII, no line ends."""
    data = json.loads(winner.model_dump_json(exclude_none=True))
    return MARK + json.dumps(data, ensure_ascii=True, separators=(",", ":"))


def read_winner(path: Path) -> Winner:
    """The winner that a run directory or an exported file of any format holds.

    Raises:
        AutotuneError: If there is none in it.
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
    """The winner in the text of an exported file.

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
