"""A winner must run for a while before it is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune.measure.durations import durations_of
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind
from autotune.model.records import AaRecord, IncidentRecord, MemoryUse, Outcome, SoakRecord
from autotune.results.audit import disagreements
from autotune.results.export import render_winner
from autotune.results.format import format_soak
from autotune.results.report import render_markdown
from autotune.results.winner import winner_of
from autotune.settings.space import Parameter, SearchSpace
from harness.simulated_machine import SimulatedWorker
from tests.runs import Noting, Run, Times, failed, on_blocks, replay_study, rewrite, there

FAST = {"xla_a=1": 0.9}
PLANTED = (("fast", FlagSet({"xla_a": 1})),)


def test_a_winner_is_soaked_and_its_conclusion_says_how_long_if_it_was(run_replay: Run) -> None:
    without = replay_study(effects=FAST, study={"confirm": {"soak": 0}})
    conclusion, store, _ = run_replay(without, trials=1, first=PLANTED, folder="without")
    assert (conclusion.outcome, conclusion.soaked_s, store.of(SoakRecord)) == (Outcome.WINNER, None, [])
    spec = replay_study(effects=FAST, study={"confirm": {"soak": "20s"}})
    conclusion, store, diary = run_replay(spec, trials=2, first=PLANTED)
    (record,) = store.of(SoakRecord)
    assert conclusion.outcome is Outcome.WINNER
    assert conclusion.settings == record.settings == FlagSet({"xla_a": "1"})
    assert record.step_count >= 700  # steps of 27 ms
    assert conclusion.soaked_s == record.steps_s >= 20
    assert diary.stages[-1] == "soak"


def test_a_soak_is_not_repeated_unless_a_longer_one_is_asked_for(run_replay: Run) -> None:
    for soak, records in (("6s", 1), ("5s", 1), ("30s", 2)):
        spec = replay_study(effects=FAST, study={"confirm": {"soak": soak}})
        _, store, _ = run_replay(spec, trials=1, first=PLANTED)
        assert len(store.of(SoakRecord)) == records


def test_a_soak_of_a_program_that_prints_every_tenth_step_lasts_as_long_as_asked(run_replay: Run) -> None:
    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        on_blocks(worker, lambda times, done: setattr(worker, "last_clock_s", 10 * sum(times)))
        worker.report = worker.report.model_copy(update={"line_s": 0.3})

    workload = {"command": ["python", "train.py"], "read": {"pattern": r"step (?P<step>\d+)"}}
    study = {"workload": workload, "confirm": {"soak": "60s"}, "measure": {"run_steps": 50}}
    spec = replay_study(effects=FAST, noise="quiet", step_s=0.03, start_s=2.0, study=study)
    _, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    assert 60 <= record.steps_s < 80
    assert record.step_count < 300  # lines, each of ten steps of 27 ms
    takes = durations_of(spec, store.of(AaRecord)[0], ())
    assert there(takes).soak_s == pytest.approx(2 * (60 + 4 * 2.0), rel=0.1)


READ = {
    "workload": {"command": ["python", "train.py"], "read": {"pattern": r"step (?P<step>\d+)"}},
    "measure": {"run_steps": 50},
}
"""A program whose steps are read; a run of a proof counts 50 of them."""


def test_what_a_read_program_does_late_in_one_process_is_seen(run_replay: Run) -> None:
    """Its loss is no number from step 401 on: of many processes of 50 steps none would show it."""

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def fail(times: Times, done: int) -> None:
            if done + len(times) > 400:
                raise failed(FailureKind.WRONG_LOSS, "the loss became nan by step 401")

        if settings.get("xla_a") == "1" and "soak" in folder.parts:
            on_blocks(worker, fail)

    spec = replay_study(effects=FAST, noise="quiet", step_s=0.03, study=READ)
    conclusion, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    assert there(record.failure).kind is FailureKind.WRONG_LOSS
    assert record.starts == 1
    assert conclusion.outcome is not Outcome.WINNER


@pytest.mark.parametrize(
    ("silent_from", "is_both", "is_refused"), [(400, False, True), (400, True, False), (0, False, False)]
)
def test_a_loss_that_is_told_no_more_is_refused_unless_the_references_is_not_either(
    run_replay: Run, silent_from: int, is_both: bool, is_refused: bool
) -> None:
    """What a program prints for nan may not be what its pattern takes for a loss."""

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def fall_silent(times: Times, done: int) -> None:
            worker.loss_lag = max(0, done + len(times) - silent_from) if silent_from else 7

        if "soak" in folder.parts and (is_both or settings.get("xla_a") == "1"):
            on_blocks(worker, fall_silent)

    spec = replay_study(effects=FAST, noise="quiet", step_s=0.03, study=READ)
    conclusion, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    assert (record.failure is not None) is is_refused
    if is_refused:
        assert there(record.failure).kind is FailureKind.WRONG_LOSS
        assert "its loss was not told in its last" in conclusion.sentence


def test_a_read_program_that_is_short_is_started_again_and_the_longest_process_is_told(run_replay: Run) -> None:
    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        def end(times: Times, done: int) -> None:
            worker.has_ended = worker.may_end and done + len(times) >= 150

        on_blocks(worker, end)

    spec = replay_study(effects=FAST, noise="quiet", step_s=0.03, study=READ)
    _, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    assert record.starts > 1
    assert 150 <= there(record.longest) < 200
    assert f"longest of {record.longest} " in format_soak(record)


def crash(times: Times, done: int) -> None:
    if done + len(times) > 2500:
        raise failed(FailureKind.CRASH, "ended by SIGABRT")


def ends(worker: SimulatedWorker) -> Callable[[Times, int], None]:
    def end(times: Times, done: int) -> None:
        worker.has_ended = done + len(times) > 2500

    return end


@pytest.mark.parametrize(("is_alike", "outcome"), [(False, Outcome.INCONCLUSIVE), (True, Outcome.WINNER)])
def test_a_crash_at_the_programs_own_end_after_the_long_run_counts(
    run_replay: Run, is_alike: bool, outcome: Outcome
) -> None:
    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if "soak" in folder.parts:
            is_bad = settings.get("xla_a") == "1" or is_alike
            on_blocks(worker, crash if is_bad else ends(worker))

    spec = replay_study(effects=FAST, noise="quiet", step_s=0.03, study=READ)  # 60 s: 2,222 steps of the set
    conclusion, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    assert conclusion.outcome is not Outcome.WINNER or outcome is Outcome.WINNER, conclusion.sentence
    assert (record.failure is None) is is_alike


@pytest.mark.parametrize(
    ("statuses", "is_refused"), [((-6, 0), True), ((-6, -6), False), ((0, 0), False), ((-6, None), False)]
)
def test_exit_statuses_of_both_arms_are_compared(
    run_replay: Run, statuses: tuple[int | None, int | None], is_refused: bool
) -> None:
    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        worker.exit_status = statuses[0 if settings.get("xla_a") == "1" else 1]

    spec = replay_study(effects=FAST, noise="quiet", study={"confirm": {"soak": "6s"}})
    _, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    record = store.of(SoakRecord)[-1]
    assert (record.failure is not None) is is_refused


class Outside(Noting):
    """Programs that take so many seconds a line when nobody measures them."""

    paces: ClassVar[dict[bool, float]] = {}

    def pace_outside(self, settings: FlagSet, folder: Path, *, limit_s: float) -> float | None:
        return self.paces[settings.get("xla_a") == "1"]


@pytest.mark.parametrize(("pace", "is_refused"), [(0.9, False), (0.97, False), (1.0, True), (1.1, True)])
def test_a_gain_that_is_not_there_from_outside_is_refused(run_replay: Run, pace: float, is_refused: bool) -> None:
    spec = replay_study(effects=FAST, noise="quiet", study={"confirm": {"soak": "6s"}})
    Outside.paces = {True: pace, False: 1.0}
    _, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Outside(spec))
    record = store.of(SoakRecord)[-1]
    assert (record.failure is not None) is is_refused
    assert record.seen_outside == pace


def test_a_coarse_clock_is_inconclusive(run_replay: Run) -> None:
    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        on_blocks(worker, lambda times, done: tuple(max(1, round(t / 0.016)) * 0.016 for t in times))

    spec = replay_study(effects={"xla_a=1": 0.95}, noise="quiet", step_s=0.03)
    conclusion, _, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert "too coarse" in conclusion.sentence


def test_a_set_that_hangs_late_is_no_winner_and_the_sentence_says_why(run_replay: Run) -> None:
    def hang(times: Times, done: int) -> None:
        if done + len(times) > 400:
            raise failed(FailureKind.HANG, "no answer within 120 s")

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if settings.get("xla_a") == "1":
            on_blocks(worker, hang)

    spec = replay_study(effects=FAST)
    more = ("fast and more", FlagSet({"xla_a": 1, "xla_c": 1}))
    conclusion, store, _ = run_replay(spec, trials=2, launcher=Noting(spec, after=after), first=(more, *PLANTED))
    assert conclusion.outcome is Outcome.INCONCLUSIVE  # what was not proven leaves gains open
    assert conclusion.settings is None
    assert "xla_a=1 was faster" in conclusion.sentence
    assert "hang: no" in conclusion.sentence
    for record in store.of(SoakRecord):  # of the minimal set, and of the whole one that came second
        assert record.failure is not None
        assert record.step_count <= 400


Block = Callable[[Times, int], tuple[Times, MemoryUse | None]]
MB = 1_000_000


def steady(times: Times, done: int) -> tuple[Times, MemoryUse | None]:
    return times, MemoryUse(host_bytes=500 * MB, device_bytes=900 * MB)


@pytest.fixture
def soaked(run_replay: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A study whose winner soaks beside the reference; each process acts as told: conclusion, store, its soak, arms."""
    monkeypatch.setattr("autotune.model.spec.SOAK_STEPS", 480)

    def run(*candidate: Block, reference: Block = steady) -> Any:
        parts, started = {"candidate": candidate, "reference": (reference,)}, list[str]()

        def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
            if "soak" in folder.parts:
                arm = "candidate" if settings.get("xla_a") == "1" else "reference"
                started.append(arm)
                part = parts[arm][min(started.count(arm), len(parts[arm])) - 1]

                def act(times: Times, done: int) -> Times:
                    times, worker.last_memory = part(times, done)
                    return times

                on_blocks(worker, act)

        spec = replay_study(effects=FAST, noise="quiet", study={"confirm": {"soak": "6s"}})
        only = SearchSpace((Parameter(name="xla_a", choices=("0", "1"), default="0"),))
        conclusion, store, _ = run_replay(spec, trials=1, launcher=Noting(spec, after=after), space=only)
        return conclusion, store, store.of(SoakRecord)[-1], started

    return run


