"""Writes `docs/study-file.md` and the schema that editors read from the study's own types.

Run as ``python docs/write_study_file.py``; with ``--check`` it only says whether both are of
today's keys.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.model.spec import StudySpec

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "study-file.md"
SCHEMA = ROOT / "autotune" / "data" / "study.schema.json"

HEAD = """# Study file: every key

Made by `docs/write_study_file.py`; do not edit. Editors with the language server taplo show these texts in files whose
first line is `#:schema` with the path of `autotune/data/study.schema.json`. `[workload]` must be given, other tables may.

A time is a number of seconds or text such as `"90s"`, `"30m"`, `"1h30m"`; a size is bytes or text such as `"72GiB"`.
"""  # noqa: E501


def schema() -> dict[str, Any]:
    """The JSON schema of study files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **StudySpec.model_json_schema(),
    }


def page(data: Mapping[str, Any]) -> str:
    """The reference page of a schema."""
    parts = [HEAD]
    for name, table in _tables(data, "", data):
        keys = table["properties"]
        rows = [
            _row(key, told, table, data)
            for key, told in keys.items()
            if all(is_list for _, is_list in _inner(told, data))  # a table has a section of its own
        ]
        title = f"## `[{name}]`" if name else "## At the top"
        parts.append(
            "\n".join(
                [
                    title,
                    "",
                    table["description"].replace("``", "`"),
                    "",
                    "| key | is | default | for |",
                    "| --- | --- | --- | --- |",
                    *rows,
                ]
            )
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _tables(
    table: Mapping[str, Any], name: str, data: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every table of a study with its name in TOML, those within behind the one they are in."""
    yield name, table
    for key, told in table["properties"].items():
        for inner, is_list in _inner(told, data):
            path = f"{name}.{key}" if name else key
            yield from _tables(inner, f"[{path}]" if is_list else path, data)


def _inner(
    told: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], bool]]:
    for part in told.get("anyOf", [told]):
        for ref, is_list in ((part.get("$ref"), False), (part.get("items", {}).get("$ref"), True)):
            found = data["$defs"][ref.rpartition("/")[2]] if ref else {}
            if "properties" in found:
                yield found, is_list


def _row(
    key: str, told: Mapping[str, Any], table: Mapping[str, Any], data: Mapping[str, Any]
) -> str:
    inner = list(_inner(told, data))
    if inner:
        kind, default = (
            ("tables" if inner[0][1] else "table"),
            "" if key not in table.get("required", ()) else "must be given",
        )
    else:
        kind = _any_of(_kinds(told, data))
        default = (
            "must be given" if key in table.get("required", ()) else _default(told.get("default"))
        )
    text = (
        told.get("description") or inner[0][0]["description"]
    )  # pydantic writes equal texts of key and table once
    return f"| `{key}` | {_cell(kind)} | {_cell(default)} | {_cell(text)} |"


def _default(value: Any) -> str:
    return "" if value in (None, "", [], {}) else f"`{json.dumps(value)}`"


def _kinds(told: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[str]:
    """What a key may hold, in words."""
    if "$ref" in told:
        yield from _kinds(data["$defs"][told["$ref"].rpartition("/")[2]], data)
        return
    if "anyOf" in told:
        for part in told["anyOf"]:
            yield from _kinds(part, data)
        return
    if "enum" in told or "const" in told:
        yield " or ".join(f"`{json.dumps(v)}`" for v in told.get("enum", [told.get("const")]))
        return
    types = told.get("type", "anything")
    for kind in [types] if isinstance(types, str) else types:
        if kind == "array":
            items = told.get("items") or {"type": "anything"}
            yield f"list of {_any_of(_kinds(items, data))}"
        elif kind == "object":
            values = told.get("additionalProperties")
            within = _any_of(_kinds(values, data)) if isinstance(values, dict) and values else ""
            yield f"table of names to {within}" if within else "table"
        elif kind != "null":
            yield _WORDS.get(kind, kind) + _range(told)


def _any_of(kinds: Iterable[str]) -> str:
    """Alternatives in words; text, number and boolean together are a value."""
    found = list(dict.fromkeys(kinds))
    if {*_SCALARS} - {"integer"} <= {*found}:
        found = ["value", *(kind for kind in found if kind not in _SCALARS)]
    return " or ".join(found)


_WORDS = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "`true` or `false`",
}
_SCALARS = tuple(_WORDS.values())


def _range(told: Mapping[str, Any]) -> str:
    """The bounds of a number in words."""
    low, above, high, below = (
        told.get(k) for k in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    )
    parts = [
        f"{word} {value}"
        for word, value in (("from", low), ("above", above), ("to", high), ("below", below))
        if value is not None
    ]
    return f" {' '.join(parts)}" if parts else ""


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("\n\n", " ").replace("\n", " ")


def main() -> int:
    """Entry point; see the module's first lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 if the keys have changed"
    )
    is_check = parser.parse_args().check
    data = schema()
    texts = {PAGE: page(data), SCHEMA: json.dumps(data, indent=1, ensure_ascii=True) + "\n"}
    for path, text in texts.items():
        if is_check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            print(
                f"{path.relative_to(ROOT)} is not of today's keys: python docs/write_study_file.py"
            )
            return 1
        if not is_check:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
