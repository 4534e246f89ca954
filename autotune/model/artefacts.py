"""Artefacts: files that belong to a set of settings and are named in it by their content.

A setting whose value is a path could name any file of whoever runs under it. So a set holds ``artefact:`` and the
SHA-256 of the content; whoever starts a program puts the path of a checked file there (`autotune.rundir.artefacts`).
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from autotune.child.channel import pack
from autotune.model.flags import PROFILE, is_artefact
from autotune.model.numbers import Record

if TYPE_CHECKING:
    from autotune.model.flags import FlagSet

MOST_BYTES = 64_000_000
"""Of one artefact; a profile has about 60 bytes for each instruction of a program."""

MOST_PACKED = 3_000_000
"""Of one artefact as it travels: a message between driver and lane has a longest line."""

_PREFIX = "artefact:"
_ENDING = {PROFILE: ".pbtxt"}  # XLA tells text from binary by the name


class Artefact(Record):
    """One artefact with its content.

    Attributes:
        digest: SHA-256 of the content.
        packed: The content, deflated and in base64.
    """

    setting: str
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    packed: Annotated[str, Field(max_length=MOST_PACKED)]

    @model_validator(mode="after")
    def _is_what_it_says(self) -> Artefact:
        if self.setting not in _ENDING:
            raise ValueError(f"an artefact belongs to one of {', '.join(_ENDING)}, not to {self.setting!r}")
        if digest_of(self.content) != self.digest:
            raise ValueError("an artefact must hold what its digest says but does not: it was edited or is damaged")
        return self

    @classmethod
    def of(cls, setting: str, content: bytes) -> Artefact:
        """Packs a content.

        Raises:
            ValueError: If it is too large.
        """
        packed = pack(content)
        if len(packed) > MOST_PACKED or len(content) > MOST_BYTES:
            raise ValueError(
                f"it must have at most {MOST_PACKED:,} bytes when packed but has {len(packed):,} "
                f"({len(content):,} as it is)"
            )
        return cls(setting=setting, digest=digest_of(content), packed=packed)

    @property
    def content(self) -> bytes:
        """The bytes of its file.

        Raises:
            ValueError: If it cannot be unpacked, or is too large.
        """
        return unpack(self.packed)

    @property
    def reference(self) -> str:
        """The value that stands for it in a set."""
        return reference_to(self.digest)

    @property
    def file_name(self) -> str:
        """Name of its file."""
        return file_name(self.setting, self.digest)


def unpack(packed: str) -> bytes:
    """Unpacks a content that came in a message; see `autotune.child.channel.pack`.

    Raises:
        ValueError: If it cannot be unpacked, or is too large.
    """
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
    except zlib.error as error:
        raise ValueError(f"an artefact must be deflated but: {error}") from error
    if not inflate.eof:
        raise ValueError("an artefact must be whole, and no larger than any is")
    return found


def digest_of(content: bytes) -> str:
    """SHA-256 of a content."""
    return hashlib.sha256(content).hexdigest()


def reference_to(digest: str) -> str:
    """The value that stands for an artefact in a set."""
    return f"{_PREFIX}{digest}"


def artefacts_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings that stand for an artefact, each with its digest."""
    return {n: v.removeprefix(_PREFIX) for n, v in settings.items() if is_artefact(n, v)}


def file_name(setting: str, digest: str) -> str:
    """Name of an artefact's file."""
    return f"{digest}{_ENDING[setting]}"


def in_folder(settings: FlagSet, folder: Path) -> FlagSet:
    """The set with the paths of its artefacts in a folder, whether or not they exist.

    Raises:
        SettingError: If the folder's path cannot be the value of a setting.
    """
    paths = {n: str(folder.resolve() / file_name(n, digest)) for n, digest in artefacts_of(settings).items()}
    return settings.merge(paths)