def stalling(times: Times, done: int) -> tuple[Times, MemoryUse | None]:
    """A stall of twenty steps in every forty."""
    return tuple(t * (20 if (done + i) % 40 == 39 else 1) for i, t in enumerate(times)), None


def growing(times: Times, done: int) -> tuple[Times, MemoryUse | None]:
    """Steps that take half as long again after 480."""
    return tuple(t * (1 + (done + i) / 960) for i, t in enumerate(times)), None


def leaking(kind: str, per_step: int = 2 * MB) -> Block:
    return lambda times, done: (times, MemoryUse(**{kind: 500 * MB + per_step * (done + len(times))}))


@pytest.mark.parametrize(
    ("acts", "kind", "words"),
    [
        (stalling, FailureKind.SLOWER_IN_TOTAL, r"one stall of .* in 40 steps, 12 in all \(reference: no stall\); "),
        (growing, FailureKind.SLOWER_IN_TOTAL, r"over 4\d\d steps it is [\d.]+ % slower in total.*tenth: 1.00 1.0"),
        (leaking("host_bytes"), FailureKind.LEAK, r"its memory grows by 2\.0 MB a step \(reference 0\.0\)"),
        (leaking("device_bytes"), FailureKind.LEAK, r"its device memory grows by 2\.0 MB a step \(reference 0\.0\)"),
    ],
    ids=["stalls", "slows down", "leaks", "leaks on the device"],
)
def test_what_all_processes_show_is_no_winner(soaked: Any, acts: Block, kind: FailureKind, words: str) -> None:
    conclusion, _, record, started = soaked(acts)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert (record.failure.kind, record.failure.phase) == (kind, "soak")
    assert re.search(words, record.failure.message), record.failure.message
    assert record.failure.message in conclusion.sentence
    assert started == ["candidate", "reference"] * (2 if kind is FailureKind.LEAK else 5)


