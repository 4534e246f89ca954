"""Compiled programs of a command, by XLA's dump: found equal where they are, and never made equal by a liar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.workers.programs import DUMP_FLAG, SHOWN_BY_DUMP, NotKnown, ProgramWatch
from tests.workers.conftest import PROGRAMS, Start, command, study


@pytest.fixture
def watch() -> Iterator[ProgramWatch]:
    found = ProgramWatch()
    yield found
    found.close()


def folder_of(watch: ProgramWatch) -> Path:
    return Path(watch.variables({})["XLA_FLAGS"].partition("=")[2])


def compile_module(folder: Path, name: str = "jit_step", number: int = 3, *, code: str = "code") -> None:
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
    for _ in range(2):  # as XLA does
        (folder / f"{module}.debug_options").write_text(f'{DUMP_FLAG}: "{folder}"')


def processes(watch: ProgramWatch, flags: str = "", **more: str) -> list[dict[str, Any]]:
    return [{"pid": os.getpid(), "values": {**watch.variables({"XLA_FLAGS": flags}), **more}}]


def name_of(flags: str = "", **module: Any) -> str:
    watch = ProgramWatch()
    try:
        compile_module(folder_of(watch), **module)
        return watch.told(processes(watch, flags)).fingerprint
    finally:
        watch.close()


def test_equal_programs_have_one_name_and_others_another() -> None:
    assert name_of(number=3) == name_of(number=8), "a module's number is the process's"
    assert name_of("--xla_cpu_max_isa=AVX2") == name_of(), "what it does is in the code"
    different = [name_of(), name_of(code="other"), name_of(name="jit_other"), name_of("--xla_new_flag=true")]
    assert len(set(different)) == 4
    assert "xla_new_flag" not in SHOWN_BY_DUMP


def test_memory_is_that_of_the_largest_module(watch: ProgramWatch) -> None:
    compile_module(folder_of(watch))
    found = watch.told(processes(watch))
    assert (found.peak_bytes, found.compile_s < 10) == (4096, True)
    assert not watch.has_more()
    compile_module(folder_of(watch), "jit_eval", 9)
    assert watch.has_more()


def rewrite(folder: Path) -> None:
    (folder / "module_0003.jit_step.obj-file.kernel.o").write_text("the same in all")


def replace(folder: Path) -> None:
    (folder.parent / "x.o").write_text("the same in all")
    (folder.parent / "x.o").rename(folder / "module_0003.jit_step.obj-file.kernel.o")


def remove(folder: Path) -> None:
    (folder / "module_0003.jit_step.obj-file.kernel.o").unlink()


def link(folder: Path) -> None:
    (folder.parent / "autotune-link.o").hardlink_to(folder / "module_0003.jit_step.obj-file.kernel.o")
    (folder.parent / "autotune-link.o").unlink()


def touch(folder: Path) -> None:
    os.utime(folder / "module_0003.jit_step.before_optimizations.txt", (0, 0))


def add(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")


def half(folder: Path) -> None:
    (folder / "module_0009.jit_eval.before_optimizations.txt").write_text("HloModule")


def point_elsewhere(folder: Path) -> None:
    (folder / "module_0009.jit_eval.cpu_after_optimizations.txt").symlink_to("/dev/null")
    half(folder)


@pytest.mark.parametrize("lie", [rewrite, replace, remove, link, touch, add, half, point_elsewhere])
def test_a_dump_to_which_another_wrote_names_no_program(lie: Callable[[Path], None], watch: ProgramWatch) -> None:
    compile_module(folder_of(watch))
    lie(folder_of(watch))
    with pytest.raises(NotKnown):
        watch.told(processes(watch))
    with pytest.raises(NotKnown):
        watch.told(processes(watch))


def test_a_file_that_is_still_open_could_be_written_to_unseen(watch: ProgramWatch) -> None:
    compile_module(folder_of(watch))
    file = folder_of(watch) / "module_0003.jit_step.obj-file.kernel.o"
    with file.open("rb+"), pytest.raises(NotKnown, match="open"):
        watch.told(processes(watch))


def test_other_flags_or_several_processes_name_no_program(watch: ProgramWatch) -> None:
    with pytest.raises(NotKnown, match="compiled nothing"):
        watch.told(processes(watch))
    compile_module(folder_of(watch))
    flags = processes(watch)[0]["values"]["XLA_FLAGS"]
    for wrong in ("--xla_x=1", f"{flags} --xla_dump_hlo_module_re=none", f"{flags} --{DUMP_FLAG}=/tmp", "--'"):
        with pytest.raises(NotKnown, match="XLA_FLAGS"):
            watch.told(processes(watch, XLA_FLAGS=wrong))
    with pytest.raises(NotKnown, match="XLA_FLAGS"):
        watch.told([{"pid": os.getpid(), "unreadable": "no"}])
    with pytest.raises(NotKnown, match="2 of its processes"):
        watch.told(processes(watch) * 2)
    with pytest.raises(NotKnown, match="dump elsewhere"):
        watch.variables({"XLA_FLAGS": "--xla_dump_to=/tmp/mine"})


def test_more_files_than_the_kernel_tells_of_name_no_program(watch: ProgramWatch) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 50_000:
        pytest.skip(f"the kernel keeps {most} events")
    compile_module(folder_of(watch))
    (file := folder_of(watch) / "a").touch()
    other = folder_of(watch) / "b"
    for _ in range(most // 2 + 1):
        file.rename(other)
        other.rename(file)
    with pytest.raises(NotKnown):
        watch.told(processes(watch))


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
    ("lie", "said"),
    [
        pytest.param("flags", "changes XLA_FLAGS", marks=pytest.mark.slow),
        pytest.param("restored", "nothing", marks=pytest.mark.slow),
        pytest.param("writes", "more than once", marks=pytest.mark.slow),
        ("later", "after its warm"),
    ],
)
def test_a_real_liar_is_no_duplicate(lie: str, said: str, start: Start) -> None:
    worker = start(study(command("--lie", lie, program="programs_seen.py")), {})
    worker.run_block(10)
    assert worker.report.fingerprint.startswith("settings-")
    assert worker.report.program_problem is not None
    assert said in worker.report.program_problem
    worker.close()


@pytest.mark.slow
def test_one_that_compiles_at_random_has_a_name_for_each_program(start: Start) -> None:
    names = []
    for seed in ("1", "2"):
        worker = start(study(command("--seed", seed, program="programs_seen.py")), {})
        names.append(worker.report.fingerprint)
        worker.close()
    assert names[0] != names[1]
    assert all(name.startswith("c") for name in names)


assert (PROGRAMS / "programs_seen.py").exists()
