"""Priors of settings before anything is measured: screen, recipes, atlas, library; and how they are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.screen import Effect, ScreenReport, SetReport, SettingReport, ValueReport
from autotune.machine.environment import driver_python
from autotune.machine.host import processor_name
from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.records import TrialResult
from autotune.model.spec import StudySpec, parse_study
from autotune.results.library import Entry, add_to_library
from autotune.results.winner import Winner
from autotune.search.additive import EXPECTED, MOST_LIKELY
from autotune.settings.atlas import Atlas, AtlasRow
from autotune.settings.catalog import load_recipes
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.space import Parameter, SearchSpace
from autotune.study.preflight import prepare
from autotune.study.priors import (
    MOST,
    MOST_TRIED,
    LibraryWinners,
    Prior,
    _recipe_counts,
    atlas_factors,
    by_screen,
    library_factors,
    library_of,
    reweighted,
    similar_cells,
    winners_for,
)  # fmt: skip
from tests.atlas_tables import small
from tests.runs import EFFECTS, Run, make_winner, replay_study


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


# ---------------------------------------------------------------------- library of winners


OPTIMISATION, MATH, ISA = "xla_backend_optimization_level", "xla_cpu_enable_fast_math", "xla_cpu_max_isa"
JAXLIB = "0.11.1"


def cpu_winner(settings: dict[str, str], entry: str = "llama", **conditions: Any) -> Winner:
    kind = {"platform": "cpu", "device_kind": "cpu", "device_count": 1, "plugin": None}
    found = make_winner(settings, **{**kind, "cpu": processor_name(), **conditions})
    return found.model_copy(update={"workload_entry": entry})


def study(learn_from: str | None = "library", **more: Any) -> StudySpec:
    search = {"settings": {OPTIMISATION: [0, 2, 3]}, **({"learn_from": learn_from} if learn_from else {})}
    return parse_study(
        {"name": "learns", "workload": {"entry": "llama"}, "device": {"platform": "cpu"}, "search": search} | more
    )


@pytest.fixture(scope="module")
def known() -> KnownSettings:
    return KnownSettings(probe_build(driver_python(), platform="cpu"))


def library(folder: Path, *winners: Winner) -> tuple[Entry, ...]:
    for winner in winners:
        add_to_library(winner, folder / "library")
    return library_of(study(), folder, pytest.fail)


def nearest(entries: tuple[Entry, ...], known: KnownSettings, spec: StudySpec | None = None) -> LibraryWinners:
    return winners_for(entries, spec or study(), known, device_kind="cpu", device_count=1)


def test_the_nearest_winners_are_tried_first_and_no_more_than_some(tmp_path: Path, known: KnownSettings) -> None:
    jaxlib = known.build.jaxlib
    entries = library(
        tmp_path,
        cpu_winner({OPTIMISATION: "0"}, "dreamer", jaxlib=jaxlib, workload="b" * 12),
        cpu_winner({MATH: "true"}, jaxlib="0.4.30", cpus_usable=2),
        cpu_winner({ISA: "SSE4_2"}, jaxlib=jaxlib, device_count=2),
        cpu_winner({OPTIMISATION: "2"}, jaxlib=jaxlib),
        cpu_winner({MATH: "true"}, "mamba", jaxlib=jaxlib, workload="c" * 12),
    )
    found = nearest(entries, known)
    assert [dict(s) for _, s in found.first] == [{OPTIMISATION: "2"}, {ISA: "SSE4_2"}, {MATH: "true"}]
    assert len(found.first) == MOST_TRIED
    assert found.winners[0].is_tested
    assert len(found.winners) == 5, "what is not tried still says what acts"
    assert all(name.startswith("library ") and "/llama" in name for name, _ in found.first)


def test_what_means_nothing_here_is_left_out(tmp_path: Path, known: KnownSettings) -> None:
    own = {
        OPTIMISATION: "2",
        "xla_not_of_this_build": "1",
        "option.batch": "8",
        ISA: "SSE4_2",
        "xla_cpu_enable_fast_math": "true",
    }
    winner = cpu_winner(own).model_copy(update={"baseline": FlagSet({ISA: "SSE4_2"})})
    entries = library(tmp_path, winner, make_winner({"xla_gpu_autotune_level": "0"}))
    assert [e.winner.conditions.platform for e in entries] == ["cpu"], "a GPU's winner is no hint on a CPU"
    told: list[str] = []
    found = winners_for(entries, study(), known, device_kind="cpu", device_count=1, note=told.append)
    assert [dict(s) for _, s in found.first] == [{OPTIMISATION: "2", MATH: "true"}]
    assert any("xla_not_of_this_build is left out" in text for text in told)
    assert not any("option.batch" in text for text in told)


def test_an_equal_set_of_two_winners_is_tried_once(tmp_path: Path, known: KnownSettings) -> None:
    entries = library(tmp_path, cpu_winner({OPTIMISATION: "2"}), cpu_winner({OPTIMISATION: "2"}, device_count=2))
    assert len(nearest(entries, known).first) == 1


def test_what_winners_hold_is_likelier_the_nearer_they_are_and_the_sum_stays(
    tmp_path: Path, known: KnownSettings
) -> None:
    entries = library(
        tmp_path,
        cpu_winner({OPTIMISATION: "2"}, jaxlib=known.build.jaxlib),
        cpu_winner({MATH: "true", OPTIMISATION: "0"}, "dreamer", jaxlib=known.build.jaxlib, workload="b" * 12),
    )
    priors = {name: Prior(0.02, ("said before",)) for name in (OPTIMISATION, MATH, ISA, "NCCL_PROTO")}
    found = reweighted(priors, library_factors(nearest(entries, known).winners))
    assert sum(p.p_active for p in found.values()) == pytest.approx(0.08)
    assert found[OPTIMISATION].p_active == pytest.approx(4.0 * found[ISA].p_active), "proven for just this"
    assert found[MATH].p_active == pytest.approx(2.5 * found[ISA].p_active), "half of it for another model"
    assert found[ISA].why == ("said before",)
    assert found[OPTIMISATION].why == ("said before", "a winner that is proven for just this holds it")
    sure = reweighted(
        {OPTIMISATION: Prior(0.45, ()), ISA: Prior(0.45, ())}, library_factors(nearest(entries, known).winners)
    )
    assert sure[OPTIMISATION].p_active == MOST, "never sure before anything is measured"
    assert reweighted(priors, {}) == priors


def test_no_library_teaches_nothing(tmp_path: Path, known: KnownSettings) -> None:
    assert library_of(study(None), tmp_path, pytest.fail) == ()
    (tmp_path / "library").mkdir()
    assert nearest(library_of(study(), tmp_path, pytest.fail), known) == LibraryWinners()


def test_a_folder_that_is_no_library_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"learn_from must be the folder .*autotune library add"):
        prepare(study(), study_dir=tmp_path, storage=None, note=lambda text: None)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "notes.json").write_text('{"to": "do"}')
    told: list[str] = []
    assert prepare(study(), study_dir=tmp_path, storage=None, note=told.append).library == ()
    assert any("notes.json" in text for text in told), "one strange file does not keep a study from starting"


def test_sets_that_break_a_rule_of_the_study_are_not_tried(tmp_path: Path, known: KnownSettings) -> None:
    library(tmp_path, cpu_winner({OPTIMISATION: "2"}), cpu_winner({MATH: "true"}, device_count=2))
    told: list[str] = []
    setup = prepare(
        study(limits={"rules": [f"{OPTIMISATION} != 2"]}), study_dir=tmp_path, storage=None, note=told.append
    )
    assert [dict(s) for _, s in setup.library_winners("cpu", 1, told.append).first] == [{MATH: "true"}]
    assert any("it breaks the rule" in text for text in told)


def as_given(folder: Path, known: KnownSettings, *sets: dict[str, str]) -> LibraryWinners:
    """A library of winners, whose sets are taken as they are: the made-up settings of a replay are of no build."""
    found = nearest(library(folder, *(cpu_winner(s, device_count=n) for n, s in enumerate(sets, 1))), known)
    return LibraryWinners(found.winners, tuple(("library cpu/llama", FlagSet(s)) for s in sets))


def test_a_search_begins_with_the_winner_of_an_earlier_study(
    run_replay: Run, tmp_path: Path, known: KnownSettings
) -> None:
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 1e-6})
    best = {"xla_a": "1", "xla_d": "2"}
    conclusion, store, _ = run_replay(spec, trials=2, library=as_given(tmp_path, known, best))
    assert store.of(TrialResult)[0].origin == "library cpu/llama"
    assert conclusion.settings == FlagSet(best)


def test_a_winner_that_crashes_is_slower_or_does_nothing_here_costs_a_trial_and_no_verdict(
    run_replay: Run, tmp_path: Path, known: KnownSettings
) -> None:
    liars: list[dict[str, str]] = [{"xla_b": "2"}, {"xla_b": "1"}, {"xla_c": "1"}]
    formula: dict[str, Any] = {
        "effects": EFFECTS,
        "failures": {"xla_b=2": "crash"},
        "inert": ["xla_c=1"],
        "noise": {"white_sd": 1e-6},
    }
    told, store, _ = run_replay(replay_study(**formula), trials=22, library=as_given(tmp_path, known, *liars))
    assert [r.settings for r in store.of(TrialResult)[:3]] == [FlagSet(s) for s in liars]
    assert told.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
