"""What keys are for, in the JSON schema: told once, in the docstrings of the sections."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema


class Described(BaseModel):
    """A frozen table without other keys than its own, whose schema says what each is for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with the docstring's words: its head for the table, its attributes for the keys."""
        schema = handler(core_schema)
        table = handler.resolve_ref_schema(schema)
        head, told = read_docstring(cls.__doc__ or "")
        table["description"] = head
        for name, key in table.get("properties", {}).items():
            if name in told:
                key["description"] = told[name]
        return schema


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The head of a docstring in Google's style, and what it says of each attribute, each as one line."""
    head, _, attributes = inspect.cleandoc(text).partition("\nAttributes:\n")
    told: dict[str, str] = {}
    name = ""
    for line in attributes.splitlines():
        found = re.match(r"    (\w+): (.*)", line)
        if found:
            name = found[1]
            told[name] = found[2].strip()
        elif name and line.strip():
            told[name] += " " + line.strip()
    return "\n\n".join(" ".join(part.split()) for part in head.strip().split("\n\n")), told


def number_or_text(pattern: str, *, least: str = "exclusiveMinimum") -> WithJsonSchema:
    """What a file may hold for a quantity with a unit: a number, or text such as ``30m``; for annotations.

    Args:
        pattern: Of the text.
        least: Whether 0 is legal: ``minimum``, or ``exclusiveMinimum``.
    """
    return WithJsonSchema(
        {"anyOf": [{"type": "number", least: 0}, {"type": "string", "pattern": pattern}]}, mode="validation"
    )
