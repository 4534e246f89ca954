"""Endings of programs, written anew in the shapes of public reports: each kind in at least eight shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.model.measurement import Failure, FailureKind
from autotune.workers.failures import LAST_LINES, classify_failure, last_lines

CRASH, MEMORY, LAUNCH, RAISED, NONE = (
    FailureKind.CRASH,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.LAUNCH,
    FailureKind.WORKLOAD_ERROR,
    FailureKind.NO_RESULT,
)
STEPS = "".join(f"step {i} loss {4.0 - 0.1 * i:.2f}\n" for i in range(8))
FRAMES = "".join(f"    @     0x7f1c{i:08x}  xla::gpu::Frame{i}()\n" for i in range(70))
JAX, CODE = "jax.errors.JaxRuntimeError: ", "state = update(state)"
CHECK = "F0105 10:00:00.1  71 thunk.cc:80] Check failed: a == b\n"
THROWN = "terminate called after throwing an instance of 'std"
ALLOCATOR = "W0105 bfc_allocator.cc:501] Allocator ran out of memory trying to allocate 3GiB requested by op \n"
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
THREADS = "".join(f'  File "/opt/lib/part{i}.py", line {i} in call_{i}\n' for i in range(60))
CPU_NOTE = "INFO:jax._src.xla_bridge:Unable to initialize backend 'cuda': no GpuAllocatorConfig\n"


def raised(text: str, before: str = "", depth: int = 3) -> str:
    """A traceback, with what a launcher writes before each line."""
    lines = ["Traceback (most recent call last):"]
    for i in range(depth):
        lines += [f'  File "/srv/job/train.py", line {i + 7}, in step', f"    {CODE}"]
    return "".join(f"{before}{line}\n" for line in [*lines, *text.splitlines()])


def ending(folder: Path, status: int, text: str, phase: str = "step") -> Failure:
    """Classifies a program that wrote a text and ended, as a worker does."""
    log = folder / "worker.log"
    log.write_text(text)
    lines = last_lines(log)
    return classify_failure(
        exit_status=status, phase=phase, error_type=None, message=None, last_lines=lines, log=str(log)
    )


TORCHRUN = raised(
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==========\ntrain.py FAILED\n----------\n"
    "Root Cause (first observed failure):\n  rank      : 2 (local_rank: 2)\n  exitcode  : {code} (pid: 771)"
)

SEGFAULT = {
    "on the CPU, where JAX says that it has no GPU": (-11, STEPS + CPU_NOTE),
    "by faulthandler": (
        -11,
        STEPS + "Fatal Python error: Segmentation fault\n\nThread 0x7f (most recent call first):\n" + THREADS,
    ),
    "after a port that was taken": (-11, "WARNING prometheus: [Errno 98] Address already in use, no metrics\n" + STEPS),
    "after a checkpoint in a folder with the word": (-11, "restored from /data/OOM-sweep/ckpt_100\n" + STEPS),
    "after a hint": (-11, "hint: lower the batch if you see out of memory errors\n" + STEPS),
    "after memory that was found again": (
        -11,
        raised("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: no room") + 4 * STEPS,
    ),
    "with frames of glibc": (-11, STEPS + 40 * "/lib/x86_64-linux-gnu/libc.so.6(+0x42520) [0x7f4a3c842520]\n"),
    "as a bus error": (-7, STEPS + "shm: insufficient\n"),
    "as an illegal instruction": (-4, CPU_NOTE),
    "after a logger's word": (
        -11,
        "2026-01-05 10:00:00,1 - bridge - INFO - Unable to initialize backend 'cuda':\n",
    ),
}  # fmt: skip
ABORT = {
    "a check, and its frames": (-6, STEPS + CHECK + "*** Check failure stack trace: ***\n" + FRAMES),
    "a check in TensorFlow's form": (-6, "2026-01-05 10:00:00.12: F xla/literal.cc:9] Check failed: shape\n" + FRAMES),
    "after a port that was taken": (-6, "WARNING: metrics: Address already in use\n" + CHECK),
    "after a word in a list of options": (-6, "options: on_oom=retry OOM guard off\n" + CHECK),
    "by C++": (-6, STEPS + THROWN + "::runtime_error'\n  what():  bad graph\n"),
    "by LLVM": (-6, "LLVM ERROR: Cannot select: 0x55: v4f32 = foo\n#0 0x00007f11 llvm::sys (/opt/lib.so+0x1)\n"),
    "an assertion of C": (-6, "python: pass.cc:12: void run(): Assertion `n > 0' failed.\n"),
    "a rendezvous that timed out": (-6, STEPS + "F0105 rendezvous.cc:96] Termination timeout of 40 s exceeded\n"),
    "far above a flood": (-6, CHECK + 300 * "W rank 3 waits\n"),
}  # fmt: skip
DEVICE_MEMORY = {
    "before many frames": (-6, STEPS + "E0105 pjrt.cc:9] Out of memory while trying to allocate 9 bytes.\n" + FRAMES),
    "as XLA raises it": (1, STEPS + raised(f"{JAX}RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")),
    "as it was raised": (1, raised("RuntimeError: Resource exhausted: Failed to allocate request for 1.50GiB")),
    "of a library": (1, raised("jax.errors.JaxRuntimeError: FAILED_PRECONDITION: DNN library initialization failed")),
    "of a handle": (1, "E0105 cuda_blas.cc:2] failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED\n"),
    "of NCCL": (1, "n1:7:7 [0] NCCL INFO init\nn1:7:9 [0] NCCL WARN CUDA error: out of memory\n"),
    "of torch": (1, raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")),
    "before what the allocator lists": (1, ALLOCATOR + 90 * "I0105 bfc_allocator.cc:9] Chunk at 7f of size 256\n"),
    "while a failure was handled": (1, raised(f"{JAX}RESOURCE_EXHAUSTED: no room") + HANDLED + raised("OSError: disk")),
    "behind a rank": (1, raised("jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: no room", "[rank3]: ")),
    "of a TPU": (1, raised("jax.errors.JaxRuntimeError: Ran out of memory in memory space hbm. Used 17G of 16G")),
}  # fmt: skip
HOST_MEMORY = {
    "by Python": (1, raised("MemoryError")),
    "by numpy": (1, raised("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.20 TiB for an array")),
    "by C++": (-6, THROWN + "::bad_alloc'\n  what():  std::bad_alloc\n"),
    "by the system": (1, raised("OSError: [Errno 12] Cannot allocate memory")),
    "by torch": (1, raised("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")),
    "by SLURM": (137, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some tasks have been OOM Killed.\n"),
    "by the kernel": (-9, "srun: error: n1: task 0: Out Of Memory\nslurmstepd: error: oom-kill event(s)\n"),
    "by Kubernetes": (137, "error: container trainer terminated: OOMKilled\n"),
    "in a worker of a loader": (1, raised("MemoryError", "[1,2]<stderr>:")),
}  # fmt: skip
NCCL = {
    text: (1, STEPS + raised(f"jax.errors.JaxRuntimeError: {text}", before))
    for text, before in {
        "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error": "",
        "INTERNAL: NCCL operation ncclCommInitRankConfig failed: unhandled system error": "3: ",
        "INTERNAL: NCCL operation ncclAllReduce failed: invalid usage": "[rank1]: ",
        "UNKNOWN: ncclInternalError: Internal check failed": "",
        "ABORTED: collective was aborted": "",
        "DEADLINE_EXCEEDED: all-gather waited 600 s": "(Worker pid=91) ",
        "INTERNAL: NCCL error: remote process exited or there was a network error": "",
    }.items()
} | {"logged": (1, STEPS + "n1:7:9 [0] ring.cc:3 NCCL WARN Call to connect failed: timeout\n")}
ADDRESS = {
    text: (1, STEPS + raised(f"{text}", before))
    for text, before in {
        "jax.errors.JaxRuntimeError: INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS: illegal": "",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to synchronize: CUDA_ERROR_ILLEGAL_ADDRESS": "",
        "__main__.main.<locals>.XlaRuntimeError: INTERNAL: CUDA_ERROR_MISALIGNED_ADDRESS": "",
        "XlaRuntimeError: INTERNAL: Failed to update CUDA graph: CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE": "7: ",
        "RuntimeError: CUDA error: an illegal memory access was encountered": "[rank0]: ",
        "XlaRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure": "",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorIllegalAddress: an illegal memory access": "",
    }.items()
} | {"logged": (1, STEPS + "E0105 10:00:00.1  7 stream.cc:3] failed to free memory: CUDA_ERROR_ILLEGAL_ADDRESS\n")}
NO_BACKEND = {
    text: (1, raised(text, before))
    for text, before in {
        "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices.": "",
        "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found": "0: ",
        "RuntimeError: Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present": "",
        "RuntimeError: Unknown backend cuda": "",
        "jax.errors.JaxRuntimeError: UNKNOWN: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected": "",
        "RuntimeError: no CUDA-capable device is detected": "[rank0]: ",
    }.items()
} | {
    "an assertion": (1, raised("AssertionError").replace(CODE, "assert _default_backend is not None")),
    "logged": (1, "E0105 cuda_platform.cc:51] failed call: CUDA_ERROR_NO_DEVICE: none\n"),
}  # fmt: skip
LAUNCHERS = {
    "bash, segmentation fault": (139, "run.sh: line 3: 4242 Segmentation fault      (core dumped) python train.py\n"),
    "bash, abort": (134, "run.sh: line 9:   77 Aborted                 (core dumped) python train.py\n"),
    "bash, kill": (137, "run.sh: line 3:  4242 Killed                  python train.py\n"),
    "bash that goes on": (1, "run.sh: line 3:  4242 Segmentation fault      python train.py\nthe job failed\n"),
    "bash that ends well": (0, "run.sh: line 3:  4242 Segmentation fault      python train.py\n"),
    "docker": (139, STEPS),
    "compose": (1, "trainer-1 exited with code 139\n"),
    "srun": (139, "srun: error: n1: task 3: Segmentation fault (core dumped)\nsrun: error: n1: tasks 0-2: Killed\n"),
    "mpirun": (1, "mpirun noticed that process rank 2 with PID 0 exited on signal 11 (Segmentation fault).\n"),
    "torchrun": (1, STEPS + TORCHRUN.format(code=-11)),
    "torchrun, abort": (1, STEPS + TORCHRUN.format(code=-6)),
    "deepspeed": (1, "[launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -6\n"),
    "a script of Python": (1, raised("subprocess.CalledProcessError: Command '[]' died with <Signals.SIGSEGV: 11>.")),
    "spawn of torch": (1, raised("ProcessExitedException: process 1 terminated with signal SIGSEGV")),
    "horovod": (1, "Process name: [[1,1],0]\nExit code:    139\n"),
    "supervisord": (1, "INFO exited: train (terminated by SIGSEGV; not expected)\n"),
    "make": (2, "make: *** [Makefile:3: train] Error 139\n"),
}  # fmt: skip
PREFIXED = {
    before: (1, STEPS + raised("ValueError: heads must divide", before) + raised("ConnectionResetError: peer", before))
    for before in ("0: ", "[rank0]: ", "[1,0]<stderr>:", "(Trainer pid=7, ip=10.0.0.3) ", "trainer-0  | ", "\x1b[31m")
} | {
    "the launcher's own traceback": (1, raised("ValueError: heads must divide", "[rank1]:") + TORCHRUN.format(code=1)),
    "time": (1, raised("ValueError: heads must divide", "2026-01-05T10:00:00.123456789Z ")),
    "peers that were killed": (137, raised("ValueError: heads must divide", "1: ") + "srun: error: task 0: Killed\n"),
    "a box of rich": (1, "╭─ Traceback (most recent call last) ─╮\n│ a.py:3 │\n╰──╯\nValueError: heads must divide\n"),
    "a cause": (1, raised("ValueError: heads must divide") + CAUSE + raised("RuntimeError: step failed")),
}  # fmt: skip
SILENT = {
    f"{before!r}{after}": (0, STEPS + raised("RuntimeError: collective mismatch", before) + after)
    for before in ("", "0: ", "[rank1]: ", "\x1b[31m")
    for after in ("", "wandb: run finished\n")
}
UNKNOWN = {
    "a status of its own": (3, "saving to /data/OOM study/ckpt\n"),
    "a limit of time": (124, STEPS),
    "a port that it did without": (3, "metrics: Address already in use, going on without\n"),
    "a backend that it did without": (3, "Unable to initialize backend 'cuda', going on with the CPU\n"),
    "a hint": (3, "lower the batch if you run out of memory: CUDA out of memory means that\n"),
    "a text of NCCL": (3, "n1:7:7 [0] NCCL INFO NET/IB : No device found\n"),
    "no status of a signal": (255, STEPS),
    "one line that names an exception": (1, "see ValueError: in the manual\n"),
}
KINDS = [
    (CRASH, SEGFAULT), (CRASH, ABORT), (MEMORY, DEVICE_MEMORY), (MEMORY, HOST_MEMORY), (CRASH, NCCL), (CRASH, ADDRESS),
    (LAUNCH, NO_BACKEND), (CRASH, LAUNCHERS), (RAISED, PREFIXED), (RAISED, SILENT), (NONE, UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [pytest.param(kind, *case, id=f"{kind}-{name}") for kind, cases in KINDS for name, case in cases.items()],
)
def test_an_ending_is_of_its_kind(kind: FailureKind, status: int, text: str, tmp_path: Path) -> None:
    failure = ending(tmp_path, status, text)
    assert failure.kind is kind, failure.message
    assert len(failure.last_lines) <= LAST_LINES + 4


@pytest.mark.parametrize("name", ["a check, and its frames", "a check in TensorFlow's form", "far above a flood"])
def test_the_reason_of_an_abort_is_its_message(name: str, tmp_path: Path) -> None:
    failure = ending(tmp_path, *ABORT[name])
    assert "Check failed" in failure.message
    assert failure.signal == "SIGABRT"


@pytest.mark.parametrize(("name", "signal"), [("srun", "SIGSEGV"), ("bash, kill", "SIGKILL"), ("make", "SIGSEGV")])
def test_the_signal_behind_a_launcher_is_named_beside_its_status(name: str, signal: str, tmp_path: Path) -> None:
    failure = ending(tmp_path, *LAUNCHERS[name])
    assert (failure.signal, failure.exit_status) == (signal, LAUNCHERS[name][0])
    assert signal in failure.message


@pytest.mark.parametrize("case", PREFIXED.values())
def test_the_exception_behind_a_prefix_is_the_message(case: tuple[int, str], tmp_path: Path) -> None:
    assert ending(tmp_path, *case).message == "ValueError: heads must divide"


def test_a_frame_is_kept_of_each_run_and_the_rest_is_left_in_the_log(tmp_path: Path) -> None:
    lines = ending(tmp_path, -6, STEPS + "F0105 a.cc:1] Check failed: x\n" + FRAMES).last_lines
    assert len([line for line in lines if re.search(r"Frame\d+", line)]) == 1
    assert "step 0 loss 4.00" in lines
