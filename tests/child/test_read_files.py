"""Files that programs write their metrics into: each kind byte by byte, appended to, replaced, new ones in a folder."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.child.read_files import Follow, find, records_of


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def event(step: int, wall_s: float, tag: str, value: float, *, tensor: bool) -> bytes:
    """One record of an event file, as `tf.summary.scalar` (a tensor) or tensorboardX (a simple value) writes it."""
    if tensor:
        number = _field(8, b"\x08\x01" + _field(5, struct.pack("<f", value)))
    else:
        number = b"\x15" + struct.pack("<f", value)
    summary = _field(1, _field(1, tag.encode()) + number)
    data = b"\x09" + struct.pack("<d", wall_s) + b"\x10" + _varint(step) + _field(5, summary)
    return struct.pack("<QI", len(data), 0) + data + struct.pack("<I", 0)


def wandb_log(rows: list[dict[str, float]]) -> bytes:
    """An offline file of W&B: records cut into blocks of 32,768 bytes, the last bytes of a block left empty."""
    out = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for row in rows:
        items = b"".join(
            _field(1, _field(2 if "/" in key else 1, key.encode()) + _varint(16 << 3 | 2) + _varint(len(text)) + text)
            for key, value in row.items()
            if (text := json.dumps(value).encode())
        )
        record, first = _field(2, items), True
        while record or first:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += b"\0" * left
                continue
            piece, record = record[: left - 7], record[left - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            first = False
    return out


EVENTS = b"".join(event(i, 100 + i / 2, "perf/step_time", 0.25, tensor=bool(i % 2)) for i in range(5))
WANDB = wandb_log(
    [{"_step": i, "_timestamp": 10.0 + i, "perf/t": 0.5, "pad": 10 ** (20 * (i % 9))} for i in range(900)]
)


@pytest.mark.parametrize(
    ("name", "data", "count", "last", "made_s"),
    [
        ("events.out.tfevents.1.host", EVENTS, 5, {"step": 4, "perf/step_time": 0.25}, 102.0),
        ("run-x.wandb", WANDB, 900, {"_step": 899, "_timestamp": 909.0, "perf/t": 0.5, "pad": 10**160}, 909.0),
        ("m.csv", b"step,time,note\r\n1,0.5,a\r\n2,0.25,b\r\n", 2, {"step": 2.0, "time": 0.25, "note": "b"}, None),
        ("m.tsv", b"step\ttime\n1\t0.5\n", 1, {"step": 1.0, "time": 0.5}, None),
        ("m.jsonl", b'{"a": 1}\n{"a": 2}\n', 2, {"a": 2}, None),
    ],
)
@pytest.mark.parametrize("size", [3, 1000, 1 << 20])
def test_records_do_not_depend_on_how_they_come(
    name: str, data: bytes, count: int, last: dict[str, object], made_s: float | None, size: int
) -> None:
    records = records_of(name)
    found = [told for i in range(0, len(data), size) for told in records.feed(data[i : i + size])]
    assert len(found) == count
    assert json.loads(found[-1][0]) == last
    assert found[-1][1] == made_s


@pytest.mark.parametrize(("name", "words"), [("x.tfevents.1", "TensorBoard"), ("x.wandb", "W&B")])
def test_a_file_of_another_kind_is_said_to_be_none(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(records_of(name).feed(b"this is only a text of some length\n"))


def test_rows_that_are_appended_to_a_table_are_read_under_its_header(tmp_path: Path) -> None:
    file = tmp_path / "m.csv"
    file.write_text("step,time\n1,0.5\n")
    follow = Follow(file)
    with file.open("a") as stream:
        stream.write("2,0.25\n")
    assert [json.loads(line) for line, _ in follow.read()] == [{"step": 2.0, "time": 0.25}]
    file.unlink()
    list(follow.read())
    file.write_text("time,step\n0.75,3\n")
    assert [json.loads(line) for line, _ in follow.read()] == [{"time": 0.75, "step": 3.0}]


@pytest.mark.parametrize("path", [lambda p: p, lambda p: p / "*" / "events*"])
def test_of_a_folder_the_file_that_is_new_is_read(tmp_path: Path, path: Callable[[Path], Path]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "events.out.tfevents.1").write_bytes(EVENTS)
    follow = Follow(path(tmp_path))
    assert list(follow.read()) == []
    (tmp_path / "new").mkdir()
    new = tmp_path / "new" / "events.out.tfevents.2"
    new.write_bytes(EVENTS[: len(EVENTS) // 5])
    assert len(list(follow.read())) == 1
    new.write_bytes(EVENTS)
    assert len(list(follow.read())) == 4
    assert find(path(tmp_path)) == new
