"""What crashed with one workload is a fact for that workload alone: others are told, and try it all the same."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, WorkerReport
from autotune.model.records import BlameRecord
from autotune.model.replay import ReplaySpec
from autotune.model.spec import StudySpec, parse_study
from autotune.model.trial import TrialResult
from autotune.rundir.store import Store
from autotune.settings.parameters import Parameter, SearchSpace
from autotune.study.known_failures import keep_failure, known_failures, name_of_workload
from autotune.study.stages import run_study
from autotune.study.start import new_run
from autotune.workers.replay import ReplayLauncher
from harness.simulated import GivenSetup, given_run
from tests.runs import Diary

PROGRAMS = Path(__file__).parents[1] / "workers" / "programs"
SPACE = SearchSpace(
    (
        Parameter(name="xla_a", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_b", choices=("0", "1"), default="0"),
    )
)
BAD = FlagSet({"xla_a": "1"})
CRASHES = {"xla_a=1": "crash"}
HERE = WorkerReport(
    fingerprint="f", platform="cuda", device_kind="NVIDIA H100 80GB HBM3", device_count=8, start_s=1.0,
    losses=(1.0,), grad_norms=(1.0,), warmup_step_times_s=(0.1,), versions={"jaxlib": "0.10.2"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where findings go: nothing is known yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "autotune" / "failures"


def study(*, options: dict[str, Any] | None = None, **search: Any) -> StudySpec:
    workload = {"entry": "llama", "options": options or {}}
    return parse_study(
        {
            "name": "s", "workload": workload, "search": {"trials": 6, **search},
            "measure": {"pairs_cap": 6, "block_s": 0.001}, "confirm": {"processes": 3, "pairs": 4, "soak": 0},
        }
    )  # fmt: skip


Session = Callable[..., tuple[list[FlagSet], list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Session:
    """Runs a whole study whose workers follow a formula, as any study but for that: what it tried, what it noted."""
    count = iter(range(100))

    def go(spec: StudySpec, failures: dict[str, str], folder: str = "here") -> tuple[list[FlagSet], list[str]]:
        formula = ReplaySpec.model_validate({"noise": {"white_sd": 1e-4}, "failures": failures})
        setup = GivenSetup(given_space=SPACE, given_launcher=ReplayLauncher(formula, seed=0, platform="cpu"))
        place, diary = tmp_path / folder / f"run{next(count)}", Diary()
        place.parent.mkdir(exist_ok=True)
        session = given_run(spec, place, setup, diary)
        run_study(session)
        return [r.settings for r in session.store.of(TrialResult)], diary.notes

    return go


def tried(found: list[FlagSet]) -> bool:
    return any(s.get("xla_a") == "1" for s in found)


@pytest.mark.slow
def test_a_crash_is_a_fact_for_its_workload_and_a_hint_for_any_other(run: Session) -> None:
    """On 2b61fbc the second study left `xla_a=1` out, though it is of another program that runs well under it."""
    settings, _ = run(study(), CRASHES)
    assert tried(settings)
    for other in ({"layers": 3}, {"seq": 64}):  # a workload whose options differ is another workload
        settings, notes = run(study(options=other), {})
        assert tried(settings)
        assert any(n.startswith("a hint, left in") and "xla_a=1 (crash)" in n for n in notes)
        assert not any("left out" in n for n in notes)
    settings, notes = run(study(), CRASHES)
    assert not tried(settings)
    assert len(settings) == 3  # the rest of the space: that is all there is to try
    assert any(n.startswith("left out") and "xla_a=1 (crash)" in n for n in notes)
    assert not any("a hint" in n for n in notes)


@pytest.mark.slow
def test_without_known_failures_nothing_is_left_out_and_nothing_written(run: Session, kept: Path) -> None:
    """On 2b61fbc a study that said `known_failures = false` wrote what others then left out."""
    settings, _ = run(study(known_failures=False), CRASHES)
    assert tried(settings)
    assert not kept.exists()
    run(study(), CRASHES)
    assert len(list(kept.rglob("*.json"))) == 1
    settings, notes = run(study(known_failures=False), CRASHES)
    assert tried(settings)
    assert not any("left out" in n or "a hint" in n for n in notes)


@pytest.mark.slow
def test_files_of_before_are_hints(run: Session, kept: Path) -> None:
    kept.mkdir(parents=True)
    run(study(), CRASHES)
    (folder,) = kept.iterdir()
    (file,) = folder.iterdir()
    file.unlink()
    old = {"settings": {"xla_a": "1"}, "failure": "crash", "date": "2026-11-20T00:00:00+00:00"}
    lines = [json.dumps(old), json.dumps({**old, "settings": {"xla_elsewhere": "1"}}), '{"settings": {"xla_b']
    folder.with_name(f"{folder.name}.jsonl").write_text("\n".join(lines))
    settings, notes = run(study(), {})
    assert tried(settings)
    (hint,) = [n for n in notes if n.startswith("a hint")]
    assert "xla_a=1 (crash)" in hint
    assert "elsewhere" not in hint  # it cannot be tried here


def test_a_study_whose_findings_cannot_be_kept_goes_on(run: Session, kept: Path) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text("a file where a folder should be")
    settings, notes = run(study(), CRASHES)
    assert len(settings) == 4  # every point but the default and one that holds the culprit
    assert any(n.startswith("not kept for later studies") for n in notes)


def blamed(**settings: str) -> BlameRecord:
    bad = FlagSet(settings)
    return BlameRecord(
        trial=1, failure_kind=FailureKind.CRASH, settings=bad, smallest=bad, is_minimal=True, starts=0
    )  # fmt: skip


def facts(workload: str = "w", reference: WorkerReport = HERE) -> set[FlagSet]:
    return {k.settings for k in known_failures(reference, workload=workload).facts}


def hints(workload: str = "w") -> set[FlagSet]:
    return {k.settings for k in known_failures(HERE, workload=workload).hints}


def test_findings_are_of_one_build_and_kind_of_device_and_hold_no_option() -> None:
    assert facts() == set()
    keep_failure(blamed(xla_a="1"), HERE, workload="w")
    keep_failure(blamed(xla_a="1"), HERE, workload="w")
    keep_failure(blamed(xla_a="1"), HERE, workload="v")
    keep_failure(blamed(**{"option.batch": "64"}), HERE, workload="w")  # that is known of its own study only
    assert facts() == facts("v") == {BAD}
    assert hints() == set()  # what is a fact here needs no hint
    assert hints("x") == {BAD}
    assert facts(reference=HERE.model_copy(update={"device_kind": "NVIDIA A100"})) == set()
    assert facts(reference=HERE.model_copy(update={"versions": {"jaxlib": "0.12.0"}})) == set()


def test_a_file_that_was_edited_cannot_empty_a_search_or_stop_a_study(kept: Path, tmp_path: Path) -> None:
    keep_failure(blamed(xla_a="1"), HERE, workload="w")
    (folder,) = kept.iterdir()
    good = json.loads(next(folder.iterdir()).read_text())
    edited: list[Any] = [
        {**good, "settings": {}},  # part of every set
        {**good, "settings": {"option.batch": "64"}},
        {**good, "settings": {"PATH": "/tmp"}},
        {**good, "settings": {"xla_b": "1\nLD_PRELOAD=x"}},
        {**good, "settings": "xla_b=1"},
        {**good, "failure": "\x1b[31m"},
        {**good, "workload": ["w"]},
        {**good, "more": 1},
        [good], None, 7, "x",
    ]  # fmt: skip
    for i, content in enumerate(edited):
        (folder / f"edited{i}.json").write_text(json.dumps(content))
    (folder / "torn.json").write_text(json.dumps(good)[:40])
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00" * 99)
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")  # whoever opens it to read waits for ever
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps({**good, "settings": {"xla_b": "1"}}))
    (folder / "link.json").symlink_to(elsewhere)
    assert facts() == {BAD}
    assert hints() == set()
    # What is edited to another finding is one: whoever may write there may say so.
    (folder / "mine.json").write_text(json.dumps({**good, "settings": {"xla_b": "1"}, "workload": None}))
    assert hints() == {FlagSet({"xla_b": "1"})}


@pytest.mark.slow
def test_studies_that_write_at_once_lose_nothing(kept: Path) -> None:
    """Ten studies of two workloads, some with the same finding; a reader beside them sees whole findings only."""
    all_of = {FlagSet({"xla_n": str(i)}) for i in range(30)}
    seen: list[set[FlagSet]] = []

    def write(which: int) -> None:
        for i in range(30):
            keep_failure(blamed(xla_n=str((i + which) % 30)), HERE, workload="w" if which % 2 else "v")

    writers = [threading.Thread(target=write, args=(n,)) for n in range(10)]
    for writer in writers:
        writer.start()
    while any(w.is_alive() for w in writers):
        seen.append(facts())
    for writer in writers:
        writer.join()
    assert facts("w") == facts("v") == all_of
    assert all(found <= all_of for found in seen)
    (folder,) = kept.iterdir()
    assert len(list(folder.iterdir())) == 60


def test_another_workload_is_one_that_measures_something_else(tmp_path: Path) -> None:
    def name(folder: str = "a", **data: Any) -> str:
        whole = {"name": "s", "workload": {"entry": "llama", "options": {"seq": 64}}, **data}
        return name_of_workload(parse_study(whole), str(tmp_path / folder))

    own = {"workload": {"command": ["python", "train.py"], "hook": True}}
    assert name() == name("b") == name(name="other", search={"trials": 3}, confirm={"processes": 5})
    others = [
        name(),
        name(workload={"entry": "llama"}),
        name(workload={"entry": "moe", "options": {"seq": 64}}),
        name(device={"count": 2}),
        name(baseline={"xla_c": "1"}),
        name(search={"options": {"batch": [4, 8]}}),
        name(search={"options": {"batch": [8, 4]}}),  # another reference
        name("a", **own),
        name("b", **own),  # a program of the same name in another folder
    ]
    assert len(set(others)) == len(others)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_real_workloads_of_which_one_crashes(tmp_path: Path, kept: Path) -> None:
    def session(fault: str, name: str) -> tuple[Store, Diary]:
        spec = parse_study(
            {
                "name": name,
                "workload": {"entry": "faulty:build", "options": {"fault": fault}},
                "search": {
                    "trials": 2, "settings": {"xla_cpu_enable_fast_math": [False, True]}, "use_environment": False,
                },
                "measure": {"pairs_cap": 6, "block_s": 0.01, "check_steps": 3, "warmup_steps": 3, "floor_processes": 2},
                "confirm": {"finalists": 1, "processes": 3, "pairs": 4, "alone": 0, "soak": "1s", "soak_steps": 20},
            }
        )  # fmt: skip
        diary = Diary()
        run = new_run(spec, tmp_path / name, study_dir=PROGRAMS, view=diary, watch=Stopwatch())
        run_study(run)
        return run.store, diary

    def outcomes(store: Store) -> list[str]:
        mine = [r for r in store.of(TrialResult) if r.settings.get("xla_cpu_enable_fast_math") == "true"]
        return [str(r.failure.kind) if r.failure else "ran" for r in mine]

    store, _ = session("abort", "crashes")
    assert outcomes(store) == ["crash"]
    assert len(list(kept.rglob("*.json"))) == 1
    store, diary = session("", "well")
    assert outcomes(store) == ["ran"]
    assert any("a hint, left in" in n for n in diary.notes)
    store, diary = session("abort", "again")
    assert outcomes(store) == []
    assert any(n.startswith("left out") for n in diary.notes)
