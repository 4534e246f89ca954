"""Which reading is taken for programs that nobody described: loggers, bars, JSON lines, loops that do not wait."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.output import Lines
from autotune.child.recognise import recognise
from autotune.model.sections import ReadSpec
from tests.tables import toml_beside

LINES = toml_beside(__file__, "lines.toml")


@pytest.mark.parametrize("name", LINES["kinds"])
def test_each_kind_of_line_is_read_by_itself(name: str) -> None:
    line, by = LINES["kinds"][name]
    lines = ["starting up", "devices: 8", *(line.format(i) for i in range(1, 13)), "done in 3 s"]
    best = recognise(lines, at=[i * 0.02 for i in range(len(lines))])[0]
    assert by in str(dict(best.rules))
    assert best.step_s == pytest.approx(0.02)
    assert best.steps >= 11
    assert "3.5" in best.example
    assert "\x1b" not in best.example
    ReadSpec(**best.rules)  # what was found is what a study file takes


@pytest.mark.parametrize("case", LINES["timed"], ids=lambda case: case["name"])
def test_printed_durations_are_held_to_the_clock(case: dict[str, Any]) -> None:
    lines = [case["line"].format(i * case["every"]) for i in range(40)]
    at = [i * case["passed_s"] for i in range(40)] if case["passed_s"] else [0.0] * 20 + [1.0] * 20
    best, *others = recognise(lines, at=at)
    assert (best.by_clock, best.in_bursts, best.doubtful) == (case["by_clock"], case["in_bursts"], case["doubtful"])
    assert best.step_s == pytest.approx(case.get("step_s", best.step_s))
    printed = next((fit.agrees for fit in (best, *others) if not fit.by_clock), None)
    assert printed == (pytest.approx(case["agrees"], rel=0.01) if "agrees" in case else None)


def test_of_a_bar_that_is_drawn_again_at_each_step_only_the_counter_is_read() -> None:
    """tqdm counts ten times a second, and `set_postfix` draws the bar at each step, with the old count and rate."""
    shown = [(step, 20 * (step // 20)) for step in range(600)]
    lines = [f"fit:  1%|█    | {n}/2000 [00:01<00:09, 123.4it/s, loss={9 - step / 100}]" for step, n in shown]
    best = recognise(lines, at=[0.005 * step for step, _ in shown])[0]
    assert (best.rules["preset"], best.by_clock) == ("tqdm", True)
    assert best.step_s == pytest.approx(0.005)


def test_a_rate_of_tokens_is_no_duration() -> None:
    assert recognise([f"loss 3.1 | 1,024.{i} tok/s" for i in range(9)])[0].step_s is None


@pytest.mark.parametrize("lines", [[], ["hello", "compiling 1/3", "compiling 2/3", "load shard 3"], ["step 1 loss 2"]])
def test_nothing_is_made_up(lines: list[str]) -> None:
    assert recognise(lines) == []


@given(st.lists(st.text(alphabet="ab1 9.:%[{\"'},=>-+eE\\/(", max_size=30), max_size=30))
def test_no_output_stops_it(lines: list[str]) -> None:
    recognise(lines)


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_are_no_steps(seed: int) -> None:
    data = random.Random(seed).randbytes(100_000)
    lines = list(Lines().feed(data + b"\n"))
    assert recognise(lines, at=[0.01 * i for i in range(len(lines))]) == []
    assert recognise([*lines[:100], *(f"step {i} took {10 + i % 2} ms" for i in range(30))])
