from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.child.fingerprint import code_parts, collective_bytes, fingerprint, strip_hlo
from autotune.machine import environment
from autotune.model.flags import FlagSet

PROGRAM = Path(__file__).with_name("fingerprint_program.txt").read_text(encoding="utf-8")
DUMPS = sorted((Path(__file__).parents[1] / "compiler" / "dumps").glob("*.hlo"))
WRITTEN = {
    "schedule": {"all-gather": 8 * 7 * 4, "reduce-scatter": 2 * 7 * 4},
    "started": {"all-gather": 64 * 4 * 2 + 16, "all-reduce": 10 * 4 + 8},
}
NARROW = "xla_cpu_prefer_vector_width"


def compiled(settings: dict[str, str], before: int = 0, options: str = "[None]") -> list[str]:
    """Fingerprints that a process of its own gives, one of each of some compiler options."""
    env = environment.child_environment(environment.caller_environment(), FlagSet(settings), platform_name="cpu")
    env["PYTHONPATH"] = str(Path.cwd())
    command = [sys.executable, "-c", PROGRAM, str(before), options]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.fixture(scope="module")
def references() -> list[str]:
    """Of the default, and of other machine code by an option of the compiler."""
    return compiled({}, options=f"[None, {{'{NARROW}': 128}}]")


def test_machine_code_alone_changes_it(references: list[str]) -> None:
    reference, narrow = references
    assert narrow != reference
    assert not reference.startswith("t")  # not of the text alone


@pytest.mark.gate
def test_equal_in_another_process_whatever_was_compiled_before_and_whatever_does_nothing(references: list[str]) -> None:
    reference, _ = references
    assert compiled({"xla_gpu_graph_min_graph_size": "7"}, before=2) == [reference]


@pytest.mark.gate
def test_machine_code_changes_it_the_same_both_ways(references: list[str]) -> None:
    assert compiled({NARROW: "128"}) == references[1:]


def test_stripping_leaves_what_runs() -> None:
    text = (
        'HloModule jit_f, is_scheduled=true\n\nFileNames\n1 "/a/b.py"\n\nStackFrames\n1 {file_location_id=1}\n\n'
        'ENTRY %m {\n  ROOT %x = f32[7] tanh(%p), metadata={op_name="a\\"}{b" stack_frame_id=3}, '
        'backend_config={"n":1}\n}'
    )
    assert strip_hlo(text) == 'ENTRY %m {\n  ROOT %x = f32[7] tanh(%p), backend_config={"n":1}\n}'


def test_estimates_of_cost_models_do_not_count() -> None:
    head = "ENTRY %m {\n  %a = f32[7] fusion(%p), kind=kLoop"
    bare = f'{head}\n  %b = f32[7] fusion(%p), backend_config={{"kind":"triton","reification_cost":[]}}\n}}'
    default = '{"operation_queue_id":"0","reification_cost":[],"device_type":"DEVICE_TYPE_INVALID"}'
    kind = '{"kind":"triton","reification_cost":[{"exec_time_us":0.7,"name":"sol"}]}'
    said = f"{head}, backend_config={default}\n  %b = f32[7] fusion(%p), backend_config={kind}\n}}"
    assert strip_hlo(said) == strip_hlo(bare)
    assert strip_hlo(said.replace('"0"', '"1"')) != strip_hlo(bare)


@pytest.mark.parametrize("blob", [b"", b"\x05ab", b"\x00\x0b", b"\x02ab\x0a\x7fshort", b"\x00"])
def test_bytes_of_another_form_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="must"):
        code_parts(blob, "jit_f")


def test_options_and_order_do_not_count_and_code_does() -> None:
    def blob(module: bytes, *rest: bytes) -> bytes:
        fields = [b"\x0a" + bytes([len(module)]) + module, *(b"\x42" + bytes([len(r)]) + r for r in rest)]
        inner = b"".join(fields)
        return b"\x03abc" + b"\x0a" + bytes([len(inner)]) + inner + b"\x12\x03opt"

    def parts(data: bytes) -> list[bytes]:
        return sorted(code_parts(data, "jit_f"))

    assert parts(blob(b"options", b"one", b"two")) == parts(blob(b"others", b"two", b"one"))
    assert parts(blob(b"options", b"one")) != parts(blob(b"options", b"two"))


def test_what_cannot_be_seen_is_never_taken_for_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opaque:
        """A backend that serializes in its own way, as XLA:GPU does."""

        def as_text(self) -> str:
            return "HloModule jit_f\n\nENTRY %m {\n}"

        def runtime_executable(self) -> Opaque:
            return self

        def serialize(self) -> bytes:
            return b"\x01a\x83\xafp\xd1"

    found = {}
    for flags in ("", "--xla_gpu_enable_command_buffer=", "--xla_gpu_graph_min_graph_size=1"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        found[flags] = fingerprint(Opaque())
        assert fingerprint(Opaque()) == found[flags]
    assert all(f.startswith("t") for f in found.values())
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("dump", DUMPS, ids=lambda path: path.stem)
def test_a_process_counts_what_collectives_write(dump: Path) -> None:
    text = dump.read_text(encoding="utf-8")
    assert collective_bytes(text) == WRITTEN.get(dump.stem, {})
