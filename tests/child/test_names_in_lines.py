"""Which number of a line is the step's duration and which the loss, by their names, in live output and saved logs."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.child.recognise import clock_of, recognise
from autotune.child.steps import StepReader
from autotune.model.errors import AutotuneError
from autotune.model.sections import ReadSpec
from autotune.programs.look import doubt_of, read_log, reading_of
from autotune.programs.probe import Probe
from tests.console import autotune

LOGS = tomllib.loads((Path(__file__).parent / "public_logs.toml").read_text())["log"]
COUNT = 24
TOOK_S = [0.5 + 0.001 * (7 * i % 11 - 5) for i in range(COUNT)]
"""Durations around 500 ms, as jitter makes them."""


def printed(*templates: str, **more: float) -> list[str]:
    """Returns the lines of each step, with numbers that a training run would print."""
    lines = []
    for i, took_s in enumerate(TOOK_S):
        total = sum(TOOK_S[: i + 1])
        values = {
            "i": i, "d": took_s, "ms": 1e3 * took_s, "us": 1e6 * took_s, "rate": 1 / took_s, "loss": 8 - i / 10,
            "total": total, "mean": 1.3 * total / (i + 1), "part": 0.01 * (i % 9 + 1), "s": int(total) % 60,
            "data": 0.02 + 0.001 * (i % 3), "fwd": 0.3 * took_s, "bwd": 0.6 * took_s, "tok": 4096 / took_s, **more,
        }  # fmt: skip
        lines += [template.format(**values) for template in templates]
    return lines


def saved(lines: list[str]) -> dict[str, Any]:
    """Reads lines as those of a saved log."""
    fits = recognise(lines)
    found = reading_of(Probe(lines=lines), fits, fits[0].rules if fits else {})
    if fits:
        ReadSpec(**fits[0].rules)  # a study file takes them
    return found


DURATIONS = {
    "step time behind data time": "Iter {i}/1000 data time: {part:.2f}s step time: {d:.3f}s loss: {loss:.3f}",
    "forward and backward before it": "step {i}: forward time: {fwd:.3f} s, backward time: {bwd:.3f} s, step time: "
    "{d:.3f} s",
    "average before it": "step {i} avg step time: {mean:.3f}s, step time: {d:.3f}s, loss {loss:.3f}",
    "mean behind it": "step {i} | step_time {d:.3f}s | mean_step_time {mean:.3f}s | loss {loss:.2f}",
    "in parentheses": "Epoch: [0][{i:4d}/5005]\tTime {d:6.3f} ({mean:6.3f})\tData {part:6.3f}\tLoss {loss:.4e} (7)",
    "milliseconds in the name": "step={i} data_ms={data:.1f} step_ms={ms:.1f} loss={loss:.3f}",
    "per iteration": " iteration {i}/ 1000 | elapsed time per iteration (ms): {ms:.1f} | lm loss: {loss:.6E} |",
    "bare between bars": "step {i:4d}/19560 | loss {loss:.6f} (+0.01z)| norm 1.1 (+0.0z)| lr 6.00e-04 | {ms:.2f} ms | "
    "45.0% bf16 MFU | {tok:.0f} tok/s",
    "total of parts that does not grow": "it {i}: data {part:.3f}s fwd {fwd:.3f}s total {d:.3f}s loss {loss:.2f}",
    "key and value": "[{i}] train/step_time_seconds={d:.4f} train/data_time_seconds={part:.4f} train/loss={loss:.3f}",
    "dict of Python": "{{'train_loss': {loss:.3f}, 'time/forward': {fwd:.3f}, 'time/step': {d:.4f}, 'step': {i}}}",
    "seconds a step with eta": "step {i} loss: {loss:.3f} {d:.3f} s/it eta: 12.5s",
    "rate behind an average rate": "step {i} avg: 9.1 it/s, {rate:.3f} it/s, loss {loss:.3f}",
    "camel case": "iter {i} dataTimeMs: {part:.1f} stepTimeMs: {ms:.1f} loss: {loss:.2f}",
    "sentence": "INFO step {i} took {d:.3f} s (compile 3.2 s), loss is {loss:.3f}",
    "JSON": '{{"step": {i}, "time/data": {part:.3f}, "time/avg_step": {mean:.3f}, "time/step": {d:.4f}, "loss": 5}}',
    "rates of other things": "step {i} samples/sec: 64.5 examples_per_second=99 TFLOP/s: 3.5 GB/s=2.5 s/step: {d:.3f}",
    "memory and tokens": "step {i} mem 10.5 GiB tps 8,192 tokens/s: 9000 time/step: {d:.3f} (max 0.9 s)",
    "total of the parts": "step {i} | fwd 150.5 ms | bwd 200.5 ms | opt 10.5 ms | total {ms:.1f} ms | loss {loss:.2f}",
    "rate behind the loss": "step {i} loss: {loss:.3f} steps/s: {rate:.3f} tok/s: 9000",
    "best before the last": "step {i} best step time 0.30 s, last step time {d:.3f} s, loss {loss:.3f}",
    "names without a mark": "step {i} loss {loss:.3f} tok/s 9000 ms/step {ms:.1f}",
    "dt behind a load time": "{i}: load {part:.3f}s dt {d:.3f}s loss={loss:.3f}",
    "microseconds": "update {i} optimizer_us: 900 step_time_us: {us:.0f} loss: {loss:.3f}",
}


@pytest.mark.parametrize("name", DURATIONS)
def test_the_duration_of_a_step_is_told_from_others(name: str) -> None:
    lines = ["starting on 8 devices", *printed(DURATIONS[name])]
    assert saved(lines)["step_s"] == pytest.approx(0.5, rel=0.01)
    best = recognise(lines, at=[0.0, *(0.5 * i for i in range(1, COUNT + 1))])[0]
    assert best.step_s == pytest.approx(0.5, rel=0.01)
    assert best.steps >= COUNT - 1
    assert not doubt_of(best)


TOTALS = {
    "elapsed": "step {i} loss {loss:.4f} elapsed {total:.2f}s",
    "time": "step={i} loss={loss:.4f} time={total:.2f}s",
    "time without a unit": "step {i} loss {loss:.4f} time {total:.2f}",
    "total time": "iter {i}: loss {loss:.3f}, total time: {total:.2f} s",
    "wall": "[{i}] loss={loss:.3f} wall_time={total:.3f}",
    "train time in ms": "step:{i}/1750 train_loss:{loss:.4f} train_time:{totalms:.0f}ms",
    "since the start": "step {i} | loss {loss:.3f} | {total:.1f} s since start | time since start: {total:.2f}s",
    "runtime of JSON": '{{"_step": {i}, "_runtime": {total:.3f}, "loss": {loss:.3f}}}',
    "time stamp of JSON": '{{"step": {i}, "timestamp": 17700{total:.3f}, "loss": {loss:.3f}}}',
}


@pytest.mark.parametrize("name", TOTALS)
def test_values_that_only_grow_are_a_clock(name: str) -> None:
    line = TOTALS[name].replace("{totalms:.0f}", "{total:.3f}")
    lines = [text.replace("train_time:", "train_time:").replace("ms", "s") for text in printed(line)]
    assert saved(lines)["step_s"] == pytest.approx(0.5, rel=0.01)
    best = recognise(lines, at=[0.5 * i for i in range(COUNT)])[0]
    assert best.by_clock
    assert best.step_s == pytest.approx(0.5, rel=0.01)


def test_the_time_of_many_steps_is_not_that_of_one() -> None:
    assert saved(printed("Step {i}00: Ran 100 train steps in {d:.2f} secs"))["step_s"] is None


EVALUATIONS = {
    "the same words": ("train step {i} time {d:.3f}s loss {loss:.3f}", "eval step {i} time 0.050s loss 1.0"),
    "in brackets": ("[train] step {i} time {d:.3f}s loss {loss:.3f}", "[val] step {i} time 0.050s loss 1.0"),
    "only one has a name": ("step {i}: loss={loss:.3f} dt={d:.3f}s", "validation step {i}: loss=1.0 dt=0.050s"),
    "a loss of evaluation": ("step:{i} train_loss:{loss:.3f} step_ms:{ms:.1f}", "step:{i} val_loss:1.0 step_ms:50.0"),
    "a loss of evaluation in words": ("step {i} loss: {loss:.3f} {d:.3f} s/it", "step {i} val loss: 1.0 0.050 s/it"),
    "test": ("Iter {i} Time {d:.3f} Loss {loss:.3f}", "Test: [{i}/50] Time 0.050 Loss 1.0"),
    "evaluating": ("iter {i} loss {loss:.3f} {d:.3f} s/it", "Evaluating: iter {i} loss 1.0 0.050 s/it"),
    "a bar": ("train: |###| {i}/100 [00:01<00:07, loss={loss:.3f}]", "Evaluating: |##| {i}/9 [00:01<00:07, loss=1.0]"),
    "JSON": (
        '{{"step": {i}, "loss": {loss:.3f}, "step_time": {d:.3f}, "split": "train"}}',
        '{{"step": {i}, "loss": 1.0, "step_time": 0.05, "split": "eval"}}',
    ),
    "keys of JSON": (
        '{{"step": {i}, "train/loss": {loss:.3f}, "train/step_time": {d:.3f}}}',
        '{{"step": {i}, "eval/loss": 1.0, "eval/step_time": 0.05}}',
    ),
    "other words of time": ("step {i} time {d:.3f}s loss {loss:.3f}", "eval batch {i} took 0.050s loss 1.0"),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_lines_of_an_evaluation_do_not_count(name: str) -> None:
    train, evaluate = EVALUATIONS[name]
    lines = printed(train, evaluate, evaluate, evaluate)
    at = [0.5 * (i // 4) + 0.05 * (i % 4) for i in range(len(lines))]
    best = recognise(lines, at=at)[0]
    assert best.step_s == pytest.approx(0.5, rel=0.02)
    assert COUNT - 1 <= best.steps <= COUNT
    reader = StepReader(best.rules)
    read = [step for line, now in zip(lines, at, strict=True) if (step := reader.read(line, now)) is not None]
    assert [step.loss for step in read if step.loss is not None][-1] == pytest.approx(5.7)


RANKS = {
    "device": "| Training Device=xla:0/{rank} Epoch=1 Step={i} Loss={loss:.5f} Rate=552.4 Time=01:02:03",
    "prefix of torchrun": "[rank{rank}]: step {i} dt={d:.3f}s loss={loss:.3f}",
    "prefix of srun": "{rank}: step {i} loss {loss:.3f} time {d:.3f} s",
    "prefix of mpirun": "[1,{rank}]<stdout>:step {i} loss {loss:.3f} time {d:.3f} s",
    "process": "process {rank} | iter {i} | loss {loss:.3f}",
    "worker": "worker={rank} step={i} loss={loss:.3f} step_time={d:.3f}",
    "host": "(host {rank}) step {i}: loss {loss:.3f}, {rate:.3f} it/s",
    "JSON": '{{"rank": {rank}, "step": {i}, "loss": {loss:.3f}, "step_time": {d:.3f}}}',
    "Ray": "(RayTrainWorker pid=123{rank}) step {i} loss {loss:.3f} time {d:.3f} s",
    "DeepSpeed": "[2026-03-04 09:10:00,123] [INFO] [Rank {rank}] step={i} loss={loss:.3f} step_time={d:.3f}",
    "no label": "step {i} loss {loss:.3f} time {d:.3f} s",
    "no label, no duration": "step {i} loss {loss:.3f}",
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_are_one_step(name: str) -> None:
    lines = printed(*(RANKS[name].replace("{rank}", str(rank)) for rank in range(4)))
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


LOSSES = {
    "in quotes": "{{'loss': {loss:.4f}, 'grad_norm': 1.44, 'learning_rate': 4.9e-05, 'step': {i}}}",
    "of a language model": "iteration {i} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 2.9",
    "cross entropy": "[{i}] collection=train accuracy=0.1, cross_ent_loss={loss:.3f}, timing/steps_per_second=2.0",
    "reduced": "global_step: {i} | reduced_train_loss: {loss:.3f} | lr: 1e-4",
    "one letter": "iter {i}: L={loss:.4f} ({ms:.1f}ms)",
    "beside that of evaluation": "step {i} val_loss: 1.0 train_loss: {loss:.3f} time {d:.3f}s",
    "beside parts": "step {i} aux_loss=0.1 z_loss=0.01 loss={loss:.3f} moe_loss=0.2 step_time={d:.3f}",
    "likelihood": "step {i} nll: {loss:.3f} step_time={d:.3f}",
    "of an array": "step {i} loss: Array({loss:.3f}, dtype=float32) step_time: {d:.3f}",
    "with a running mean": "Epoch: [0][{i}/50]\tTime {d:.3f} ({mean:.3f})\tLoss {loss:.4e} (7.0e+00)",
    "behind it": "Epoch 1 | iter {i} step {i} | loss train: {loss:.3f}, val: n/a | iter time: {ms:.2f} ms (step)",
    "total behind it": "step {i} train/loss_total={loss:.3f} grad_norm=1.0 step_time={d:.3f}",
    "entropy": "step {i} cross_entropy: {loss:.3f} z_loss: 0.1 s/it: {d:.3f}",
    "capital": "Step {i} - Train Loss: {loss:.3f} - Step Time: {d:.3f}s",
    "JSON": '{{"step": {i}, "train/loss": {loss:.3f}, "eval/loss": 1.0, "train/z_loss": 0.1}}',
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_training_is_read_under_its_name(name: str) -> None:
    found = saved(printed(LOSSES[name]))
    assert (found["losses"], found["loss"]) == (COUNT, pytest.approx(5.7))


COMMAS = {
    "seconds": "step {i} time {d:.3f} s loss {loss:.3f}",
    "milliseconds": "step {i} time {ms:.1f} ms loss {loss:.4f}",
    "names": "step={i} loss={loss:.4f} step_time={d:.4f}",
    "rate": "step {i} loss: {loss:.4f} {rate:.2f} it/s",
    "bar": "step {i} | loss {loss:.2f} | {ms:.2f} ms |",
    "in words": "Schritt {i}: iter {i} took {d:.3f} s, loss {loss:.3f}",
    "two durations": "iter {i} data time {data:.3f} s step time {d:.3f} s loss {loss:.3f}",
    "nothing but zeros": "step {i} dt {d:.3f} loss {loss:.3f}",
}


@pytest.mark.parametrize("name", COMMAS)
def test_a_decimal_comma_is_no_separator(name: str) -> None:
    lines = [line.replace(".", ",") for line in printed(COMMAS[name])]
    found = saved(lines)
    assert found["step_s"] == pytest.approx(0.5, rel=0.01)
    assert found["loss"] == pytest.approx(5.7)


def test_thousands_stay_thousands() -> None:
    found = saved([f"step {1000 + i:,} took 1,{200 + 3 * i % 7}.5 ms loss 2.5 on devices 0,1" for i in range(COUNT)])
    assert found["step_s"] == pytest.approx(1.2035, rel=0.01)


CLOCKS = {
    "levanter": "2026-03-04T09:10:{s:02d} - INFO :: Progress on:train {i}.0it/100it rate:2.0it/s postfix:loss={loss}",
    "brackets": "[2026-03-04 09:10:{s:02d}] step {i} loss {loss:.3f}",
    "TensorFlow": "INFO:tensorflow:loss = {loss:.4f}, step = {i} ({d:.3f} sec)",
    "time of day": "09:10:{s:02d} INFO step {i} loss {loss:.3f}",
    "thousandths": "2026-03-04 09:10:{stamp} | INFO | step {i} | loss {loss:.3f}",
    "absl": "I0304 09:10:{stamp} 1398932 train.py:265] step {i}: loss={loss:.3f}",
    "syslog": "Mar  4 09:10:{s:02d} node1 train[99]: step {i} loss={loss:.3f}",
    "zone": "2026-03-09 02:46:{s:02d} UTC step {i} loss={loss:.3f}",
    "comma": "2026-03-04 09:10:{stamp} - root - INFO - step {i} loss {loss:.3f}",
}


@pytest.mark.parametrize("name", CLOCKS)
def test_times_at_line_starts_are_a_clock(name: str) -> None:
    totals = [sum(TOOK_S[: i + 1]) for i in range(COUNT)]
    stamps = [f"{total:06.3f}".replace(".", "," if name == "comma" else ".") for total in totals]
    template = CLOCKS[name].replace("{stamp}", "STAMP")
    lines = [line.replace("STAMP", stamp) for line, stamp in zip(printed(template), stamps, strict=True)]
    assert saved(lines)["step_s"] == pytest.approx(0.5, rel=0.05)


def test_midnight_passes() -> None:
    clock = clock_of([f"23:59:{59 - i} step" for i in range(3, 0, -1)] + [f"00:00:0{i} step" for i in range(3)])
    assert clock is not None
    assert [b - a for a, b in itertools.pairwise(clock)] == [1.0] * 2 + [2.0] + [1.0] * 2


MEANS = {
    "AXLearn": "I0304 trainer.py:9] trainer process   0 step {i:8d}] Average step time: {d:.3f} seconds",
    "rate": "step {i} avg {rate:.3f} it/s",
    "name": "step={i} mean_step_time={d:.4f}",
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_read_where_a_log_tells_nothing_else(name: str) -> None:
    lines = printed(MEANS[name])
    assert saved(lines)["step_s"] == pytest.approx(0.5, rel=0.01)
    assert doubt_of(recognise(lines)[0])
    assert recognise(lines, at=[0.5 * i for i in range(COUNT)])[0].by_clock


@pytest.mark.parametrize("times", [0.7, 1.3])
@pytest.mark.parametrize("before", ["", "[2026-03-04 09:10:00] ", "I0304 09:10:00.1 1398 train.py:2] "])
def test_a_duration_that_differs_from_the_clock_is_said(before: str, times: float) -> None:
    lines = printed(before + "step {i} step time: {d:.3f}s")
    best = recognise(lines, at=[0.5 * i / times for i in range(COUNT)])[0]
    assert not best.by_clock
    assert doubt_of(best)


# ---------------------------------------------------------------------- files

TEXT = "\n".join(printed("step {i} loss {loss:.3f} step_time {d:.3f}s µ")) + "\n"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (TEXT.encode(), ""),
        (TEXT.encode("latin-1"), ""),
        (TEXT.encode("utf-8-sig"), ""),
        (TEXT.encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16"),
        (gzip.compress(TEXT.encode()), "gzip"),
        (gzip.compress(TEXT.encode())[:-9], "gzip"),
        (TEXT.replace("\n", "\r\n").encode(), ""),
    ],
)
def test_text_of_other_encodings_is_read(tmp_path: Path, content: bytes, kind: str) -> None:
    (file := tmp_path / "train.log").write_bytes(content)
    probe = read_log(file)
    assert kind in "".join(probe.notes)
    assert bool(probe.notes) == bool(kind)
    assert recognise(probe.lines)[0].steps >= COUNT - 1


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\xfd7zXZ\0abc", "xz -dc"),
        (b"\x28\xb5\x2f\xfdabc", "zstd"),
        (b"BZh91AY", "bzip2"),
        (b"PK\x03\x04abc", "unzip"),
        (b"\x1f\x8bnonsense", "gzip and damaged"),
        (b":W&B\x4a\xc7\0\0step", "binary"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "binary"),
        (b"\x0a\x12/device:GPU:0\0\0", "binary"),
    ],
)
def test_a_file_without_text_is_named(tmp_path: Path, content: bytes, word: str) -> None:
    (file := tmp_path / "train.log").write_bytes(content)
    with pytest.raises(AutotuneError, match=word):
        read_log(file)


WIDE = {f"grad/norm/layer_{n}/attention/q_proj": 0.123456789 for n in range(200)}
NAMES = [*WIDE, "step", "step_time_s"]


def table(mark: str) -> str:
    rows = [[*map(str, WIDE.values()), str(i), str(took_s)] for i, took_s in enumerate(TOOK_S)]
    return "\n".join(mark.join(row) for row in [NAMES, *rows])


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
        ("wide.csv", table(",")),
        ("wide.tsv", table("\t")),
    ],
)
def test_a_long_record_is_read_whole(tmp_path: Path, name: str, content: str) -> None:
    (file := tmp_path / name).write_text(content)
    best = recognise(read_log(file).lines)[0]
    assert best.steps == COUNT
    assert best.step_s == pytest.approx(0.5, rel=0.01)


def test_a_loss_that_is_no_number_makes_strict_json(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(printed("step {i} | loss nan | step time {ms:.1f} ms")))
    done = autotune("read", "--json", "train.log", cwd=tmp_path)
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert (found["losses"], found["loss"]) == (COUNT, None)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_log_is_shown_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "train.log").write_text("\n".join(printed("\u258f {i} \u65e5 step_time={d:.3f}s \U0001f642")))
    for more in ([], ["--json"]):
        command = [sys.executable, "-m", "autotune", "read", *more, "train.log"]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert b"?" in done.stdout


def test_a_bar_without_a_loss_keeps_its_preset() -> None:
    found = saved(printed(" 12%|###  | {i}/100 [00:01<00:07, {rate:.2f}it/s]"))
    assert (found["rules"], found["losses"]) == ({"preset": "tqdm"}, 0)
    assert found["step_s"] == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["name"])
def test_a_log_of_a_public_shape_is_read(log: dict[str, Any]) -> None:
    lines = log["text"].strip("\n").split("\n")
    found = saved(lines)
    assert (found["steps"], found["loss"]) == (log["steps"], log.get("loss") and pytest.approx(log["loss"]))
    assert found["step_s"] == pytest.approx(log["step_s"], rel=0.03)
    passed_s = (log["step_s"] * log["every"] * (log["mark"] in line) for line in lines)
    live = recognise(lines, at=list(itertools.accumulate(passed_s)))[0]
    assert live.step_s == pytest.approx(log["step_s"], rel=0.03)
