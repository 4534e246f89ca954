"""Reads what `jax.profiler` wrote on a GPU: what ran on the streams of one device, and for which HLO instruction.

Two files lie beside each other: ``*.xplane.pb``, which has everything, and ``*.trace.json.gz``, which has at most a
million events, those of the host counted. Both are read here without TensorFlow, XProf or JAX. Planes of the host are
passed over without being parsed, and of the devices only one is read.

Sources:
    Fields: tsl/profiler/protobuf/xplane.proto; encoding: protobuf.dev/programming-guides/encoding.
    Names of planes, lines and stats: xla/backends/profiler/gpu/cupti_collector.cc, xla/tsl/profiler/utils.
    Which instruction a kernel is of: xla/python/xplane_to_profile_instructions.cc reads the same stats.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.model import StudyFileError, format_bytes

LARGEST_BYTES = 512 << 20
"""Of one GPU's events, or of an unpacked trace: about a minute of reading. Ten steps of a large model are less."""

_MOST_SEEN = 100_000

_HOW = "; take one with `jax.profiler.trace(FOLDER)` around about ten steps on the GPUs; give FOLDER or its *.xplane.pb"
_DEVICE = re.compile(r"/device:GPU:(\d+)")
_STREAM = "Stream #"
_XPLANE, _TRACE = ".xplane.pb", ".trace.json.gz"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that ran on a stream of the device.

    Attributes:
        start_ps, end_ps: Picoseconds since the profile began.
        stream: Name of the stream's line.
        name: Of the kernel.
        op: The HLO instruction that launched it, as `autotune.compiler.program.Op.name` has it; empty if not told.
        module: The HLO module of that instruction; empty for what is of no program, such as copies to the host.
        is_graph: Whether a CUDA graph launched it.
    """

    start_ps: int
    end_ps: int
    stream: str
    name: str
    op: str
    module: str
    is_graph: bool = False


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One GPU of a profile.

    Attributes:
        path: The file.
        device_count: GPUs that the file has activities of.
        facts: What the plane tells of the GPU, such as ``core_count``; empty from a ``.trace.json.gz``.
        activities: In the order in which they began.
    """

    path: Path
    device_count: int
    facts: Mapping[str, int | float | str]
    activities: tuple[Activity, ...] = field(repr=False)


def is_profile(path: Path) -> bool:
    """Whether a path is what `jax.profiler` writes, by its name: one of its files, or a folder with some."""
    return path.name.endswith((_XPLANE, _TRACE)) or bool(_files(path)) or (path / "plugins" / "profile").is_dir()


def read_device(path: Path) -> DeviceProfile:
    """The first GPU that did something.

    Args:
        path: A ``*.xplane.pb`` or ``*.trace.json.gz``, a folder with some, or one with ``plugins/profile``, of which
            the newest is taken. Of the files of several hosts the first by name is read.

    Raises:
        StudyFileError: If there is no such file, it is cut, too large, of another kind, or has no GPU.
    """
    file = _choose(path)
    try:
        if not file.stat().st_size:
            raise StudyFileError(f"a profile must hold what ran but {file} is empty{_HOW}")
        return _from_trace(file) if file.name.endswith(_TRACE) else _from_xplane(file)
    except OSError as error:
        raise StudyFileError(f"a profile must be readable but {file}: {error}{_HOW}") from error
    except _CutError as error:
        raise StudyFileError(f"a profile must be whole but {file} is cut or damaged ({error}){_HOW}") from error


def _files(folder: Path) -> list[Path]:
    """The profiles in a folder: the xplanes, or where there are none, the traces."""
    for ending in (_XPLANE, _TRACE):
        if found := sorted(f for f in folder.glob(f"*{ending}") if f.is_file()):
            return found
    return []


