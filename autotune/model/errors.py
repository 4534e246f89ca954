"""The exceptions that users see: a broken study raises one, a failing trial never does.

Messages have three parts: what must hold, what was got, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

STOPPED = 75  # exit status of a driver that was stopped early: run it again (EX_TEMPFAIL)


class AutotuneError(Exception):
    """Root of every error that a user can cause or mend; the CLI prints it without a traceback."""


class StudyFileError(AutotuneError, ValueError):
    """A study file (or an option that overrides it) is missing, malformed or out of range."""


class SettingError(AutotuneError, ValueError):
    """A setting is unknown to the installed build, of the wrong type, or cannot be rendered."""


class RunDirectoryError(AutotuneError):
    """A run directory is missing, belongs to another study, is in use, or cannot be written."""


class NotComparableError(AutotuneError):
    """Two results differ in the named field, so comparing them means nothing."""


class LaunchError(AutotuneError):
    """The reference itself cannot be started or measured, so there is nothing to compare with."""


class StoppedError(LaunchError):
    """Something from outside ended what is needed; the exit status is `STOPPED`."""


class NodeLostError(StoppedError):
    """The nodes that a study runs on are gone; it goes on with others."""


def close_matches(name: str, known: Iterable[str]) -> str:
    """A clause such as ``; did you mean `a` or `b`?``, or an empty string."""
    matches = difflib.get_close_matches(name, known)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(f'`{match}`' for match in matches)}?"


def first_problem(error: ValidationError) -> str:
    """Formats the first problem of a record: its field and what is wrong."""
    problem = error.errors()[0]
    where = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")[:300]
    return f"`{where}`: {message}" if where else message
