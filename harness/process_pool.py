"""A pool of processes that leaves none behind."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from autotune.child.guard import die_with_parent


def process_pool() -> ProcessPoolExecutor:
    """A pool of a process per processor, which ends with the thread that first uses it."""
    # Forked children would inherit the locks that the threads of whoever imports this hold.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(os.cpu_count(), spawn, die_with_parent, (os.getpid(),))
