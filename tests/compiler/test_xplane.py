"""Reading what `jax.profiler` wrote: as XLA's own reader does, in bounded time, and nothing that is no profile."""

from __future__ import annotations

import contextlib
import gzip
import time
import warnings
from pathlib import Path

import pytest

from autotune.compiler.program import CompiledProgram, Op, OpKind
from autotune.compiler.xplane import is_profile, read_device
from autotune.model.errors import StudyFileError
from tests.compiler.played import NVIDIA, Event, Player, plane, tagged, varint, write_trace, write_xplane


def events(steps: int = 4) -> list[Event]:
    """Fifty kernels a step, of a microsecond and a bit each."""
    ops = tuple(Op(kind=OpKind.KERNEL, name=f"loop_add_fusion.{n}") for n in range(50))
    program = CompiledProgram(fingerprint="f", versions={}, compile_s=0.0, memory=None, schedule=ops)
    return Player(lambda op: 1e-6 + len(op.name) * 1.5e-9, gap_s=1e-6).steps(program, steps).events


def refused(path: Path) -> str:
    with pytest.raises(StudyFileError) as caught:
        read_device(path)
    return str(caught.value)


def test_file_is_read_as_xla_reads_it(tmp_path: Path) -> None:
    """What the tests write is a profile to XLA's own reader, too, and both find the same in it."""
    from jax.profiler import ProfileData

    folder = write_xplane(tmp_path, events())
    with warnings.catch_warnings():  # JAX 0.12's types warn as they are made: as an error that ends the process
        warnings.simplefilter("ignore", DeprecationWarning)
        found = ProfileData.from_file(str(next(folder.rglob("*.xplane.pb"))))
        device = next(p for p in found.planes if p.name == "/device:GPU:0")
        theirs = [(e.start_ns, e.duration_ns, s.name, e.name, dict(e.stats)) for s in device.lines for e in s.events]
    ours = read_device(folder).activities
    assert len(ours) == len(theirs) > 100
    for a, (start_ns, duration_ns, stream, name, stats) in zip(ours, sorted(theirs, key=lambda t: t[:2]), strict=True):
        assert (a.stream, a.name, a.op, a.module) == (stream, name, stats["hlo_op"], stats["hlo_module"])
        assert (a.start_ps / 1000, (a.end_ps - a.start_ps) / 1000) == pytest.approx((start_ns, duration_ns), abs=1.0)


def test_profile_of_a_cpu_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.xplane.pb"
    file.write_bytes(plane("/host:CPU", events()) + plane("Task Environment", []))
    assert "must have a plane /device:GPU:0" in refused(file)
    assert "/host:CPU" in refused(file)


@pytest.mark.parametrize("ending", [".xplane.pb", ".trace.json.gz"])
def test_empty_cut_and_damaged_files_are_refused(tmp_path: Path, ending: str) -> None:
    whole_events = events()
    whole = write_trace(tmp_path / f"a{ending}", whole_events)
    if ending == ".xplane.pb":
        whole = next(write_xplane(tmp_path / "made", whole_events).rglob("*.xplane.pb"))
    content = whole.read_bytes()
    empty, cut, other = (tmp_path / f"{n}{ending}" for n in ("empty", "cut", "other"))
    empty.write_bytes(b"")
    other.write_bytes(b"\x1f\x8b" + bytes(range(256)) * 9)
    assert "is empty" in refused(empty)
    assert "cut or damaged" in refused(other)
    for length in range(1, len(content) - 1, max(1, len(content) // 23)):
        cut.write_bytes(content[:length])
        message = refused(cut)
        assert "cut or damaged" in message or "must have a plane" in message, length
    with_bytes_flipped = bytearray(content)
    for at in range(0, len(content), max(1, len(content) // 41)):
        with_bytes_flipped[at] ^= 0x5A
        cut.write_bytes(bytes(with_bytes_flipped))
        with contextlib.suppress(StudyFileError):  # any other exception is a failure of this test
            read_device(cut)
        with_bytes_flipped[at] ^= 0x5A


@pytest.mark.parametrize("content", ["[]", "{}", '{"traceEvents": 7}', '{"traceEvents": [{"ph": "M"}]}', '{"a": [1'])
def test_json_that_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "n.trace.json.gz"
    file.write_bytes(gzip.compress(content.encode()))
    assert "cut or damaged" in refused(file)


def test_folders_and_names(tmp_path: Path) -> None:
    assert not is_profile(tmp_path)
    assert not is_profile(tmp_path / "nothing")
    (tmp_path / "plugins" / "profile").mkdir(parents=True)
    assert is_profile(tmp_path)
    assert "has neither" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "gone.xplane.pb")
    for when, steps in (("2026_01_01", 1), ("2026_12_31", 6)):  # the newest is taken
        made = write_xplane(tmp_path / when, events(steps))
        (next(made.glob("plugins/profile/*"))).rename(tmp_path / "plugins" / "profile" / when)
    assert len(read_device(tmp_path).activities) == len(events(6))


def test_large_profile_is_read_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 MB, nearly all of the host: what is not of the GPU is passed over."""
    file = tmp_path / "n.xplane.pb"
    head = tagged(2, "/host:CPU")
    with file.open("wb") as opened:  # the end is zeros that take no place on the disk
        opened.write(plane("/device:GPU:0", events(), NVIDIA))
        opened.write(varint(1 << 3 | 2) + varint(len(head) + 5 + 200_000_000) + head)
        opened.write(varint(3 << 3 | 2) + varint(200_000_000))
        opened.truncate(opened.tell() + 200_000_000)
    began = time.process_time()
    assert len(read_device(file).activities) == len(events())
    assert time.process_time() - began < 2.0
    monkeypatch.setattr("autotune.compiler.xplane.LARGEST_BYTES", 1000)
    assert "profile fewer steps" in refused(file)


def test_unpacked_trace_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.compiler.xplane.LARGEST_BYTES", 1 << 20)
    file = tmp_path / "n.trace.json.gz"
    file.write_bytes(gzip.compress(b" " * (8 << 20)))
    assert "profile fewer steps" in refused(file)
