"""Memory as a bound: what needs more of a device than the study allows is a failed trial, and never the winner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure.compare import Interleaved, Isolated
from autotune.measure.context import ReferenceFailed
from autotune.measure.memory import LIMIT_PHASE, MemoryShare, compiled_over_limit, over_limit, refuse_over_limit
from autotune.model.errors import LaunchError, SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import DeviceMemory, Failure, FailureKind
from autotune.model.records import ConfirmRun, TrialResult
from autotune.model.spec import StudySpec
from autotune.study.preflight import keeping_rules, rule_defaults
from autotune.workers.base import WorkerFailed
from tests.runs import Run, replay_study, there, worker_report

HUNGRY, MODEST = FlagSet({"xla_a": "1"}), FlagSet({"xla_b": "1"})
EFFECTS = {"xla_a=1": 0.7, "xla_b=1": 0.9}


def study(limit: str, **measure: Any) -> StudySpec:
    """Without settings a process takes 1 GiB."""
    return replay_study(
        effects=EFFECTS, memory_effects={"xla_a=1": 2.0}, study={"limits": {"memory": limit}, "measure": measure}
    )


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_the_fastest_set_is_not_the_winner_if_it_needs_too_much(run_replay: Run, mode: str) -> None:
    first = (("hungry", HUNGRY), ("modest", MODEST))
    conclusion, store, _ = run_replay(study("1.5GiB", mode=mode), trials=2, first=first)
    failure = there(next(t.failure for t in store.of(TrialResult) if t.settings == HUNGRY))
    assert (failure.kind, failure.phase) == (FailureKind.OUT_OF_MEMORY, LIMIT_PHASE)
    assert "at most 1.5 GiB of each device (limits.memory) but needs 2 GiB (measured)" in failure.message
    assert conclusion.settings == MODEST
    conclusion, _, _ = run_replay(study("2GiB", mode=mode), trials=2, first=first, folder="room")
    assert conclusion.settings == HUNGRY


@pytest.mark.parametrize("mode", ["interleaved", "aba"])
def test_a_reference_above_the_limit_is_an_error_at_the_aa_run(run_replay: Run, mode: str) -> None:
    with pytest.raises(LaunchError, match=r"the reference .* must run but did not: .*at most 512 MiB"):
        run_replay(study("512MiB", mode=mode), trials=2)


def test_a_program_that_does_not_tell_its_memory_cannot_be_held_to_a_limit(run_replay: Run) -> None:
    spec = replay_study(effects=EFFECTS, study={"limits": {"memory": "72GiB"}})
    with pytest.raises(LaunchError, match=r"must report its memory for limits\.memory"):
        run_replay(spec, trials=2)


def test_the_fullest_device_counts() -> None:
    devices = (DeviceMemory(peak_bytes=1 << 30), DeviceMemory(peak_bytes=3 << 30))
    report = worker_report(platform="cuda", device_count=2, peak_bytes=1 << 30, device_memory=devices)
    refuse_over_limit(study("3GiB"), report)
    with pytest.raises(WorkerFailed, match="needs 3 GiB"):
        refuse_over_limit(study("2GiB"), report)


class OnlySpec:
    """A context in which nothing runs."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.share = MemoryShare(spec)

    def release_reference(self) -> None:
        pass


def test_what_is_over_the_limit_is_not_tried_alone_and_what_does_not_fit_beside_another_is() -> None:
    """Two processes that do not fit side by side may fit one at a time; a limit is of one already."""
    spec = study("1GiB").model_copy(update={"device": study("1GiB").device.model_copy(update={"platform": "cuda"})})
    comparer = Interleaved(OnlySpec(spec))  # type: ignore[arg-type]
    failure = there(over_limit(spec, 2 << 30, "measured"))
    assert comparer.instead(WorkerFailed(failure), (FlagSet(), HUNGRY)) is None
    of_device = Failure(kind=FailureKind.OUT_OF_MEMORY, message="RESOURCE_EXHAUSTED", phase="warm-up")
    assert isinstance(comparer.instead(WorkerFailed(of_device), (FlagSet(), HUNGRY)), Isolated)
    assert comparer.context.share.is_known_isolated(HUNGRY)
    # Of an ablation the whole set is the base arm: its final proof must not try it beside another process again.
    spec = study("64GiB").model_copy(update={"device": study("64GiB").device.model_copy(update={"platform": "cuda"})})
    comparer = Interleaved(OnlySpec(spec))  # type: ignore[arg-type]
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="RESOURCE_EXHAUSTED", phase="warm-up")
    lost = ReferenceFailed(WorkerFailed(failure))
    assert isinstance(comparer.instead(lost, (HUNGRY, MODEST)), Isolated)
    assert isinstance(comparer.for_sets(FlagSet(), HUNGRY), Isolated)
    assert comparer.for_sets(FlagSet(), MODEST) is comparer
    assert isinstance(comparer.instead(lost, (FlagSet(), MODEST)), Isolated)
    assert comparer.for_sets(FlagSet(), MODEST) is comparer  # of the study's reference the A/A run tells


