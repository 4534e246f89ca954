"""The ring of batches: step n has the n-th, counted round, and none is made twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.child.measure import FAR, FEWEST_BATCHES, MOST_BATCHES, RING_BYTES, Job, distance, ring_length, sample_of


class Trained(Job):
    """A job that remembers the batch of each step."""

    def __init__(self, batch_bytes: int) -> None:
        leaves = SimpleNamespace(leaves=lambda tree: [*tree.values()])
        self._jax: Any = SimpleNamespace(tree=leaves, block_until_ready=lambda x: x)
        self.used: list[int] = []
        self.made: list[int] = []
        self._next = 0
        self._ring = ring_length(batch_bytes)
        self._batches = []
        self._make_batch = self._make
        self._state = None
        self._step = self._note

    def _make(self, number: int) -> _Batch:
        self.made.append(number)
        return _Batch(number)

    def _note(self, state: Any, batch: Any) -> Any:
        self.used.append(batch.number)
        return state, {"loss": _Loss(1.0)}


class _Loss(float):
    """A loss that is there at once."""

    def block_until_ready(self) -> None:
        """Nothing is under way."""


class _Batch(dict[str, Any]):
    """A batch with its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@pytest.mark.parametrize("blocks", [[1, 1], [3, 100], [64, 7, 32], [5, 5, 500]])
@pytest.mark.parametrize("batch_bytes", [64_000, RING_BYTES // 10])
def test_a_step_has_the_same_batch_however_steps_are_cut_into_blocks(blocks: list[int], batch_bytes: int) -> None:
    job = Trained(batch_bytes)
    for steps in blocks:
        job.fill_ring(steps)
        made = len(job.made)
        job.run_block(steps)
        assert len(job.made) == made  # none while steps are timed
    assert job.used == [n % ring_length(batch_bytes) for n in range(sum(blocks))]
    assert job.made == [*range(min(sum(blocks), ring_length(batch_bytes)))]


def test_steps_that_leave_the_state_as_it_was_move_it_by_nothing() -> None:
    jnp = pytest.importorskip("jax.numpy")
    state = [jnp.ones((3, 4)), jnp.ones(2, "bfloat16"), jnp.arange(5), jnp.zeros((2048, 2048))]
    before = sample_of(state)
    assert [x.shape for x in before] == [(3, 4), (2,)]  # floating-point, and small where there are small ones
    assert distance(before, sample_of(state)) == 0.0
    assert distance(before, sample_of([state[0] + 2, *state[1:]])) == pytest.approx(48**0.5)
    assert distance(before, sample_of([state[0] * jnp.nan, *state[1:]])) == FAR
    assert [x.shape for x in sample_of(state[3:])] == [(2048, 2048)]


@pytest.mark.parametrize(
    ("batch_bytes", "kept"),
    [(0, MOST_BATCHES), (RING_BYTES // 10, 10), (RING_BYTES, FEWEST_BATCHES), (10 * RING_BYTES, FEWEST_BATCHES)],
)
def test_large_batches_do_not_take_the_memory_of_the_step(batch_bytes: int, kept: int) -> None:
    assert ring_length(batch_bytes) == kept
