"""The compile worker: lowers one training step once, compiles it under many flag sets.

XLA parses XLA_FLAGS once in a process, when it first compiles. So this process lowers the workload
for described devices, but compiles nothing; a fork for each set puts the set into its environment
and compiles. A compiler that aborts, hangs or exhausts the memory ends only its fork.

If a workload starts a JAX backend while it is built (``jnp.ones``), the flags of forks do nothing:
``ready`` says so. A process without ``lowers_first`` leaves building to each fork.

Messages over the channel (`autotune.child.channel`):

* in: ``job`` (once), then any number of ``compile``, then ``stop``;
* out: ``ready``, one ``compiled`` for each ``compile``, or ``error`` and the end. The results of a
  compilation are files in the folder that ``compile`` names.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.child.channel import Channel, Message, serve
from autotune.child.devices import jax_options
from autotune.child.fingerprint import (
    HLO,
    LOG,
    METADATA,
    OPTIONS,
    RESULT,
    THUNKS,
    collective_bytes,
    fingerprint,
    module_name,
    strip_hlo,
)
from autotune.child.guard import die_with_parent
from autotune.child.packages import installed_versions

Lower = Callable[[], Any]

ALL_PROCESSORS = os.sched_getaffinity(0)
"""Processors of this process at its start; a fork inherits those of the last order."""


def described_devices(job: Message) -> Sequence[Any]:
    """Compile-only devices of the described GPU, without starting a backend or parsing
    XLA_FLAGS.
    """
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda", target_config=job["target_config"], topology=job["topology"]
    )
    return list(described.devices)


def let_attention_ask(device: Any) -> None:
    """Makes JAX's fused attention use the capability of a described GPU; else it would assume one
    before Hopper.
    """
    from jax._src.cudnn import fused_attention_stablehlo as attention

    def version(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    has = version(device.compute_capability)
    for name, answer in (
        ("check_compute_capability", lambda least: has >= version(least)),
        ("is_cuda_compute_capability_equal", lambda wanted: has == version(wanted)),
    ):
        if hasattr(attention, name):
            setattr(attention, name, answer)


def abstract_arguments(workload: Any, entry: str, devices: Sequence[Any]) -> Any:
    """State and batch as shapes with shardings: the workload's own, or for one device those of its
    arrays.

    Raises:
        ValueError: If the workload does not define the shardings for several devices.
    """
    import jax

    if workload.abstract_state is not None and workload.abstract_batch is not None:
        return workload.abstract_state, workload.abstract_batch
    if len(devices) > 1:
        raise ValueError(
            f"workload `{entry}` must have `abstract_state` and `abstract_batch` "
            "(jax.ShapeDtypeStruct with "
            f"shardings) to be compiled for {len(devices)} devices that are not here; see "
            "workloads/base.py"
        )
    here = jax.sharding.SingleDeviceSharding(devices[0])
    shapes = jax.eval_shape(lambda: (workload.init(0), workload.batch(0)))
    placed = functools.partial(jax.ShapeDtypeStruct, sharding=here)
    return jax.tree.map(lambda leaf: placed(leaf.shape, leaf.dtype), shapes)


def prepare(job: Message) -> tuple[Lower, Message]:
    """Prepares the job before forks; returns a function that lowers the step, and facts for the
    driver.

    The fact ``is_touched`` tells whether the workload started a backend in this process.
    """
    import jax

    from workloads.base import jit_step
    from workloads.loading import load

    def lower() -> Any:
        devices = jax.devices() if job["platform"] == "cpu" else described_devices(job)
        if job["platform"] != "cpu":
            let_attention_ask(devices[0])
        workload = load(job["entry"], job["options"], devices)
        facts.update(workload.figures)
        return jit_step(workload).lower(*abstract_arguments(workload, job["entry"], devices))

    facts: Message = {"versions": installed_versions(["jax", "jaxlib"]), "is_touched": False}
    if not job["lowers_first"]:
        return lower, facts
    lowered = lower()
    if has_backend():
        return lower, {**facts, "is_touched": True}
    # MLIR's thread pool does not survive a fork, where serializing this module would wait for it.
    lowered.compiler_ir("stablehlo").context.enable_multithreading(False)
    return lambda: lowered, facts


def give_way(order: Message) -> None:
    """Sets priority and processors of this process, if the system lets it; threads that start later
    inherit both.
    """
    if (niceness := order.get("niceness", 0)) > os.getpriority(os.PRIO_PROCESS, 0):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, order.get("processors") or ALL_PROCESSORS)


def keep_to_limits(processor_s: float | None) -> None:
    """Limits the processor time (SIGXCPU), and makes the kernel end this process first when memory
    is short.
    """
    if processor_s is not None:
        seconds = math.ceil(processor_s)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1])
            )
            resource.setrlimit(
                resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
            )
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def has_backend() -> bool:
    """Returns whether a JAX backend was started in this process; True if unknown."""
    from jax._src import xla_bridge

    return bool(getattr(xla_bridge, "backends_are_initialized", lambda: True)())


def compile_in_fork(lower: Lower, order: Message, facts: Message) -> Message:
    """Compiles under one set in a fork; returns the fork's exit status and cost."""
    folder = Path(order["folder"])
    parent = os.getpid()
    started = time.perf_counter()
    with warnings.catch_warnings():
        # Python 3.12 warns of any fork with threads; those of MLIR are idle and not used again.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_fork(lower, order, facts, folder, parent)
    descriptor = os.pidfd_open(pid)
    try:
        ended = bool(select.select([descriptor], [], [], order["limit_s"])[0])
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    finally:
        os.close(descriptor)
    return {
        "exit_status": os.waitstatus_to_exitcode(status),
        "timed_out": not ended,
        "duration_s": time.perf_counter() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "host_bytes": usage.ru_maxrss * 1024,
    }


