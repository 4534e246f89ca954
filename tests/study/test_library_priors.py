"""What a library of winners teaches a search: nothing that is wrong in it may cost more than a few trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.machine import driver_python, processor_name
from autotune.model import FlagSet, StudyFileError, StudySpec, TrialResult, parse_study
from autotune.results.library import Entry, add_to_library
from autotune.results.winner import Winner
from autotune.settings import KnownSettings, probe_build
from autotune.study.library_priors import MOST_TRIED, Lessons, by_library, entries_for, lessons_of
from autotune.study.preflight import prepare
from autotune.study.priors import MOST, Prior
from tests.runs import EFFECTS, Run, make_winner, replay_study

LEVEL, MATH, ISA = "xla_backend_optimization_level", "xla_cpu_enable_fast_math", "xla_cpu_max_isa"
JAXLIB = "0.11.1"


def cpu_winner(settings: dict[str, str], entry: str = "llama", **conditions: Any) -> Winner:
    kind = {"platform": "cpu", "device_kind": "cpu", "device_count": 1, "plugin": None}
    found = make_winner(settings, **{**kind, "cpu": processor_name(), **conditions})
    return found.model_copy(update={"workload_entry": entry})


def study(learn_from: str | None = "library", **more: Any) -> StudySpec:
    search = {"settings": {LEVEL: [0, 2, 3]}, **({"learn_from": learn_from} if learn_from else {})}
    return parse_study(
        {"name": "learns", "workload": {"entry": "llama"}, "device": {"platform": "cpu"}, "search": search} | more
    )


@pytest.fixture(scope="module")
def known() -> KnownSettings:
    return KnownSettings(probe_build(driver_python(), platform="cpu"))


def library(folder: Path, *winners: Winner) -> tuple[Entry, ...]:
    for winner in winners:
        add_to_library(winner, folder / "library")
    return entries_for(study(), folder)


def lessons(entries: tuple[Entry, ...], known: KnownSettings, spec: StudySpec | None = None) -> Lessons:
    return lessons_of(entries, spec or study(), known, device_kind="cpu", device_count=1)


def test_the_nearest_winners_are_tried_first_and_no_more_than_some(tmp_path: Path, known: KnownSettings) -> None:
    jaxlib = known.build.jaxlib
    entries = library(
        tmp_path,
        cpu_winner({LEVEL: "0"}, "dreamer", jaxlib=jaxlib, workload="b" * 12),
        cpu_winner({MATH: "true"}, jaxlib="0.4.30", cpus_usable=2),
        cpu_winner({ISA: "SSE4_2"}, jaxlib=jaxlib, device_count=2),
        cpu_winner({LEVEL: "2"}, jaxlib=jaxlib),
        cpu_winner({MATH: "true"}, "mamba", jaxlib=jaxlib, workload="c" * 12),
    )
    found = lessons(entries, known)
    assert [dict(s) for _, s in found.first] == [{LEVEL: "2"}, {ISA: "SSE4_2"}, {MATH: "true"}]
    assert len(found.first) == MOST_TRIED
    assert found.winners[0].is_tested
    assert len(found.winners) == 5, "what is not tried still says what acts"
    assert all(name.startswith("library ") and "/llama" in name for name, _ in found.first)


def test_what_means_nothing_here_is_left_out(tmp_path: Path, known: KnownSettings) -> None:
    own = {
        LEVEL: "2",
        "xla_not_of_this_build": "1",
        "option.batch": "8",
        ISA: "SSE4_2",
        "xla_cpu_enable_fast_math": "true",
    }
    winner = cpu_winner(own).model_copy(update={"baseline": FlagSet({ISA: "SSE4_2"})})
    entries = library(tmp_path, winner, make_winner({"xla_gpu_autotune_level": "0"}))
    assert [e.winner.conditions.platform for e in entries] == ["cpu"], "a GPU's winner is no hint on a CPU"
    told: list[str] = []
    found = lessons_of(entries, study(), known, device_kind="cpu", device_count=1, note=told.append)
    assert [dict(s) for _, s in found.first] == [{LEVEL: "2", MATH: "true"}]
    assert any("xla_not_of_this_build is left out" in text for text in told)
    assert not any("option.batch" in text for text in told)


def test_an_equal_set_of_two_winners_is_tried_once(tmp_path: Path, known: KnownSettings) -> None:
    entries = library(tmp_path, cpu_winner({LEVEL: "2"}), cpu_winner({LEVEL: "2"}, device_count=2))
    assert len(lessons(entries, known).first) == 1


def test_what_winners_hold_is_likelier_the_nearer_they_are_and_the_sum_stays(
    tmp_path: Path, known: KnownSettings
) -> None:
    entries = library(
        tmp_path,
        cpu_winner({LEVEL: "2"}, jaxlib=known.build.jaxlib),
        cpu_winner({MATH: "true", LEVEL: "0"}, "dreamer", jaxlib=known.build.jaxlib, workload="b" * 12),
    )
    priors = {name: Prior(0.02, ("said before",)) for name in (LEVEL, MATH, ISA, "NCCL_PROTO")}
    found = by_library(priors, lessons(entries, known).winners)
    assert sum(p.act for p in found.values()) == pytest.approx(0.08)
    assert found[LEVEL].act == pytest.approx(4.0 * found[ISA].act), "proven for just this"
    assert found[MATH].act == pytest.approx(2.5 * found[ISA].act), "half of it for another model"
    assert found[ISA].why == ("said before",)
    assert found[LEVEL].why == ("said before", "a winner that is proven for just this holds it")
    sure = by_library({LEVEL: Prior(0.45, ()), ISA: Prior(0.45, ())}, lessons(entries, known).winners)
    assert sure[LEVEL].act == MOST, "never sure before anything is measured"
    assert by_library(priors, ()) == priors


def test_no_library_teaches_nothing(tmp_path: Path, known: KnownSettings) -> None:
    assert entries_for(study(None), tmp_path) == ()
    (tmp_path / "library").mkdir()
    assert lessons(entries_for(study(), tmp_path), known) == Lessons()


def test_a_folder_that_is_no_library_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"learn_from must be the folder .*autotune library add"):
        prepare(study(), study_dir=tmp_path, storage=None, note=lambda text: None)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "notes.json").write_text('{"to": "do"}')
    with pytest.raises(StudyFileError, match=r"must hold winners only but .*notes\.json"):
        prepare(study(), study_dir=tmp_path, storage=None, note=lambda text: None)


def test_sets_that_break_a_rule_of_the_study_are_not_tried(tmp_path: Path, known: KnownSettings) -> None:
    library(tmp_path, cpu_winner({LEVEL: "2"}), cpu_winner({MATH: "true"}, device_count=2))
    told: list[str] = []
    setup = prepare(study(limits={"rules": [f"{LEVEL} != 2"]}), study_dir=tmp_path, storage=None, note=told.append)
    assert [dict(s) for _, s in setup.lessons("cpu", 1, told.append).first] == [{MATH: "true"}]
    assert any("it breaks the rule" in text for text in told)


def taught(folder: Path, known: KnownSettings, *sets: dict[str, str]) -> Lessons:
    """A library of winners, whose sets are taken as they are: the made-up settings of a replay are of no build."""
    found = lessons(library(folder, *(cpu_winner(s, device_count=n) for n, s in enumerate(sets, 1))), known)
    return Lessons(found.winners, tuple(("library cpu/llama", FlagSet(s)) for s in sets))


def test_a_search_begins_with_the_winner_of_an_earlier_study(
    run_replay: Run, tmp_path: Path, known: KnownSettings
) -> None:
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 1e-6})
    best = {"xla_a": "1", "xla_d": "2"}
    conclusion, store, _ = run_replay(spec, trials=2, lessons=taught(tmp_path, known, best))
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
    told, store, _ = run_replay(replay_study(**formula), trials=22, lessons=taught(tmp_path, known, *liars))
    assert [r.settings for r in store.of(TrialResult)[:3]] == [FlagSet(s) for s in liars]
    assert told.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
