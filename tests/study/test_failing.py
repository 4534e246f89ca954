"""What crashes or hangs is narrowed down to its smallest part, which no later trial holds."""

from __future__ import annotations

import pytest

from autotune.measure.failing import MOST_STARTS, contains_failing
from autotune.model.flags import FlagSet, shrink
from autotune.model.records import FailingSetRecord, TrialResult
from tests.runs import Run, replay_study

SETS = ("a", "b", "c", "d", "e", "f", "g")


def asker(*causes: set[str]) -> tuple[list[FlagSet], object]:
    """A set fails if it holds all names of one cause; what was asked is kept."""
    asked: list[FlagSet] = []

    def fails(part: FlagSet) -> bool:
        asked.append(part)
        return any(cause <= set(part) for cause in causes)

    return asked, fails


def all_of(names: tuple[str, ...]) -> FlagSet:
    return FlagSet({f"xla_{n}": "1" for n in names})


@pytest.mark.parametrize("cause", [{"xla_d"}, {"xla_a", "xla_g"}, {"xla_b", "xla_c", "xla_f"}])
def test_the_cause_is_found_whatever_its_size(cause: set[str]) -> None:
    asked, fails = asker(cause)
    found, is_minimal = shrink(all_of(SETS), fails)  # type: ignore[arg-type]
    assert set(found) == cause
    assert is_minimal
    assert len(asked) < 2 ** len(SETS) / 2


def test_of_two_causes_one_is_found_and_a_set_contains_it_only_if_it_holds_all_of_it() -> None:
    _, fails = asker({"xla_a"}, {"xla_e", "xla_f"})
    found, _ = shrink(all_of(SETS), fails)  # type: ignore[arg-type]
    assert set(found) in ({"xla_a"}, {"xla_e", "xla_f"})
    bad = [FlagSet({"xla_a": "1", "xla_b": "2"})]
    assert contains_failing(FlagSet({"xla_a": "1", "xla_b": "2", "xla_c": "1"}), bad)
    assert not contains_failing(FlagSet({"xla_a": "1", "xla_b": "1"}), bad)


def test_when_the_starts_are_used_up_the_part_found_so_far_still_fails() -> None:
    count = 0

    def fails(part: FlagSet) -> bool | None:
        nonlocal count
        count += 1
        return {"xla_a", "xla_b"} <= set(part) if count <= 2 else None

    found, is_minimal = shrink(all_of(SETS), fails)
    assert {"xla_a", "xla_b"} <= set(found)
    assert not is_minimal


def test_a_pair_that_crashes_is_found_in_a_study_and_never_proposed_again(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1 xla_b=2": "crash"})
    first = (("named", FlagSet({"xla_a": "1", "xla_b": "2", "xla_c": "1", "xla_d": "1"})),)
    _, store, diary = run_replay(spec, trials=12, first=first)
    (record,) = store.of(FailingSetRecord)
    assert record.smallest == FlagSet({"xla_a": "1", "xla_b": "2"})
    assert record.is_minimal
    assert 0 < record.starts <= MOST_STARTS
    crashed = [r for r in store.of(TrialResult) if r.failure is not None]
    assert [r.origin for r in crashed] == ["named"]
    assert any("minimal failing set (crash)" in n for n in diary.notes)


def test_the_cause_is_looked_for_once_also_after_a_restart(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1": "hang"})
    first = (("named", FlagSet({"xla_a": "1", "xla_c": "1"})),)
    run_replay(spec, trials=2, first=first)
    _, store, _ = run_replay(spec, trials=5, first=first)
    assert len(store.of(FailingSetRecord)) == 1


def test_out_of_memory_is_nobody_s_crash(run_replay: Run) -> None:
    spec = replay_study(failures={"xla_a=1": "out_of_memory", "xla_a=2": "wrong_loss"})
    _, store, _ = run_replay(spec, trials=12)
    assert store.of(FailingSetRecord) == []
