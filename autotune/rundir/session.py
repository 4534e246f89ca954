"""One session of a driver, from its start to its end, in the run directory's records."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence

from autotune.machine import utc_now
from autotune.model import SessionRecord, SpanRecord, redact_command
from autotune.rundir.store import Store


@contextlib.contextmanager
def driver_session(store: Store, *, trials: int, command: Sequence[str]) -> Iterator[None]:
    """Records that a driver began, and that it ended, however it did; a killed one leaves no end.

    Args:
        store: The run directory, locked.
        trials: How many trials it was asked for, those of earlier sessions included.
        command: How it was called; secrets in it are not kept.
    """
    store.append(
        SessionRecord(
            identity=store.spec.identity,
            started=utc_now(),
            pid=os.getpid(),
            host=socket.gethostname(),
            asked_trials=trials,
            command=redact_command(command),
        )
    )
    began_s = time.process_time()
    try:
        with store.watch.ticking():
            yield
    finally:
        wall_s = store.watch.session_s
        own_s = min(wall_s, time.process_time() - began_s)
        store.append(SpanRecord(wall_s=wall_s, waited_s=wall_s - own_s, ended=utc_now()))
