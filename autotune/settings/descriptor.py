"""Reads the descriptor of ``xla.DebugOptions`` out of a shared library, without loading it.

Every C++ protocol buffer library carries its serialized ``FileDescriptorProto``; that of ``xla/xla.proto``
names all fields of DebugOptions with type, enum values and deprecation, and the reserved names of removed
ones.

References:
    https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto
    https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.model import LaunchError

# Field 1 (name) "xla/xla.proto", then field 2 (package) "xla".
_FILE_START = b"\x0a\x0dxla/xla.proto\x12\x03xla"
_TYPES = {
    1: "float", 2: "float", 3: "int64", 4: "int64", 5: "int32", 8: "bool", 9: "string", 11: "message",
    13: "int32", 14: "enum",
}  # fmt: skip
_REPEATED = 3


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One field of DebugOptions; `values` are the full names of an enum, empty if it is defined elsewhere."""

    name: str
    type: str
    repeated: bool
    deprecated: bool
    values: tuple[str, ...]


def read_debug_options(library: Path) -> tuple[tuple[FieldInfo, ...], frozenset[str]]:
    """The fields of DebugOptions, and the names it reserves because they were removed.

    Raises:
        LaunchError: If the library holds no such descriptor.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_FILE_START)
        # Bounded slice: the descriptor of xla.proto has some 100 kB, and `_walk` stops where it ends.
        window = data[start : start + (1 << 20)] if start >= 0 else b""
    for number, message in _walk(window):
        if number == 4 and isinstance(message, bytes) and _first(message, 1) == b"DebugOptions":
            return _read_message(message)
    raise LaunchError(f"{library} must hold the descriptor of xla.DebugOptions but does not")


def library_strings(library: Path, pattern: bytes) -> set[str]:
    """Whole NUL-terminated strings of the library that match `pattern`."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {m.decode() for m in re.findall(rb"\x00(" + pattern + rb")(?=\x00)", data)}


def _read_message(message: bytes) -> tuple[tuple[FieldInfo, ...], frozenset[str]]:
    enums: dict[str, tuple[str, ...]] = {}
    for enum in _all(message, 4):
        enums[_first(enum, 1).decode()] = tuple(_first(v, 1).decode() for v in _all(enum, 2))
    fields = []
    for item in _all(message, 2):
        numbers = {n: v for n, v in _walk(item) if isinstance(v, int)}
        options = dict(_walk(_first(item, 8)))
        fields.append(
            FieldInfo(
                name=_first(item, 1).decode(),
                type=_TYPES.get(numbers.get(5, 0), "string"),
                repeated=numbers.get(4) == _REPEATED,
                deprecated=bool(options.get(3)),
                values=enums.get(_first(item, 6).decode().rpartition(".")[2], ()),
            )
        )
    return tuple(fields), frozenset(n.decode() for n in _all(message, 10))


def _all(message: bytes, number: int) -> list[bytes]:
    return [v for n, v in _walk(message) if n == number and isinstance(v, bytes)]


def _first(message: bytes, number: int) -> bytes:
    return next(iter(_all(message, number)), b"")


def _walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of one serialized message, until its end or the first byte that is no field of a descriptor."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1000 or wire not in (0, 1, 2, 5):
            return
        if wire == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                return
            yield number, data[position : position + length]
            position += length
        elif wire == 0:
            value, position = _varint(data, position)
            yield number, value
        else:
            position += 8 if wire == 1 else 4


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            break
    return value, position
