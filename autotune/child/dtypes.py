"""Number formats by name, however a program says them; standard library only, for any program may have a hook."""

from __future__ import annotations

import re
from typing import Any


def dtype_name(dtype: Any) -> str | None:
    """The name of a format: of a text itself, of a dtype of NumPy, or of a scalar type such as ``jax.numpy.bfloat16``.

    None where nothing is said.
    """
    if dtype is None or isinstance(dtype, str):
        return dtype or None
    if isinstance(name := getattr(dtype, "name", None), str):
        return name
    found = re.search(r"(\w+)'?[)>]*$", str(dtype))  # <class 'jax.numpy.bfloat16'>
    return found[1] if found else str(dtype)
