"""Two processes on one GPU: whoever runs out of its memory is measured alone, in every stage, and the study goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet
from autotune.model.records import AaRecord, AblationResult, ConfirmRun, FailingSetRecord, IncidentRecord, TrialResult
from autotune.model.spec import StudySpec
from harness.gpu_memory import GpuMemory, OnSharedGpu
from tests.runs import Run, replay_study, there
from tests.tables import toml_beside

CASES = toml_beside(__file__)

EFFECTS = {"xla_a=1": 0.9, "xla_d=2": 0.95}
FIRST = (
    ("best and more", FlagSet({"xla_a": 1, "xla_c": 1, "xla_d": 2})),
    ("best", FlagSet({"xla_a": 1, "xla_d": 2})),
    ("needs little", FlagSet({"xla_d": 2})),
    ("needs much", FlagSet({"xla_a": 2})),
)
SHARE = "XLA_CLIENT_MEM_FRACTION"


def study(**more: Any) -> StudySpec:
    """A study on one GPU of 80 GB, nearly without noise."""
    replay = {"effects": EFFECTS, "noise": {"white_sd": 0.003}, **more.pop("replay", {})}
    return replay_study(**replay, study={"device": {"platform": "cuda"}, **more})


def gib(value: float, **more: float) -> Any:
    """The need of a set: a figure for all, and others for those with a setting."""
    return lambda settings: max([value, *(v for n, v in more.items() if n in settings)])


def modes(store: Any) -> set[str]:
    return {r.comparison.mode for r in store.of(TrialResult) if r.comparison}


def test_a_reference_that_does_not_fit_into_its_share_runs_alone(run_replay: Run) -> None:
    spec = study()
    launcher = OnSharedGpu(spec, need=gib(53.9))  # 57.9e9 bytes of 80e9
    conclusion, store, diary = run_replay(spec, trials=4, launcher=launcher, first=FIRST)
    aa_run = there(store.last(AaRecord))
    assert aa_run.comparison.mode == "aba"
    assert aa_run.loss_spread.steps  # the rounding of the reference ran alone, too
    assert modes(store) == {"aba"}
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    assert launcher.failed == [FlagSet({SHARE: "0.45"})]  # once; then the study knows
    assert any("do not fit into the device's memory" in note for note in diary.notes)


def test_one_set_that_needs_more_than_its_share_is_tried_beside_another_only_once(run_replay: Run) -> None:
    spec = study()
    launcher = OnSharedGpu(spec, need=gib(20.0, xla_a=50.0))
    conclusion, store, _ = run_replay(spec, trials=4, launcher=launcher, first=FIRST)
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    found = {("xla_a" in r.settings, r.comparison.mode) for r in store.of(TrialResult) if r.comparison}
    assert found == {(True, "aba"), (False, "interleaved")}
    failed = [s.without(SHARE) for s in launcher.failed]
    assert len(failed) == len(set(failed))
    proof = [r for r in store.of(ConfirmRun) if r.settings == conclusion.settings]
    assert proof
    assert all(r.is_isolated and r.failure is None for r in proof)
    others = [r for r in store.of(ConfirmRun) if "xla_a" not in r.settings and r.stage == "confirm"]
    assert not any(r.is_isolated for r in others)
    assert {r.comparison.mode for r in store.of(AblationResult) if r.comparison} == {"aba"}
    assert [r.failure for r in store.of(TrialResult)] == [None] * 4


def test_memory_that_runs_out_at_a_later_step_is_no_fault_of_the_set(run_replay: Run) -> None:
    spec = study()
    launcher = OnSharedGpu(spec, need=gib(20.0), grown=gib(20.0, xla_a=50.0))
    conclusion, store, _ = run_replay(spec, trials=4, launcher=launcher, first=FIRST)
    assert conclusion.settings == FlagSet({"xla_a": "1", "xla_d": "2"})
    first = next(r for r in store.of(TrialResult) if r.settings.get("xla_a") and r.comparison)
    pairs = list(store.pairs(there(first.directory)))  # those of the interleaved blocks before are not among them
    assert [p.index for p in pairs] == list(range(there(first.comparison).pair_count))


def test_rounding_that_needs_more_than_the_share_runs_alone(run_replay: Run) -> None:
    def need(settings: FlagSet) -> float:
        return 50.0 if "xla_a" not in settings and settings else 20.0  # what changes rounding, and nothing else

    spec = study()
    _, store, _ = run_replay(
        spec, trials=1, launcher=OnSharedGpu(spec, need=need), first=(("a", FlagSet({"xla_a": 1})),)
    )
    aa_run = there(store.last(AaRecord))
    assert aa_run.comparison.mode == "interleaved"
    assert not [i for i in store.of(IncidentRecord) if "rounding" in i.what]


def test_a_cause_is_looked_for_alone_where_parts_of_the_set_need_the_whole_gpu(run_replay: Run) -> None:
    spec = study(replay={"failures": {"xla_b=1": "crash"}})
    first = (("crashes", FlagSet({"xla_a": "2", "xla_b": "1", "xla_d": "1"})),)
    _, store, _ = run_replay(spec, trials=2, first=first, launcher=OnSharedGpu(spec, need=gib(53.9)))
    failing = store.of(FailingSetRecord)[0]
    assert (failing.smallest, failing.is_minimal) == (FlagSet({"xla_b": "1"}), True)


def test_what_does_not_fit_in_turns_or_alone_ends_the_study_with_advice(run_replay: Run) -> None:
    spec = study(measure={"mode": "interleaved"})
    with pytest.raises(LaunchError, match=r"measure\.mode"):
        run_replay(spec, launcher=OnSharedGpu(spec, need=gib(53.9)))
    spec = study()
    with pytest.raises(LaunchError, match=r"must run but did not: out_of_memory: .*RESOURCE_EXHAUSTED"):
        run_replay(spec, launcher=OnSharedGpu(spec, need=gib(70.0)))


@pytest.mark.parametrize(("environment", "fits"), CASES["own_shares"])
def test_a_program_that_sets_its_share_itself_is_left_to_it(
    run_replay: Run, environment: Mapping[str, str], fits: bool
) -> None:
    spec = study()
    launcher = OnSharedGpu(spec, need=gib(20.0), environment=environment)
    _, store, _ = run_replay(spec, trials=1, launcher=launcher)
    assert modes(store) == {"interleaved" if fits else "aba"}
    told = [i.what for i in store.of(IncidentRecord) if "share of the GPU's memory itself" in i.what]
    is_named = any("FRACTION" in name for name in environment)
    assert len(told) == is_named
    assert sum(SHARE in s for s in launcher.started) == 1 or not is_named


def test_a_share_that_the_study_names_is_not_taken_from_the_program(run_replay: Run) -> None:
    """What the user asks for must arrive: only our own share gives way."""
    spec = study(baseline={SHARE: "0.4"})
    launcher = OnSharedGpu(spec, need=gib(20.0), environment={SHARE: "0.9"})
    with pytest.raises(LaunchError, match="not_applied"):
        run_replay(spec, launcher=launcher)


def test_the_fake_gpu_hands_out_memory_as_xla_does(tmp_path: Path) -> None:
    gpu = GpuMemory()
    assert gpu.take("first", {}) == 60 * 10**9
    assert gpu.take("second", {SHARE: "0.45"}) < 20 * 10**9  # nine tenths, again and again, until it fits
    assert gpu.free >= 0
    with pytest.raises(MemoryError, match="RESOURCE_EXHAUSTED"):
        gpu.use("second", 30 * 10**9, 36 * 10**9)
    with pytest.raises(ValueError, match=re.escape("Remove the latter one")):
        gpu.take("third", {SHARE: "0.4", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"})
