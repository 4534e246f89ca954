"""Has a program that runs write a short trace, by a file that is put on its path."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import time
from pathlib import Path

from autotune.child import tracer
from autotune.child.tracer import Step
from autotune.machine.environment import caller_environment
from autotune.machine.files import replace_file
from autotune.model.files import plain_text
from autotune.model.flags import FlagSet
from autotune.workers.base import Launcher, Progress

TRACED_STEPS = 20  # length of a trace, within limits in seconds
SHORTEST_S = 0.5
LONGEST_S = 20.0

PATIENCE_S = 60.0  # after a trace, to write and read it


class NoTrace(Exception):
    """A trace could not be made; the message is the reason as a part of a sentence."""


def traced_step(launcher: Launcher, settings: FlagSet, folder: Path, *, progress: Progress) -> Step:
    """Returns what a started program does in a step; NoTrace or WorkerFailed without a trace."""
    place = folder / "trace"
    place.mkdir(exist_ok=True)
    result = place / tracer.DONE
    start = place / tracer.START
    result.unlink(missing_ok=True)
    start.unlink(missing_ok=True)
    (place / "sitecustomize.py").write_text(plain_text(Path(tracer.__file__)), encoding="utf-8")
    paths = [str(place), caller_environment().get("PYTHONPATH", "")]
    with contextlib.closing(launcher):
        launcher.opened = (place,)
        launcher.added = {
            tracer.FOLDER: str(place),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        worker = launcher.start(settings, folder, progress=progress)
        step_s = statistics.fmean(worker.run_block(TRACED_STEPS))
        seconds = min(LONGEST_S, max(SHORTEST_S, TRACED_STEPS * step_s))
        count = max(1, math.ceil(0.2 * seconds / step_s))
        until_s = time.monotonic() + seconds + PATIENCE_S
        replace_file(start, f"{seconds} {step_s}")
        while not result.exists():
            if time.monotonic() > until_s:
                raise NoTrace(
                    "no process of it that computes with JAX took PYTHONPATH from its environment"
                )
            # The newest time counts: a trace slows steps down, and so does a loaded machine.
            replace_file(start, f"{seconds} {statistics.fmean(worker.run_block(count))}")
    answer: Step = json.loads(plain_text(result))
    if "problem" in answer:
        raise NoTrace(answer["problem"])
    return answer
