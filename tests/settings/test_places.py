"""Places of the atlas, as people spell them."""

from __future__ import annotations

import itertools

import pytest

from autotune.model import SettingError
from autotune.settings import Atlas, Places, newest_not_after, parse_places, place_of
from tests.atlas_tables import big, small

BIG = big(jaxlibs=("0.10.2",), most=1)


def test_each_cell_is_found_by_its_own_spelling_and_no_other_is() -> None:
    for one, other in itertools.product(BIG.cells, repeat=2):
        assert parse_places(place_of(one), BIG).fits(other) == (one == other)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("moe", 5),
        ("dense-fsdp", 6),
        ("@h100-sxm", 8),
        ("@h100", 8),
        ("@8x", 30),
        ("dense-fsdp@64xh100", 1),
        ("@1xb200", 1),
        (" MOE@8x ", 5),
    ],
)
def test_what_is_left_out_may_be_anything(text: str, cells: int) -> None:
    places = parse_places(text, BIG)
    assert sum(map(places.fits, BIG.cells)) == cells


@pytest.mark.parametrize(
    "text", ["", "@", "h100", "moe@h10", "moe@64xh200", "fsdp", "moe@8 h200", "moe@0xh200", "moe@b"]
)
def test_what_no_cell_is_like_is_refused_with_what_there_is(text: str) -> None:
    if text == "moe@0xh200":  # any number
        assert parse_places(text, BIG).gpus == 0
        return
    with pytest.raises(SettingError, match=r"dense-fsdp@|place of the atlas must be spelled"):
        parse_places(text, BIG)


def test_an_empty_table_says_how_to_build_one() -> None:
    with pytest.raises(SettingError, match="autotune atlas build"):
        parse_places("moe", Atlas([]))


def test_a_row_for_a_whole_release_is_of_every_place() -> None:
    wide = next(r for r in small() if not r.workload)
    assert place_of(wide) == "all cells"
    assert Places(workload="moe").fits(wide)


@pytest.mark.parametrize(
    ("asked", "found"), [("0.10.2", "0.10.2"), ("0.11.3", "0.11.0"), ("0.9", "0.10.2"), ("0.13", "0.12.0.1")]
)
def test_the_release_that_answers_is_the_newest_that_is_not_after(asked: str, found: str) -> None:
    assert newest_not_after(asked, ("0.10.2", "0.11.0", "0.12.0.1")) == found
    with pytest.raises(SettingError, match="release"):
        newest_not_after(asked, ())
