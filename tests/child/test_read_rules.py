"""Lines that real trainers print, rules that cannot work, streams that come in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.output import LONGEST_LINE, Follow, Lines
from autotune.child.read_output import last_exception
from autotune.child.steps import Step, StepReader
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.workers.settings_check import check_environment, check_options, check_processes

# printed by maxtext 0.2.5 from PyPI on a CPU
MAXTEXT = (
    "I1121 05:38:28.602266 139893247994752 metric_logger.py:265] completed step: 39, seconds: 0.039, TFLOP/s/device: "
    "0.002, Tokens/s/device: 3241.409, total_weights: 128, loss: 5.786, lm_loss: 5.786, perplexity: 325.646"
)


@pytest.mark.parametrize(
    ("rules", "line", "step"),
    [
        ({"preset": "maxtext"}, MAXTEXT, Step(0.039, 5.786)),
        ({"preset": "maxtext"}, "completed step: 0, seconds: 1.5e-05, loss: nan, x", Step(1.5e-05, float("nan"))),
        ({"preset": "clu"}, "I0101 [70] learning_rate=0.1, steps_per_sec=4.0, train_loss=2.5", Step(0.25, 2.5)),
        ({"pattern": r"(?P<step_ms>\d+)ms"}, "took 17ms", Step(0.017, None)),
        ({"pattern": r"(?P<tokens_per_s>\d+) tok/s", "tokens_per_step": 512}, "2048 tok/s", Step(0.25, None)),
        ({"pattern": r"t=(?P<step_s>\S+)"}, "t=0.5,", Step(0.5, None)),
        ({"pattern": r"t=(?P<step_s>\S+)"}, "t=-0.5", Step(None, None)),
        ({"pattern": r"t=(?P<step_s>\S+)", "loss": "L(?P<loss>.+)"}, "L3", Step(None, 3.0)),
        ({"json_key": "perf.step", "loss": "loss"}, '{"perf": {"step": 0.5}, "loss": 2}', Step(0.5, 2.0)),
        ({"json_key": "perf/step", "unit": "step_ms"}, '{"perf/step": 7}', Step(0.007, None)),
        ({"json_key": "s"}, '{"s": "text"}', None),
        ({"json_key": "s"}, '{"s": 1', None),
        ({"preset": "maxtext"}, "compiling", None),
        ({"pattern": r"loss=(?P<loss>\S+) (?P<step_ms>\d+)ms"}, "loss=2.5 20ms", Step(0.02, 2.5)),
        ({"pattern": r"(?P<tokens_per_s>[\d.]+) tok/s", "tokens_per_step": 2469}, "1,234.5 tok/s", Step(2.0, None)),
        ({"pattern": r"tps=(?P<tokens_per_s>[\d.]+)", "tokens_per_step": 2469}, "loss=1 tps=1,234.5", Step(2.0, None)),
        ({"pattern": r"took (?P<value>[\d.]+) (?P<unit>\w+)"}, "took 1,234.5 us", Step(0.0012345, None)),
        ({"pattern": r"^(?P<step>\d+),(?P<step_ms>\d+)$"}, "5,123", Step(0.123, None)),
        ({"pattern": r"(?P<value>[\d.]+) ?(?P<unit>it/s|s/it)"}, "  4.00it/s", Step(0.25, None)),
        ({"pattern": r"(?P<value>[\d.]+)(?P<unit>\S+)"}, "250\u00b5s/step", Step(0.00025, None)),
        ({"pattern": r"(?P<value>[\d.]+) (?P<unit>\S+)", "tokens_per_step": 500}, "2 ktok/s", Step(0.25, None)),
        ({"pattern": r"t=(?P<step_s>\S+)"}, "t=12ms", Step(0.012, None)),
        ({"pattern": r"t=(?P<step_s>[\d.]+)"}, "\x1b[1;32mt=\x1b[0m0.5\x1b[K", Step(0.5, None)),
        ({"pattern": r"(?P<value>[\d.]+) (?P<unit>\S+)"}, "2 furlongs", Step(None, None)),
    ],
)
def test_what_a_line_says(rules: dict[str, Any], line: str, step: Step | None) -> None:
    found = StepReader(rules).read(line, 0.0)
    assert repr(found) == repr(step)  # nan equals itself in text only


def test_without_a_duration_the_time_between_lines_counts() -> None:
    reader = StepReader({"pattern": "^step"})
    times = [reader.read(line, at) for line, at in (("step", 10.0), ("other", 10.4), ("step", 11.5), ("step", 11.75))]
    assert [t.step_s if t else None for t in times] == [None, None, 1.5, 0.25]


def test_a_counter_that_skips_steps_is_divided_by_them() -> None:
    reader = StepReader({"preset": "tqdm"})
    lines = [
        "  1%| | 10/1000 [00:01<01:39, 10.0it/s]",
        "  1%| | 10/1000 [00:01<01:39]",
        "  2%| | 20/1000 [00:03<02:27]",
    ]
    times = [reader.read(line, at) for line, at in zip(lines, (1.0, 1.1, 3.0), strict=True)]
    assert [t.step_s if t else None for t in times] == [None, None, pytest.approx(0.2)]


@given(
    st.lists(st.text(alphabet="ab é", min_size=1), min_size=1), st.integers(1, 9), st.sampled_from(["\n", "\r", "\r\n"])
)
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
    text = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "a.py", line 2, in <module>
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory
  while allocating"""
    assert last_exception(text.splitlines()) == (
        "JaxRuntimeError",
        "RESOURCE_EXHAUSTED: Out of memory\n  while allocating",
    )
    assert last_exception(["ValueError: only printed"]) is None


# ---------------------------------------------------------------------- arrival


GIVEN = FlagSet({"xla_a": "1", "NCCL_PROTO": "LL", "jax_enable_pgle": "true"})


@pytest.mark.parametrize(
    ("values", "lost", "notes"),
    [
        ({"XLA_FLAGS": "--xla_a=1"}, [], 0),
        ({"XLA_FLAGS": "--xla_a=1 --xla_b=2"}, [], 1),
        ({"XLA_FLAGS": "--xla_a=1 --xla_a=3"}, ["xla_a=1: the program made it 3"], 0),
        ({"XLA_FLAGS": None}, ["xla_a=1: the program took it away"], 0),
        ({"XLA_FLAGS": "--xla_a=1", "NCCL_PROTO": None}, ["NCCL_PROTO=LL: the program took it away"], 0),
        ({"XLA_FLAGS": "rubbish"}, ["XLA_FLAGS: the program made it 'rubbish', which XLA cannot parse"], 0),
    ],
)
def test_each_setting_that_did_not_arrive_is_named(values: dict[str, str | None], lost: list[str], notes: int) -> None:
    found = check_environment(GIVEN, {"NCCL_PROTO": "LL", "JAX_ENABLE_PGLE": "true", **values})
    assert len(found.lost) == len(lost)
    assert all(got.startswith(wanted) for got, wanted in zip(found.lost, lost, strict=True))
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
    assert "could not be seen" in unseen.notes[0]
    assert "Permission denied" in unseen.notes[0]


def test_a_study_that_asks_for_a_terminal_is_another() -> None:
    read: dict[str, Any] = {"preset": "tqdm"}
    spec = parse_study({"name": "s", "workload": {"command": ["true"], "read": read}})
    later = parse_study({"name": "s", "workload": {"command": ["true"], "read": {**read, "terminal": True}}})
    assert later.identity != spec.identity
    assert parse_study(later.model_dump(mode="json")).workload.read == later.workload.read