def test_a_compiled_program_that_needs_too_much_is_never_launched() -> None:
    memory = SimpleNamespace(peak_bytes=3 << 30)
    screen = SimpleNamespace(result=lambda settings: SimpleNamespace(program=SimpleNamespace(memory=memory)))
    assert compiled_over_limit(study("3GiB"), screen, HUNGRY) is None  # type: ignore[arg-type]
    failure = there(compiled_over_limit(study("2GiB"), screen, HUNGRY))  # type: ignore[arg-type]
    assert (failure.kind, failure.phase) == (FailureKind.OUT_OF_MEMORY, LIMIT_PHASE)
    assert "3 GiB (by its compiled program, never launched)" in failure.message
    unknown = SimpleNamespace(result=lambda settings: SimpleNamespace(program=None))
    assert compiled_over_limit(study("2GiB"), unknown, HUNGRY) is None  # type: ignore[arg-type]


class Build:
    """What a build knows of two flags."""

    build = SimpleNamespace(build="jaxlib 0.0", flags={"xla_a": None, "xla_b": None})

    def __getitem__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(exists=name in self.build.flags, default={"xla_a": "4"}.get(name))


def test_rules_take_the_builds_defaults_and_name_no_flag_that_it_lacks() -> None:
    limits = {"rules": ["xla_a == none or xla_a >= 4 or NCCL_NTHREADS == 128"]}
    spec = replay_study(study={"limits": limits})
    defaults = rule_defaults(spec, Build())  # type: ignore[arg-type]
    assert defaults == {"xla_a": "4"}
    assert spec.broken_rule(FlagSet(), defaults) is None
    assert spec.broken_rule(FlagSet({"xla_a": "2"}), defaults) == limits["rules"][0]
    lacking = replay_study(study={"limits": {"rules": ["xla_bb != 1"]}})
    with pytest.raises(SettingError, match=r"jaxlib 0\.0 has but got xla_bb; did you mean `xla_b`"):
        rule_defaults(lacking, Build())  # type: ignore[arg-type]


def test_no_set_that_breaks_a_rule_is_ever_tried(run_replay: Run) -> None:
    effects = {"xla_a=1": 0.9, "xla_a=2": 0.8, "xla_d=1": 0.97}
    rules = ["xla_a == xla_b", "not (xla_a == 2 and xla_d == 2)"]
    spec = replay_study(effects=effects, study={"limits": {"rules": rules}})
    conclusion, store, _ = run_replay(spec, trials=14)
    tried = [r.settings for r in store.of(TrialResult)]
    assert len(tried) == 14  # of 15: (a, b) equal, times c, times d, less two of the second rule and the default
    assert all(spec.broken_rule(s) is None for s in tried)
    # `xla_b` does nothing, but without it the set would be none that may be tried.
    assert conclusion.settings is not None
    assert (conclusion.settings["xla_a"], conclusion.settings["xla_b"]) == ("2", "2")
    assert all(spec.broken_rule(s) is None for s in (conclusion.settings, *(r.settings for r in store.of(ConfirmRun))))


def test_the_sampler_knows_the_rules_and_leaves_nothing_to_chance(run_replay: Run) -> None:
    """Four in five sets are forbidden: asked until it hit one that is not, it would be passed over for random ones."""
    rules = ["xla_a == xla_b", "not (xla_a == 2 and xla_d == 2)"]
    spec = replay_study(effects={"xla_a=1": 0.9}, study={"limits": {"rules": rules}})
    _, store, _ = run_replay(spec, trials=8)
    assert [r.origin for r in store.of(TrialResult)] == ["additive"] * 8


def test_the_callers_environment_and_recipes_keep_the_rules_too() -> None:
    spec = replay_study(study={"limits": {"rules": ["xla_a != 2"]}})
    notes: list[str] = []
    first = (("your environment", FlagSet({"xla_a": "2"})), ("recipe x", FlagSet({"xla_b": "1"})))
    assert keeping_rules(spec, first, {}, notes.append) == first[1:]
    assert notes == ["your environment is not tried: it breaks the rule 'xla_a != 2'"]
