"""How often a loop runs, where XLA does not say: passes that peel a loop, as those of pipelining do, lose count.

The counter is read off the loop itself: what it begins with, what an iteration adds, and what ends it. All of that are
scalar integers, and everything else is *not known*: a wrong count would be a wrong step time.

Source: `xla/service/while_loop_trip_count_annotator.cc`, `xla/service/while_loop_analysis.cc`, which count before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from autotune.compiler.hlo import Computation, Instruction, Module

_SEEN_THROUGH = frozenset({"bitcast", "copy", "opt-barrier"})
_CALLS = frozenset({"call", "fusion"})
MOST_STEPS = 100
"""Instructions that are looked at for one loop; real ones take about ten."""

_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True, slots=True)
class _Sum:
    """A scalar integer: a member of the loop's state (None: no member) plus a constant."""

    member: int | None
    constant: int


class _Whole(Enum):
    """Stands for all of a loop's state, whose members are asked for."""

    STATE = "state"


_Value = _Sum | _Whole | None
_Given = Callable[[int], _Value]
"""What a computation was given, by the parameter's number."""


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often the body of a ``while`` runs each time; None where that is not to be seen.

    Args:
        module: The optimized module.
        computation: Where the loop stands.
        loop: The instruction.
    """
    told = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"\}')
    if told is not None:
        return int(told)
    condition, body = (module.computations.get(loop.called.get(name, "")) for name in ("condition", "body"))
    if condition is None or body is None or len(loop.operands) != 1:
        return None
    reader = _Reader(module)
    ends = reader.end(condition)
    if ends is None:
        return None
    member, direction, limit = ends
    step = reader.member(body, body.root, member, lambda number: _Whole.STATE)
    begins = reader.member(computation, computation.instructions.get(loop.operands[0]), member, lambda number: None)
    if not isinstance(step, _Sum) or step.member != member or not isinstance(begins, _Sum) or begins.member is not None:
        return None
    return _count(limit - begins.constant, step.constant, direction)


def _count(left: int, step: int, direction: str) -> int | None:
    """How often zero can be raised by ``step`` before it no longer compares so with what is left."""
    if direction == "NE":
        return left // step if step and left % step == 0 and left // step >= 0 else None
    if direction in ("GT", "GE"):
        left, step = -left, -step
    if direction in ("LE", "GE"):
        left += 1
    if left <= 0:
        return 0
    return -(-left // step) if step > 0 else None  # else it runs until the counter overflows


@dataclass(slots=True)
class _Reader:
    """Says what scalar integers of a module are, looking at nothing else of it and at `MOST_STEPS` of those."""

    module: Module
    steps: int = 0

    def end(self, condition: Computation) -> tuple[int, str, int] | None:
        """Which member of the state must compare how with which constant, for the loop to go on."""
        root, inside = condition.root, condition
        given: _Given = lambda number: _Whole.STATE  # noqa: E731
        while root.opcode in _CALLS and (called := self._called(root)) is not None:
            given, inside, root = self._giving(inside, root, given), called, called.root
        direction = root.attribute(r"direction=(\w+)")
        if root.opcode != "compare" or direction not in _MIRRORED or len(root.operands) != 2:
            return None
        one, other = (self._operand(inside, root, number, given) for number in range(2))
        if not isinstance(one, _Sum) or not isinstance(other, _Sum):
            return None
        if one.member is None:
            one, other, direction = other, one, _MIRRORED[direction]
        if one.member is None or other.member is not None:
            return None
        return one.member, direction, other.constant - one.constant

    def member(self, computation: Computation, whole: Instruction | None, member: int, given: _Given) -> _Value:
        """What one member of a tuple is.

        Args:
            computation: Where the tuple stands.
            whole: The tuple.
            member: Which.
            given: What the computation was given.
        """
        self.steps += 1
        if whole is None or self.steps > MOST_STEPS:
            return None
        if whole.opcode == "tuple":
            return self._operand(computation, whole, member, given)
        if whole.opcode in _CALLS:
            called = self._called(whole)
            inside = self._giving(computation, whole, given)
            return None if called is None else self.member(called, called.root, member, inside)
        if whole.opcode in _SEEN_THROUGH and len(whole.operands) == 1:
            return self.member(computation, computation.instructions.get(whole.operands[0]), member, given)
        return _Sum(member, 0) if self._value(computation, whole, given) is _Whole.STATE else None

    def _value(self, computation: Computation, instruction: Instruction | None, given: _Given) -> _Value:
        """What an instruction gives; of anything but scalar integers and the state that is not known."""
        self.steps += 1
        if instruction is None or self.steps > MOST_STEPS:
            return None
        if instruction.opcode == "parameter":
            return None if instruction.index is None else given(instruction.index)
        if instruction.opcode == "constant":
            return None if instruction.literal is None else _Sum(None, instruction.literal)
        if instruction.opcode == "get-tuple-element":
            at = instruction.attribute(r"index=(\d+)")
            whole = computation.instructions.get(next(iter(instruction.operands), ""))
            return self.member(computation, whole, int(at), given) if at else None
        if instruction.opcode in _CALLS:
            called = self._called(instruction)
            inside = self._giving(computation, instruction, given)
            return None if called is None else self._value(called, called.root, inside)
        if instruction.opcode in _SEEN_THROUGH and len(instruction.operands) == 1:
            return self._operand(computation, instruction, 0, given)
        if instruction.opcode in ("add", "subtract") and len(instruction.operands) == 2:
            one, other = (self._operand(computation, instruction, number, given) for number in range(2))
            if isinstance(one, _Sum) and isinstance(other, _Sum):
                return _sum(one, other) if instruction.opcode == "add" else _difference(one, other)
        return None

    def _operand(self, computation: Computation, instruction: Instruction, number: int, given: _Given) -> _Value:
        if number >= len(instruction.operands):
            return None
        operand = computation.instructions.get(instruction.operands[number])
        member = instruction.members[number]
        return (
            self._value(computation, operand, given)
            if member is None
            else self.member(computation, operand, member, given)
        )

    def _giving(self, computation: Computation, caller: Instruction, given: _Given) -> _Given:
        return lambda number: self._operand(computation, caller, number, given)

    def _called(self, caller: Instruction) -> Computation | None:
        return self.module.computations.get(caller.called.get("calls", caller.called.get("to_apply", "")))


def _sum(one: _Sum, other: _Sum) -> _Sum | None:
    if one.member is not None and other.member is not None:
        return None
    return _Sum(other.member if one.member is None else one.member, one.constant + other.constant)


def _difference(one: _Sum, other: _Sum) -> _Sum | None:
    return None if other.member is not None else _Sum(one.member, one.constant - other.constant)
