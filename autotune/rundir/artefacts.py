"""Files of artefacts, named by their content and checked before use.

XLA silently ignores a missing or damaged profile, and reads any file that a path leads to. So paths are made here, in a
folder that the caller chose, and only if it holds a plain file with the right digest.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from autotune.model.artefacts import Artefact, artefacts_of, digest_of, file_name, in_folder
from autotune.model.errors import AutotuneError
from autotune.model.files import plain_content
from autotune.model.flags import FlagSet
from autotune.model.records import ProfileRecord
from autotune.rundir.files import write_atomically
from autotune.rundir.store import Store

ARTEFACTS = "artefacts"
"""Folder of artefacts in a run directory."""

MOST_READ = 64_000_000
"""Bytes of an artefact that are read."""


def artefacts_for(store: Store, settings: FlagSet) -> tuple[Artefact, ...]:
    """Returns the artefacts of a set that a run's records hold."""
    wanted = set(artefacts_of(settings).items())
    if not wanted:
        return ()
    found = {(a.setting, a.digest): a for r in store.of(ProfileRecord) if (a := r.profile) is not None}
    return tuple(found[key] for key in sorted(wanted) if key in found)


def place_artefacts(artefacts: Iterable[Artefact], folder: Path) -> None:
    """Writes artefacts into an existing folder, except unchanged ones.

    Raises:
        RunDirectoryError: If the folder cannot be written.
    """
    for artefact in artefacts:
        path = folder / artefact.file_name
        if why_not_whole(path, artefact.digest) is not None:
            write_atomically(path, artefact.content)


def why_not_whole(path: Path, digest: str) -> str | None:
    """Returns the reason why a file is not the artefact of a SHA-256 digest; None if it is."""
    try:
        got = digest_of(plain_content(path, most=MOST_READ + 1, follow=False))
    except OSError as error:
        return "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror).lower()
    return None if got == digest else f"it holds something else (SHA-256 {got[:12]})"


def artefact_problems(settings: FlagSet, folder: Path) -> list[str]:
    """Lists missing and changed artefacts of a set in a folder."""
    found = []
    for name, digest in artefacts_of(settings).items():
        path = folder / file_name(name, digest)
        if (why := why_not_whole(path, digest)) is not None:
            found.append(f"{name} needs {path} (SHA-256 {digest[:12]}) but: {why}")
    return found


def in_force(settings: FlagSet, folder: Path) -> FlagSet:
    """Replaces the artefacts of a set by their paths, each checked.

    Raises:
        AutotuneError: If one is missing, a link, not a plain file, or changed.
    """
    if not artefacts_of(settings):
        return settings
    if problems := artefact_problems(settings, folder):
        raise AutotuneError(
            "what was proven with a set must lie beside it, unchanged, but\n"
            + "\n".join(f"  - {p}" for p in problems)
            + "\n  export it again (autotune export RUN -o FILE), or copy the file from where it was exported to"
        )
    return in_folder(settings, folder)


def read_artefacts(settings: FlagSet, folder: Path) -> tuple[Artefact, ...]:
    """Reads the artefacts of a set, each checked.

    Raises:
        AutotuneError: See `in_force`.
    """
    in_force(settings, folder)
    found = []
    for name, digest in artefacts_of(settings).items():
        artefact = Artefact.of(name, plain_content(folder / file_name(name, digest), most=MOST_READ + 1, follow=False))
        if artefact.digest != digest:
            raise AutotuneError(f"{folder / artefact.file_name} must stay as it is while it is read but was changed")
        found.append(artefact)
    return tuple(found)