def test_a_leak_that_only_the_first_process_shows_is_the_machines(soaked: Any) -> None:
    conclusion, store, record, _ = soaked(leaking("host_bytes"), steady)
    assert conclusion.settings == FlagSet({"xla_a": "1"})
    assert len(record.arms.looks) == 2
    assert "run 2 times" in format_soak(record)
    assert disagreements(store, conclusion) == []


def slower(times: Times, done: int) -> tuple[Times, MemoryUse | None]:
    return tuple(1.2 * t for t in times), None


@pytest.mark.parametrize("acts", [stalling, slower])
def test_where_only_later_long_runs_show_the_gain_the_first_one_counts(soaked: Any, acts: Block) -> None:
    """The reference may have left files that make later ones faster."""
    conclusion, _, record, _ = soaked(acts, steady)
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert record.failure is None
    assert len(record.arms.looks) == 5
    assert record.unsettled in conclusion.sentence


def test_more_long_runs_continue_a_study_that_they_did_not_settle(run_replay: Run) -> None:
    """Processes differ by 4 %, and the set's are 12 % faster."""
    outcomes = []
    for soaks in (1, 8):
        study = {"confirm": {"soak": "6s", "soaks": soaks, "isolated": 0}}
        spec = replay_study(effects={"xla_a=1": 0.88}, noise={"process_sd": 0.03, "white_sd": 0.2}, study=study)
        conclusion, store, _ = run_replay(spec, trials=1, first=PLANTED)
        outcomes.append((conclusion.outcome, len(store.of(SoakRecord))))
    assert outcomes == [(Outcome.INCONCLUSIVE, 1), (Outcome.WINNER, 2)]
    assert disagreements(store, conclusion) == []


