"""Endings of programs, written anew in the shapes of public reports: each kind in at least eight shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autotune.model.measurement import Failure, FailureKind
from autotune.workers.failures import LAST_LINES, advice_on, classify_failure, last_lines, outside_in
from tests.tables import toml_beside

ENDINGS = toml_beside(__file__, "endings.toml")
CODE = "state = update(state)"
PIECES = {
    "steps": "".join(f"step {i} loss {4.0 - 0.1 * i:.2f}\n" for i in range(8)),
    "frames": "".join(f"    @     0x7f1c{i:08x}  xla::gpu::Frame{i}()\n" for i in range(70)),
    "check": "F0105 10:00:00.1  71 thunk.cc:80] Check failed: a == b\n",
    "thrown": "terminate called after throwing an instance of 'std",
    "allocator": "W0105 bfc_allocator.cc:501] Allocator ran out of memory trying to allocate 3GiB requested by op \n",
    "handled": "\nDuring handling of the above exception, another exception occurred:\n\n",
    "cause": "\nThe above exception was the direct cause of the following exception:\n\n",
    "threads": "".join(f'  File "/opt/lib/part{i}.py", line {i} in call_{i}\n' for i in range(60)),
    "cpu_note": "INFO:jax._src.xla_bridge:Unable to initialize backend 'cuda': no GpuAllocatorConfig\n",
}


def raised(text: str, before: str = "", code: str = CODE) -> str:
    """A traceback, with what a launcher writes before each line."""
    lines = ["Traceback (most recent call last):"]
    for number in (7, 8, 9):
        lines += [f'  File "/srv/job/train.py", line {number}, in step', f"    {code}"]
    return "".join(f"{before}{line}\n" for line in [*lines, *text.splitlines()])


TORCHRUN = raised(
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n==========\ntrain.py FAILED\n----------\n"
    "Root Cause (first observed failure):\n  rank      : 2 (local_rank: 2)\n  exitcode  : {code} (pid: 771)"
)


def ending(folder: Path, case: dict[str, Any]) -> Failure:
    """Classifies a program that wrote a text and ended, as a worker does."""
    pieces = PIECES | {"torchrun": TORCHRUN.format(code=case.get("exit", ""))}
    for name in {"raised", "then"} & set(case):
        pieces[name] = raised(case[name], case.get("before", ""), case.get("code", CODE))
    times, line = case.get("flood", (0, ""))
    log = folder / "worker.log"
    log.write_text(case.get("text", "{raised}").format_map(pieces | {"flood": times * line}))
    lines, status = last_lines(log), case["status"]
    told: Any = {"phase": "step", "error_type": None, "message": None}
    return classify_failure(exit_status=status, last_lines=lines, log=str(log), **told)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in ENDINGS for name in ENDINGS[group]["cases"]])
def test_an_ending_is_of_its_kind(group: str, name: str, tmp_path: Path) -> None:
    failure = ending(tmp_path, ENDINGS[group]["cases"][name])
    assert failure.kind == ENDINGS[group]["kind"], failure.message
    assert len(failure.last_lines) <= LAST_LINES + 4


@pytest.mark.parametrize("name", ["a check, and its frames", "a check in TensorFlow's form", "far above a flood"])
def test_the_reason_of_an_abort_is_its_message(name: str, tmp_path: Path) -> None:
    failure = ending(tmp_path, ENDINGS["abort"]["cases"][name])
    assert "Check failed" in failure.message
    assert failure.signal == "SIGABRT"


@pytest.mark.parametrize(("name", "signal"), [("srun", "SIGSEGV"), ("bash, kill", "SIGKILL"), ("make", "SIGSEGV")])
def test_the_signal_behind_a_launcher_is_named_beside_its_status(name: str, signal: str, tmp_path: Path) -> None:
    case = ENDINGS["launchers"]["cases"][name]
    failure = ending(tmp_path, case)
    assert (failure.signal, failure.exit_status) == (signal, case["status"])
    assert signal in failure.message


@pytest.mark.parametrize("name", ENDINGS["prefixed"]["cases"])
def test_the_exception_behind_a_prefix_is_the_message(name: str, tmp_path: Path) -> None:
    assert ending(tmp_path, ENDINGS["prefixed"]["cases"][name]).message == "ValueError: heads must divide"


@pytest.mark.parametrize("group", ["device_memory", "host_memory"])
def test_memory_of_the_host_is_not_that_of_the_device(group: str, tmp_path: Path) -> None:
    for case in ENDINGS[group]["cases"].values():
        failure = ending(tmp_path, case)
        assert (failure.kind is FailureKind.OUT_OF_MEMORY) is (group == "device_memory"), failure.message


def test_the_pool_of_the_host_has_advice_of_its_own(tmp_path: Path) -> None:
    failure = ending(tmp_path, ENDINGS["host_memory"]["cases"]["the host's pool"])
    assert failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" in advice_on(failure)


REMOTE = "E0105 10:00:00.1  7 nccl_utils.cc:211] Aborting communicator due to async NCCL error: remote process exited"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ((REMOTE,), "launch"),
        ((REMOTE, *LAST_LINES * ["step 4"]), None),
        (("srun: error: Node failure on n7",), "node_lost"),
        (("W0105 10:00:00.1  7 a.cc:2] waits",), None),
        ((), None),
    ],
    ids=["a peer", "long past", "a node", "a warning", "nothing"],
)
def test_a_hang_whose_reason_is_outside_is_of_the_outside(lines: tuple[str, ...], kind: str | None) -> None:
    assert outside_in(lines) == kind


def test_a_frame_is_kept_of_each_run_and_the_rest_is_left_in_the_log(tmp_path: Path) -> None:
    lines = ending(tmp_path, {"status": -6, "text": "{steps}F0105 a.cc:1] Check failed: x\n{frames}"}).last_lines
    assert len([line for line in lines if re.search(r"Frame\d+", line)]) == 1
    assert "step 0 loss 4.00" in lines
