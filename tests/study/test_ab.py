"""Two variants of one program as arms: which is slower, what is the same, and what a script gets told of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import autotune as autotune_package
from autotune.cli import ab as command
from autotune.cli import tune
from autotune.model.errors import StudyFileError
from autotune.model.flags import DEFAULT, FlagSet
from autotune.model.measurement import FailureKind, WorkerReport
from autotune.model.records import AB, ISOLATED, ConclusionRecord, ConfirmRun, FinalistResult, Outcome, ProofRecord
from autotune.programs import draft, look
from autotune.programs.probe import ProbeRequest
from autotune.programs.variants import Variant
from autotune.results.audit import doubts
from autotune.results.report import render_markdown
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import Estimate
from autotune.stats.proof import EQUAL_SIDES, ERROR, OTHER_SIDE
from autotune.study import ab as study_ab
from autotune.study.ab import exit_status, format_beside, leave_out_each, measure_variants, prepare_variants
from autotune.study.budget import TimeLeft
from autotune.study.run import StudyRun
from autotune.workers import tracing
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedWorker, parse_simulated
from tests.console import autotune
from tests.runs import BUILDS_BASE, Diary, Noting, failed, on_blocks, there, worker_report

TRAIN = ("python", "train.py")


def measured(path: Path, a: Variant, b: Variant, arranged: dict[str, Any], **simulation: Any) -> StudyRun:
    spec, variants = prepare_variants(BUILDS_BASE, a, b, path, **arranged)
    study = parse_simulated({**spec.model_dump(mode="json"), "simulation": simulation})
    run = given_run(study, path, GivenSetup(given_space=SearchSpace(())), Diary())
    measure_variants(run, variants)
    return run


def compared(path: Path, a: Variant, b: Variant, **simulation: Any) -> ConclusionRecord:
    return measured(path, a, b, {}, **simulation).conclusion


@pytest.mark.parametrize(
    ("factor", "words", "status"),
    [
        (0.95, r"B is \d\.\d % faster than A", 0),
        (1.05, r"B is \d\.\d % slower than A", 1),
        (1.0, "no difference found", 0),
    ],
)
def test_a_flag_that_b_has_is_told_the_right_way_round(factor: float, words: str, status: int, tmp_path: Path) -> None:
    a, b = Variant(command=TRAIN), Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"}))
    run = measured(tmp_path / "run", a, b, {}, effects={"xla_a=1": factor})
    assert re.match(words, run.conclusion.sentence)
    assert exit_status(run.conclusion, max_slowdown=0.01) == status
    plans = {plan.stage: plan for plan in run.store.of(ProofRecord)}
    assert {stage: plan.other_side for stage, plan in plans.items()} == {AB: EQUAL_SIDES, ISOLATED: OTHER_SIDE}
    assert plans[AB].error <= ERROR
    assert doubts(run.store) == []


@pytest.mark.parametrize(("idle_cost", "status"), [(0.05, 3), (-0.05, 0)])
def test_what_only_pairs_side_by_side_show_is_no_difference(idle_cost: float, status: int, tmp_path: Path) -> None:
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    noise = {"white_sd": 0.002, "process_sd": 0.002, "idle_cost": idle_cost}
    run = measured(tmp_path / "run", a, b, {}, effects={"xla_a=1": 1.0}, noise=noise)
    assert there(run.store.last(FinalistResult)).stage == ISOLATED
    assert not run.conclusion.sentence.startswith("B is")
    assert exit_status(run.conclusion, max_slowdown=0.01) == status


def test_other_command_lines_are_scripts_beside_the_run_directory(tmp_path: Path) -> None:
    a = Variant(command=TRAIN)
    b = Variant(command=(*TRAIN, "--name", "it's"), variables={"MODE": "a b"})
    path = tmp_path / "runs" / "run"
    script = tmp_path / "runs" / "run-a.sh"
    found = compared(path, a, b, effects={f'option.script="{script}"': 0.9})
    assert re.match(r"B is 1[01]\.\d % slower", found.sentence)
    assert script.read_text() == "#!/bin/sh\nexec python train.py\n"
    other = script.with_name("run-b.sh").read_text()
    assert other == "#!/bin/sh\nexport MODE='a b'\nexec python train.py --name 'it'\"'\"'s'\n"
    with pytest.raises(StudyFileError, match="a new --name"):
        prepare_variants(BUILDS_BASE, Variant(command=("python", "other.py")), b, path)


@pytest.mark.parametrize(("tokens", "status"), [((2048, 4096), 0), ((8192, 4096), 1)])
def test_different_tokens_in_a_step_are_compared_by_token(tokens: tuple[int, int], status: int, tmp_path: Path) -> None:
    a, b = Variant(command=TRAIN), Variant(command=(*TRAIN, "--batch", "2"))
    work = {f"option.tokens={tokens[0]}": tokens[0] / tokens[1]}
    found = measured(tmp_path / "run", a, b, {"tokens": tokens}, token_effects=work).conclusion
    assert "each token" in found.sentence
    assert exit_status(found, max_slowdown=0.01) == status


def test_a_budget_ends_the_pairs_and_a_larger_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    simulation = {"effects": {"xla_a=1": 0.995}, "noise": {"white_sd": 0.01, "process_sd": 0.02}}
    minute_a_pair = property(lambda run: TimeLeft(run.store, 60.0 * len(run.store.of(ConfirmRun)), 1))
    monkeypatch.setattr(StudyRun, "time", minute_a_pair)
    counts = []
    for budget in ("10m", "10h"):
        run = measured(tmp_path / "run", a, b, {"time_budget": budget}, **simulation)
        counts.append(sum(record.stage == AB for record in run.store.of(ConfirmRun)))
        assert run.conclusion.outcome is Outcome.INCONCLUSIVE or budget == "10h"
    assert 4 <= counts[0] < 15
    assert counts[1] == 20


def test_a_budget_without_a_pair_settles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    monkeypatch.setattr(TimeLeft, "allows_pair", lambda *_, **__: False)
    found = measured(tmp_path / "run", a, b, {"time_budget": "1h"}).conclusion
    assert re.match("not settled: fewer than 2 fresh pairs .*; a larger --time-budget goes on", found.sentence)
    assert exit_status(found, max_slowdown=0.01) == 3


def test_a_program_that_was_edited_is_not_answered_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    run = Path("runs") / "run"
    asked = ProbeRequest(command=TRAIN, cwd=Path(), platform="cpu", rules={}, limit_s=1.0)
    Path("train.py").write_text("print(1)\n")
    measured(run, a, b, {}, effects={"xla_a=1": 0.5})
    assert command._look(asked, a, b, run).name == "run"
    with pytest.raises(StudyFileError, match="how steps are read must be as in runs/run but is not: give"):
        command._look(asked._replace(rules={"json": "loss"}), a, b, run)
    later = (run / "aa_run" / "pairs.jsonl").stat().st_mtime + 1.0
    os.utime("train.py", (later, later))
    with pytest.raises(StudyFileError, match=r"train\.py must be as it was measured but was edited since"):
        command._look(asked, a, b, run)
    a, b = (replace(side, entering="cd elsewhere\n") for side in (a, b))
    assert command._look(asked, a, b, run).name == "run"


def test_variables_that_both_have_stay_where_only_a_setting_differs(tmp_path: Path) -> None:
    a, b = (Variant(command=TRAIN, variables={"MODE": "x"}, settings=FlagSet(s)) for s in ({}, {"xla_a": "1"}))
    spec, _ = prepare_variants(BUILDS_BASE, a, b, tmp_path / "run")
    assert spec.workload.command == ("/bin/sh", str(tmp_path / "run-b.sh"))
    assert "export MODE=x\n" in (tmp_path / "run-b.sh").read_text()


def test_a_program_whose_settings_alone_differ_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def planned(asked: ProbeRequest, *_: Any, **__: Any) -> Any:
        looked.append(asked.command)
        found = SimpleNamespace(probe=SimpleNamespace(jaxlib=None), rules={})
        return SimpleNamespace(spec=BUILDS_BASE), found

    monkeypatch.setattr(tune, "planned", planned)
    asked = ProbeRequest(command=TRAIN, cwd=Path(), platform="cpu", rules={}, limit_s=1.0)
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    assert command._look(asked, a, b, Path("nowhere")) is BUILDS_BASE
    assert looked == [TRAIN]
    command._look(asked, a, Variant(command=(*TRAIN, "--remat")), Path("nowhere"))
    assert looked == [TRAIN, (*TRAIN, "--remat"), TRAIN]


# ---------------------------------------------------------------------- each setting left out in turn

SET = {"xla_costs": "1", "xla_idle": "1", "xla_must": "1", "xla_pays": "1"}


def left_out_each(path: Path, settings: dict[str, str], *, pairs: int = 20, **simulation: Any) -> StudyRun:
    """A program with some settings, without `xla_must` of which it crashes, each left out in turn."""
    whole = Variant(command=TRAIN, settings=FlagSet(settings))
    bare = Variant(command=TRAIN)
    spec, _ = prepare_variants(BUILDS_BASE, bare, whole, path, pairs=pairs, min_effect=0.01)
    study = parse_simulated({**spec.model_dump(mode="json"), "simulation": simulation})

    def crash(started: FlagSet, folder: Path) -> None:
        if "xla_must" in settings and "xla_must" not in started and "confirm" in folder.parts:
            raise failed(FailureKind.CRASH)

    setup = GivenSetup(given_space=SearchSpace(()), given_launcher=Noting(study, before=crash))
    run = given_run(study, path, setup, Diary())
    leave_out_each(run, max_slowdown=0.01)
    return run


def test_of_each_setting_it_is_proven_whether_it_is_needed(tmp_path: Path) -> None:
    effects = {"xla_pays=1": 0.95, "xla_costs=1": 1.04}
    run = left_out_each(tmp_path / "run", SET, effects=effects)
    found = run.conclusion
    assert found.settings == FlagSet(dict.fromkeys(("xla_costs", "xla_idle"), DEFAULT))
    assert there(found.estimate).low <= 1 / 1.04 <= there(found.estimate).high < 1.0
    assert exit_status(found, max_slowdown=0.01) == 0
    count, *clauses = found.sentence.split("; ")
    assert count.startswith("2 of 4 settings")
    assert count.endswith("XLA_FLAGS='--xla_must=1 --xla_pays=1'")
    assert [re.match(r"(\w+) (is not|stays)", clause)[2] for clause in clauses] == [  # type: ignore[index]
        "is not",
        "is not",
        "stays",
        "stays",
    ]
    assert "crash" in clauses[2]
    assert "slower" in clauses[3]
    assert sum(plan.error for plan in run.store.of(ProofRecord)) <= ERROR
    assert all(text in render_markdown(run.store) for text in ("2 of 4 settings", "xla_costs=(default)"))
    again = left_out_each(tmp_path / "run", SET, effects=effects)
    assert len(again.store.of(ConfirmRun)) == len(run.store.of(ConfirmRun))
    assert len(again.store.of(ConclusionRecord)) == 1


def test_what_changes_no_program_is_not_measured(tmp_path: Path) -> None:
    """What is read at run time is in no program, so `NCCL_PROTO` must be proven though programs are the same."""
    settings = {"NCCL_PROTO": "LL", "xla_idle": "1", "xla_pays": "1", "xla_unread": "1"}
    inert = ("NCCL_PROTO=LL", "xla_idle=1", "xla_unread=1")
    run = left_out_each(tmp_path / "run", settings, effects={"xla_pays=1": 0.95}, inert=inert)
    assert run.conclusion.settings == FlagSet(dict.fromkeys(("NCCL_PROTO", "xla_idle", "xla_unread"), DEFAULT))
    assert run.conclusion.sentence.count("the same") == 2
    proofs = [set(plan.settings) for plan in run.store.of(ProofRecord)]
    assert proofs == [{"NCCL_PROTO"}, {"NCCL_PROTO", "xla_idle", "xla_pays"}]
    assert exit_status(run.conclusion, max_slowdown=0.01) == 0


def test_of_two_settings_that_do_the_same_one_stays(tmp_path: Path) -> None:
    """Either is enough, so each alone looks useless: what is left out first decides."""
    settings = {"xla_a": "1", "xla_b": "1"}
    whole = Variant(command=TRAIN, settings=FlagSet(settings))
    spec, _ = prepare_variants(BUILDS_BASE, Variant(command=TRAIN), whole, tmp_path / "run", min_effect=0.01)
    study = parse_simulated(spec.model_dump(mode="json"))

    def slow(worker: SimulatedWorker, started: FlagSet, folder: Path) -> None:
        if not started.keys() & settings.keys():
            on_blocks(worker, lambda times, before: tuple(1.1 * t for t in times))

    setup = GivenSetup(given_space=SearchSpace(()), given_launcher=Noting(study, after=slow))
    run = given_run(study, tmp_path / "run", setup, Diary())
    leave_out_each(run, max_slowdown=0.01)
    assert run.conclusion.settings == FlagSet({"xla_a": DEFAULT})


@pytest.mark.parametrize(
    ("effect", "noise", "status"), [(0.9, "quiet", 1), (0.99, {"white_sd": 0.02, "process_sd": 0.03}, 3)]
)
def test_a_setting_that_is_not_proven_to_be_useless_stays(
    effect: float, noise: Any, status: int, tmp_path: Path
) -> None:
    run = left_out_each(tmp_path / "run", {"xla_pays": "1"}, pairs=6, effects={"xla_pays=1": effect}, noise=noise)
    assert run.conclusion.settings is None
    assert exit_status(run.conclusion, max_slowdown=0.01) == status


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose program runs on a simulated machine, on which a flag makes it faster."""
    monkeypatch.setattr(command, "_look", lambda *_: BUILDS_BASE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours.env").write_text("export XLA_FLAGS='--xla_pays=1 --xla_idle=1'\n", encoding="utf-8")
    (tmp_path / "simulation.toml").write_text("[effects]\n'xla_pays=1' = 0.95\n", encoding="utf-8")
    return tmp_path


def test_the_command_says_which_settings_are_needed(simulated: Path) -> None:
    called = ["ab", "--drop-each", "--a-env-file", "ours.env", "--a-env", "MODE=x"]
    done = autotune(*called, "--json", "--", "python", "train.py", cwd=simulated)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == 0
    assert told["settings"]["xla_idle"] == DEFAULT
    assert "xla_pays" not in told["settings"]
    script = Path("runs/train-ab-b.sh").read_text()
    assert "export MODE=x\n" in script
    assert "XLA_FLAGS" not in script  # it would set what is left out
    printed = autotune(*called, "--", "python", "train.py", cwd=simulated).stdout
    assert "stay: XLA_FLAGS=--xla_pays=1;" in printed


@pytest.mark.parametrize("more", [["--b-env", "MODE=y"], ["--profile"], ["--b-args", "--remat"]])
def test_of_one_program_no_other_is_named(more: list[str], simulated: Path) -> None:
    done = autotune("ab", "--drop-each", *more, "--", "python", "train.py", cwd=simulated)
    assert done.returncode == 2
    assert "one program" in done.stderr
    assert not (simulated / "runs").exists()


def test_from_python_it_is_the_same_comparison(simulated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, status = autotune_package.ab("python train.py", b_env=["XLA_FLAGS=--xla_pays=1"], pairs=8)
    assert status == 0
    assert re.match(r"B is \d\.\d % faster", study.verdict)
    assert study.verdict in capsys.readouterr().out
    assert there(there(study.conclusion).estimate).low > 1.0
    assert study.store.path == simulated / "runs" / "train-ab"
    with pytest.raises(StudyFileError, match="are equal"):
        autotune_package.ab("python train.py", name="equal")


def test_from_python_a_stop_is_one(simulated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_ab, "begin", stop)
    with pytest.raises(KeyboardInterrupt):
        autotune_package.ab("python train.py", "python other.py")


def test_a_variant_that_trains_otherwise_is_not_compared(tmp_path: Path) -> None:
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    found = compared(tmp_path / "run", a, b, failures={"xla_a=1": FailureKind.WRONG_LOSS})
    assert found.outcome is Outcome.NOTHING_RAN
    assert "not compared: " in found.sentence
    assert exit_status(found, max_slowdown=0.01) == 2


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0.995, 1.2, 0), (0.95, 0.98, 1), (0.95, 1.05, 3), (1.01, 1.03, 0), (0.0, 2.0, 3)]
)
def test_the_status_follows_from_the_interval_of_going_back(low: float, high: float, status: int) -> None:
    back = Estimate(ratio=(low + high) / 2, low=low, high=high, level=0.97, pair_count=8)
    told = ConclusionRecord(outcome=Outcome.INCONCLUSIVE, sentence="", trial_count=1, ended="", estimate=back)
    assert exit_status(told, max_slowdown=0.01) == status