def _choose(path: Path) -> Path:
    if path.is_file():
        if path.name.endswith((_XPLANE, _TRACE)):
            return path
        raise StudyFileError(f"a profile must be named *{_XPLANE} or *{_TRACE} but got {path}{_HOW}")
    folders = [path, *sorted((path / "plugins" / "profile").glob("*/"), key=lambda f: f.name, reverse=True)]
    for folder in folders:
        if found := _files(folder):
            return found[0]
    what = "has neither" if path.is_dir() else "does not exist"
    raise StudyFileError(f"a profile must be a *{_XPLANE} or *{_TRACE}, or a folder with one, but {path} {what}{_HOW}")


def _too_large(file: Path, size: str) -> str:
    return (
        f"a profile must have at most {format_bytes(LARGEST_BYTES)} of one GPU, or unpacked, to be read in a minute "
        f"but {file} has {size}; profile fewer steps: ten are enough"
    )


class _CutError(Exception):
    """A message ends where more should follow."""


# --- xplane.pb ---


def _from_xplane(file: Path) -> DeviceProfile:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        planes = [(_name(data, s, 2), s) for n, s in _messages(data, (0, len(data))) if n == 1]
        found = [(int(m[1]), _plane(data, s)) for name, s in planes if (m := _DEVICE.fullmatch(name))]
        active = sorted((number, plane) for number, plane in found if plane.lines)
        if not active:
            raise StudyFileError(_no_gpu(file, [name for name, _ in planes]))
        plane = active[0][1]
        if (size := sum(end - start for start, end in plane.lines)) > LARGEST_BYTES:
            raise StudyFileError(_too_large(file, format_bytes(size)))
        activities = [a for line in plane.lines for a in _activities(data, line, plane)]
        return DeviceProfile(file, len(active), plane.facts, _in_order(activities))


@dataclass(slots=True, order=True)
class _Plane:
    """Where the parts of a plane lie, and the names that its events refer to."""

    lines: list[Span]
    events: dict[int, str]
    stats: dict[int, str]
    facts: dict[str, int | float | str]


def _plane(data: mmap.mmap, span: Span) -> _Plane:
    lines: list[Span] = []
    names: dict[int, dict[int, str]] = {4: {}, 5: {}}
    told: list[Span] = []
    for number, inner in _messages(data, span):
        if number == 3 and _name(data, inner, 2).startswith(_STREAM):
            lines.append(inner)
        elif number in names:
            for part, value in _messages(data, inner):
                if part == 2:  # the value of a map's entry; it repeats the key
                    names[number][_number(data, value, 1)] = _name(data, value, 2)
        elif number == 6:
            told.append(inner)
    facts = dict(_stat(data, s, names[5]) for s in told)
    return _Plane(lines, names[4], names[5], facts)


def _activities(data: mmap.mmap, line: Span, plane: _Plane) -> Iterator[Activity]:
    stream, began_ps = _name(data, line, 2), _number(data, line, 3) * 1000
    seen: dict[bytes, tuple[str, int | float | str]] = {}  # most are repeated from kernel to kernel
    for number, span in _messages(data, line):
        if number != 4:
            continue
        name = offset = duration = 0
        told: dict[str, int | float | str] = {}
        for part, value in _fields(data, span):
            if isinstance(value, tuple):
                if part == 4:
                    content = data[value[0] : value[1]]
                    stat = seen.get(content) or _stat(data, value, plane.stats)
                    told[stat[0]] = stat[1]
                    if len(seen) < _MOST_SEEN:
                        seen[content] = stat
            elif part == 1:
                name = value
            elif part == 2:
                offset = value
            elif part == 3:
                duration = value
        start = began_ps + offset
        yield _activity(start, start + duration, stream, plane.events.get(name, ""), told)


def _activity(start_ps: int, end_ps: int, stream: str, name: str, told: Mapping[str, Any]) -> Activity:
    is_graph = any(str(told.get(n, 0)) not in ("0", "") for n in ("cuda_graph_id", "cuda_graph_exec_id"))
    op, module = str(told.get("hlo_op", "")), str(told.get("hlo_module", ""))
    return Activity(start_ps, end_ps, stream, name, op, module, is_graph)


