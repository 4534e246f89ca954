"""Tables of cases, which lie as TOML beside the tests that go through them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def toml_beside(test: str, name: str = "cases.toml") -> dict[str, Any]:
    """A TOML file in the folder of a test, which is given by its `__file__`."""
    return tomllib.loads(Path(test).with_name(name).read_text(encoding="utf-8"))
