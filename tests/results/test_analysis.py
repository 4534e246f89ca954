"""Frames of a nearly noiseless simulated run, against the formula that made it."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from autotune.model.flags import FlagSet
from autotune.model.measurement import Comparison, WorkerReport
from autotune.model.records import FinalistResult, TrialResult, TrialStatus
from autotune.results import analysis
from autotune.rundir.store import Store
from autotune.stats.estimates import Estimate
from tests.runs import EFFECTS, replay_study


def truth(settings: FlagSet) -> float:
    return math.prod(EFFECTS.get(f"{n}={v}", 1.0) for n, v in settings.items())


def comparison(ratio: float) -> Comparison:
    estimate = Estimate(ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, level=0.95, pair_count=7)
    return Comparison(
        estimate=estimate,
        reference_step_s=1.0,
        candidate_step_s=ratio,
        pair_count=7,
        mode="interleaved",
        stopped="",
    )


def trial(number: int, settings: dict[str, str], ratio: float | None, **more: object) -> TrialResult:
    """A measured trial, or one whose program is the reference's if it has no ratio."""
    same = {} if ratio is not None else {"status": TrialStatus.SAME_PROGRAM, "same_as": 0}
    fields = {"status": TrialStatus.MEASURED, "comparison": comparison(ratio) if ratio else None, **same, **more}
    return TrialResult.model_validate({"number": number, "settings": settings, "origin": "x", **fields})


def store_of(path: Path, results: list[TrialResult]) -> Store:
    store = Store.create_or_resume(path, replay_study(), study_dir=path)
    for result in results:
        store.append(result)
    store.close()
    return store


def test_trials_hold_what_the_formula_says(finished: Store) -> None:
    frame = analysis.trials_frame(finished)
    assert list(frame["trial"]) == list(range(1, 41))
    results = {r.number: r for r in finished.of(TrialResult)}
    for row in frame.to_dict("records"):
        result = results[row["trial"]]
        if result.failure is None:
            assert row["ratio"] == pytest.approx(truth(result.settings), abs=1e-4)
        else:
            assert math.isnan(row["ratio"])
            assert row["failure"] == "out_of_memory"


def test_duplicates_have_the_figures_of_the_program_that_was_measured(finished: Store) -> None:
    frame = analysis.trials_frame(finished).set_index("trial")
    duplicates = frame[frame["same_as"] > 0]
    assert len(duplicates) > 3
    for _, duplicate in duplicates.iterrows():
        assert duplicate["ratio"] == frame.loc[int(duplicate["same_as"]), "ratio"]


def test_steps_are_all_there_in_the_order_of_running(finished: Store) -> None:
    steps = analysis.steps_frame(finished)
    assert set(steps["stage"]) == {"floor", "trial", "confirm", "minimise", "final", "gain", "alone"}
    files = list(finished.path.rglob("pairs.jsonl"))
    assert steps["measurement"].nunique() == len(files)
    floor = steps[steps["stage"] == "floor"]
    assert len(floor) == sum(len(p.reference_s) + len(p.candidate_s) for p in finished.pairs("floor"))
    assert floor["step_s"].median() == pytest.approx(0.03, rel=1e-3)
    assert (floor.groupby("pair")["is_first"].mean() == 0.5).all()


def test_settings_are_text_with_the_default_marked(finished: Store) -> None:
    frame = analysis.settings_frame(finished)
    assert list(frame.columns) == ["xla_a", "xla_b", "xla_c", "xla_d"]
    first = finished.of(TrialResult)[0]
    assert dict(frame.loc[1]) == {n: first.settings.get(n, "(default)") for n in frame.columns}


def test_ablation_gives_what_a_setting_brings(finished: Store) -> None:
    effects = analysis.effects_frame(finished)
    for setting, value in (("xla_a", "1"), ("xla_d", "2")):
        row = effects[(effects["setting"] == setting) & (effects["value"] == value)].iloc[0]
        assert row["how"] == "left out"
        assert row["ratio"] == pytest.approx(EFFECTS[f"{setting}={value}"], abs=1e-4)
        assert row["low"] < row["ratio"] < row["high"]
        assert (row["reason"], row["finding"]) == ("kept: it seems to pay", "promising")


def test_effects_by_rank_of_evidence(tmp_path: Path) -> None:
    results = [
        trial(1, {"xla_a": "1"}, 0.9),
        trial(2, {"xla_b": "1"}, None),
        trial(3, {"xla_c": "1", "xla_d": "1"}, 0.81),
        trial(4, {"xla_c": "1", "xla_e": "1"}, 1.0),
        trial(
            5,
            {"xla_f": "1"},
            None,
            status="failed",
            same_as=None,
            failure={"kind": "hang", "message": "", "phase": "step"},
        ),
    ]
    rows = analysis.effects_frame(store_of(tmp_path, results)).set_index("setting")
    assert tuple(rows.loc["xla_a", ["how", "ratio", "finding"]]) == ("alone", 0.9, "promising")
    assert tuple(rows.loc["xla_b", ["how", "ratio", "is_dead"]]) == ("same program", 1.0, True)
    # With xla_c: median of log 0.81 and log 1; without: of log 0.9 and log 1.
    assert tuple(rows.loc["xla_c", ["how", "trials"]]) == ("among others", 2)
    assert rows.loc["xla_c", "ratio"] == pytest.approx(math.sqrt(0.81) / math.sqrt(0.9))
    assert tuple(rows.loc["xla_f", ["failed", "reason"]]) == (1, "failed: hang")