def _stat(data: mmap.mmap, span: Span, names: Mapping[int, str]) -> tuple[str, int | float | str]:
    """A stat's name and value; a value that refers to a name is that name, a rate in floating point is left out."""
    key, found = 0, ""
    for number, value in _fields(data, span):
        if number == 1 and not isinstance(value, tuple):
            key = value
        elif number == 5 and isinstance(value, tuple):
            return names.get(key, ""), data[value[0] : value[1]].decode(errors="replace")
        elif number == 7 and not isinstance(value, tuple):
            return names.get(key, ""), names.get(value, "")
        elif number in (3, 4) and not isinstance(value, tuple):
            return names.get(key, ""), value
    return names.get(key, ""), found


def _name(data: mmap.mmap, span: Span, wanted: int) -> str:
    found = next((s for n, s in _messages(data, span) if n == wanted), None)
    return data[found[0] : found[1]].decode(errors="replace") if found else ""


def _number(data: mmap.mmap, span: Span, wanted: int) -> int:
    return next((v for n, v in _fields(data, span) if n == wanted and not isinstance(v, tuple)), 0)


def _messages(data: mmap.mmap, span: Span) -> Iterator[tuple[int, Span]]:
    """Fields that have a length: strings and messages."""
    return ((number, value) for number, value in _fields(data, span) if isinstance(value, tuple))


def _fields(data: mmap.mmap, span: Span) -> Iterator[tuple[int, int | Span]]:
    """Numbers of fields with their values; of what has a length, where it lies."""
    at, end = span
    while at < end:
        key, at = _varint(data, at, end)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at, end)
            yield number, value
        elif kind == _BYTES:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise _CutError(f"{length} bytes must follow at {at}, {end - at} do")
            yield number, (at, at + length)
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise _CutError(f"no protobuf has a field of kind {kind}, at {at}")
    if at > end:
        raise _CutError(f"a number must end by {end}")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    if at < end and data[at] < 128:  # most are short
        return data[at], at + 1
    found = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        if byte < 128:
            return found | byte << shift, at
        found |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            break
    raise _CutError(f"a number must end by {at}")


# --- trace.json.gz ---


def _from_trace(file: Path) -> DeviceProfile:
    try:
        with gzip.open(file) as opened:
            text = opened.read(LARGEST_BYTES + 1)
        if len(text) > LARGEST_BYTES:
            raise StudyFileError(_too_large(file, f"more than {format_bytes(LARGEST_BYTES)}"))
        events = json.loads(text)["traceEvents"]
        named = [e for e in events if e.get("ph") == "M"]
        planes = {e["pid"]: str(e["args"]["name"]) for e in named if e["name"] == "process_name"}
        lines = {(e["pid"], e["tid"]): str(e["args"]["name"]) for e in named if e["name"] == "thread_name"}
        streams = {key for key, name in lines.items() if name.startswith(_STREAM)}
        devices = {int(m[1]): pid for pid, name in planes.items() if (m := _DEVICE.fullmatch(name))}
        active = [n for n in sorted(devices) if any(pid == devices[n] for pid, _ in streams)]
        if not active:
            raise StudyFileError(_no_gpu(file, planes.values()))
        activities = []
        for e in events:
            if e.get("ph") == "X" and e["pid"] == devices[active[0]] and (e["pid"], e["tid"]) in streams:
                start, end = round(e["ts"] * 1e6), round((e["ts"] + e.get("dur", 0.0)) * 1e6)
                activities.append(
                    _activity(start, end, lines[e["pid"], e["tid"]], str(e.get("name", "")), e.get("args") or {})
                )
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _CutError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise _CutError(f"no trace: {error!r}") from error
    return DeviceProfile(file, len(active), {}, _in_order(activities))


def _in_order(activities: list[Activity]) -> tuple[Activity, ...]:
    return tuple(sorted(activities, key=lambda a: (a.start_ps, a.end_ps)))


def _no_gpu(file: Path, planes: Any) -> str:
    seen = ", ".join(p for p in sorted(set(planes)) if p) or "nothing"
    return f"a profile must have a plane /device:GPU:0 with streams but {file} has {seen}{_HOW}"
