"""Values of environment variables, as the driver compares them with the settings that it gave."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

TUNER_RULES = "NCCL_TUNER_CONFIG_FILE"
"""Variable with the file of rules of NCCL's example tuner. As a setting, its value is the rules, joined by ``;``."""


def read_variables(variables: Mapping[str, str], names: Iterable[str], root: str = "") -> dict[str, str | None]:
    """Returns the values of variables in a process with that root, None if unset; for the file of rules its content."""
    values = {name: variables.get(name) for name in names}
    if path := values.get(TUNER_RULES):
        file = Path(f"{root}/{path}")
        with contextlib.suppress(OSError, ValueError):
            values[TUNER_RULES] = ";".join(file.read_text(encoding="ascii").splitlines()) if file.is_file() else path
    return values
