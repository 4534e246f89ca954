"""Priors of settings before anything is measured: screen, recipes, atlas, library; and how they are spread."""

from __future__ import annotations

import pytest

from autotune.compiler.screen import Effect, ScreenReport, SetReport, SettingReport, ValueReport
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.atlas import Atlas, AtlasRow
from autotune.settings.catalog import load_recipes
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.priors import (
    MOST,
    Prior,
    _recipe_counts,
    atlas_factors,
    by_screen,
    reweighted,
    similar_cells,
)  # fmt: skip
from tests.atlas_tables import small


def value(text: str, *changes: str, message: str = "") -> ValueReport:
    return ValueReport(value=text, is_active=bool(changes), changes=changes, message=message)


def report(*settings: SettingReport) -> ScreenReport:
    return ScreenReport(
        target="h100-sxm", topology="1x8", versions={}, reference=SetReport(name="reference", settings=FlagSet()),
        settings=settings, sets=(), limit_bytes=None, compiled_count=1, cached_count=0, duration_s=1.0,
    )  # fmt: skip


def space(*names: str) -> SearchSpace:
    return SearchSpace(tuple(Parameter(name=n, choices=("0", "1", "2"), default="0") for n in names))


NAMES = tuple(f"xla_unknown_{i}" for i in range(20))


def test_what_nothing_is_known_of_shares_the_expected_number() -> None:
    found = by_screen(space(*NAMES), None, {})
    assert sum(p.p_active for p in found.values()) == pytest.approx(EXPECTED)
    assert {p.why for p in found.values()} == {()}


def test_a_few_settings_are_not_all_thought_to_act() -> None:
    assert max(p.p_active for p in by_screen(space(*NAMES[:3]), None, {}).values()) == pytest.approx(MOST_LIKELY)


def test_what_changes_the_program_is_thought_likelier_than_what_does_not() -> None:
    settings = [
        SettingReport(name=NAMES[0], effect=Effect.ACTIVE, stage="program", values=(value("1", "a", "b"), value("2"))),
        SettingReport(
            name=NAMES[1], effect=Effect.ACTIVE, stage="program", values=(value("1"),), interacts_with=("xla_other",)
        ),
        SettingReport(name=NAMES[2], effect=Effect.FAILS, stage="program", values=(value("1", message="no"),)),
        SettingReport(name=NAMES[3], effect=Effect.NO_OP, stage="program", values=(value("1"),)),
        SettingReport(name=NAMES[4], effect=Effect.MEASURE, stage="runtime"),
    ]
    found = by_screen(space(*NAMES), report(*settings), {})
    active, together, fails, no_op, measure = (found[n] for n in NAMES[:5])
    assert active.p_active > together.p_active == measure.p_active > fails.p_active == no_op.p_active > 0
    assert active.why == ("it changes the program (2 differences)",)
    assert active.no_ops == ("2",)  # it changes nothing, where another value does
    assert together.no_ops == ()  # in company every value may
    assert max(p.p_active for p in found.values()) <= MOST


def test_published_settings_are_thought_likelier() -> None:
    counts = _recipe_counts()
    most = max(counts, key=lambda n: counts[n])
    assert counts[most] == sum(most in settings for settings in {r.settings for r in load_recipes().values()})
    found = by_screen(space(most, *NAMES), None, counts)
    assert found[most].p_active > 1.5 * found[NAMES[0]].p_active
    assert found[most].why == (f"{counts[most]} published recipes hold it",)


# ---------------------------------------------------------------------- atlas


COMBINE = "xla_gpu_all_gather_combine_threshold_bytes"
GRAPH = "xla_gpu_enable_command_buffer"
LEVEL = "xla_gpu_autotune_level"
SMALL = small()
PRIORS = {name: Prior(0.1, ("said before",)) for name in (COMBINE, GRAPH, LEVEL, "NCCL_PROTO")}


def by_atlas(table: Atlas, cells: list[AtlasRow]) -> dict[str, Prior]:
    return reweighted(PRIORS, atlas_factors(table, cells, PRIORS))


def alike(entry: str, *, count: int | None = 8, jaxlib: str = "0.10.2", platform: str = "cuda") -> list[str]:
    spec = parse_study({"name": "a", "workload": {"entry": entry}, "device": {"platform": platform}})
    return [f"{c.jaxlib} {c.workload} {c.gpus}" for c in similar_cells(SMALL, spec, count, jaxlib)]


def test_the_cells_alike_are_of_the_release_the_preset_and_so_many_devices() -> None:
    both = ["0.10.2 dense-fsdp 8", "0.10.2 dense-fsdp 64"]
    assert alike("llama3-8b") == both
    assert alike("llama3-8b", jaxlib="0.12.1", count=None) == ["0.12.0.1 dense-fsdp 8"]
    assert alike("llama") == [*both, "0.10.2 moe 8"]  # no kind of the table: all
    assert alike("llama3-8b", count=1) == []
    assert alike("llama3-8b", platform="cpu") == alike("llama3-8b", jaxlib="") == []


def test_what_changes_a_program_gains_what_changes_none_loses_and_the_sum_stays() -> None:
    moe_old = [c for c in SMALL.cells if c.cell[:2] == ("0.10.2", "moe")]
    found = by_atlas(SMALL, moe_old)
    assert sum(p.p_active for p in found.values()) == pytest.approx(0.4)
    assert found[GRAPH].p_active / found[LEVEL].p_active == pytest.approx(2.0)
    assert found[COMBINE].p_active / found[LEVEL].p_active == pytest.approx(0.5)
    assert found["NCCL_PROTO"].p_active == found[LEVEL].p_active  # unseen, and not in the table
    assert found[GRAPH].why == ("said before", "in the atlas it changes the program of a model alike")
    assert found[COMBINE].why[1] == "in the atlas it changes nothing in a model alike"
    assert found[LEVEL].why == ("said before",)


def test_one_live_cell_is_enough_and_a_cell_that_is_not_known_is_no_nothing() -> None:
    old = [c for c in SMALL.cells if c.jaxlib == "0.10.2"]
    assert by_atlas(SMALL, old)[COMBINE].why[1].endswith("of 2 of 3 models alike")
    less = Atlas(r for r in SMALL if r.name != COMBINE or r.workload == "moe")
    assert by_atlas(less, old)[COMBINE].why == ("said before",)


def test_the_studys_own_screen_wins_and_an_empty_table_says_nothing() -> None:
    old = [c for c in SMALL.cells if c.jaxlib == "0.10.2"]
    assert reweighted(PRIORS, atlas_factors(SMALL, old, ())) == PRIORS
    assert by_atlas(Atlas([]), []) == PRIORS
