"""Errors of a study file in words: which key, what was got, what is legal."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from autotune.model.errors import close_matches
from autotune.model.secrets import redact_data


def explain(error: Any, model: type[BaseModel]) -> str:
    """One line for one error of pydantic: the key as written in TOML, what was got, what is legal.

    Args:
        error: As `ValidationError.errors` lists it.
        model: Of the whole file.
    """
    location = [p for p in error["loc"] if not (isinstance(p, str) and p.startswith(("list[", "dict[", "function")))]
    key = ".".join(str(p) for p in location)
    if error["type"] == "extra_forbidden":
        legal = _legal_keys(location[:-1], model)
        return f"`{key}` is not a key of a study{close_matches(str(location[-1]), legal)} (legal: {', '.join(legal)})"
    if error["type"] == "missing":
        return f"`{key}` must be given; see studies/quickstart.toml for an example"
    got = error.get("input")
    redacted = redact_data(got, str(location[-1]) if location else "")
    shown = "" if isinstance(got, dict) and len(got) > 3 else f" but got {redacted!r}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not location:  # of the study as a whole; such a message names its keys itself
        return str(message)
    return f"`{key}` must be: {message}{'' if 'but got' in message else shown}"


def _legal_keys(location: list[Any], whole: type[BaseModel]) -> list[str]:
    """Names of the keys that the section at a location may have."""
    model: Any = whole
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *getattr(annotation, "__args__", ()))
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return sorted(model.model_fields)
