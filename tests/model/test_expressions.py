"""What a study file may compute, and what it may not: nothing of it is ever run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.model.expressions import LARGEST, Expression

VALUES = {"batch": 16, "seq": 1024, "rate": 0.5, "attention": "cudnn", "fused": True, "mesh": {"fsdp": 4}, "gone": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch * seq", 16 * 1024),
        ("(batch + 2) * seq // 3 - 1", 18 * 1024 // 3 - 1),
        ("-batch + 20", 4),
        ("4096", 4096),
    ],
)
def test_sums(text: str, value: int) -> None:
    assert Expression(text).value(VALUES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch * seq == 16384", True),
        ("not (attention == 'cudnn' and batch > 8)", False),
        ("attention != 'xla' or 1 // 0 == 1", True),  # as in Python: what does not decide is not looked at
        ("fused == true and fused == True", True),
        ("fused == 1", False),
        ("mesh == '{\"fsdp\": 4}'", True),
        ("'{\"fsdp\":2}' == mesh", False),
        ("mesh == 'no json'", False),
        ("rate < 0.75", True),
    ],
)
def test_conditions(text: str, value: bool) -> None:
    assert Expression(text, is_condition=True).value(VALUES) is value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/x')", "batch.__class__.__mro__",
        "().__class__.__bases__[0].__subclasses__()", "[x for x in (1, 2)]", "(lambda: 1)()", "f'{batch}'",
        "batch if seq else 1", "(batch := 4)", "9 ** 9 ** 9", "2 << 100", "batch / 2", "batch @ seq", "batch[0]",
        "'a' * 10", "'a' in attention", "b'1'", "...", "1j", "*batch", "await batch", "batch; seq", "", "batch *",
        "1e400", "9" * 30, "batch\x00", "(" * 300 + "1" + ")" * 300, "-" * 450 + "1", "+".join(["1"] * 200),
        "batch" + " " * 1000,
    ],
)  # fmt: skip
def test_an_attacker_gets_nothing_run(text: str) -> None:
    for is_condition in (False, True):
        with pytest.raises(ValueError, match=r"an expression|needs a number where") as error:
            Expression(text, is_condition=is_condition).value(VALUES)
        assert len(str(error.value)) < 600


@pytest.mark.parametrize("text", ["'cudnn'", "batch == 16", "not batch", "true and true", "1.5", "None"])
def test_a_sum_holds_no_condition_and_no_text(text: str) -> None:
    with pytest.raises(ValueError, match="an expression of names, whole numbers"):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attention * 2 == 4", "needs a number where 'cudnn'"),
        ("fused + 1 == 2", "needs a number where True"),
        ("attention < 'z'", "needs a number where 'cudnn'"),
        ("gone > 1", "needs a number where None"),
        ("batch and fused", "needs true or false where 16"),
        ("not batch", "needs true or false where 16"),
        ("batch // (seq - 1024) == 1", "divides by zero"),
        (" * ".join(["seq"] * 20) + " > 1", "above 1e"),
    ],
)
def test_what_comes_to_nothing_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Expression(text, is_condition=True).value(VALUES)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from(["+", "-", "*", "//"]))
def test_it_computes_as_python_does(a: int, b: int, op: str) -> None:
    assert Expression(f"a {op} b").value({"a": a, "b": b}) == eval(f"{a} {op} {b}")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60))
def test_no_text_does_anything_but_be_refused(text: str) -> None:
    try:
        found = Expression(text, is_condition=True)
    except ValueError:
        return
    assert all(name.isidentifier() for name in found.names)


def test_names_are_told_and_constants_are_none() -> None:
    assert Expression("b == true and a * b > none", is_condition=True).names == ("a", "b")
    assert LARGEST > 10**15  # tokens of a step of any cluster
