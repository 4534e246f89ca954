"""Studies by several objectives: dominance, and the proven front."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.model import objectives
from autotune.model.errors import AutotuneError, LaunchError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import EnergyUse, Objective, WorkerReport
from autotune.model.objectives import proven_front, told_log_ratio
from autotune.model.records import AblationResult, ConclusionRecord, ConfirmRun, FinalistResult, Outcome
from autotune.model.spec import parse_study
from autotune.model.trial import TrialResult
from autotune.results.winner import winner_of
from autotune.rundir.mirror import NUMBER_KEY
from autotune.rundir.store import Store
from autotune.stats.estimates import Estimate, Verdict
from autotune.study import preflight
from autotune.study.conclude import _front
from tests.fronts import MEMORY, TIME, pareto_study, run
from tests.runs import replay_study

# ---------------------------------------------------------------------- dominance

values = st.lists(st.tuples(*[st.integers(-4, 4)] * 3), max_size=25)


@given(values)
def test_unbeaten_is_what_its_definition_says(points: list[tuple[int, ...]]) -> None:
    kept = objectives.unbeaten([[float(v) for v in p] for p in points], tolerance=1.0)

    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    for i, (mine, is_kept) in enumerate(zip(points, kept, strict=True)):
        wanted = min(mine) < 0 and mine not in points[:i] and not any(beats(other, mine) for other in points)
        assert is_kept == wanted


def test_a_difference_too_small_to_matter_beats_nobody() -> None:
    assert objectives.unbeaten([[-0.100, 0.1], [-0.101, 0.2]], tolerance=0.005) == [True, False]
    assert objectives.unbeaten([[-0.100, 0.1], [-0.150, 0.2]], tolerance=0.005) == [True, True]
    assert objectives.unbeaten([[0.001, -0.001]], tolerance=0.005) == [False]


def estimate(ratio: float, spread: float = 0.01) -> Estimate:
    return Estimate(ratio=ratio, low=ratio - spread, high=ratio + spread, level=0.95, pair_count=5)


def finalist(trial: int, time: Estimate | None, memory: Estimate | None) -> FinalistResult:
    others = {MEMORY: memory} if memory else None
    return FinalistResult(
        stage="confirm", trial=trial, settings=FlagSet({"xla_a": str(trial)}), estimate=time, corrected=time,
        others=others, verdict=Verdict.FASTER, process_count=5,
    )  # fmt: skip


def test_a_set_belongs_to_the_front_only_if_it_surely_betters_something() -> None:
    found = [
        finalist(1, estimate(0.9), estimate(1.2)),
        finalist(2, estimate(1.1), estimate(0.8)),
        finalist(3, estimate(0.99, 0.02), estimate(0.995, 0.02)),  # better perhaps
        finalist(4, estimate(0.95), estimate(1.3)),  # beaten by 1
        finalist(5, estimate(0.5), None),  # memory not known
    ]
    assert [f.trial for f in proven_front(found, [TIME, MEMORY], sesoi=0.005)] == [1, 2]


def test_both_ends_of_a_front_are_chosen_for_proof_then_what_lies_between() -> None:
    results = [TrialResult.model_validate(trial(i)) for i in range(1, 7)]
    points = [objectives.FrontPoint(result=r, values=(-0.1 * r.number, 0.1 * r.number - 0.5)) for r in results]
    assert [r.number for r in objectives.choose_members(points, count=1)] == [6]
    assert [r.number for r in objectives.choose_members(points, count=3)] in ([6, 1, 3], [6, 1, 4])
    assert sorted(r.number for r in objectives.choose_members(points, count=9)) == [1, 2, 3, 4, 5, 6]
    assert objectives.choose_members([], count=3) == []


def test_the_sentence_names_only_what_surely_goes_down() -> None:
    members = [finalist(1, estimate(1.2, 0.5), estimate(0.96, 0.2)), finalist(2, estimate(1.1), estimate(0.97, 0.01))]
    text = str(_front(members, [TIME, MEMORY], sesoi=0.005, where="here")["sentence"])
    assert text.endswith("is proven here: memory down to ratio 0.970 [0.960, 0.980] (trial 2)")


def trial(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "settings": {"xla_a": str(number)},
        "origin": "tpe",
        "status": "failed",
        "failure": {"kind": "crash", "message": "x", "phase": "x"},
    }


# ---------------------------------------------------------------------- a whole study


def test_every_objective_is_told_and_has_words() -> None:
    worker = WorkerReport(
        fingerprint="f", platform="cuda", device_kind="H200", device_count=1, compile_s=2.0, peak_bytes=1 << 30,
        start_s=0.0, losses=(), grad_norms=(), warmup_step_times_s=(),
    )  # fmt: skip
    half = Estimate(ratio=0.5, low=0.4, high=0.6, level=0.95, pair_count=5)
    energy = EnergyUse(estimate=half, reference_step_j=2.0, candidate_step_j=1.0, source="a counter")
    less = worker.model_copy(update={"compile_s": 1.0, "peak_bytes": 1 << 29})
    for objective in Objective:
        assert objective.words
        if objective is not Objective.STEP_TIME:
            assert told_log_ratio(objective, less, worker, energy) == pytest.approx(math.log(0.5))


@pytest.mark.slow
def test_the_front_is_found_and_proven(front_run: Store) -> None:
    conclusion = front_run.last(ConclusionRecord)
    assert conclusion is not None
    assert conclusion.outcome is Outcome.FRONT
    members = {f.trial: f for f in front_run.of(FinalistResult)}
    sets = [members[t].settings for t in conclusion.front or ()]
    # Fastest first: a, then a and b, then b; settings without effect in this formula may stand beside them.
    acting = [sorted(n for n in ("xla_a", "xla_b") if s.get(n) == "1") for s in sets]
    assert acting == [["xla_a"], ["xla_a", "xla_b"], ["xla_b"]]
    truth = [(0.90, 1.25), (0.945, 0.875), (1.05, 0.70)]
    for number, (time, memory) in zip(conclusion.front or (), truth, strict=True):
        member = members[number]
        assert member.corrected is not None
        assert member.corrected.ratio == pytest.approx(time, rel=0.002)
        assert (member.others or {})[MEMORY].ratio == pytest.approx(memory, rel=1e-6)
    assert conclusion.estimate is not None
    assert conclusion.estimate.ratio == pytest.approx(0.90, rel=0.002)
    fastest, _, smallest = conclusion.front or ()
    assert conclusion.sentence.startswith(
        "a front of 3 sets by step time, memory is proven in this replay: step time down to ratio "
        f"{conclusion.estimate.ratio:.3f} ["
    )
    assert conclusion.sentence.endswith(
        f"(trial {fastest}), memory down to ratio 0.700 [0.700, 0.700] (trial {smallest})"
    )
    assert front_run.of(AblationResult) == []
    assert {r.stage for r in front_run.of(ConfirmRun)} == {"confirm"}


@pytest.mark.slow
def test_intervals_are_widened_for_all_sets_and_objectives(front_run: Store) -> None:
    for member in front_run.of(FinalistResult):
        assert member.estimate is not None
        assert member.corrected is not None
        wide = math.log(member.corrected.high / member.corrected.low)
        narrow = math.log(member.estimate.high / member.estimate.low)
        assert (
            wide > 1.5 * narrow
        )  # eight intervals instead of one: 4.6 over 2.8 standard errors on 4 degrees of freedom


@pytest.mark.slow
def test_a_study_by_several_objectives_goes_on_and_repeats_itself(tmp_path: Path) -> None:
    spec = pareto_study(noise={"white_sd": 0.0})  # else each session sees figures of its own
    for trials in (6, 12, 20):
        parts, diary = run(tmp_path / "parts", spec, trials=trials)
    whole, _ = run(tmp_path / "whole", spec, trials=20)
    assert [r.settings for r in parts.of(TrialResult)] == [r.settings for r in whole.of(TrialResult)]
    _, diary = run(tmp_path / "parts", spec, trials=20)
    assert diary.started == []


@pytest.mark.slow
def test_nothing_better_in_anything_means_no_front(tmp_path: Path) -> None:
    formula = {"effects": {"xla_a=1": 1.1}, "memory_effects": {"xla_a=1": 1.1}}
    store, _ = run(tmp_path, pareto_study(**formula), trials=20)
    conclusion = store.last(ConclusionRecord)
    assert conclusion is not None
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    assert "in step time, memory" in conclusion.sentence
    with pytest.raises(AutotuneError, match="only a proven winner"):
        winner_of(store)


@pytest.mark.slow
def test_a_set_that_saves_memory_and_fails_is_never_proposed_for_proof(tmp_path: Path) -> None:
    store, _ = run(tmp_path, pareto_study(failures={"xla_b=1": "wrong_loss"}), trials=30)
    assert all("xla_b" not in f.settings or f.settings["xla_b"] != "1" for f in store.of(FinalistResult))


@pytest.mark.slow
def test_what_only_compiles_faster_is_found_though_its_program_is_the_default(tmp_path: Path) -> None:
    spec = pareto_study("compile_time", effects={}, compile_effects={"xla_c=1": 0.5}, inert=["xla_c=1"])
    store, _ = run(tmp_path, spec, trials=30)
    conclusion = store.last(ConclusionRecord)
    assert conclusion is not None
    assert conclusion.front is not None
    assert conclusion.settings is None  # faster to compile, not to run: nothing stands for the front
    assert "compile time down to ratio 0.500" in conclusion.sentence


@pytest.mark.slow
def test_the_mirror_holds_both_values(tmp_path: Path) -> None:
    import optuna

    url = f"sqlite:///{tmp_path / 'o.db'}"
    store, _ = run(tmp_path / "run", pareto_study(), trials=10, storage=url)
    (summary,) = optuna.get_all_study_summaries(url)
    study = optuna.load_study(study_name=summary.study_name, storage=url)
    assert len(study.directions) == 2
    by_number = {t.user_attrs[NUMBER_KEY]: t.values for t in study.trials}
    for result in store.of(TrialResult):
        memory = 1.25 ** (result.settings.get("xla_a") == "1") * 0.7 ** (result.settings.get("xla_b") == "1")
        memory *= 1.1 ** (result.settings.get("xla_d") == "2")
        assert by_number[result.number][1] == pytest.approx(math.log(memory), abs=1e-6)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ({"search": {"objectives": ["memory"]}}, "`step_time` among them"),
        ({"search": {"objectives": ["step_time", "step_time"]}}, "each named once"),
        ({"search": {"objectives": []}}, "objectives"),
        ({"search": {"objectives": ["step_time", "speed"]}}, "'step_time', 'memory', 'compile_time' or 'energy'"),
    ],
)
def test_objectives_are_checked(study: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyFileError, match=message):
        parse_study({"name": "s", "workload": {"entry": "llama"}, **study})


@pytest.mark.parametrize("wanted", ["memory", "compile_time"])
def test_a_command_is_not_asked_for_what_it_does_not_tell(wanted: str) -> None:
    workload = {"command": ["true"], "read": {"preset": "maxtext"}}
    with pytest.raises(StudyFileError, match=f"can not hold {wanted}"):
        parse_study({"name": "s", "workload": workload, "search": {"objectives": ["step_time", wanted]}})


def test_energy_is_refused_before_anything_starts_where_nothing_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"name": "s", "workload": {"entry": "llama"}, "search": {"objectives": ["step_time", "energy"]}}
    monkeypatch.setattr("autotune.machine.energy.POWERCAP", Path("/nowhere"))
    with pytest.raises(StudyFileError, match=r"nothing does: .*RAPL.* or take energy out"):
        preflight._refuse_uncounted_energy(parse_study(study))
    with pytest.raises(StudyFileError, match=r"'\.\[gpu\]'"):
        preflight._refuse_uncounted_energy(parse_study({**study, "device": {"platform": "cuda"}}))


def test_blocks_too_short_for_the_counters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.machine.energy import Counter, EnergyMeter

    meter = EnergyMeter(counters=(Counter(read_j=lambda: 1.0),), source="NVML, 8 GPUs", shortest_s=0.5)
    monkeypatch.setattr(preflight, "open_meter", lambda *_: meter)
    study = {"name": "s", "workload": {"entry": "llama"}, "search": {"objectives": ["step_time", "energy"]}}
    with pytest.raises(StudyFileError, match=r"at least 500 ms for NVML, 8 GPUs .* raise it to 0.5 or more"):
        preflight._refuse_uncounted_energy(parse_study(study))
    preflight._refuse_uncounted_energy(parse_study({**study, "measure": {"block_s": 0.5}}))


def test_an_objective_that_the_reference_does_not_tell_ends_the_study_before_the_search(tmp_path: Path) -> None:
    spec = pareto_study(memory_effects={})
    with pytest.raises(LaunchError, match="does not tell memory"):
        run(tmp_path, spec, trials=5)


def test_one_objective_leaves_the_identity_of_earlier_runs_alone() -> None:
    one, two = replay_study(), pareto_study()
    assert "objectives" not in one.lasting()["search"]
    assert two.lasting()["search"]["objectives"] == ["step_time", "memory"]