def test_memory_and_compilation_are_told_where_they_change() -> None:
    def report(**figures: Any) -> WorkerReport:
        return worker_report(**figures)

    a, b = report(peak_bytes=1_000_000_000, compile_s=4.0), report(peak_bytes=1_200_000_000, compile_s=4.01)
    assert format_beside(a, b) == "; peak memory 954 MiB -> 1.12 GiB"
    assert format_beside(a, a) == format_beside(None, b) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-slowdown", "fast"], "--max-slowdown must be a share such as 1% or 0.01 but is 'fast'"),
        (["--b-env", "XLA_FLAGS"], "a variable must be NAME=VALUE but is 'XLA_FLAGS'"),
        (["--b-args", "--name 'x"], "--b-args must be quoted as for a shell but: No closing quotation"),
        (["--name", "../mine", "--b-args", "x"], "--name must be letters, digits, dots and dashes"),
        (["--time-budget", "soon", "--b-args", "x"], "--time-budget must look like 30m or 8h but got 'soon'"),
        ([], "A and B must differ but are equal"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    done = autotune("ab", *options, "--", "python", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_action_that_the_page_shows_fails_on_a_slowdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "ab.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^- run: autotune (.*)$", page, re.MULTILINE)
    monkeypatch.setattr(command, "_look", lambda *_: BUILDS_BASE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n", encoding="utf-8")
    for words in ("init -b main", "add .", "commit -m first", "update-ref refs/remotes/origin/main HEAD"):
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *words.split()]
        subprocess.run(git, check=True, capture_output=True)
    for name, factor, status in (("slower", 0.95, 1), ("same", 1.0, 0)):
        script = f'option.script="{tmp_path}/runs/{name}-a.sh"'
        (tmp_path / "simulation.toml").write_text(f"[effects]\n'{script}' = {factor}\n", encoding="utf-8")
        first, *rest = shlex.split(line)
        done = autotune(first, "--name", name, *rest, cwd=tmp_path)
        assert done.returncode == status, done.stderr


RESUMES = """
import pathlib, sys, time
state = pathlib.Path("checkpoint.txt")
for step in range(int(state.read_text()), 10**6):
    began = time.perf_counter()
    time.sleep(0.01 * float(sys.argv[1]))
    print(f"step {step}: loss {4 - step / 1e4:.4f}, step_time_ms={1e3 * (time.perf_counter() - began):.3f}", flush=True)
    state.write_text(str(step))
"""


@pytest.mark.gate
def test_both_start_from_the_checkpoint_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "ENOUGH_S", 0.5)
    monkeypatch.setattr(draft, "SHORTEST_RUN_S", 0.3)
    monkeypatch.setattr(tracing, "PATIENCE_S", 1.0)
    (tmp_path / "train.py").write_text(RESUMES, encoding="utf-8")
    (tmp_path / "checkpoint.txt").write_text("1000", encoding="utf-8")
    called = ["ab", "--platform", "cpu", "--pairs", "8", "--a-args", "1", "--b-args", "3", "--profile", "--json"]
    done = autotune(*called, "--", sys.executable, "train.py", cwd=tmp_path)
    assert (tmp_path / "checkpoint.txt").read_text() == "1000"
    logs = list((tmp_path / "runs").rglob("worker.log"))
    assert len(logs) > 4
    assert {re.split(r"\W", log.read_text())[1] for log in logs} == {"1000"}
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"]) == (1, 1), done.stderr
    assert "no trace" in told["profile"]["problem"]  # it does not use JAX
