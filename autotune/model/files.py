"""Reads files of the user and of this package, and names the types of plain data."""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

Texts = tuple[str, ...]
TextTable = dict[str, str]
Table = dict[str, Any]

_LOADED: dict[str, jinja2.Template] = {}


def packaged_text(name: str) -> str:
    """Reads a file of the folder `data` of this package."""
    return (resources.files("autotune") / "data" / name).read_text("utf-8")


def packaged_table(name: str) -> Table:
    """Reads a TOML file of the folder `data` of this package."""
    return tomllib.loads(packaged_text(name))


def packaged_templates(filters: Mapping[str, Any], **options: Any) -> jinja2.Environment:
    """Prepares the templates of the folder `data`, which may name only what they are given."""
    import jinja2  # most commands render nothing

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune", "data"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        **{"keep_trailing_newline": True, **options},
    )
    environment.filters |= filters
    return environment


def packaged_template(name: str, filters: Mapping[str, Any], **options: Any) -> jinja2.Template:
    """Loads one of these templates, once."""
    if name not in _LOADED:
        _LOADED[name] = packaged_templates(filters, **options).get_template(name)
    return _LOADED[name]


def plain_content(path: Path, *, most: int = -1) -> bytes:
    """Reads at most so many bytes of a plain file; OSError if it is none, or unreadable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file (a folder, a pipe or a device)", str(path))
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def plain_text(path: Path, *, most: int = -1) -> str:
    r"""Reads a plain file of UTF-8 text (else UnicodeDecodeError), every line ending as ``\n``."""
    return plain_content(path, most=most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
