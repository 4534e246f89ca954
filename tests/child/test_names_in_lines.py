"""Which number of a line is the step's duration and which the loss, by their names, in live output and saved logs."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.child.recognise import recognise
from autotune.child.steps import StepReader
from autotune.model.errors import AutotuneError
from autotune.model.sections import ReadSpec
from autotune.programs.look import doubt_of, read_log, reading_of
from autotune.programs.probe import Probe
from tests.console import autotune
from tests.tables import toml_beside

LOGS = toml_beside(__file__, "public_logs.toml")["log"]
LINES = toml_beside(__file__, "lines.toml")
KINDS = {"durations": False, "totals": True, "commas": False, "clocks": True, "means": True}
"""Kinds of lines; whether the clock counts for a program that is running."""

UNTIMED = ("totals", "clocks")
"""Kinds of which a saved log tells no durations."""

COUNT = 24
TOOK_S = [0.5 + 0.001 * (7 * i % 11 - 5) for i in range(COUNT)]
"""Durations around 500 ms, as jitter makes them."""


def printed(*templates: str, **more: float) -> list[str]:
    """Returns the lines of each step, with numbers that a training run would print."""
    lines = []
    for i, took_s in enumerate(TOOK_S):
        total = sum(TOOK_S[: i + 1])
        values = {
            "i": i,
            "d": took_s,
            "ms": 1e3 * took_s,
            "us": 1e6 * took_s,
            "rate": 1 / took_s,
            "loss": 8 - i / 10,
            "total": total,
            "mean": 1.3 * total / (i + 1),
            "part": 0.01 * (i % 9 + 1),
            "s": int(total) % 60,
            "totalms": 1e3 * total,
            "stamp": f"{total:06.3f}",
            "comma": f"{total:06.3f}".replace(".", ","),
            "data": 0.02 + 0.001 * (i % 3),
            "fwd": 0.3 * took_s,
            "bwd": 0.6 * took_s,
            "tok": 4096 / took_s,
            **more,
        }
        lines += [template.format(**values) for template in templates]
    return lines


def saved(lines: list[str]) -> dict[str, Any]:
    """Reads lines as those of a saved log."""
    fits = recognise(lines)
    found = reading_of(Probe(lines=lines), fits[0].rules if fits else {})
    if fits:
        ReadSpec(**fits[0].rules)  # a study file takes them
    return found


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in LINES[kind]])
def test_the_duration_of_a_step_is_told_from_other_numbers(kind: str, name: str) -> None:
    lines = [*["starting on 8 devices"][: kind == "durations"], *printed(LINES[kind][name])]
    if kind == "commas":
        lines = [line.replace(".", ",") for line in lines]
    found = saved(lines)
    is_doubted = bool(doubt_of(recognise(lines)[0]))
    if kind in UNTIMED and (found["step_s"] is None or is_doubted):
        is_doubted = False
    else:
        assert found["step_s"] == pytest.approx(0.5, rel=0.01)
    assert kind != "commas" or found["loss"] == pytest.approx(5.7)
    assert is_doubted == (kind == "means")
    live = recognise(lines, at=[0.5 * i for i in range(len(lines))])[0]
    assert live.step_s == pytest.approx(0.5, rel=0.01)
    assert (live.steps >= COUNT - 1, live.by_clock) == (True, KINDS[kind])
    assert not doubt_of(live)


def test_the_time_of_many_steps_is_not_that_of_one() -> None:
    assert saved(printed("Step {i}00: Ran 100 train steps in {d:.2f} secs"))["step_s"] == pytest.approx(0.005)


@pytest.mark.parametrize("name", LINES["evaluations"])
def test_lines_of_an_evaluation_do_not_count(name: str) -> None:
    train, evaluate = LINES["evaluations"][name]
    lines = printed(train, evaluate, evaluate, evaluate)
    at = [0.5 * (i // 4) + 0.05 * (i % 4) for i in range(len(lines))]
    best = recognise(lines, at=at)[0]
    assert best.step_s == pytest.approx(0.5, rel=0.02)
    assert COUNT - 1 <= best.steps <= COUNT
    reader = StepReader(best.rules)
    read = [step for line, now in zip(lines, at, strict=True) if (step := reader.read(line, now)) is not None]
    assert [step.loss for step in read if step.loss is not None][-1] == pytest.approx(5.7)


@pytest.mark.parametrize("name", LINES["ranks"])
def test_ranks_are_one_step(name: str) -> None:
    lines = printed(*(LINES["ranks"][name].replace("{rank}", str(rank)) for rank in range(4)))
    at = [0.5 * (i // 4) + 0.001 * (i % 4) for i in range(len(lines))]
    best = recognise(lines, at=at)[0]
    assert best.step_s == pytest.approx(0.5, rel=0.02)
    assert COUNT - 1 <= best.steps <= COUNT
    ReadSpec(**best.rules)


def test_a_rate_for_each_device_and_an_epoch_are_no_ranks() -> None:
    seconds = [(i, took_s, 0.1 + 0.1 * (i % 2)) for i, took_s in enumerate(TOOK_S)]
    lines = [f"completed step: {i}, seconds: {s:.3f}, TFLOP/s/device: {rate:.1f}, loss: 2.5" for i, s, rate in seconds]
    assert (recognise(lines)[0].rules, recognise(lines)[0].steps) == ({"preset": "maxtext"}, COUNT)
    lines = [f"[{i // 12}]: step {i % 12} loss 2.5 step_time={s:.3f}" for i, s, _ in seconds]
    assert recognise(lines)[0].steps == COUNT


@pytest.mark.parametrize("name", LINES["losses"])
def test_the_loss_of_training_is_read_under_its_name(name: str) -> None:
    found = saved(printed(LINES["losses"][name]))
    assert (found["losses"], found["loss"]) == (COUNT, pytest.approx(5.7))


@pytest.mark.parametrize("line", LINES["thousands"])
def test_thousands_stay_thousands(line: str) -> None:
    found = saved([line.format(i=1000 + i, n=200 + 3 * i % 7) for i in range(COUNT)])
    assert (found["step_s"], found["loss"]) == (pytest.approx(1.2035, rel=0.01), 2.5)


def test_micro_steps_that_are_counted_by_themselves_are_no_steps() -> None:
    lines = [f"iter {i} (accum {i % 2 + 1}/2) loss 2.5 time 0.25{i % 7}s" for i in range(2 * COUNT)]
    assert recognise(lines)[0].step_s is None


def test_a_truncated_step_and_one_in_minutes_are_named() -> None:
    lines = [f"step {i} took {took_s:.3f}s loss 2.5" for i, took_s in enumerate(TOOK_S)]
    assert doubt_of(recognise([*lines, "step 24 took 1m02s loss 2.5"])[0]).startswith("1 lines of steps")
    assert doubt_of(recognise([*lines, "step 24 to"])[0]).startswith("1 lines of steps")


@pytest.mark.parametrize("times", [0.5, 0.7, 0.84, 1.3])
@pytest.mark.parametrize("before", ["", "[2026-03-04 09:10:00] ", "I0304 09:10:00.1 1398 train.py:2] "])
def test_a_duration_that_differs_from_the_clock_is_said(before: str, times: float) -> None:
    lines = printed(before + "step {i} step time: {d:.3f}s")
    best = recognise(lines, at=[0.5 * i / times for i in range(COUNT)])[0]
    assert not best.by_clock
    assert doubt_of(best)


# ---------------------------------------------------------------------- files

TEXT = "\n".join(printed("step {i} loss {loss:.3f} step_time {d:.3f}s µ")) + "\n"


@pytest.mark.parametrize("content", [TEXT.encode(), TEXT.encode("latin-1"), TEXT.replace("\n", "\r\n").encode()])
def test_text_of_other_encodings_is_read(tmp_path: Path, content: bytes) -> None:
    (file := tmp_path / "train.log").write_bytes(content)
    assert recognise(read_log(file).lines)[0].steps >= COUNT - 1


@pytest.mark.parametrize("content", [gzip.compress(TEXT.encode()), lzma.compress(TEXT.encode()), TEXT.encode("utf-16")])
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    (file := tmp_path / "train.log").write_bytes(content)
    with pytest.raises(AutotuneError):
        read_log(file)


WIDE = {f"grad/norm/layer_{n}/attention/q_proj": 0.123456789 for n in range(200)}


def records(more: dict[str, Any], key: str = "step_time_s") -> str:
    return "\n".join(json.dumps({**more, "step": i, key: took_s}) for i, took_s in enumerate(TOOK_S))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wide.jsonl", records(WIDE)),
        ("wide.log", records(WIDE)),
        ("text.jsonl", records({"config": "y" * 9000})),
        ("nested.jsonl", records({"grads": WIDE})),
        ("list.jsonl", records({"histogram": [0.5] * 3000})),
        ("throughput.jsonl", records(WIDE, "throughput/duration")),
    ],
)
def test_a_long_record_is_read_whole(tmp_path: Path, name: str, content: str) -> None:
    (file := tmp_path / name).write_text(content)
    best = recognise(read_log(file).lines)[0]
    assert best.steps == COUNT
    assert best.step_s == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("loss", ["nan", "NaN", "-nan", "inf", "Infinity", "-inf", "NAN", "+inf"])
def test_a_loss_that_is_no_number_makes_strict_json(tmp_path: Path, loss: str) -> None:
    (tmp_path / "train.log").write_text("\n".join(printed(f"step {{i}} | loss {loss} | step time {{ms:.1f}} ms")))
    done = autotune("read", "--json", "train.log", cwd=tmp_path)
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert (found["losses"], found["loss"]) == (COUNT, None)


def test_a_log_is_shown_where_the_terminal_has_no_unicode(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(printed("\u258f {i} \u65e5 step_time={d:.3f}s \U0001f642")))
    for more in ([], ["--json"]):
        command = [sys.executable, "-m", "autotune", "read", *more, "train.log"]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert b"?" in done.stdout


def test_a_bar_without_a_loss_keeps_its_preset() -> None:
    found = saved(printed(" 12%|###  | {i}/100 [00:01<00:07, {rate:.2f}it/s]"))
    assert (found["rules"], found["losses"]) == ({"preset": "tqdm"}, 0)
    assert found["step_s"] is None


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["name"])
def test_a_log_of_a_public_shape_is_read(log: dict[str, Any]) -> None:
    lines = log["text"].strip("\n").split("\n")
    found = saved(lines)
    assert found["loss"] == (log.get("loss") and pytest.approx(log["loss"]))
    if log.get("is_timed", True):
        assert (found["steps"], found["step_s"]) == (log["steps"], pytest.approx(log["step_s"], rel=0.03))
    else:
        assert found["step_s"] is None or doubt_of(recognise(lines)[0])
    passed_s = (log["step_s"] * log["every"] * (log["mark"] in line) for line in lines)
    live = recognise(lines, at=list(itertools.accumulate(passed_s)))[0]
    assert live.step_s == pytest.approx(log["step_s"], rel=0.03)


@pytest.mark.parametrize("key", ["pattern", "loss"])
def test_a_pattern_that_backtracks_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr("autotune.child.steps.MATCH_LIMIT_S", 0.1)
    rules = {"pattern": "(?P<step>a)", key: f"(a+)+$(?P<{'step' if key == 'pattern' else 'loss'}>x)"}
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(AutotuneError, match="match within"):
        reading_of(Probe(lines=["a" * 60 + "!"]), rules)
    assert signal.getsignal(signal.SIGVTALRM) is before
