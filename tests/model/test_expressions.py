"""What a study file may compute, and what it may not: nothing of it is ever run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.model.expressions import LARGEST, Expression
from tests.tables import toml_beside

TOLD = toml_beside(__file__, "expressions.toml")
VALUES = {"batch": 16, "seq": 1024, "rate": 0.5, "attention": "cudnn", "fused": True, "mesh": {"fsdp": 4}, "gone": None}


@pytest.mark.parametrize("text", TOLD["values"])
def test_a_sum_is_a_number_and_a_condition_true_or_false(text: str) -> None:
    value = TOLD["values"][text]
    found = Expression(text).value(VALUES)
    assert (type(found), found) == (type(value), value)


LONG = ["9" * 30, "(" * 300 + "1" + ")" * 300, "-" * 450 + "1", "+".join(["1"] * 200), "batch" + " " * 1000]


@pytest.mark.parametrize("text", [*TOLD["attacks"], *LONG])
def test_an_attacker_gets_nothing_run(text: str) -> None:
    with pytest.raises(ValueError, match=r"an expression|needs a number where") as error:
        Expression(text).value(VALUES)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("text", TOLD["wrong"])
def test_what_comes_to_nothing_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=TOLD["wrong"][text]):
        Expression(text).value(VALUES)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from(["+", "-", "*", "//"]))
def test_it_computes_as_python_does(a: int, b: int, op: str) -> None:
    assert Expression(f"a {op} b").value({"a": a, "b": b}) == eval(f"{a} {op} {b}")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_no_text_does_anything_but_be_refused(text: str) -> None:
    try:
        found = Expression(text)
    except ValueError:
        return
    assert all(name.isidentifier() for name in found.names)


def test_names_are_told_and_constants_are_none() -> None:
    assert Expression("b == true and a * b > none").names == ("a", "b")
    assert LARGEST > 10**15  # tokens of a step of any cluster
