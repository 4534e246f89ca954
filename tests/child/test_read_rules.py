"""Lines that real trainers print, rules that cannot work, streams that come in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.output import LONGEST_LINE, Follow, Lines
from autotune.child.read_output import last_exception
from autotune.child.steps import StepReader
from autotune.model.flags import FlagSet
from autotune.workers.settings_check import check_environment, check_options, check_processes
from tests.tables import toml_beside

LINES = toml_beside(__file__, "lines.toml")


@pytest.mark.parametrize("said", LINES["said"]["steps"], ids=lambda said: said["line"])
def test_what_a_line_says(said: dict[str, Any]) -> None:
    step = (said.get("step_s"), said.get("loss")) if said.get("is_step", True) else None
    found = StepReader(said["rules"]).read(said["line"], 0.0)
    assert repr(found and found[:2]) == repr(step)  # nan equals itself in text only


def test_without_a_duration_the_time_between_lines_counts() -> None:
    reader = StepReader({"pattern": "^step"})
    times = [reader.read(line, at) for line, at in (("step", 10.0), ("other", 10.4), ("step", 11.5), ("step", 11.75))]
    assert [t.step_s if t else None for t in times] == [None, None, 1.5, 0.25]


def test_a_counter_that_skips_steps_is_divided_by_them() -> None:
    reader = StepReader({"preset": "tqdm"})
    lines = LINES["texts"]["skipping_bar"]
    times = [reader.read(line, at) for line, at in zip(lines, (1.0, 1.1, 3.0), strict=True)]
    assert [t.step_s if t else None for t in times] == [None, None, pytest.approx(0.2)]


@given(st.lists(st.text("ab é", min_size=1), min_size=1), st.integers(1, 9), st.sampled_from(["\n", "\r", "\r\n"]))
def test_lines_do_not_depend_on_how_they_are_cut(lines: list[str], size: int, end: str) -> None:
    data = "".join(line + end for line in lines).encode()
    cutter = Lines()
    assert [x for i in range(0, len(data), size) for x in cutter.feed(data[i : i + size])] == lines


def test_a_line_without_end_takes_no_memory() -> None:
    cutter = Lines()
    for _ in range(100):
        assert list(cutter.feed(b"x" * 10_000)) == []
    assert [len(line) for line in cutter.feed(b"\nshort\n")] == [LONGEST_LINE, 5]


def test_only_what_is_new_in_a_file_is_read_and_a_new_file_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old\n")
    follow = Follow(file)
    assert list(follow.read()) == []
    with file.open("ab") as stream:
        stream.write(b"new\n")
    assert (list(follow.read()), list(follow.read())) == (["new"], [])
    file.unlink()
    assert list(follow.read()) == []
    file.write_bytes(b"a whole new file\n")
    assert list(follow.read()) == ["a whole new file"]


def test_the_last_exception_is_the_one_that_counts() -> None:
    found = last_exception(LINES["texts"]["two_exceptions"].splitlines())
    assert found == ("JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory\n  while allocating")
    assert last_exception(["ValueError: only printed"]) is None


# ---------------------------------------------------------------------- arrival


GIVEN = FlagSet({"xla_a": "1", "NCCL_PROTO": "LL", "jax_enable_pgle": "true"})


@pytest.mark.parametrize(("values", "unset", "lost", "notes"), LINES["arrived"])
def test_each_lost_setting_is_named(values: dict[str, str], unset: list[str], lost: list[str], notes: int) -> None:
    arrived = {"NCCL_PROTO": "LL", "JAX_ENABLE_PGLE": "true", **values, **dict.fromkeys(unset)}
    found = check_environment(GIVEN, arrived)
    assert [got[: len(wanted)] for got, wanted in zip(found.lost, lost, strict=True)] == lost
    assert len(found.notes) == notes


def test_options_of_jax_are_compared_by_meaning() -> None:
    options = {"jax_enable_pgle": "True", "jax_other": "1"}
    assert check_options(GIVEN, options) == ()
    assert check_options(GIVEN, {"jax_enable_pgle": "False"}) == ("jax_enable_pgle=true: the program made it False",)


def test_one_of_several_processes_without_the_setting_is_enough() -> None:
    good = {"pid": 1, "values": {"XLA_FLAGS": "--xla_a=1"}}
    found = check_processes(FlagSet({"xla_a": 1}), [good, {"pid": 2, "values": {"XLA_FLAGS": ""}}, good])
    assert found.lost == ("xla_a=1: the program took it away",)
    unseen = check_processes(FlagSet({"xla_a": 1}), [{"pid": 1, "unreadable": "Permission denied"}])
    assert unseen.lost == ()
    assert "not be" in unseen.notes[0]
    assert "Permission denied" in unseen.notes[0]
