"""Steps and losses in lines of public shapes, by kinds of mistakes: read rightly, or named as not read."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.child.recognise import recognise
from autotune.programs.look import doubt_of, reading_of
from autotune.programs.probe import Probe
from tests.tables import toml_beside

KINDS = toml_beside(__file__, "steps_and_losses.toml")
COUNT = 24
TOOK_S = [0.5 + 0.001 * (7 * i % 11 - 5) for i in range(COUNT)]
"""Durations around half a second, as jitter makes them."""


def printed(templates: list[str]) -> list[str]:
    """Returns the lines of each step."""
    lines = []
    for i, took_s in enumerate(TOOK_S):
        total_s = sum(TOOK_S[: i + 1]) + 6
        rising_s = 0.6 + 0.001 * i
        values = {
            "i": i,
            "d": took_s,
            "ms": 1e3 * took_s,
            "us": 1e6 * took_s,
            "tok": 4096 / took_s,
            "total": total_s,
            "eta": 0.5 * (COUNT - i),
            "s": int(total_s) % 60,
            "n": i + 1,
            "ii": i % 12,
            "loss": 8 - i / 10,
            "rate": 1 / took_s,
            "part": 0.01 * (i % 9 + 1),
            "fwd": 0.3 * took_s,
            "bwd": 0.6 * took_s,
            "half": took_s / 2,
            "third": took_s / 3,
            "ten": 10 * took_s,
            "first": 10 * i,
            "last": 10 * i + 9,
            "next": 10 * i + 10,
            "digit": i % 10,
            "epoch": i // 12,
            "flag": i % 3 == 0,
            "phase": "warm" if i % 3 == 0 else "steady",
            "mean": total_s / (i + 1),
            "falling": 0.505 + 1 / (i + 3),
            "rising": rising_s,
            "rising_rate": 1 / rising_s,
        }
        lines += [template.format(**values) for template in templates]
    return lines


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in KINDS.items() for name in cases])
def test_a_saved_log_is_read_rightly_or_named_as_not_read(kind: str, name: str) -> None:
    case: dict[str, Any] = KINDS[kind][name]
    lines = printed(case["lines"])
    best = recognise(lines)[0]
    found = reading_of(Probe(lines=lines), best.rules)
    if case.get("no"):
        assert found["step_s"] is None or doubt_of(best)
    else:
        assert (found["steps"], found["step_s"]) == (COUNT, pytest.approx(0.5, rel=0.015))
        assert not doubt_of(best)
    assert found["loss"] == pytest.approx(5.7)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in KINDS.items() for name in cases])
def test_a_running_program_is_read_by_what_it_prints_or_by_the_clock(kind: str, name: str) -> None:
    lines = printed(templates := KINDS[kind][name]["lines"])
    every_s = 5.0 if kind == "windows" else 0.5
    at = [every_s * (i // len(templates)) + 1e-4 * (i % len(templates)) for i in range(len(lines))]
    if kind == "parts_of_a_step":
        at = [0.5 * i / len(templates) for i in range(len(lines))]
    best = recognise(lines, at=at)[0]
    assert best.step_s == pytest.approx(0.5, rel=0.015)
    found = reading_of(Probe(lines=lines, at_s=at), best.rules)
    assert found["steps"] >= COUNT - 1
    assert found["loss"] == pytest.approx(5.7)


def test_lines_that_the_rule_leaves_out_are_counted() -> None:
    lines = [
        f"step {i} done in {1.0 if i % 4 else 0.9:.1f}s" if i % 5 else f"step {i} done in 1m 2.0s" for i in range(40)
    ]
    assert doubt_of(recognise(lines)[0]).startswith("8 lines of steps")