@pytest.mark.parametrize("acts", [stalling, growing, leaking("device_bytes")])
def test_what_the_reference_does_as_well_is_no_fault(soaked: Any, acts: Block) -> None:
    conclusion, _, record, _ = soaked(acts, reference=acts)
    assert conclusion.settings == FlagSet({"xla_a": "1"}), record.failure
    assert len(record.arms.looks) == 1


def test_every_text_says_what_the_soak_saw_and_that_a_set_which_hung_elsewhere_needs_more(soaked: Any) -> None:
    _, store, record, started = soaked(steady)
    assert started == ["candidate", "reference"]
    (look,) = record.arms.looks
    assert look.reference.step_count == look.candidate.step_count == record.step_count
    assert f"# soak: {record.step_count} steps " in render_winner(winner_of(store), "env")
    for text in (format_soak(record), render_winner(winner_of(store), "shell"), render_markdown(store)):
        assert "no stall)" in text
    for value, captures in (("+COLLECTIVES", True), ("FUSION,collectives", True), ("-COLLECTIVES", False)):
        held = FlagSet({"xla_gpu_enable_command_buffer": value})
        steps = store.spec.soak_steps(held)
        assert (steps > 838) is captures
        for count in (steps, 400):
            told = format_soak(record.model_copy(update={"settings": held, "longest": count}))
            assert ("838" in told) is (captures and count == 400)


def test_memory_that_nobody_tells_is_said_to_be_unwatched(soaked: Any) -> None:
    _, store, _, _ = soaked(lambda times, done: (times, None))
    assert "not watched" in render_winner(winner_of(store), "env")


@pytest.mark.parametrize(
    ("study", "turns"),
    [
        ({}, True),
        ({"measure": {"mode": "aba"}}, False),
        ({"device": {"platform": "cuda", "count": 1}}, False),
        (READ, False),
    ],
    ids=["as its proof", "isolated as its proof", "heat of a GPU's set would slow both", "a program that is read"],
)
def test_both_arms_run_by_turns_where_nothing_of_one_reaches_the_other(
    run_replay: Run, study: dict[str, Any], turns: bool
) -> None:
    order = list[str]()

    def after(worker: SimulatedWorker, settings: FlagSet, folder: Path) -> None:
        if "soak" in folder.parts:
            on_blocks(worker, lambda times, done: order.append(settings.get("xla_a", "0")))

    spec = replay_study(effects=FAST, noise="quiet", study={"confirm": {"soak": "6s"}, **study})
    conclusion, store, _ = run_replay(spec, trials=1, first=PLANTED, launcher=Noting(spec, after=after))
    (record,) = store.of(SoakRecord)
    (look,) = there(record.arms).looks
    assert conclusion.outcome is Outcome.WINNER
    assert look.candidate.step_count == there(look.reference).step_count
    blocks = order.count("1")
    assert order[:6] == (["1", "0", "0", "1", "1", "0"] if turns else ["1"] * 6)
    assert blocks >= (24 if turns else 1)
    assert (order == ["1"] * blocks + ["0"] * (len(order) - blocks)) is not turns


def dying(times: Times, done: int) -> tuple[Times, MemoryUse | None]:
    raise failed(FailureKind.CRASH, "it died")


def test_a_reference_that_fails_beside_it_is_tried_again_and_then_nothing_is_settled(soaked: Any) -> None:
    conclusion, store, record, started = soaked(steady, reference=dying)
    assert started == ["candidate", "reference"] * 2 + ["reference"]  # by turns, then one after the other
    assert conclusion.outcome is Outcome.INCONCLUSIVE
    assert "reference failed" in format_soak(record)
    assert sum("it died" in r.what for r in store.of(IncidentRecord)) == 3


@pytest.mark.parametrize(
    ("candidate", "reference", "kind"),
    [((leaking("host_bytes"),), dying, FailureKind.LEAK), ((stalling, dying), steady, FailureKind.CRASH)],
    ids=["a leak beside a reference that fails", "a second process that fails"],
)
def test_what_one_arm_shows_counts_whatever_the_other_did(
    soaked: Any, candidate: tuple[Block, ...], reference: Block, kind: FailureKind
) -> None:
    assert soaked(*candidate, reference=reference)[2].failure.kind is kind


def test_a_soak_that_was_edited_into_a_pass_is_found_out(soaked: Any) -> None:
    conclusion, store, _, _ = soaked(steady)

    def stall(records: list[dict[str, Any]]) -> None:
        soak = next(r for r in records if r["kind"] == "soak")
        arm = soak["arms"]["looks"][0]["candidate"]
        arm["segment_s"] = [2 * t for t in arm["segment_s"]]

    said = disagreements(rewrite(store.path, stall), conclusion)
    assert any("the winner" in line for line in said)
