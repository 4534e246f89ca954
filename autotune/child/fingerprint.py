"""Fingerprint of a compiled program, equal for equal ones in every process, and its counts.

It hashes the optimized HLO text without source locations, and the serialized executable (buffers,
thunks, machine code) without compile options, numbers of modules in their process, and order of
fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from autotune.child.channel import Message

_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_ESTIMATES = re.compile(r'"reification_cost":\[[^\]]*\]')  # not executed
_SAYS_NOTHING = re.compile(r', backend_config=\{(?:"\w+":(?:"0"|false|\[\]|"\w+_INVALID"),?)*\}')
_SOURCE_TABLES = re.compile(
    r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*\n?", flags=re.M
)
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_WITH_OPERANDS = ("all-gather-start", "collective-permute-start")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-~$]+) \(.*\{\n((?: +\S.*\n)*)", re.M)
_FUSED = re.compile(r" fusion\(.*? calls=%?([\w.\-~$]+)")
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?[\w.\-~$]+ = (.+?) ([a-z][\w\-]*)\(", re.M)
_ARRAY = re.compile(r"\b[a-z]+(\d*)\w*\[([\d,]*)\]")
HLO = "optimized.hlo"
THUNKS = "thunks.txt"
METADATA = "thunk_names.txt"
OPTIONS = "debug_options.txt"
LOG = "compile.log"
RESULT = "result.json"  # Files in the folder of a compilation; METADATA has the names of thunks

CACHE_SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
CACHE_FOLDER = "JAX_COMPILATION_CACHE_DIR"
KEPT = "kept-"  # prefix of files beside JAX's cache, with figures of its programs
KERNELS_FLAG = "xla_gpu_per_fusion_autotune_cache_dir"  # not hashed
_BYTES = 2  # wire types of protobuf
_GROUP = 3
_EXECUTABLE_FIELD = 1  # of the outermost message, beside compile options
_MODULE_WITH_OPTIONS_FIELD = 1  # of the executable: not hashed


def strip_hlo(text: str) -> str:
    """Removes the ``HloModule`` line, metadata, source locations and estimates from HLO text."""
    if text.startswith("HloModule"):
        text = text.partition("\n")[2]
    text = _METADATA.sub("", _SOURCE_TABLES.sub("", text))
    # An estimate adds an all-default configuration to a kernel without one.
    return _SAYS_NOTHING.sub("", _ESTIMATES.sub('"reification_cost":[]', text)).strip()


def collective_bytes(hlo: str) -> dict[str, int]:
    """Returns the bytes that an HLO text's collectives write, by kind; each instruction once."""
    fused = set(_FUSED.findall(hlo))
    written = Counter[str]()
    for name, body in _COMPUTATION.findall(hlo):
        for shape, opcode in _INSTRUCTION.findall(body):
            kind = opcode.removesuffix("-start")
            if kind not in COLLECTIVES or name in fused:
                continue
            sizes = []
            for bits, dimensions in _ARRAY.findall(shape):
                lengths = map(int, re.findall(r"\d+", dimensions))
                sizes.append(int(bits or 8) * math.prod(lengths) // 8)
            if opcode in _WITH_OPERANDS:  # their results follow
                sizes = sizes[len(sizes) // 2 :]
            written[kind] += sum(sizes)
    return dict(written)


def module_name(hlo: str) -> str:
    """Returns the module's name in the first line of an HLO text."""
    return hlo.partition("\n")[0].removeprefix("HloModule ").partition(",")[0].strip()


def fingerprint(compiled: Any) -> str:
    """Returns sixteen hexadecimal digits that identify the program of a compiled JAX function.

    They begin with ``t`` without protobuf, and for XLA:GPU's own form: XLA_FLAGS stands for thunks
    and buffers then, so that no two sets of flags appear equal by mistake.
    """
    hlo = compiled.as_text()
    text = strip_hlo(hlo).encode()
    try:
        code = code_parts(bytes(compiled.runtime_executable().serialize()), module_name(hlo))
    except (AttributeError, ImportError, RuntimeError, ValueError):
        flags = [
            flag for flag in os.environ.get("XLA_FLAGS", "").split() if KERNELS_FLAG not in flag
        ]
        return "t" + hashlib.sha256(text + b"\0" + " ".join(flags).encode()).hexdigest()[:15]
    digests = sorted(hashlib.sha256(field).digest() for field in code)
    return hashlib.sha256(b"".join([hashlib.sha256(text).digest(), *digests])).hexdigest()[:16]


def figures_of(lowered: Any, compiled: Any) -> Message:
    """Returns fingerprint and `collective_bytes` of a compiled JAX function, kept beside its cache.

    An executable that JAX loaded from its cache has no machine code to hash.
    """
    import jax

    is_cached = os.environ.get(CACHE_SWITCH) == "true"
    if is_cached:
        name = hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]
        file = Path(os.environ[CACHE_FOLDER], f"{KEPT}{name}")
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(file.read_text(encoding="utf-8")))
    figures = {
        "fingerprint": fingerprint(compiled),
        "collective_bytes": collective_bytes(compiled.as_text()),
    }
    if is_cached and jax.process_index() == 0:  # others may have loaded what it compiled
        with contextlib.suppress(OSError):
            file.write_text(json.dumps(figures))
    return figures


def code_parts(blob: bytes, module: str) -> list[bytes]:
    """Returns a serialized executable's buffers, thunks and code; ValueError for other plugins."""
    code = [
        b"%d:" % field.field_number + _without_module_number(field.data, module.encode(), depth=0)
        for executable in _fields(_without_header(blob))
        if (executable.field_number, executable.wire_type) == (_EXECUTABLE_FIELD, _BYTES)
        for field in _fields(executable.data)
        if field.field_number != _MODULE_WITH_OPTIONS_FIELD
    ]
    if not code:
        raise ValueError(
            "a serialized executable must hold code besides its module but this one does not"
        )
    return code


def _without_module_number(data: bytes | int, module: bytes, *, depth: int) -> bytes:
    """Removes the module's number in this process, and all lengths, from thunks of a message.

    A thunk's record is (1: operation, 2: module name, 3: module number).
    """
    if isinstance(data, int):
        return b"%d" % data
    if module not in data or depth > 64:
        return data
    try:
        fields = _fields(data)
    except ValueError:
        return data
    is_record = any(f.field_number == 2 and f.data == module for f in fields)
    return b"".join(
        b"%d.%d{" % (field.field_number, field.wire_type)
        + _without_module_number(field.data, module, depth=depth + 1)
        + b"}"
        for field in fields
        if not (is_record and (field.field_number, field.wire_type) == (3, 0))
    )


def _without_header(blob: bytes) -> bytes:
    """Removes JAX's header, before which its length stands as a base-128 number."""
    length = 0
    for at, byte in enumerate(blob[:10]):
        length |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return blob[at + 1 + length :]
    raise ValueError("a serialized executable must begin with the length of a header")


def _fields(message: bytes) -> list[Any]:
    """Returns the fields of a protobuf message, without a schema; ValueError if it is none."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        fields = list(UnknownFieldSet(Empty.FromString(message)))
    except DecodeError as error:
        raise ValueError("a serialized executable must be a protobuf message") from error
    if any(field.wire_type == _GROUP for field in fields):
        raise ValueError("a serialized executable must have no groups of fields")
    return fields
