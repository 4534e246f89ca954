"""What the atlas adds to the priors of a search: a small table, each figure told by hand."""

from __future__ import annotations

import pytest

from autotune.model import parse_study
from autotune.settings import Atlas
from autotune.study.atlas_priors import cells_alike, heard
from autotune.study.priors import Prior
from tests.atlas_tables import small

COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
GRAPH = "xla_gpu_enable_command_buffer"
LEVEL = "xla_gpu_autotune_level"
SMALL = small()
PRIORS = {name: Prior(0.1, ("said before",)) for name in (COMBINE, GRAPH, LEVEL, "NCCL_PROTO")}


def alike(entry: str, *, count: int | None = 8, jaxlib: str = "0.10.2", platform: str = "cuda") -> list[str]:
    spec = parse_study({"name": "a", "workload": {"entry": entry}, "device": {"platform": platform}})
    return [f"{c.jaxlib} {c.workload} {c.gpus}" for c in cells_alike(SMALL, spec, count, jaxlib)]


def test_the_cells_alike_are_of_the_release_the_preset_and_so_many_devices() -> None:
    both = ["0.10.2 dense-fsdp 8", "0.10.2 dense-fsdp 64"]
    assert alike("llama3-8b") == both
    assert alike("llama3-8b", jaxlib="0.12.1", count=None) == ["0.12.0.1 dense-fsdp 8"]
    assert alike("llama") == [*both, "0.10.2 moe 8"]  # no kind of the table: all
    assert alike("llama3-8b", count=1) == []
    assert alike("llama3-8b", platform="cpu") == alike("llama3-8b", jaxlib="") == []


def test_what_changes_a_program_gains_what_changes_none_loses_and_the_sum_stays() -> None:
    moe_old = [c for c in SMALL.cells if c.cell[:2] == ("0.10.2", "moe")]
    found = heard(PRIORS, SMALL, moe_old, ())
    assert sum(p.act for p in found.values()) == pytest.approx(0.4)
    assert found[GRAPH].act / found[LEVEL].act == pytest.approx(2.0)
    assert found[COMBINE].act / found[LEVEL].act == pytest.approx(0.5)
    assert found["NCCL_PROTO"].act == found[LEVEL].act  # unseen, and not in the table
    assert found[GRAPH].why == ("said before", "in the atlas it changes the program of a model alike")
    assert found[COMBINE].why[1] == "in the atlas it changes nothing in a model alike"
    assert found[LEVEL].why == ("said before",)


def test_one_live_cell_is_enough_and_a_cell_that_is_not_known_is_no_nothing() -> None:
    old = [c for c in SMALL.cells if c.jaxlib == "0.10.2"]
    assert heard(PRIORS, SMALL, old, ())[COMBINE].why[1].endswith("of 2 of 3 models alike")
    less = Atlas(r for r in SMALL if r.name != COMBINE or r.workload == "moe")
    assert heard(PRIORS, less, old, ())[COMBINE].why == ("said before",)


def test_the_studys_own_screen_wins_and_an_empty_table_says_nothing() -> None:
    old = [c for c in SMALL.cells if c.jaxlib == "0.10.2"]
    assert heard(PRIORS, SMALL, old, PRIORS) == PRIORS
    assert heard(PRIORS, Atlas([]), [], ()) == PRIORS
