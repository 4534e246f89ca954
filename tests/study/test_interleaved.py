from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autotune.measure.compare import fixed, sequential
from autotune.model.block_sizes import LONGEST_BLOCK_STEPS
from autotune.model.measurement import Arm, Pair, WorkerReport, log_ratio
from autotune.model.sections import MeasureSpec
from autotune.stats.estimates import SequentialPlan, estimate_pairs
from autotune.workers.base import Worker
from tests.runs import interleaved_pairs


class Clockwork(Worker):
    """A worker whose every step takes the same time; remembers when it ran."""

    def __init__(self, step_s: float, diary: list[str], name: str) -> None:
        self.report = WorkerReport(
            fingerprint="f", platform="cpu", device_kind="k", device_count=1, compile_s=0, start_s=0,
            losses=(), grad_norms=(), warmup_step_times_s=(step_s,),
        )  # fmt: skip
        self._step_s, self._diary, self._name = step_s, diary, name

    def run_block(self, steps: int) -> tuple[float, ...]:
        self._diary.append(self._name)
        return (self._step_s,) * steps

    def close(self) -> None:
        return


def run(ratio: float, stop: Callable[[list[float]], str | None], seed: int = 0) -> tuple[list[Pair], str, list[str]]:
    diary: list[str] = []
    pairs, why = interleaved_pairs(Clockwork(0.1, diary, "r"), Clockwork(0.1 * ratio, diary, "c"), stop, seed=seed)
    return pairs, why, diary


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 50), (0.0167, 3), (0.013, 4), (10.0, 3), (0.0, LONGEST_BLOCK_STEPS)]
)
def test_a_block_is_long_against_the_timer(step_s: float, steps: int) -> None:
    assert MeasureSpec().block_sizes_on("cpu").steps(step_s) == steps


def test_every_pair_has_one_block_of_each_in_an_order_that_the_seed_gives() -> None:
    pairs, _, diary = run(1.0, fixed(23).stop)
    assert len(pairs) == 23
    told = "".join("rc" if p.first is Arm.REFERENCE else "cr" for p in pairs)
    assert told == "".join(diary)
    assert {p.first for p in pairs} == {Arm.REFERENCE, Arm.CANDIDATE}
    one, two, other = (run(1.0, fixed(31).stop, seed)[2] for seed in (5, 5, 6))
    assert one == two
    assert one != other
    pair = Pair(index=0, first=Arm.REFERENCE, reference_s=(1.0, 3.0), candidate_s=(0.5, 0.5), at_s=0)
    assert log_ratio(pair) == pytest.approx(math.log(0.25))


def test_a_clear_effect_and_what_cannot_beat_the_incumbent_stop_early() -> None:
    plan = SequentialPlan(cap=40)
    pairs, why, _ = run(0.9, sequential(plan, min_effect=0.005, incumbent=None).stop)
    assert len(pairs) == plan.looks[0]
    assert why == "its interval is narrow enough"
    plan = SequentialPlan(cap=40)
    noisy = [math.log(0.98) + 0.05 * (-1) ** i + 0.001 * i for i in range(plan.looks[0])]
    best = estimate_pairs([math.log(0.8)] * 12)
    isolated = sequential(plan, min_effect=0.005, incumbent=None).stop(noisy)
    against = sequential(plan, min_effect=0.005, incumbent=best).stop(noisy)
    assert isolated is None
    assert against is not None
    assert "best so far" in against
