"""Which reading is proposed for lines that no known rule fits: each is read back by what is proposed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.child.recognise import recognise
from autotune.child.shapes import propose
from autotune.child.steps import StepReader
from autotune.model.sections import ReadSpec

STEP_S = 0.076
LINES = {
    "short words": ("it {i}: L={loss} (75.9ms)", "step", True),
    "after a time of day": ("12:03:{second:02d} it {i:6d}: L={loss} (75.9ms)", "step", True),
    "only numbers": ("{i} {loss} 75.9", "step", False),
    "a duration of something else": ("it {i} L={loss} data 1.2ms", "step", True),
    "tokens grow, too": ("tokens={tokens} n={i} nll: {loss}", "step", True),
    "a bar with a counter": ("[{done}>{left}] {i}/1000", "step", False),
    "a dict": ("{{'i': {i}, 'L': {loss}}}", "step", True),
    "JSON": ('{{"i": {i}, "m": {{"L": {loss}, "t": 0.0759}}}}', "i", True),
    "JSON without a duration": ('{{"i": {i}, "L": {loss}, "since": {i}.25}}', "i", True),
    "nothing but a word": ("tick", "^tick", False),
}


def printed(line: str, count: int = 12) -> list[str]:
    return [
        line.format(
            i=n, loss=round(9 - n / 1000, 4), second=n % 60, tokens=4096 * n, done="=" * (n - 559), left=" " * (580 - n)
        )
        for n in range(560, 560 + count)
    ]


@pytest.mark.parametrize("name", LINES)
def test_the_lines_of_one_shape_are_read_by_the_proposal(name: str) -> None:
    line, by, has_loss = LINES[name]
    lines = ["hello", "loading 3 files", *printed(line)]
    at = [STEP_S * n for n in range(len(lines))]
    fit = propose(lines, at=at)
    assert fit is not None
    assert by in str(dict(fit.rules))
    assert fit.example == lines[-1]
    ReadSpec(**fit.rules)  # a study file takes it
    reader = StepReader(fit.rules)
    steps = [step for text, now in zip(lines, at, strict=True) if (step := reader.read(text, now)) is not None]
    took = [step.step_s for step in steps if step.step_s is not None]
    assert len(took) >= 11
    assert sorted(took)[len(took) // 2] == pytest.approx(STEP_S, rel=0.01)
    assert [step.loss is not None for step in steps] == [has_loss] * len(steps)


@pytest.mark.parametrize(
    "line", ["Training: {second}% |{done}{left}|", "12:03:{second:02d}", "2026-11-26 12:03:{second:02d}", "{loss}"]
)
def test_a_share_or_the_time_of_day_is_no_step(line: str) -> None:
    assert propose(printed(line), at=[STEP_S * n for n in range(12)]) is None


def test_few_lines_propose_nothing() -> None:
    assert propose(printed("it {i}: L={loss}", 4)) is None
    assert propose([]) is None


@given(st.lists(st.text(alphabet="ab1 9.:%[{\"'},=>-+eE\\/(", max_size=30), max_size=30))
def test_no_output_stops_it(lines: list[str]) -> None:
    fit = propose(lines * 3, at=[float(n) for n in range(3 * len(lines))])
    if fit is not None:
        ReadSpec(**fit.rules)
    recognise(lines)
