"""One line in a training loop lets a study measure it in interleaved blocks.

::

    import autotune.hook

    for batch in autotune.hook.steps(loader):
        state, metrics = train_step(state, batch)
        autotune.hook.report(loss=metrics["loss"], grad_norm=metrics["grad_norm"])   # optional

Outside a study `steps` only yields the batches. Under a study whose [workload] has ``hook = true`` it runs the warm-up,
and then a block of steps whenever the study asks for one; between blocks the loop waits inside `steps`.

JAX returns before the device is done. So `steps` waits at both ends of a block for all arrays of JAX that the program
holds, or calls ``sync`` instead (``lambda: jax.block_until_ready(state)``). Inside a block it waits at each step for
the loss reported one step before; without `report` only the mean of a block is exact, which is the measured figure.

Standard library only, so that any program can import it.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from autotune.child.channel import CHANNEL_VARIABLE, Channel
from autotune.child.devices import dtype_name, jax_options, jax_report, memory_in_use
from autotune.child.packages import own_packages

T = TypeVar("T")


class HookError(RuntimeError):
    """The hook cannot work in this program; the message says what to change."""


def steps(batches: Iterable[T], *, sync: Callable[[], Any] | None = None) -> Iterator[T]:
    """Yields the batches of a training loop, under a study in measured blocks and as often as needed.

    Args:
        sync: Waits until the device has finished all work of the loop; default: waits for all arrays of JAX.

    Raises:
        HookError: Under a study, if this is not the process that the study started, or the batches end and cannot be
            iterated again.
    """
    channel = _connect()
    if channel is None:
        yield from batches
        return
    global _loop
    _loop = loop = _Loop(channel, sync)
    try:
        for batch in _endless(batches):
            loop.step_ends()
            if loop.stopped:
                return
            yield batch
    finally:
        _loop = None


def report(*, loss: Any = None, grad_norm: Any = None) -> None:
    """Reports the loss and the global gradient norm of the current step; does nothing outside a study.

    They become numbers only in the checked first steps and at the end of each block: nothing else waits for the device.
    """
    if _loop is not None:
        _loop.reported = (loss, grad_norm)


_loop: _Loop | None = None


def _connect() -> Channel | None:
    """Opens the channel to the study; None outside of one."""
    number = os.environ.get(CHANNEL_VARIABLE)
    if number is None:
        return None
    try:
        return Channel()
    except (OSError, ValueError) as error:
        raise HookError(
            "autotune.hook.steps must run in the process that the study started, and once, but its channel "
            f"({CHANNEL_VARIABLE}={number}) is not open here: {error}; a launcher between the two must become the "
            "program (exec), or leave `hook` out of the study and let the program's output be read"
        ) from error


class _Loop:
    """State of a loop under a study: checked steps, then warm-up, then blocks on demand."""

    def __init__(self, channel: Channel, sync: Callable[[], Any] | None) -> None:
        self._channel = channel
        self._sync = sync or _wait_for_arrays
        self._job = channel.receive()
        self.stopped = self._job["type"] != "job"
        self.reported: tuple[Any, Any] = (None, None)
        self._told_in: list[str | None] = [None, None]
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._warmup: list[float] = []
        self._times: list[float] = []
        self._left = 0
        self._pending: Any = None
        self._tells_memory = False
        self._step = -1
        self._last = time.perf_counter()
        if not self.stopped:
            channel.enter("build")

    def step_ends(self) -> None:
        """Ends a step; the next one begins when this returns."""
        if self.stopped:
            return
        self._step += 1
        check = self._job["check_steps"]
        warm = self._job["warmup_steps"]
        if self._step == 0:
            self._channel.enter("compile")
        elif self._step <= check + warm:
            self._early(check)
        else:
            pending = self._pending
            self._pending = self.reported[0]
            if hasattr(pending, "block_until_ready"):
                pending.block_until_ready()
            self._times.append(time.perf_counter() - self._last)
            self._left -= 1
            if self._left == 0:
                self._end_block()
        if self._step == check + warm:
            self._ready()
        if self._step >= check + warm and self._left == 0 and not self.stopped:
            self._wait_for_block()
        self._last = time.perf_counter()

    def _early(self, check: int) -> None:
        """Ends a step of the check or of the warm-up; waits for the device."""
        self._sync()
        if self._step <= check:
            loss, norm = (_number(x) for x in self.reported)
            self._told_in = [dtype_name(getattr(x, "dtype", None)) for x in self.reported]
            if loss is not None:
                self._losses.append(loss)
            if norm is not None:
                self._norms.append(norm)
        else:
            self._warmup.append(time.perf_counter() - self._last)
        if self._step == check:
            self._channel.enter("warm-up")

    def _ready(self) -> None:
        self._channel.send(
            "ready",
            losses=self._losses,
            grad_norms=self._norms,
            loss_dtype=self._told_in[0],
            norm_dtype=self._told_in[1],
            warmup_step_times_s=self._warmup,
            values={name: os.environ.get(name) for name in self._job["variables"]},
            **_of_jax(self._job["jax_options"]),
        )

    def _end_block(self) -> None:
        self._sync()
        # The wait for the device at the end belongs to the block's last step.
        self._times[-1] = time.perf_counter() - self._last
        loss, norm = (_number(x) for x in self.reported)
        told = {"memory": memory_in_use()} if self._tells_memory else {}
        self._channel.send("block", step_times_s=self._times, loss=loss or 0.0, grad_norm=norm, **told)

    def _wait_for_block(self) -> None:
        message = self._channel.receive()
        if message["type"] != "block":
            self.stopped = True
            return
        self._left = int(message["steps"])
        self._times = []
        self._pending = None
        self._tells_memory = bool(message.get("memory"))
        self._sync()


def _wait_for_arrays() -> None:
    """Waits for all arrays of this process, if it has imported JAX."""
    jax = sys.modules.get("jax")
    if jax is not None:
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()


def _of_jax(options: list[str]) -> dict[str, Any]:
    """Returns the fields of the report that JAX tells, and its options, if the program has imported it."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {"jax": {}, "jax_options": {}}
    own = own_packages()
    told = jax_report(jax, {**own.get("versions", {}), "jax": jax.__version__}, range(len(jax.local_devices())))
    return {"jax": {**told, "packages": own.get("packages")}, "jax_options": jax_options(jax, options)}


def _endless(batches: Iterable[T]) -> Iterator[T]:
    """Iterates over the batches again and again."""
    for turn in itertools.count():
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise HookError(
                "the batches must last for a whole study or be ones that can be gone through again, but they ended"
                f" after {'their first pass' if turn else 'none'}; give autotune.hook.steps a list, or a loader that "
                "starts anew"
            )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
