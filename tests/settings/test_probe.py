from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import autotune.settings.probe
from autotune.model.errors import STOPPED, LaunchError, StoppedError
from autotune.model.flags import parse_text_proto
from autotune.settings.probe import FlagInfo, ParserProcess, ProbeReport, probe_build, read_debug_options
from tests.console import autotune as autotune_command
from tests.tables import toml_beside

CASES = toml_beside(__file__)

FLAG_COUNTS = {"0.10.2": 309, "0.11.2": 339, "0.12.0.1": 350}  # counted in the builds' own usage text


def test_all_flags_of_the_parser_are_found(report: ProbeReport) -> None:
    if report.jaxlib not in FLAG_COUNTS:
        pytest.skip(f"the flags of jaxlib {report.jaxlib} were never counted")
    assert sum(f.in_xla_flags for f in report.flags.values()) == FLAG_COUNTS[report.jaxlib]


def test_every_flag_with_its_default_is_taken_and_changes_nothing(report: ProbeReport, parser: ParserProcess) -> None:
    # The empty default of a list would add an empty item to it.
    tokens = {f.name: f"--{f.name}={f.default}" for f in report.flags.values() if f.in_xla_flags and f.default}
    assert parser.ask(" ".join(tokens.values())).options == parser.ask("").options


@pytest.mark.parametrize(("name", "kind", "default"), CASES["types"])
def test_type_and_default_are_those_of_the_build(report: ProbeReport, name: str, kind: str, default: str) -> None:
    assert (report.flags[name].type, report.flags[name].default) == (kind, default)


def test_values_are_spelled_as_the_parser_takes_them(report: ProbeReport) -> None:
    buffers = report.flags["xla_gpu_enable_command_buffer"]
    assert buffers.values[:3] == ("FUSION", "CUBLAS", "CUDNN")
    assert "INVALID" not in buffers.values
    assert (buffers.edits, buffers.any_case, buffers.allows_empty) == (True, True, True)
    mode = report.flags["xla_gpu_all_gather_mode"]
    assert mode.values == ("private", "symmetric", "peer")
    assert (mode.default, mode.allows_empty) == ("private", False)
    assert not report.flags["xla_gpu_disable_async_collectives"].edits


def test_a_build_is_asked_once_and_anew_for_a_torn_file(
    report: ProbeReport,
    parser: ParserProcess,
    probe_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autotune.settings.probe, "ParserProcess", lambda *_: pytest.fail("asked again"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_folder.parent))
    assert probe_build(sys.executable) == report
    monkeypatch.setattr(autotune.settings.probe, "ParserProcess", lambda *_: parser)
    monkeypatch.setattr(parser, "close", lambda: None)  # others ask it, too
    (whole,) = probe_folder.glob("probe-*.json")
    (torn := tmp_path / "autotune" / whole.name).parent.mkdir()
    torn.write_text(whole.read_text()[:1000])
    monkeypatch.setattr(autotune.settings.probe, "_ask_flags", lambda *_: (report.flags, report.removed))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert probe_build(sys.executable) == report
    assert json.loads(torn.read_text()).keys() == json.loads(whole.read_text()).keys()  # it is whole again


@pytest.mark.aot
def test_the_plugin_holds_the_flags_of_the_cpu(
    report: ProbeReport, probe_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_folder.parent))
    cuda = probe_build(sys.executable, platform="cuda")
    assert (cuda.platform, cuda.jaxlib) == ("cuda", report.jaxlib)
    assert cuda.flags == report.flags
    if cuda.plugin is None:
        pytest.skip("the CUDA plugin is not installed, so both asked the CPU library")


def test_a_python_without_jaxlib_is_told_how_to_get_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    with pytest.raises(LaunchError, match="install jax"):
        probe_build(str(tmp_path / "bare/bin/python"))


def test_a_parser_that_does_not_answer_is_an_error() -> None:
    with (
        contextlib.closing(ParserProcess(sys.executable, timeout_s=0.001)) as parser,
        pytest.raises(LaunchError, match=r"within 0\.001 s"),
    ):
        parser.ask("")


def test_a_parser_that_is_killed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child, tries = tmp_path / "child.py", tmp_path / "tries"
    child.write_text(f"import os\nopen({str(tries)!r}, 'a').write('x')\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(autotune.settings.probe, "_CHILD", child)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(StoppedError, match=r"SIGKILL; .*same command"):
        probe_build(sys.executable)
    assert tries.read_text() == "xxx"
    assert autotune_command("flags", "check", "--xla_a=1").returncode == STOPPED


def test_an_unknown_flag_is_told_from_a_refused_value(parser: ParserProcess) -> None:
    answers = {name: parser.ask(f"--{name}={value}") for name, value in CASES["asked"].items()}
    unknown = {name for name, answer in answers.items() if answer.unknown}
    assert unknown == {"xla_gpu_no_such", "xla_gpu_graph_level"}
    refused = {name for name, answer in answers.items() if not answer.starts} - unknown
    assert refused == {"xla_gpu_shape_checks", "xla_gpu_enable_pdl"}


def test_text_protos_are_read_with_lists_maps_and_escapes() -> None:
    text = CASES["text_proto"]
    assert parse_text_proto(text) == {
        "number": ["3"],
        "path": ['a"bü'],
        "kinds": ["ONE", "TWO"],
        "options": ["k2=v2"],
        "filter": ["first=1"],
    }


def test_a_descriptor_is_read_out_of_surrounding_bytes(tmp_path: Path) -> None:
    def entry(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    enum = entry(1, b"Mode") + entry(2, entry(1, b"MODE_A")) + entry(2, entry(1, b"MODE_B"))
    one = entry(1, b"xla_mode") + b"\x20\x03\x28\x0e" + entry(6, b".xla.DebugOptions.Mode")
    other = entry(1, b"xla_old") + b"\x20\x01\x28\x08"
    message = entry(1, b"DebugOptions") + entry(2, one) + entry(2, other) + entry(4, enum) + entry(10, b"xla_gone")
    file = entry(1, b"xla/xla.proto") + entry(2, b"xla") + b"\x22\x81\x01"[:1] + bytes([len(message)]) + message
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF" + b"\0" * 7 + file + b"\0" * 5)
    assert read_debug_options(library) == (
        (
            FlagInfo(name="xla_mode", type="enum", repeated=True, values=("MODE_A", "MODE_B")),
            FlagInfo(name="xla_old", type="bool"),
        ),
        frozenset({"xla_gone"}),
    )