def test_a_finalist_of_one_setting_is_judged_by_its_fresh_processes(tmp_path: Path) -> None:
    store = store_of(tmp_path, [trial(1, {"xla_a": "1"}, 0.75)])
    proof = {"ratio": 1.14, "low": 0.66, "high": 1.98, "level": 0.95, "pair_count": 4}
    fields = {"stage": "confirm", "trial": 1, "settings": {"xla_a": "1"}, "verdict": "unresolved", "process_count": 4}
    store.append(FinalistResult.model_validate({**fields, "estimate": proof, "corrected": proof}))
    row = analysis.effects_frame(store).iloc[0]
    assert tuple(row[["how", "ratio", "low", "high"]]) == ("fresh processes", 1.14, 0.66, 1.98)
    assert row["finding"] == "unresolved"  # the proof's own word, not what its interval would promise


def test_importance_is_the_share_of_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    results = [
        trial(1 + i, {"xla_a": str(i % 2), "xla_b": str(i // 2 % 2), "xla_c": str(i // 4 % 2)}, 0.8 if i % 2 else 1.0)
        for i in range(16)
    ]
    frame = analysis.importance_frame(store_of(tmp_path, results)).set_index("setting")
    assert frame.loc["xla_a", "importance"] == pytest.approx(1.0)
    assert frame.loc[["xla_b", "xla_c"], "importance"].max() == 0.0
    assert set(frame["method"]) == {"variance explained"}


def test_fanova_finds_the_setting_that_matters(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="fANOVA needs scikit-learn")
    results = [trial(1 + i, {"xla_a": str(i % 2), "xla_b": str(i // 2 % 2)}, 0.8 if i % 2 else 1.0) for i in range(16)]
    frame = analysis.importance_frame(store_of(tmp_path, results))
    assert frame["method"].iloc[0] == "fANOVA"
    assert frame["setting"].iloc[0] == "xla_a"
    assert frame["importance"].iloc[0] > 0.9


def test_pairs_that_only_act_together_are_found(tmp_path: Path) -> None:
    # Faster only when a and b differ: neither explains anything alone.
    results = [
        trial(
            1 + i,
            {"xla_a": str(i % 2), "xla_b": str(i // 2 % 2), "xla_c": str(i // 4 % 2)},
            0.8 if i % 2 != i // 2 % 2 else 1.0,
        )
        for i in range(16)
    ]
    frame = analysis.interactions_frame(store_of(tmp_path, results))
    assert set(frame.loc[0, ["first", "second"]]) == {"xla_a", "xla_b"}
    assert frame["interaction"].iloc[0] == pytest.approx(1.0)


def test_a_handful_of_trials_has_no_importance(tmp_path: Path) -> None:
    store = store_of(tmp_path, [trial(1, {"xla_a": "1"}, 0.5), trial(2, {"xla_b": "1"}, 1.0)])
    assert analysis.importance_frame(store).empty
    assert analysis.interactions_frame(store).empty


def test_pareto_keeps_what_no_other_beats(tmp_path: Path) -> None:
    def worker(peak_bytes: int, compile_s: float) -> WorkerReport:
        return WorkerReport(
            fingerprint="f",
            platform="cpu",
            device_kind="cpu",
            device_count=1,
            compile_s=compile_s,
            start_s=1.0,
            losses=(),
            grad_norms=(),
            warmup_step_times_s=(),
            peak_bytes=peak_bytes,
        )

    results = [
        trial(1, {"xla_a": "1"}, 0.9, worker=worker(700, 5.0)),
        trial(2, {"xla_a": "2"}, 0.95, worker=worker(500, 5.0)),
        trial(3, {"xla_a": "3"}, 0.96, worker=worker(500, 7.0)),
        trial(4, {"xla_a": "4"}, 0.99, worker=worker(900, 3.0)),
    ]
    assert list(analysis.pareto_frame(store_of(tmp_path, results))["trial"]) == [1, 2, 4]


def test_frames_of_an_empty_run_are_empty_with_their_columns(tmp_path: Path) -> None:
    store = store_of(tmp_path, [])
    for frame in (analysis.trials_frame, analysis.steps_frame, analysis.effects_frame, analysis.importance_frame):
        assert frame(store).empty
        assert len(frame(store).columns) > 2
    assert analysis.pareto_frame(store).empty
