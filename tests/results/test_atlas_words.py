"""What the atlas answers: a small table whose answers are told by hand, and a big one by brute force."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import autotune
from autotune.model import SettingError
from autotune.results import alive_lines, recipe_lines, told_parts, told_setting
from autotune.settings import Atlas, Places, load_recipes, place_of
from tests.atlas_tables import big, small, write

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
SCHEDULE = "xla_gpu_enable_latency_hiding_scheduler"
SMALL = small()
ANYWHERE = Places()


def test_the_frame_holds_every_row_and_can_be_counted(tmp_path: Path) -> None:
    frame = autotune.atlas(write(SMALL, tmp_path / "table"))
    assert len(frame) == len(SMALL.rows)
    moe = frame[(frame.workload == "moe") & (frame.kind == "setting") & (frame.jaxlib == "0.10.2")]
    assert sorted(zip(moe.name, moe.verdict, strict=True)) == [
        (COMBINE, "same"),
        ("xla_gpu_autotune_level", "unseen"),
        ("xla_gpu_enable_command_buffer", "changes"),
        (SCHEDULE, "changes"),
        ("xla_gpu_graph_level", "fails"),
    ]
    assert moe.set_index("name").needs[SCHEDULE] == COMBINE
    assert frame.predicted_change.dropna().tolist() == [-0.031, 0.012]
    assert frame.peak_bytes.dtype == "Int64"


def test_a_frame_without_a_table_has_the_same_columns(tmp_path: Path) -> None:
    tmp_path.joinpath("none").mkdir()
    empty, full = autotune.atlas(tmp_path / "none"), autotune.atlas(write(SMALL, tmp_path / "table"))
    assert empty.empty
    assert list(empty.columns) == list(full.columns)
    figures = ["gpus", "peak_bytes", "compiled", "predicted_change", "step_s", "seconds"]
    assert empty[figures].dtypes.tolist() == full[figures].dtypes.tolist()
    with pytest.raises(SettingError, match="must lie in a folder"):
        autotune.atlas(tmp_path / "nowhere")


def test_a_setting_is_told_newest_release_first() -> None:
    told = [(t.jaxlib, t.value, t.verdict, t.cells, t.of) for t in told_setting(SMALL, COMBINE, ANYWHERE)]
    size = "1073741824"
    assert told == [
        ("0.12.0.1", size, "same", 2, 2),
        ("0.10.2", size, "changes", 2, 3),
        ("0.10.2", size, "same", 1, 3),
    ]
    changes = told_setting(SMALL, COMBINE, ANYWHERE)[1]
    assert changes.places == ("dense-fsdp@8xh100-sxm", "dense-fsdp@64xh100-sxm")
    assert changes.words == "all-gather: 226 -> 33; order of 812 instructions"
    needs = told_setting(SMALL, SCHEDULE, Places(workload="moe"))
    assert [(t.jaxlib, t.verdict, t.words) for t in needs] == [
        ("0.12.0.1", "default", ""),
        ("0.10.2", "changes", f"only together with {COMBINE}"),
    ]


def test_what_the_table_lacks_is_refused_with_what_it_has() -> None:
    with pytest.raises(SettingError, match="did you mean `xla_gpu_graph_level`"):
        told_setting(SMALL, "xla_gpu_graf_level", ANYWHERE)
    for ask in (lambda: told_setting(Atlas([]), COMBINE, ANYWHERE), lambda: told_parts(Atlas([]), [], "1", ANYWHERE)):
        with pytest.raises(SettingError, match="autotune atlas build"):
            ask()


@pytest.mark.parametrize(
    ("name", "value", "jaxlib", "place", "verdict", "cells", "words"),
    [
        (COMBINE, "1073741824", "0.10.2", "dense-fsdp", "changes", 2, "226 -> 33"),
        (COMBINE, "1073741824", "0.11.0", "dense-fsdp", "changes", 2, "226 -> 33"),  # the newest that is not after
        (COMBINE, "17", "0.10.2", "moe", "", 1, "was not tried; of others, 1073741824: same in 1 of 1"),
        (SCHEDULE, "1", "0.10.2", "dense-fsdp", "changes", 2, "all-gather"),
        (SCHEDULE, None, "0.10.2", "dense-fsdp", "changes", 2, "all-gather"),
        (SCHEDULE, "TRUE", "0.12.0.1", "moe", "default", 1, ""),
        ("xla_gpu_enable_async_collectives", "true", "0.12.0.1", "moe", "rejected", 1, "does not have it"),
        ("xla_gpu_enable_async_collectives", "false", "0.12.0.1", "moe", "rejected", 1, "does not have it"),
        ("xla_gpu_autotune_level", "0", "0.12.0.1", "moe", "unseen", 1, "on the device"),
        ("xla_gpu_autotune_level", "4", "0.12.0.1", "moe", "default", 1, "in force anyway"),
        ("xla_nobody_knows", "1", "0.12.0.1", "moe", "", 1, "not in the table"),
    ],
)
def test_a_part_of_a_block(
    name: str, value: str | None, jaxlib: str, place: str, verdict: str, cells: int, words: str
) -> None:
    (told,) = told_parts(SMALL, [(name, value)], jaxlib, Places(workload=place))
    assert (told.verdict, told.cells) == (verdict, cells)
    assert words in told.words


def test_where_a_setting_is_alive_in_lines() -> None:
    assert alive_lines(SMALL, COMBINE) == [
        "0.12.0.1: same, in no cell another program",
        "0.10.2: changes the program in 2 of 3 cells: dense-fsdp (2)",
    ]
    assert alive_lines(SMALL, "xla_nobody_knows") == alive_lines(Atlas([]), COMBINE) == []


def test_which_published_sets_are_one_program() -> None:
    one, other, dead = list(load_recipes())[:3]
    assert recipe_lines(SMALL, one)[0] == f"0.12.0.1: one program with {other} in 2 of 2 cells"
    assert recipe_lines(SMALL, dead)[1] == "0.10.2: the default's program in 3 of 3 cells"
    assert recipe_lines(SMALL, "nobody") == []


def test_a_big_table_is_told_as_counting_row_by_row_tells_it() -> None:
    table = big(jaxlibs=("0.10.2", "0.12.0.1"), most=30, seed=3)
    counted: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for row in table:
        if row.kind == "setting" and row.workload:
            counted[row.name, row.jaxlib, row.value, row.verdict].add(place_of(row))
    told = {}
    for name in {n for n, *_ in counted}:
        for t in told_setting(table, name, ANYWHERE):
            told[name, t.jaxlib, t.value, t.verdict] = set(t.places)
            assert t.cells == len(t.places)
            assert t.of == 36
    assert told == counted
