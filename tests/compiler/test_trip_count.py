"""How often a loop runs, where XLA no longer says: held to counting, and to loops that only look as if they counted."""

from __future__ import annotations

import operator
import random
from pathlib import Path
from string import Template

import pytest

from autotune.compiler import hlo
from autotune.compiler.hlo import parse_module, trip_count
from tests.tables import toml_beside

COMPARE = {"LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "NE": operator.ne}
MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
MOST = 50
CASES = toml_beside(__file__)
LOOP = Template((Path(__file__).parent / "dumps/loop.hlo").read_text(encoding="utf-8"))


def module(
    *,
    begins: str = "%zero = s32[] constant(0)",
    limit: int = 10,
    step: str = "%next = s32[] add(%i, %one)",
    direction: str = "LT",
    sides: str = "%c.i, %c.limit",
    also: str = "",
    dtype: str = "s32",
) -> str:
    """A loop as the GPU compiler leaves it: the comparison in a fusion, the counter a member of a tuple."""
    return LOOP.substitute(locals(), first=begins.split()[0])


def counted(text: str) -> int | None:
    return trip_count(parse_module(text)["while.1"])


def by_running(begins: int, limit: int, step: int, direction: str) -> int | None:
    times = 0
    while COMPARE[direction](begins, limit) and times <= MOST:
        begins, times = begins + step, times + 1
    return None if times > MOST else times


def test_a_count_is_that_of_running_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo, "MOST_TRIPS", MOST + 1)
    draw = random.Random(0)
    seen = set()
    for _ in range(500):
        begins, limit, step = draw.randint(-20, 20), draw.randint(-20, 20), draw.choice([-7, -3, -2, -1, 1, 2, 3, 7])
        direction = draw.choice(list(COMPARE))
        swaps = draw.random() < 0.5  # the limit may stand first
        opcode, by = ("subtract", -step) if draw.random() < 0.5 else ("add", step)
        text = module(
            begins=f"%start = s32[] constant({begins})",
            limit=limit,
            step=f"%by = s32[] constant({by})\n  %next = s32[] {opcode}(%i, %by)",
            direction=MIRRORED.get(direction, direction) if swaps else direction,
            sides="%c.limit, %c.i" if swaps else "%c.i, %c.limit",
        )
        expected = by_running(begins, limit, step, direction)
        assert counted(text) == expected, (begins, limit, step, direction)
        seen.add((direction, expected is None, bool(expected)))
    assert len(seen) == 15  # each direction: no end, none, some


def test_a_loop_whose_first_turn_was_peeled_begins_where_that_ended() -> None:
    peeled = "%two = s32[] constant(2)\n  %start = s32[] fusion(%two), kind=kLoop, calls=%plus"
    plus = CASES["programs"]["plus"]
    text = module(begins=peeled).replace("copy(%two)", "copy(%start)").replace("\n%cond ", plus + "\n%cond ")
    assert counted(text) == 7
    inside = text.replace("%next = s32[] add(%i, %one)", "%next = s32[] fusion(%i), kind=kLoop, calls=%plus")
    assert counted(inside) == 7


LIARS = CASES["loops_that_do_not_count"]


@pytest.mark.parametrize("loop", LIARS.values(), ids=LIARS.keys())
def test_a_loop_that_only_looks_as_if_it_counted_is_not_known(loop: dict[str, str]) -> None:
    text = module(**loop)  # type: ignore[arg-type]
    assert counted(text) is None
    told = text.replace('"dynamic_variables":[]', '"known_trip_count":{"n":"5"}')
    assert counted(told) == 5


def test_a_long_chain_before_the_loop_takes_no_time() -> None:
    doubled = "\n  ".join(f"%d{i + 1} = s32[] add(%d{i}, %d{i})" for i in range(5000))
    assert counted(module(begins="%begin = s32[] copy(%d5000)", also=f"%d0 = s32[] constant(0)\n  {doubled}")) == 10
