"""Reads the descriptor of ``xla.DebugOptions`` out of a shared library, without loading it.

Every C++ protocol buffer library carries its serialized ``FileDescriptorProto``; that of ``xla/xla.proto``
names all fields of DebugOptions with type, enum values and deprecation, and the reserved names of removed
ones.

References:
    https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto
    https://protobuf.dev/programming-guides/encoding/ (a message is its tag, its length as a varint, its bytes)
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError

from autotune.model import LaunchError
from autotune.settings.build import FlagInfo

# Field 1 (name) "xla/xla.proto", then field 2 (package) "xla".
_FILE_START = b"\x0a\x0dxla/xla.proto\x12\x03xla"
# Field 4 (message_type), whose own field 1 (name) is "DebugOptions".
_MESSAGE_START = re.compile(rb"\x22(?P<length>[\x80-\xff]{0,4}[\x00-\x7f])\x0a\x0cDebugOptions")
_TYPES = {
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_UINT64: "int64",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_UINT32: "int32",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_MESSAGE: "message",
    FieldDescriptorProto.TYPE_ENUM: "enum",
}
"""As `FlagInfo.type` names them; a string is all else."""


def read_debug_options(library: Path) -> tuple[tuple[FlagInfo, ...], frozenset[str]]:
    """The fields of DebugOptions, and the names it reserves because they were removed.

    Of an enum the values are its full names, empty if it is defined elsewhere; what a descriptor does not hold
    (defaults, spellings, effects) is not filled.

    Raises:
        LaunchError: If the library holds no such descriptor.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_FILE_START)
        found = _MESSAGE_START.search(data, start) if start >= 0 else None
        if found is None:
            raise LaunchError(f"{library} must hold the descriptor of xla.DebugOptions but does not")
        length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(found["length"]))
        text = data[found.end("length") : found.end("length") + length]
    try:
        message = DescriptorProto.FromString(text)
    except DecodeError as error:
        raise LaunchError(f"{library} must hold the descriptor of xla.DebugOptions but it is torn: {error}") from error
    enums = {e.name: tuple(v.name for v in e.value) for e in message.enum_type}
    fields = tuple(
        FlagInfo(
            name=f.name,
            type=_TYPES.get(f.type, "string"),
            repeated=f.label == FieldDescriptorProto.LABEL_REPEATED,
            deprecated=f.options.deprecated,
            values=enums.get(f.type_name.rpartition(".")[2], ()),
        )
        for f in message.field
    )
    return fields, frozenset(message.reserved_name)


def library_strings(library: Path, pattern: bytes) -> set[str]:
    """Whole NUL-terminated strings of the library that match `pattern`."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return {m.decode() for m in re.findall(rb"\x00(" + pattern + rb")(?=\x00)", data)}
