"""Expressions that a study file may hold, such as ``batch * seq``: sums over named values, and no programs.

The text is parsed by Python's `ast` and walked; nothing of it is ever run. What is not on the list here (calls,
attributes, subscripts, powers, comprehensions ...) is refused when the study is loaded.
"""

from __future__ import annotations

import ast
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


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"needs a number where {value!r:.60} stands")
    if not (abs(value) <= LARGEST and math.isfinite(value)):
        raise ValueError(f"comes to a number above {LARGEST:.0e} on its way")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"needs true or false where {value!r:.60} stands")
    return value


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


def _of_numbers(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: compute(_number(left), _number(right))


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _of_numbers(operator.add),
    ast.Sub: _of_numbers(operator.sub),
    ast.Mult: _of_numbers(operator.mul),
    ast.FloorDiv: _of_numbers(operator.floordiv),
    ast.Lt: _of_numbers(operator.lt),
    ast.LtE: _of_numbers(operator.le),
    ast.Gt: _of_numbers(operator.gt),
    ast.GtE: _of_numbers(operator.ge),
    ast.Eq: _are_equal,
    ast.NotEq: lambda left, right: not _are_equal(left, right),
    ast.Not: lambda value: not _truth(value),
    ast.USub: lambda value: -_number(value),
    ast.And: all,
    ast.Or: any,
}
_ALLOWED = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.BoolOp, ast.Compare, *_OPERATORS)
_SHOWN = {ast.Call: "a call", ast.Attribute: "a dot", ast.Subscript: "an index", ast.Pow: "a power", ast.Div: "a /"}
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
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {_SHOWN.get(type(part), type(part).__name__)}")
            value = part.value if isinstance(part, ast.Constant) else 0
            if type(value) not in (int, float, str, bool) or (isinstance(value, int | float) and abs(value) > LARGEST):
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {value!r:.60}")
        found = {part.id for part in parts if isinstance(part, ast.Name)}
        self.names = tuple(sorted(found - set(CONSTANTS)))

    def value(self, values: Mapping[str, object]) -> object:
        """Computes it from the values of its `names`; ValueError for text in a sum, division by zero, no bound."""
        try:
            return _value(self._tree, {**values, **CONSTANTS})
        except ZeroDivisionError:
            raise ValueError(f"{self.text!r:.200} divides by zero") from None
        except ValueError as error:
            raise ValueError(f"{self.text!r:.200} {error}") from None


def _parse(text: str) -> ast.expr:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"an expression of at most {LONGEST_TEXT} characters but got {len(text)}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else "it cannot be read"
        raise ValueError(f"an expression such as 'batch * seq' but got {text!r:.200}: {said}") from None


def _value(part: ast.AST, values: Mapping[str, object]) -> object:
    """Computes one part of an expression; ValueError if it cannot."""
    match part:
        case ast.Constant():
            return part.value
        case ast.Name():
            return values[part.id]
        case ast.BinOp():
            return _number(_OPERATORS[type(part.op)](_value(part.left, values), _value(part.right, values)))
        case ast.UnaryOp():
            return _OPERATORS[type(part.op)](_value(part.operand, values))
        case ast.BoolOp():  # only as far as it is decided, as in Python
            return _OPERATORS[type(part.op)](_truth(_value(inner, values)) for inner in part.values)
    assert isinstance(part, ast.Compare)
    sides = itertools.pairwise(_value(side, values) for side in (part.left, *part.comparators))
    return all(_OPERATORS[type(comparison)](*pair) for comparison, pair in zip(part.ops, sides, strict=True))
