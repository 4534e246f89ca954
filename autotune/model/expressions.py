"""Expressions that a study file may hold, such as ``batch * seq``: sums over named values, and no programs.

The text is parsed by Python's `ast` and walked; nothing of it is ever run. What is not on the list here (calls,
attributes, subscripts, powers, comprehensions ...) is refused when the study is loaded.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

LONGEST_TEXT = 500
MOST_PARTS = 100
LARGEST = 10**18
"""No number on the way may be larger: what counts tokens or bytes never is."""

CONSTANTS: dict[str, object] = {"true": True, "false": False, "none": None}
"""Names that stand for values, as TOML and JSON write them."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, *_ARITHMETIC, ast.USub, ast.Load,
    ast.BoolOp, ast.And, ast.Or, ast.Not, ast.Compare, *_ORDER, ast.Eq, ast.NotEq,
)  # fmt: skip
_LEGAL = "an expression of names, numbers, quoted text, + - * //, comparisons, `and`, `or`, `not` and parentheses"


class Expression:
    """One expression, checked when it is made.

    Attributes:
        names: Names of the values that it needs.

    Raises:
        ValueError: If it is not of that form; the message says what is wrong with it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = _parse(text)
        parts = list(ast.walk(self._tree))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"an expression of at most {MOST_PARTS} parts but {text[:60]!r}... has {len(parts)}")
        for part in parts:
            if not isinstance(part, _ALLOWED):
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {_name_of(part)}")
            value = part.value if isinstance(part, ast.Constant) else 0
            if type(value) not in (int, float, str, bool) or (isinstance(value, int | float) and abs(value) > LARGEST):
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {value!r:.60}")
        found = {part.id for part in parts if isinstance(part, ast.Name)}
        self.names = tuple(sorted(found - set(CONSTANTS)))

    def value(self, values: Mapping[str, object]) -> object:
        """Computes it from the values of its `names`; ValueError for text in a sum, division by zero, no bound."""
        try:
            return _value(self._tree, values, self.text)
        except ZeroDivisionError:
            raise ValueError(f"{self.text!r:.200} divides by zero") from None


def _parse(text: str) -> ast.expr:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"an expression of at most {LONGEST_TEXT} characters but got {len(text)}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else "it cannot be read"
        raise ValueError(f"an expression such as 'batch * seq' but got {text!r:.200}: {said}") from None


def _name_of(part: ast.AST) -> str:
    shown = {ast.Call: "a call", ast.Attribute: "a dot", ast.Subscript: "an index", ast.Pow: "a power", ast.Div: "a /"}
    return shown.get(type(part), f"`{type(part).__name__}`")


def _value(part: ast.AST, values: Mapping[str, object], text: str) -> object:  # one case for each kind of part
    of = functools.partial(_value, values=values, text=text)
    match part:
        case ast.Constant():
            return part.value
        case ast.Name():
            return CONSTANTS[part.id] if part.id in CONSTANTS else values[part.id]
        case ast.BinOp():
            left, right = (_number(of(side), text) for side in (part.left, part.right))
            return _number(_ARITHMETIC[type(part.op)](left, right), text)
        case ast.UnaryOp(op=ast.Not()):
            return not _truth(of(part.operand), text)
        case ast.UnaryOp():
            return -_number(of(part.operand), text)
        case ast.BoolOp():
            truths = (_truth(of(inner), text) for inner in part.values)  # only as far as they decide, as in Python
            return all(truths) if isinstance(part.op, ast.And) else any(truths)
    assert isinstance(part, ast.Compare)
    sides = itertools.pairwise(of(side) for side in (part.left, *part.comparators))
    return all(_compare(op, left, right, text) for op, (left, right) in zip(part.ops, sides, strict=True))


def _number(value: object, text: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{text!r:.200} needs a number where {value!r:.60} stands")
    if not (abs(value) <= LARGEST and math.isfinite(value)):
        raise ValueError(f"{text!r:.200} comes to a number above {LARGEST:.0e} on its way")
    return value


def _truth(value: object, text: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{text!r:.200} needs true or false where {value!r:.60} stands")
    return value


def _compare(op: ast.cmpop, left: object, right: object, text: str) -> bool:
    if isinstance(op, ast.Eq | ast.NotEq):
        return _are_equal(left, right) == isinstance(op, ast.Eq)
    return _ORDER[type(op)](_number(left, text), _number(right, text))


def _are_equal(left: object, right: object) -> bool:
    """As people mean it: 1 is not true, and a table or list equals the JSON text of it."""
    if isinstance(left, dict | list) and isinstance(right, str):
        try:
            right = json.loads(right)
        except (ValueError, RecursionError):
            return False
    elif isinstance(right, dict | list) and isinstance(left, str):
        return _are_equal(right, left)
    return isinstance(left, bool) == isinstance(right, bool) and left == right