def _run_fork(lower: Lower, order: Message, facts: Message, folder: Path, parent: int) -> None:
    """Runs the fork; never returns."""
    status = 1
    try:
        die_with_parent(parent)
        give_way(order)
        keep_to_limits(order.get("processor_s"))
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["environment"])
        result: Message = {}
        try:
            result = _compile(lower, folder, is_cpu=order["is_cpu"])
            result["jax_options"] = jax_options(sys.modules["jax"], order["jax_options"])
            status = 0
        except Exception as error:
            result = {"error_type": type(error).__name__, "message": str(error)[:4000]}
            traceback.print_exc()
        (folder / RESULT).write_text(json.dumps({**facts, **result}), encoding="utf-8")
    finally:
        os._exit(status)  # no clean-up: it would wait for threads and locks of the parent


def _compile(lower: Lower, folder: Path, *, is_cpu: bool) -> Message:
    """Compiles, writes the program's text to the folder and returns its figures."""
    lowered = lower()
    started = time.perf_counter()
    compiled = lowered.compile()
    compile_s = time.perf_counter() - started
    text = compiled.as_text()
    figures: Message = {
        "compile_s": compile_s,
        "memory": None,
        "collective_bytes": collective_bytes(text),
    }
    if is_cpu:
        figures["fingerprint"] = fingerprint(compiled)
    else:
        figures["hlo_digest"] = hashlib.sha256(strip_hlo(text).encode()).hexdigest()
    memory = compiled.memory_analysis()
    if memory is not None:
        parts = ("argument", "output", "alias", "temp", "generated_code")
        figures["memory"] = {
            f"{p}_bytes": int(getattr(memory, f"{p}_size_in_bytes")) for p in parts
        }
    _keep_dumps(folder, module_name(text), "cpu" if is_cpu else "gpu")
    return figures


def _keep_dumps(folder: Path, module: str, platform: str) -> None:
    """Moves the files to read out of XLA's dump, whose text of a module has asynchronous starts,
    too.

    The step is the last module of its name: modules that a workload compiles while it is built come
    before.
    """
    for pattern, name in (
        (f"*{platform}_after_optimizations.txt", HLO),
        # With an empty command buffer list the passes do not run, and there is no file after them.
        ("*thunk_sequence.txt", THUNKS),
        ("*thunk_sequence_after_thunk_passes.txt", THUNKS),
        ("*thunk_metadata.txt", METADATA),
        ("debug_options", OPTIONS),
    ):
        for path in sorted((folder / "dump").glob(f"module_*.{glob.escape(module)}.{pattern}")):
            path.replace(folder / name)


def work(channel: Channel, job: Message) -> None:
    """Builds the job, then compiles until ``stop``."""
    give_way(job)
    lower, facts = prepare(job)
    channel.send("ready", **facts)
    while (order := channel.receive())["type"] == "compile":
        order["is_cpu"] = job["platform"] == "cpu"
        channel.send("compiled", **compile_in_fork(lower, order, facts))


if __name__ == "__main__":
    sys.exit(serve(work))
