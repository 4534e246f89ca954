"""Two variants of one program as arms: which is slower, what is the same, and what a script gets told of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.measurement import FailureKind, WorkerReport
from autotune.model.records import ConclusionRecord, Outcome
from autotune.settings.space import SearchSpace
from autotune.stats.estimates import Estimate
from autotune.study.ab import Variant, exit_status, format_beside, measure_variants, prepare_variants
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import parse_simulated
from tests.console import autotune
from tests.runs import BUILDS_BASE, Diary, worker_report

TRAIN = ("python", "train.py")


def compared(path: Path, a: Variant, b: Variant, **simulation: Any) -> ConclusionRecord:
    spec, variants = prepare_variants(BUILDS_BASE, a, b, path)
    study = parse_simulated({**spec.model_dump(mode="json"), "simulation": simulation})
    run = given_run(study, path, GivenSetup(given_space=SearchSpace(())), Diary())
    measure_variants(run, variants)
    return run.conclusion


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
    found = compared(tmp_path / "run", a, b, effects={"xla_a=1": factor})
    assert re.match(words, found.sentence)
    assert exit_status(found, max_slowdown=0.01) == status


def test_other_command_lines_are_scripts_beside_the_run_directory(tmp_path: Path) -> None:
    a = Variant(command=TRAIN)
    b = Variant(command=(*TRAIN, "--name", "it's"), variables={"MODE": "a b"})
    path = tmp_path / "runs" / "run"
    script = tmp_path / "runs" / "run-a.sh"
    found = compared(path, a, b, effects={f'option.script="{script}"': 0.9})
    assert re.match(r"B is 1[01]\.\d % slower than A", found.sentence)
    assert script.read_text() == "#!/bin/sh\nexec python train.py\n"
    other = script.with_name("run-b.sh").read_text()
    assert other == "#!/bin/sh\nexport MODE='a b'\nexec python train.py --name 'it'\"'\"'s'\n"
    with pytest.raises(StudyFileError, match="holds another one: give a new --name"):
        prepare_variants(BUILDS_BASE, Variant(command=("python", "other.py")), b, path)


def test_equal_variants_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="must differ but are equal"):
        prepare_variants(BUILDS_BASE, Variant(command=TRAIN), Variant(command=TRAIN), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_variant_that_trains_otherwise_is_not_compared(tmp_path: Path) -> None:
    a, b = Variant(command=TRAIN, settings=FlagSet({"xla_a": "1"})), Variant(command=TRAIN)
    found = compared(tmp_path / "run", a, b, failures={"xla_a=1": FailureKind.WRONG_LOSS})
    assert found.outcome is Outcome.NOTHING_RAN
    assert "are not compared: " in found.sentence
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
    ],
)
def test_bad_options_are_refused_with_a_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    done = autotune("ab", *options, "--", "python", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []
