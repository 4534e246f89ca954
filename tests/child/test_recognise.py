"""Which reading is taken for programs that nobody described: loggers, bars, JSON lines, loops that do not wait."""

from __future__ import annotations

import pytest

from autotune.child.recognise import recognise
from autotune.model.sections import ReadSpec

ABSL = "I1121 05:38:28.602266 139893247994752"
LINES = {
    "print": ("step {} loss 3.5 time 0.02 s", "value", 0.02),
    "print_ms": ("step {}: loss=3.5, 20.0ms/step", "value", 0.02),
    "microseconds": ("step {} loss=3.5 took 20,000 \u00b5s", "value", 0.02),
    "rate": ("step {}/100 50.0 it/s loss: 3.5", "value", 0.02),
    "nanogpt": ("iter {}: loss 3.5, time 20.00ms, mfu 12.3%", "value", 0.02),
    "name_says_it": ("Step {} | loss: 3.5 | step time: 0.02", "(?P<step_s>", 0.02),
    "dict": ("{{'loss': 3.5, 'step': {}, 'step_time_ms': 20.0}}", "(?P<step_ms>", 0.02),
    "loguru": (
        "2026-11-22 10:00:00.123 | INFO     | __main__:main:12 - step {} | loss 3.5 | step_time 0.02s",
        "value",
        0.02,
    ),
    "json": ('{{"step": {}, "loss": 3.5, "perf": {{"step_time": 0.02}}}}', "perf.step_time", 0.02),
    "json_without": ('{{"step": {}, "loss": 3.5}}', "step", 0.02),
    "counter": ("step={} loss=3.5", "(?P<step>", 0.02),
    "maxtext": (
        f"{ABSL} metric_logger.py:265] completed step: {{}}, seconds: 0.02, TFLOP/s/device: 0.1, loss: 3.5",
        "maxtext",
        0.02,
    ),
    "tunix": (
        f"{ABSL} peft_trainer.py:9] Train step {{}} training loss: 3.5  - training perplexity: 33",
        "tunix",
        0.02,
    ),
    "levanter": ("INFO Progress on:train {}.0it/100it rate:3.4it/s remaining:00:26 postfix:loss=3.5", "levanter", 0.02),
    "keras": (
        "\x1b[1m{}/100\x1b[0m \x1b[32m\u2501\u2501\x1b[0m\x1b[37m\u2501\x1b[0m \x1b[1m1s\x1b[0m 12ms/step - loss: 3.5",
        "keras",
        0.02,
    ),
    "tqdm": (" 12%|\u2588\u258f    | {}/100 [00:01<00:07, 11.50it/s, loss=3.5]", "tqdm", 0.02),
    "lightning": ("Epoch 0:  12%|\u2588 | {}/100 [00:01<00:07, 11.50it/s, v_num=0, train_loss=3.5]", "lightning", 0.02),
    "lightning_rich": (
        "Epoch 0/9 \u2501\u2578\u2501 {}/100 0:00:01 \u2022 0:00:07 11.52it/s v_num: 0.000 loss: 3.5",
        "lightning",
        0.02,
    ),
    "rich": ("Training \u2501\u2501\u2578\u2501 {}/100 0:00:03 loss=3.5", "rich", 0.02),
    "absl": (f"{ABSL} train.py:265] step: {{}}, loss: 3.5", "absl", 0.02),
}


@pytest.mark.parametrize("name", LINES)
def test_each_kind_of_line_is_read_by_itself(name: str) -> None:
    line, by, step_s = LINES[name]
    lines = ["starting up", "devices: 8", *(line.format(i) for i in range(1, 13)), "done in 3 s"]
    best = recognise(lines, at=[i * 0.02 for i in range(len(lines))])[0]
    assert by in str(dict(best.rules))
    assert best.step_s == pytest.approx(step_s)
    assert best.steps >= 11
    assert "3.5" in best.example
    assert "\x1b" not in best.example
    ReadSpec(**best.rules)  # what was found is what a study file takes


def test_a_loop_that_does_not_wait_for_its_device_is_read_by_the_clock() -> None:
    lines = [f"step {i} loss 2.1 dt 0.109ms" for i in range(12)]
    best, other = recognise(lines, at=[i * 0.0217 for i in range(12)])[:2]
    assert best.by_clock
    assert best.step_s == pytest.approx(0.0217)
    assert other.doubtful
    assert other.agrees == pytest.approx(0.109 / 21.7)


def test_every_tenth_step_printed_is_no_doubt() -> None:
    lines = [f"step {10 * i} loss 2.1 20ms/step" for i in range(12)]
    best = recognise(lines, at=[i * 0.2 for i in range(12)])[0]
    assert not best.by_clock
    assert best.agrees == pytest.approx(1.0)


def test_output_that_comes_at_once_does_not_tell_by_the_clock() -> None:
    lines = [f"step {i} loss 2.1 20ms/step" for i in range(40)]
    best = recognise(lines, at=[0.0] * 20 + [1.0] * 20)[0]
    assert (best.by_clock, best.in_bursts, best.doubtful) == (False, True, False)
    clock = recognise([f"step {i} loss 2.1" for i in range(40)], at=[0.0] * 20 + [1.0] * 20)[0]
    assert (clock.by_clock, clock.in_bursts, clock.doubtful) == (True, True, True)


def test_tokens_each_second_need_the_tokens_of_a_step() -> None:
    lines = [f"loss 3.1 | 1,024.{i} tok/s" for i in range(9)]
    blind = recognise(lines)
    assert any(r.needs_tokens and r.step_s is None for r in blind)
    told = next(r for r in recognise(lines, tokens_per_step=512) if r.needs_tokens)
    assert told.step_s == pytest.approx(512 / 1024.4)


@pytest.mark.parametrize(
    "lines", [[], ["hello", "compiling 1/3", "compiling 2/3", "loading shard 3"], ["step 1 loss 2"]]
)
def test_nothing_is_made_up(lines: list[str]) -> None:
    assert recognise(lines) == []


def test_times_must_be_of_each_line() -> None:
    with pytest.raises(ValueError, match="one time for each of 2 lines but got 1"):
        recognise(["a", "b"], at=[0.0])
