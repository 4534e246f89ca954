"""Compiled programs of a command, by XLA's dump: found equal where they are, and only there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.workers.programs import SHOWN_BY_DUMP, NotKnown, ProgramWatch
from autotune.workers.settings_check import DUMP_FLAG
from tests.tables import toml_beside
from tests.workers.conftest import PROGRAMS, Start, command, study

MODULE = "module_0003.jit_step"


@pytest.fixture
def watch() -> Iterator[ProgramWatch]:
    found = ProgramWatch({})
    yield found
    found.close()


def folder_of(watch: ProgramWatch) -> Path:
    return Path(watch.environment["XLA_FLAGS"].rpartition("=")[2])


def compile_module(
    folder: Path, name: str = "jit_step", number: int = 3, *, code: str = "code", options: str = ""
) -> None:
    """Writes what XLA writes of a module."""
    module = f"module_{number:04d}.{name}"
    for end, text in {
        "before_optimizations.txt": "HloModule x",
        "cpu_after_optimizations.txt": f'HloModule {name}\nROOT add, metadata={{op_name="{number}"}}',
        "cpu_after_optimizations-buffer-assignment.txt": "buffers",
        "cpu_after_optimizations-memory-usage-report.txt": "Total bytes: 4096 (4KiB)\n",
        "obj-file.kernel.o": code,
    }.items():
        (folder / f"{module}.{end}").write_text(text)
    (folder / f"{module}.debug_options").write_text(f'{options}{DUMP_FLAG}: "{folder}"\n')


def name_of(flags: str = "", **module: Any) -> str:
    watch = ProgramWatch({"XLA_FLAGS": flags})
    try:
        compile_module(folder_of(watch), **module)
        return str(watch.read_programs(1)["fingerprint"])
    finally:
        watch.close()


def test_equal_programs_have_one_name_and_others_another() -> None:
    assert name_of(number=3) == name_of(number=8), "a module's number is the process's"
    assert name_of("--xla_cpu_max_isa=AVX2") == name_of(), "what it does is in the code"
    different = [name_of(), name_of(code="other"), name_of(name="jit_other"), name_of("--xla_new_flag=true")]
    different.append(name_of(options="xla_own_flag: true\n"))
    assert len(set(different)) == 5
    assert "xla_new_flag" not in SHOWN_BY_DUMP


def test_memory_is_that_of_the_largest_module(watch: ProgramWatch) -> None:
    compile_module(folder_of(watch))
    found = watch.read_programs(1)
    assert (found["peak_bytes"], found["compile_s"] < 10) == (4096, True)
    assert not watch.has_compiled_more()
    compile_module(folder_of(watch), "jit_eval", 9)
    assert watch.has_compiled_more()


@pytest.mark.parametrize(("file", "more"), toml_beside(__file__)["dumps_that_are_not_whole"])
def test_a_dump_that_is_not_whole_names_no_program(file: str, more: str, watch: ProgramWatch) -> None:
    compile_module(folder_of(watch))
    path = folder_of(watch) / file
    text = path.read_text() if path.exists() else ""
    if more:
        path.write_text(text + more)
    else:
        path.unlink()
    with pytest.raises(NotKnown):
        watch.read_programs(1)


def test_several_processes_or_none_name_no_program(watch: ProgramWatch) -> None:
    with pytest.raises(NotKnown, match="compiled nothing"):
        watch.read_programs(1)
    compile_module(folder_of(watch))
    for count in (0, 2):
        with pytest.raises(NotKnown, match="its processes"):
            watch.read_programs(count)
    for environment, platform in ({"XLA_FLAGS": "--xla_dump_to=/tmp/mine"}, "cpu"), ({}, "cuda"):
        other = ProgramWatch(environment, platform)
        assert other.environment == environment
        with pytest.raises(NotKnown, match="dump"):
            other.read_programs(1)
        other.close()


def test_flags_that_xla_does_not_have_in_force_are_named(watch: ProgramWatch) -> None:
    given = FlagSet.parse("--xla_cpu_max_isa=AVX2 --xla_a=1 --xla_b=true --xla_c=2")
    assert watch.lost(FlagSet({"NCCL_PROTO": "LL"})) == ()
    assert len(watch.lost(given)) == 1, "nothing was compiled under them"
    compile_module(folder_of(watch), options='xla_a: 1\nxla_b: false\nxla_cpu_max_isa: "SSE4_2"\n')
    assert watch.lost(given) == ("xla_b=true became false",)


SAME = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_DEFAULT"}
OTHER = {"xla_cpu_max_isa": "SSE4_2"}


@pytest.mark.gate
def test_real_programs_of_a_command_are_told_apart(start: Start) -> None:
    """Without a flag, with it at its default, and with one that acts: two programs; memory and time are known."""
    spec = study(command("--steps", "40", program="programs_seen.py"))
    reports = []
    for settings in ({}, SAME, OTHER):
        worker = start(spec, settings)
        reports.append(worker.report)
        worker.run_block(4)
        assert worker.report == reports[-1], "nothing more was compiled"
        worker.close()
    assert [r.program_problem for r in reports] == [None] * 3
    assert not any(r.warnings for r in reports), reports
    default, same, other = (r.fingerprint for r in reports)
    assert default == same != other
    assert all((r.compile_s or 0) > 0 and (r.peak_bytes or 0) > 4 * 256 * 256 for r in reports)


@pytest.mark.parametrize(
    ("lie", "said"), [pytest.param("flags", "nothing", marks=pytest.mark.slow), ("later", "after its warm")]
)
def test_a_real_program_that_is_not_all_in_the_dump_has_no_name(lie: str, said: str, start: Start) -> None:
    worker = start(study(command("--lie", lie, program="programs_seen.py")), {})
    worker.run_block(10)
    assert worker.report.fingerprint.startswith("settings-")
    assert worker.report.program_problem is not None
    assert said in worker.report.program_problem
    worker.close()


assert (PROGRAMS / "programs_seen.py").exists()
