"""Has a running JAX program write one short trace, and say what it does in a step.

The driver puts this file as ``sitecustomize`` into a folder that `FOLDER` names, first on the
program's path. A thread waits there for the file `START`, with the seconds to trace and those of a
step by the program's own clock, which the driver keeps up to date; it reads the trace (XPlane) and
writes `DONE`, one JSON object. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "AUTOTUNE_TRACE"
START = "start"
DONE = "done"
POLL_S = 0.05

OTHER = "other fusions and kernels"
COPIES = "copies"
IDLE = "idle"
_COMPUTE = {
    "attention": r"fmha|flash|sdpa|attention",
    "convolutions": r"conv(?!ert)|fprop|dgrad|wgrad",
    "matrix products": r"gemm|nvjet|cutlass|cublas|(?<![a-z])dot|matmul|[xy]nn_fusion|onednn",
    COPIES: r"memcpy|memset|(?<![a-z])copy",
}
_COLLECTIVES = {
    "all-reduce": r"all[-_]?reduce",
    "all-gather": r"all[-_]?gather",
    "reduce-scatter": r"reduce[-_]?scatter",
    "all-to-all": r"all[-_]?to[-_]?all",
    "send and receive": r"collective[-_]?permute|sendrecv|(?<![a-z])(?:send|recv)(?![a-z])",
    "other collectives": r"nccl|nvshmem|collective",
}
# Kinds of work; of those that run at the same moment the first counts.
ORDER = ("attention", "convolutions", "matrix products", OTHER, COPIES, *_COLLECTIVES)

CLOCK_ERROR = 1.4  # factor by which the number of steps may differ from the clock's
HIDDEN = ", hidden"  # added to a kind of collective while something else runs too
_AROUND = re.compile(r"(while|call|conditional)([._]\d+)?|end: .*")  # around others

# ``kinds`` of work and ``kernels`` in a step, each with its seconds and number (0 of a kind).
Step = dict[str, dict[str, tuple[float, float]]]


class Event(NamedTuple):
    """One kernel or operation that ran; times in seconds."""

    name: str
    kind: str
    start: float
    end: float


def kind_of(name: str, operation: str = "") -> str:
    """Returns the kind of a kernel by its name and by the HLO operation that it is of."""
    text = f"{operation} {name}".lower()
    kinds = {**_COLLECTIVES, **_COMPUTE}
    return next((kind for kind, pattern in kinds.items() if re.search(pattern, text)), OTHER)


def seconds_by_kind(events: Iterable[Event]) -> dict[str, float]:
    """Returns the seconds of each kind on one device; a moment is of the first kind of `ORDER`."""
    changes = [change for e in events for change in ((e.start, 1, e.kind), (e.end, -1, e.kind))]
    running = Counter[str]()
    seconds = defaultdict[str, float](float)
    before = 0.0
    for at, change, kind in sorted(changes):
        active = [name for name in ORDER if running[name] > 0 and at > before]
        for name in active:
            if name == active[0]:
                seconds[name] += at - before
            elif name in _COLLECTIVES and active[0] not in _COLLECTIVES:
                seconds[name + HIDDEN] += at - before
        running[kind] += change
        before = at
    return dict(seconds)


def device_events(planes: Iterable[Any]) -> list[Event]:
    """Returns the events of the first GPU's streams, or the operations of XLA's CPU threads."""
    by_name = {plane.name: plane for plane in planes}
    gpu = min((n for n in by_name if n.startswith("/device:GPU")), default=None)
    events = []
    for line in by_name[gpu or "/host:CPU"].lines:
        if gpu and not line.name.startswith("Stream"):
            continue  # XLA's own sums over streams
        for event in line.events:
            facts = dict(event.stats)
            is_work = gpu or ("hlo_op" in facts and facts.get("device_ordinal", 0) == 0)
            if is_work and not _AROUND.fullmatch(event.name):
                kind = kind_of(event.name, str(facts.get("hlo_op", "")))
                start = event.start_ns / 1e9
                events.append(Event(event.name, kind, start, start + event.duration_ns / 1e9))
    return events


def of_a_step(events: Sequence[Event], *, traced_s: float, step_s: float) -> Step:
    """Returns the seconds of a step in each kind of work, and seconds and number of each kernel.

    Many kernels run once in a step, so the number of steps is the most common count that `step_s`,
    by the program's own clock during the trace, allows. Names lose the numbers that XLA adds.
    """
    kernels = defaultdict[str, list[float]](list)
    for event in events:
        kernels[re.sub(r"[._]\d+$", "", event.name)].append(event.end - event.start)
    steps = traced_s / step_s
    counts = [len(durations) for durations in kernels.values()]
    near = [count for count in counts if 1 / CLOCK_ERROR < count / steps < CLOCK_ERROR]
    if near:
        steps = statistics.mode(near)
    kinds = seconds_by_kind(events)
    busy_s = sum(s for kind, s in kinds.items() if not kind.endswith(HIDDEN))
    kinds[IDLE] = max(0.0, traced_s - busy_s)
    return {
        "kinds": {kind: (seconds / steps, 0.0) for kind, seconds in kinds.items()},
        "kernels": {
            name: (sum(durations) / steps, len(durations) / steps)
            for name, durations in kernels.items()
        },
    }


def trace_when_asked(folder: Path) -> None:
    """Waits for `START`, and writes `DONE` if this process uses JAX: a step, or the problem."""
    start = folder / START
    while not start.exists():
        time.sleep(POLL_S)
    jax = sys.modules.get("jax")
    if jax is None or not getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", True):
        return
    place = folder / str(os.getpid())
    answer: object
    try:
        answer = _traced_step(jax.profiler, place, start)
    except Exception as error:
        answer = {"problem": f"{type(error).__name__}: {error}"}
    file = place.with_suffix(".json")
    file.write_text(json.dumps(answer))
    file.replace(folder / DONE)


def _traced_step(profiler: Any, place: Path, start: Path) -> Step:
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    profiler.start_trace(str(place), profiler_options=options)
    began_s = time.perf_counter()
    time.sleep(float(start.read_text().split()[0]))
    traced_s = time.perf_counter() - began_s
    step_s = float(start.read_text().split()[1])  # the newest
    profiler.stop_trace()
    trace = profiler.ProfileData.from_file(str(next(place.rglob("*.xplane.pb"))))
    return of_a_step(device_events(trace.planes), traced_s=traced_s, step_s=step_s)


def main() -> None:
    """Starts the thread, and lets the program's own ``sitecustomize`` follow."""
    folder = Path(os.environ[FOLDER])
    threading.Thread(target=trace_when_asked, args=(folder,), daemon=True).start()
    sys.path = [path for path in sys.path if Path(path) != folder]
    this = sys.modules.pop("sitecustomize")
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.modules.setdefault("sitecustomize", this)  # its import ends only now


if __name__ == "sitecustomize":
    main()
