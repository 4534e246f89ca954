"""The compile worker: lowers one training step once, compiles it under many flag sets.

XLA parses XLA_FLAGS once in a process, when it first compiles. So this process lowers the workload
for described devices, and a fork for each set puts the set into its environment and compiles. A
compiler that aborts, hangs or exhausts the memory ends only its fork.

If a workload starts a JAX backend while it is built (``jnp.ones``), the flags of forks do nothing
(``is_touched``); without ``lowers_first`` each fork builds.

Messages of the channel are ``job`` (once), ``compile`` and ``stop``; it sends ``ready``, then
``compiled`` for each ``compile``, which names the folder of the results, or ``error``.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib
import json
import math
import os
import resource
import select
import signal
import sys
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

ALL_PROCESSORS = os.sched_getaffinity(0)  # a fork inherits the last order's


def described_devices(job: Message) -> Sequence[Any]:
    """Returns compile-only devices of the described GPU; starts no backend, parses no XLA_FLAGS."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda", target_config=job["target_config"], topology=job["topology"]
    )
    let_attention_ask(described.devices[0])
    return described.devices


def let_attention_ask(device: Any) -> None:
    """Makes JAX's fused attention use the capability of a described GPU, not one before Hopper."""

    def version(text: str) -> list[int]:
        return [int(number) for number in text.split(".")]

    capability = version(device.compute_capability)
    attention: Any = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    attention.check_compute_capability = lambda text: capability >= version(text)
    attention.is_cuda_compute_capability_equal = lambda text: capability == version(text)


def abstract_arguments(workload: Any, entry: str, devices: Sequence[Any]) -> Any:
    """Returns shapes and shardings of state and batch; ValueError if several devices need them."""
    import jax

    if workload.abstract_state is not None and workload.abstract_batch is not None:
        return workload.abstract_state, workload.abstract_batch
    if len(devices) > 1:
        raise ValueError(
            f"workload `{entry}` must have `abstract_state` and `abstract_batch` "
            f"(jax.ShapeDtypeStruct with shardings) to be compiled for {len(devices)} devices "
            "that are not here; see workloads/base.py"
        )
    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    shapes = jax.eval_shape(lambda: (workload.init(0), workload.batch(0)))
    struct: Any = jax.ShapeDtypeStruct
    return jax.tree.map(lambda leaf: struct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def prepare(job: Message) -> tuple[Lower, Message]:
    """Prepares the job before forks; returns a function that lowers the step, and facts."""
    import jax
    from jax._src import xla_bridge

    from workloads.base import jit_step
    from workloads.loading import load

    def lower() -> Any:
        devices = jax.devices() if job["platform"] == "cpu" else described_devices(job)
        workload = load(job["entry"], job["options"], devices)
        facts.update(workload.figures)
        return jit_step(workload).lower(*abstract_arguments(workload, job["entry"], devices))

    facts: Message = {"versions": installed_versions(["jax", "jaxlib"])}
    if not job["lowers_first"]:
        return lower, facts
    lowered = lower()
    facts["is_touched"] = xla_bridge.backends_are_initialized()
    if facts["is_touched"]:
        return lower, facts
    # MLIR's thread pool does not survive a fork, where serializing this module would wait for it.
    lowered.compiler_ir("stablehlo").context.enable_multithreading(False)
    return lambda: lowered, facts


def give_way(order: Message) -> None:
    """Sets priority and processors of this process and of threads that it starts, if it may."""
    niceness = order.get("niceness", 0)
    if niceness > os.getpriority(os.PRIO_PROCESS, 0):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, order.get("processors") or ALL_PROCESSORS)


def keep_to_limits(processor_s: float | None) -> None:
    """Limits the processor time (SIGXCPU); this process ends first when memory is short."""
    if processor_s is not None:
        limits = {resource.RLIMIT_CPU: math.ceil(processor_s), resource.RLIMIT_CORE: 0}
        for kind, limit in limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def compile_in_fork(lower: Lower, order: Message, facts: Message) -> Message:
    """Compiles under one set in a fork; returns the fork's exit status and cost."""
    parent = os.getpid()
    with warnings.catch_warnings():  # MLIR's threads are idle and not used again
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_fork(lower, order, facts, parent)
    descriptor = os.pidfd_open(pid)
    try:
        timed_out = not select.select([descriptor], [], [], order["limit_s"])[0]
        if timed_out:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
    finally:
        os.close(descriptor)
    return {
        "exit_status": os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "host_bytes": usage.ru_maxrss * 1024,
    }


def _run_fork(lower: Lower, order: Message, facts: Message, parent: int) -> None:
    """Runs the fork; never returns."""
    status = 1
    try:
        folder = Path(order["folder"])
        die_with_parent(parent)
        give_way(order)
        keep_to_limits(order.get("processor_s"))
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["environment"])
        try:
            facts |= _compile(lower, folder, is_cpu=order["is_cpu"])
            facts["jax_options"] = jax_options(sys.modules["jax"], order["jax_options"])
            status = 0
        except Exception as error:
            facts |= {"error_type": type(error).__name__, "message": str(error)[:4000]}
            traceback.print_exc()
        (folder / RESULT).write_text(json.dumps(facts), encoding="utf-8")
    finally:
        os._exit(status)  # a clean-up would wait for locks of the parent


def _compile(lower: Lower, folder: Path, *, is_cpu: bool) -> Message:
    """Compiles, writes the program's text to the folder and returns its figures."""
    compiled = lower().compile()
    text = compiled.as_text()
    figures: Message = {"memory": None, "collective_bytes": collective_bytes(text)}
    if is_cpu:
        figures["fingerprint"] = fingerprint(compiled)
    else:
        figures["hlo_digest"] = hashlib.sha256(strip_hlo(text).encode()).hexdigest()
    memory = compiled.memory_analysis()
    if memory is not None:
        figures["memory"] = {
            f"{kind}_bytes": int(getattr(memory, f"{kind}_size_in_bytes"))
            for kind in ("argument", "output", "alias", "temp", "generated_code")
        }
    _keep_dumps(folder, module_name(text), "cpu" if is_cpu else "gpu")
    return figures


def _keep_dumps(folder: Path, module: str, platform: str) -> None:
    """Moves the step's files out of XLA's dump; the step is the last module of its name."""
    for pattern, name in (
        (f"*{platform}_after_optimizations.txt", HLO),
        ("*thunk_sequence.txt", THUNKS),  # the only one with an empty command buffer list
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
