"""Imports a user's own class, which a study or a command line names as MODULE:CLASS."""

from __future__ import annotations

import pkgutil
import re
import sys
from typing import Any

from autotune.model.errors import StudyFileError

CLASS_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_class(path: str, base: type[Any], folder: str | None, *, key: str) -> Any:
    """Imports a subclass of `base`, or raises StudyFileError, which names the study key `key`.

    Installed modules go before those of `folder`.
    """
    if folder not in (None, *sys.path):
        sys.path.append(str(folder))
    try:
        loaded = pkgutil.resolve_name(path)
    except Exception as error:  # whatever the user's file raises
        raise StudyFileError(
            f"`{key}` must be importable as MODULE:CLASS but {path}: {error!r}; see "
            "docs/extending.md"
        ) from error
    if base not in getattr(loaded, "__mro__", ()):
        raise StudyFileError(
            f"`{key}` must name a subclass of {base.__module__}.{base.__name__} but got {path}"
        )
    return loaded
