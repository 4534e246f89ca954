"""The measuring worker: compiles a training step under its environment's flags, and runs blocks.

Messages of the channel are ``job`` (once), ``block`` and ``stop``; it sends ``phase`` while it
starts, ``ready`` (a `WorkerReport`), then ``block`` for each, or ``error``.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel, Message, serve
from autotune.child.devices import dtype_name, find_devices, jax_options, jax_report, memory_in_use
from autotune.child.fingerprint import CACHE_FOLDER
from autotune.child.packages import CUDA_PLUGINS, installed_versions, workloads_root

FEWEST_BATCHES = 4  # batches of the ring at least, however large one is
MOST_BATCHES = 64  # batches of the ring at most, so that later blocks make none
RING_BYTES = 64_000_000  # of all batches: many small ones, so that few repeat
SAMPLES = 8  # arrays of the state of which copies tell how far the first steps move it
SAMPLE_BYTES = 8_000_000  # largest size of one
FAR = 1e30  # stands for a distance that is no number


Arrays = list[Any]


class Job:
    """The compiled step with its state in one process of a trial."""

    def __init__(self, job: Message, enter: Callable[[str], None]) -> None:
        _refuse_missing(job["files"])
        enter("import")
        import jax

        from autotune.child.fingerprint import figures_of
        from workloads.base import jit_step
        from workloads.loading import load

        self._jax = jax
        if job["process_count"] > 1:
            jax.distributed.initialize(
                job["coordinator"],
                num_processes=job["process_count"],
                process_id=job["process_index"],
                # On CPU each rank makes its own devices.
                local_device_ids=[*_device_places(job, job["device_count"])]
                if job["platform"] == "cuda"
                else None,
                cluster_detection_method="deactivate",  # the driver has given everything
                coordinator_bind_address=job["coordinator_bind"],
            )
            # Of CPUs each rank knows its own, so that it would not find what rank 0 writes.
            jax._src.cache_key._hash_accelerator_config = lambda *_: None
        enter("build")
        devices = find_devices(jax, job["platform"])
        device_count = job["device_count"] or len(devices)
        if device_count > len(devices):
            raise ValueError(
                f"the study asks for {device_count} devices but this process sees {len(devices)} "
                f"({devices[0].device_kind}); lower `device.count` or make more devices visible"
            )
        workload = load(job["entry"], job["options"], devices[:device_count])
        step = jit_step(workload)
        enter("compile")
        self._state = workload.init(job["seed"])
        self._make_batch = workload.batch
        self._batches = [workload.batch(0)]
        self._ring = ring_length(sum(leaf.nbytes for leaf in jax.tree.leaves(self._batches[0])))
        self._next = 0
        compile_start = time.perf_counter()
        lowered = step.lower(self._state, self._batches[0])
        self._step = lowered.compile()
        compile_s = time.perf_counter() - compile_start
        enter("warm-up")
        before = sample_of(self._state)
        self.fill_ring(job["check_steps"] + job["warmup_steps"])
        checked = [self._advance() for _ in range(job["check_steps"])]
        losses = [float(metrics["loss"]) for metrics in checked]
        norms = [metrics.get("grad_norm", 0.0) for metrics in checked]
        state_change = distance(before, sample_of(self._state))
        warmup = self.run_block(job["warmup_steps"])
        gc.collect()
        gc.freeze()
        versions = {
            **installed_versions(["jax", "jaxlib", *CUDA_PLUGINS]),
            "python": platform.python_version(),
        }
        self.report = {
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # on CPU
            **jax_report(jax, versions, _device_places(job, device_count)),
            **figures_of(lowered, self._step),
            "device_count": device_count,
            "compile_s": compile_s,
            "losses": losses,
            "grad_norms": [float(norm) for norm in norms],
            "state_change": state_change,
            "state_arrays": len(jax.tree.leaves(self._state)),
            "dtype": dtype_name(workload.config.get("dtype")) or "float32",
            "loss_dtype": dtype_name(getattr(checked[-1]["loss"], "dtype", None)),
            "norm_dtype": dtype_name(getattr(norms[-1], "dtype", None)),
            "warmup_step_times_s": warmup,
            "temp_bytes": getattr(self._step.memory_analysis(), "temp_size_in_bytes", None),
            **workload.figures,
        }

    def _advance(self, *, fresh: bool = False) -> Any:
        batch = self._make_batch(self._next) if fresh else self._batches[self._next % self._ring]
        self._state, metrics = self._step(self._state, batch)
        self._next += 1
        return metrics

    def fill_ring(self, steps: int) -> None:
        """Makes the batches of the next steps that the ring lacks, so that no step waits for it."""
        end = min(self._next + steps, self._ring)
        batches = list(map(self._make_batch, range(len(self._batches), end)))
        self._jax.block_until_ready(batches)  # type: ignore[no-untyped-call]
        self._batches += batches

    def run_block(self, steps: int, *, fresh: bool = False) -> list[float]:
        """Runs steps and returns the seconds between their ends; the next one is always queued."""
        if not fresh:
            self.fill_ring(steps)
        gc.disable()
        ends = [time.perf_counter()]
        pending = self._advance(fresh=fresh)
        for _ in range(steps - 1):
            following = self._advance(fresh=fresh)
            pending["loss"].block_until_ready()
            ends.append(time.perf_counter())
            pending = following
        pending["loss"].block_until_ready()
        ends.append(time.perf_counter())
        gc.enable()
        self.loss = float(pending["loss"])
        self.grad_norm = float(pending["grad_norm"]) if "grad_norm" in pending else None
        return [after - before for before, after in itertools.pairwise(ends)]


def ring_length(batch_bytes: int) -> int:
    """Returns how many batches are kept: step n takes the n-th of them, counted round."""
    return min(MOST_BATCHES, max(FEWEST_BATCHES, RING_BYTES // max(1, batch_bytes)))


def sample_of(state: Any) -> Arrays:
    """Copies some floating-point arrays of a state to the host, small ones if there are any."""
    import jax
    import numpy as np

    arrays = [leaf for leaf in jax.tree.leaves(state) if hasattr(leaf, "dtype")]
    inexact = [x for x in arrays if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]
    small = [x for x in inexact if x.nbytes <= SAMPLE_BYTES] or inexact[:1]
    copies = []
    for leaf in small[:: -(-len(small) // SAMPLES) or 1]:
        shards = getattr(leaf, "addressable_shards", None)
        copies.append(np.array(shards[0].data if shards else leaf, dtype=np.float32))
    return copies


def distance(before: Arrays, after: Arrays) -> float:
    """Returns the root of the sum of squared differences between two samples of a state."""
    squares = sum(float(((b - a) ** 2).sum()) for b, a in zip(before, after, strict=True))
    return min(FAR, math.sqrt(squares))  # NaN is not below it


def work(channel: Channel, job: Message) -> None:
    """Builds the job and runs blocks until ``stop``."""
    built = Job(job, channel.enter)
    channel.send(
        "ready",
        report=built.report,
        # Those in force: a workload may set XLA_FLAGS or an option of JAX itself.
        values={name: os.environ.get(name) for name in job["variables"]},
        jax_options=jax_options(sys.modules["jax"], job["jax_options"]),
    )
    channel.phase = "step"
    while (message := channel.receive())["type"] == "block":
        times = built.run_block(message["steps"], fresh=message.get("fresh", False))
        channel.send(
            "block",
            step_times_s=times,
            loss=built.loss,
            grad_norm=built.grad_norm,
            memory=memory_in_use() if message.get("memory") else None,
        )


def prepare(channel: Channel, message: Message) -> None:
    """Imports what a later job needs, or takes over its variables; starts no backend."""
    if message["type"] == "import":
        with contextlib.suppress(Exception):  # the job finds out, and says so
            import jax

            if ":" not in message["entry"]:  # a module of the user's might start a backend
                sys.path.append(str(workloads_root()))
                from workloads import presets  # noqa: F401
        channel.send("imported")
        return
    import jax

    for name, value in message["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        if name == CACHE_FOLDER:
            jax.config.update("jax_compilation_cache_dir", value)  # type: ignore[no-untyped-call]


def _refuse_missing(files: Mapping[str, str]) -> None:
    """Raises FileNotFoundError if a file named by a setting is missing: XLA would ignore that."""
    for name, path in files.items():
        if not Path(path).exists():
            raise FileNotFoundError(
                f"what {name} names must be on every machine of a trial but {path} is not on "
                f"{platform.node()}; keep the run on a disk that all of them see"
            )


def _device_places(job: Message, device_count: int) -> range:
    """Returns the places of this rank's devices among those of its node."""
    each = device_count // job["process_count"]
    start = job["local_rank"] * each
    return range(start, start + each)


if __name__ == "__main__":
    sys.exit(serve(work, prepare))
