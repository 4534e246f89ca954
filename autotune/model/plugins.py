"""Imports a user's own class, which a study or a command line names as MODULE:CLASS."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from autotune.model.errors import StudyFileError

T = TypeVar("T")

CLASS_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_class(path: str, base: Callable[..., T], folder: str | Path | None, *, key: str) -> Callable[..., T]:
    """Imports a user's class.

    Args:
        path: MODULE:CLASS.
        folder: Where its file may lie, too; installed modules go before it.
        base: What the class must be a subclass of.
        key: Study key or option that named the class, for messages.

    Raises:
        StudyFileError: If there is no such class, its file fails, or it is no subclass.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        loaded: Any = pkgutil.resolve_name(path)
    except Exception as error:  # whatever the user's file raises
        there = f"; its file may lie in {folder}" if folder is not None else ""
        raise StudyFileError(f"`{key}` must be importable as MODULE:CLASS but {path}: {error!r}{there}") from error
    known: Any = base
    if not isinstance(loaded, type) or not issubclass(loaded, known):
        raise StudyFileError(f"`{key}` must name a subclass of {known.__module__}.{known.__name__} but got {path}")
    return cast(Callable[..., T], loaded)
