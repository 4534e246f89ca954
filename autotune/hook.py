"""One line in a training loop lets a study measure it in interleaved blocks.

::

    import autotune.hook

    for batch in autotune.hook.steps(loader):
        state, metrics = train_step(state, batch)
        autotune.hook.report(loss=metrics["loss"], grad_norm=metrics["grad_norm"])   # optional

Outside a study `steps` only yields the batches. Under a study whose [workload] has ``hook = true``
it runs the warm-up, and then a block of steps whenever the study asks for one; between blocks the
loop waits inside `steps`.

JAX returns before the device is done. So `steps` waits at both ends of a block for all arrays of
JAX that the program holds, or calls ``sync`` instead (``lambda: jax.block_until_ready(state)``).
Inside a block it waits at each step for the loss reported one step before; without `report` only
the mean of a block is exact, which is the measured figure.

Standard library only, so that any program can import it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from autotune.child.channel import CHANNEL_VARIABLE, Channel
from autotune.child.devices import dtype_name, jax_options, jax_report, memory_in_use
from autotune.child.packages import loaded_packages

T = TypeVar("T")


class HookError(RuntimeError):
    """The hook cannot work in this program; the message says what to change."""


def steps(batches: Iterable[T], *, sync: Callable[[], Any] | None = None) -> Iterator[T]:
    """Yields the batches of a training loop, under a study again and again in measured blocks.

    Args:
        sync: Waits until the device has finished all work of the loop; default: waits for all
            arrays of JAX.

    Raises:
        HookError: Under a study, if this is not the process that the study started, or the batches
            end and cannot be iterated again.
    """
    global _reported
    channel = _connect()
    if channel is None:
        yield from batches
        return
    _reported = (None, None)
    try:
        yield from _measured(_endless(batches), channel, sync or _wait_for_arrays)
    finally:
        _reported = None


def report(*, loss: Any = None, grad_norm: Any = None) -> None:
    """Reports loss and global gradient norm of the current step; does nothing outside a study.

    They become numbers, which waits for the device, only in checked steps and at ends of blocks.
    """
    global _reported
    if _reported is not None:
        _reported = (loss, grad_norm)


_reported: tuple[Any, Any] | None = None  # What was reported last; None outside a study


def _connect() -> Channel | None:
    """Opens the channel to the study; None outside of one."""
    number = os.environ.get(CHANNEL_VARIABLE)
    if number is None:
        return None
    try:
        return Channel()
    except (OSError, ValueError) as error:
        raise HookError(
            "autotune.hook.steps must run in the process that the study started, and once, but "
            f"its channel ({CHANNEL_VARIABLE}={number}) is not open here: {error}; a launcher "
            "between the two must become the program (exec), or leave `hook` out of the study and "
            "let the program's output be read"
        ) from error


def _measured(batches: Iterator[T], channel: Channel, sync: Callable[[], Any]) -> Iterator[T]:
    """Yields batches for checked steps, a warm-up and blocks; a step ends with the next batch."""
    job = channel.receive()
    if job["type"] != "job":
        return
    channel.enter("build")
    batch = next(batches)
    channel.enter("compile")
    losses: list[float] = []
    norms: list[float] = []
    warmup: list[float] = []
    for _ in range(job["check_steps"]):
        yield batch
        batch = next(batches)
        sync()
        loss, norm = _numbers()
        if loss is not None:
            losses.append(loss)
        if norm is not None:
            norms.append(norm)
    dtypes = [dtype_name(getattr(value, "dtype", None)) for value in _latest()]
    channel.enter("warm-up")
    for _ in range(job["warmup_steps"]):
        began = time.perf_counter()
        yield batch
        batch = next(batches)
        sync()
        warmup.append(time.perf_counter() - began)
    channel.send(
        "ready",
        report={
            "losses": losses,
            "grad_norms": norms,
            "loss_dtype": dtypes[0],
            "norm_dtype": dtypes[1],
            "warmup_step_times_s": warmup,
            **_jax_fields(),
        },
        values={name: os.environ.get(name) for name in job["variables"]},
        jax_options=jax_options(sys.modules.get("jax"), job["jax_options"]),
    )
    while (message := channel.receive())["type"] == "block":
        times: list[float] = []
        pending: Any = None
        sync()
        for _ in range(message["steps"]):
            began = time.perf_counter()
            yield batch
            batch = next(batches)
            if hasattr(pending, "block_until_ready"):
                pending.block_until_ready()
            pending = _latest()[0]
            times.append(time.perf_counter() - began)
        sync()
        # The wait for the device at the end belongs to the block's last step.
        times[-1] = time.perf_counter() - began
        loss, norm = _numbers()
        memory = memory_in_use() if message.get("memory") else None
        channel.send("block", step_times_s=times, loss=loss or 0.0, grad_norm=norm, memory=memory)


def _latest() -> tuple[Any, Any]:
    return _reported or (None, None)


def _numbers() -> list[float | None]:
    """Returns what was reported last as numbers, which waits for the device."""
    return [None if value is None else float(value) for value in _latest()]


def _wait_for_arrays() -> None:
    """Waits for all arrays of this process, if it has imported JAX."""
    jax = sys.modules.get("jax")
    if jax is not None:
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()


def _jax_fields() -> dict[str, Any]:
    """Returns the fields of a `WorkerReport` that JAX tells, if the program has imported it."""
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    packages = loaded_packages()
    versions = {**packages.get("versions", {}), "jax": jax.__version__}
    fields = jax_report(jax, versions, range(len(jax.local_devices())))
    return {**fields, "packages": packages.get("packages")}


def _endless(batches: Iterable[T]) -> Iterator[T]:
    """Iterates over the batches again and again."""
    end = "none"
    while True:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            raise HookError(
                "the batches must last for a whole study or be ones that can be gone through "
                f"again, but they ended after {end}; give autotune.hook.steps a list, or a loader "
                "that starts anew"
            )
        end = "their first pass"
