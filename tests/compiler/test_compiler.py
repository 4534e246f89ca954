"""Compiling that is stopped, and what killed processes leave behind."""

from __future__ import annotations

import threading
import time
from typing import Any

from autotune.compiler.compiler import Compiler
from autotune.model.errors import LaunchError
from autotune.model.flags import FlagSet


def test_compiling_that_is_stopped_ends_at_once_and_leaves_nothing(toy_job: Any) -> None:
    compiler = Compiler(toy_job(topology="1", target=None))
    thread_error: list[BaseException] = []

    def compile_many() -> None:
        try:
            for level in range(1000):
                list(compiler.compile([FlagSet({"xla_cpu_parallel_codegen_split_count": str(level + 1)})]))
        except LaunchError as error:
            thread_error.append(error)

    thread = threading.Thread(target=compile_many)
    thread.start()
    while not (workers := compiler.workers) or not hasattr(workers[0], "broken"):
        time.sleep(0.05)
    worker = workers[0]
    folder = worker._folder
    compiler.abort()
    thread.join(timeout=60)
    compiler.close()
    assert not thread.is_alive()
    assert "stopped" in str(thread_error[0])
    assert not folder.exists()
