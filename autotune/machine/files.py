"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def like_folder(folder: Path) -> int:
    """The mode of a new file: who may not look into its folder may not read it, wherever it is moved or copied.

    Raises:
        OSError: If there is no such folder.
    """
    return folder.stat().st_mode & 0o666 | 0o600


def private_folder(path: Path) -> None:
    """Makes a folder that is its owner's alone, below others as usual; one that is there keeps the mode it was given.

    Raises:
        OSError: If it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def replace_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all (temporary name beside it, sync, rename); its folder is made if it is missing.

    Raises:
        OSError: If it cannot be written; what was there before still is.
    """
    # Workers on two machines may have one process number.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = like_folder(path.parent)
        with open(temporary, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
