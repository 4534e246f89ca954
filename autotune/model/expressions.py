"""Expressions that a study file may hold, such as ``batch * seq``: sums over named values, and no programs.

The text is parsed by Python's `ast` and walked; nothing of it is ever run. What is not on the list here (calls,
attributes, subscripts, powers, comprehensions ...) is refused when the study is loaded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

LONGEST_TEXT = 500
MOST_PARTS = 100
LARGEST = 10**18
"""No number on the way may be larger: what counts tokens or bytes never is."""

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_PARTS = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, *_ARITHMETIC, ast.USub, ast.Load)
_LEGAL = "an expression of names, whole numbers, + - * // and parentheses"


class Expression:
    """One expression, checked when it is made: names, whole numbers, ``+ - * //`` and parentheses.

    Args:
        text: As the user wrote it.

    Attributes:
        names: Names of the values that it needs.

    Raises:
        ValueError: If it is not of that form; the message says what is wrong with it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tree = _parse(text)
        parts = list(ast.walk(self._tree))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"an expression of at most {MOST_PARTS} parts but {text[:60]!r}... has {len(parts)}")
        for part in parts:
            if not isinstance(part, _PARTS):
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {_name_of(part)}")
            value = part.value if isinstance(part, ast.Constant) else 0
            if type(value) is not int or value > LARGEST:
                raise ValueError(f"{_LEGAL} but {text!r:.200} holds {value!r:.60}")
        self.names = tuple(sorted({part.id for part in parts if isinstance(part, ast.Name)}))

    def value(self, values: Mapping[str, object]) -> int:
        """What it comes to.

        Args:
            values: Value of each of its `names`.

        Raises:
            ValueError: If it comes to nothing: text in a sum, a division by zero, a number without bound ...
        """
        try:
            return _value(self._tree, values, self._text)
        except ZeroDivisionError:
            raise ValueError(f"{self._text!r:.200} divides by zero") from None


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


def _value(part: ast.AST, values: Mapping[str, object], text: str) -> int:
    if isinstance(part, ast.BinOp):
        left, right = (_value(side, values, text) for side in (part.left, part.right))
        return _number(_ARITHMETIC[type(part.op)](left, right), text)
    if isinstance(part, ast.UnaryOp):
        return -_value(part.operand, values, text)
    return _number(values[part.id] if isinstance(part, ast.Name) else getattr(part, "value", None), text)


def _number(value: object, text: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{text!r:.200} needs a whole number where {value!r:.60} stands")
    if abs(value) > LARGEST:
        raise ValueError(f"{text!r:.200} comes to a number above {LARGEST:.0e} on its way")
    return value
