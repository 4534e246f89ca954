"""The batches of a block: each step has its own as far as memory allows, or a long block learns them by heart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.child.measure import BATCH_RING, FAR, RING_BYTES, Job, distance, sample_of


class Trained(Job):
    """A job that remembers the batch of each step."""

    def __init__(self, batch_bytes: int) -> None:
        leaves = SimpleNamespace(leaves=lambda tree: [*tree.values()])
        self._jax: Any = SimpleNamespace(tree=leaves, block_until_ready=lambda x: x)
        self._next, self._renewed, self._batches, self.used = 17, 17, [], list[int]()
        self._make_batch = lambda number: _Batch(number, batch_bytes)
        self._state = None
        self._step = self._note

    def _note(self, state: Any, batch: Any) -> Any:
        self.used.append(batch.number)
        return state, {"loss": _Loss(1.0)}


class _Loss(float):
    """A loss that is there at once."""

    def block_until_ready(self) -> None:
        """Nothing is under way."""


class _Batch(dict[str, Any]):
    """A batch with its number."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__(x=SimpleNamespace(nbytes=size))
        self.number = number


@pytest.mark.parametrize("blocks", [[1, 1], [3, 100], [64, 7, 32]])
def test_each_step_has_the_batch_of_its_number_however_steps_are_cut_into_blocks(blocks: list[int]) -> None:
    job = Trained(64_000)
    for steps in blocks:
        job.renew_batches(steps)
        job.run_block(steps)
    assert job.used == list(range(17, 17 + sum(blocks)))


def test_steps_that_leave_the_state_as_it_was_move_it_by_nothing() -> None:
    jnp = pytest.importorskip("jax.numpy")
    state = [jnp.ones((3, 4)), jnp.ones(2, "bfloat16"), jnp.arange(5), jnp.zeros((2048, 2048))]
    before = sample_of(state)
    assert [x.shape for x in before] == [(3, 4), (2,)]  # floating-point, and small where there are small ones
    assert distance(before, sample_of(state)) == 0.0
    assert distance(before, sample_of([state[0] + 2, *state[1:]])) == pytest.approx(48**0.5)
    assert distance(before, sample_of([state[0] * jnp.nan, *state[1:]])) == FAR
    assert [x.shape for x in sample_of(state[3:])] == [(2048, 2048)]


def test_large_batches_do_not_take_the_memory_of_the_step() -> None:
    for size, held in ((RING_BYTES // 10, 10), (RING_BYTES, BATCH_RING), (10 * RING_BYTES, BATCH_RING)):
        job = Trained(size)
        job.renew_batches(100)
        assert len(job._batches) == held
