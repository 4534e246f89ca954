"""Processor time of the driver for each trial, with 1, 8 and 64 lanes: does it grow with the number of trials?

`python -m benchmarks.many_lanes` runs replayed studies of 1,000 trials and writes `benchmarks/results/many_lanes.json`
and `.svg`. Their lanes are in the driver's own process: what they do is not counted, what they say is carried as text
and read by the driver as it would be from a lane that is a process. That 64 lanes that are processes work is shown by
one study with them (`--processes 64`), of fewer trials, whose driver's whole processor time is told beside.

`--against FOLDER` (a checkout of another commit: `git worktree add FOLDER COMMIT`) runs the same there, in turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from autotune.cli.live import LineView
from autotune.cluster import JOINED, Message, Told
from autotune.cluster.engine import Engine
from autotune.model import Pair, Stopwatch, TrialResult
from autotune.study import Runner, StudyRun, choose_engine, new_run, parse_groups, run_study, study_with
from autotune.study.units import Assignment
from autotune.workers import ReplayLauncher

HERE = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
SAMPLERS = ("random", "tpe")
LANES = (1, 8, 64)
COLOURS = {1: "#1b6ca8", 8: "#2a8a4a", 64: "#b0413e"}
EVERY = 100
"""Trials of which one figure is told."""

STUDY = """
name = "many-lanes"
[workload]
entry = "llama"
options = {{ size = "small" }}
[device]
platform = "cpu"
[search]
trials = {trials}
sampler = "{sampler}"
groups = ["cpu"]
[measure]
pairs_cap = 16
[confirm]
finalists = 2
processes = 4
soak = 0
[replay.effects]
"xla_cpu_prefer_vector_width=512" = 0.97
"""


class InProcess:
    """Lanes in the driver's process; see `autotune.cluster.Engine`.

    Attributes:
        lanes_s: Processor seconds that lanes spent, saying what they say as text included.
    """

    words = "lanes in this process"

    def __init__(self, run: StudyRun, count: int) -> None:
        self.lanes_s = 0.0
        self._run = run
        joined = json.dumps({"type": JOINED, "host": socket.gethostname(), "devices": 1})
        self._said = deque((f"lane-{i}", joined) for i in range(count))
        self._units: deque[tuple[str, str]] = deque()
        self._runners: dict[str, Runner] = {}

    def begin(self, lane: str, message: Message) -> None:
        """Takes a unit."""
        self._units.append((lane, json.dumps(message)))

    def news(self, wait_s: float) -> list[Told]:
        """Has one lane do its unit, if all that was said is told."""
        if not self._said and self._units:
            began_s = time.process_time()
            self._do(*self._units.popleft())
            self.lanes_s += time.process_time() - began_s
        told = [Told(lane, json.loads(text)) for lane, text in self._said]
        self._said.clear()
        return told

    def _do(self, lane: str, text: str) -> None:
        run = self._run
        if lane not in self._runners:
            assert run.spec.replay is not None
            launcher = ReplayLauncher(run.spec.replay, seed=len(self._runners), platform="cpu")
            self._runners[lane] = Runner(run.spec, run.store, launcher, _Desk(self, lane))
        record = self._runners[lane].do(Assignment.model_validate(json.loads(text)["assignment"]))
        self.say(lane, {"type": "result", "record": record.model_dump(mode="json", exclude_none=True)})

    def say(self, lane: str, message: Mapping[str, Any]) -> None:
        """Takes what a lane says."""
        self._said.append((lane, json.dumps(message)))

    def folder(self, path: Path) -> list[str]:
        """A folder as messages have it."""
        return self._run.store.relative(path).split("/")

    def give_up(self, lane: str, why: str, *, for_good: bool = False) -> None:
        """Nothing to end."""

    def close(self, *, is_over: bool = False) -> None:
        """Nothing to end."""


class _Desk:
    """What one lane says on its way."""

    def __init__(self, engine: InProcess, lane: str) -> None:
        self._engine, self._lane = engine, lane

    def phase(self, what: str) -> None:
        self._engine.say(self._lane, {"type": "phase", "what": what})

    def pair(self, folder: Path, pair: Pair, work: object = None) -> None:
        message = {"type": "pair", "folder": self._engine.folder(folder), "pair": pair.model_dump(mode="json")}
        self._engine.say(self._lane, message)

    def incident(self, what: str) -> None:
        self._engine.say(self._lane, {"type": "incident", "what": what})


class Clocked(LineView):
    """Lines for nobody, and the driver's processor seconds at the end of each trial."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__(Console(file=Path(os.devnull).open("w", encoding="utf-8")), watch, min_effect=0.005)  # noqa: SIM115
        self.spent_s: list[float] = []
        self.engine: InProcess | None = None

    def trial_ends(self, result: TrialResult) -> None:
        """See `autotune.model.Callbacks`."""
        super().trial_ends(result)
        self.spent_s.append(time.process_time() - (self.engine.lanes_s if self.engine is not None else 0.0))


def drive(folder: Path, *, lanes: int, as_processes: bool) -> None:
    """Runs the study of a folder in this process, and writes down what the driver spent until each trial's end."""
    study = folder / "study.toml"
    spec = study_with(study, {}, effort="standard", seed=None)
    watch = Stopwatch()
    view = Clocked(watch)

    def in_process(run: StudyRun) -> Engine:
        view.engine = InProcess(run, lanes)
        return view.engine

    groups = parse_groups(",".join(map(str, range(lanes))))
    engine = choose_engine(spec, groups) if as_processes else in_process
    run_study(new_run(spec, folder / "run", study_dir=folder, view=view, watch=watch, make_engine=engine))
    (folder / "spent.json").write_text(json.dumps(view.spent_s), encoding="utf-8")


def spent(checkout: Path, *, sampler: str, lanes: int, trials: int, as_processes: bool = False) -> list[float]:
    """The driver's milliseconds for a trial, one figure for each hundred of a study.

    Raises:
        RuntimeError: If the study did not try all that was asked for.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "study.toml").write_text(STUDY.format(trials=trials, sampler=sampler), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(checkout), "XDG_DATA_HOME": name, "XDG_CACHE_HOME": name}
        code = (
            f"import sys, importlib.util as u; s = u.spec_from_file_location('many_lanes', {__file__!r}); "
            "m = u.module_from_spec(s); s.loader.exec_module(m); from pathlib import Path; "
            f"m.drive(Path({name!r}), lanes={lanes}, as_processes={as_processes})"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        ends = json.loads((folder / "spent.json").read_text()) if done.returncode == 0 else []
        if len(ends) != trials:
            raise RuntimeError(f"{checkout} must try {trials} sets but tried {len(ends)}: {done.stderr[-2000:]}")
    first = lanes + EVERY // 2  # every lane's first unit is behind it
    marks = list(range(first, trials, EVERY))
    return [round(1000 * (ends[b] - ends[a]) / EVERY, 3) for a, b in itertools.pairwise(marks)]


def growth(figures: Sequence[float]) -> float:
    """What a trial at the end costs, over what one near the start does: thirds of a study, by their medians."""
    third = max(1, len(figures) // 3)
    return round(median(figures[-third:]) / median(figures[:third]), 3)


def draw(series: Sequence[Mapping[str, Any]], file: Path) -> None:
    """The figures as a chart."""
    width, height, left, top, bottom = 760, 320, 60, 30, 40
    most = 1.1 * max(max(s["ms_per_trial"]) for s in series)
    count = max(len(s["ms_per_trial"]) for s in series)

    def at(i: float, ms: float) -> tuple[float, float]:
        return (
            round(left + (width - left - 150) * i / max(1, count - 1), 1),
            round(height - bottom - (height - bottom - top) * ms / most, 1),
        )

    parts = [f'<text x="{left}" y="18">milliseconds of the driver for a trial, over the number of trials</text>']
    for ms in range(0, int(most) + 1, max(1, round(most / 5))):
        x, y = at(0, ms)
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{ms}</text>')
        parts.append(f'<path d="M{x} {y}H{width - 150}" stroke="#ddd"/>')
    for i in range(count):
        parts.append(f'<text x="{at(i, 0)[0]}" y="{height - 22}" text-anchor="middle">{(i + 1) * EVERY}</text>')
    for s in series:
        figures, colour = s["ms_per_trial"], COLOURS[s["lanes"]]
        dash = "" if s["sampler"] == "random" else ' stroke-dasharray="6 4"'
        line = " ".join("{},{}".format(*at(i, ms)) for i, ms in enumerate(figures))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        x, y = at(len(figures) - 1, figures[-1])
        label = f"{s['sampler']}, {s['lanes']} lane{'s' if s['lanes'] > 1 else ''}"
        parts.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{label}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    file.write_text(f'{head}font-size="12">{"".join(parts)}</svg>\n', encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument(
        "--processes", type=int, default=64, help="lanes of the study whose lanes are processes; 0: none"
    )
    parser.add_argument("--process-trials", type=int, default=300)
    parser.add_argument("--against", type=Path, help="checkout of another commit that has lanes")
    parser.add_argument("--out", type=Path, default=RESULTS / "many_lanes.json")
    options = parser.parse_args(arguments)
    series = []
    for sampler in SAMPLERS:
        for lanes in LANES:
            found: dict[str, Any] = {"sampler": sampler, "lanes": lanes}
            if options.against is not None:
                before = spent(options.against.resolve(), sampler=sampler, lanes=lanes, trials=options.trials)
                found |= {"before_ms_per_trial": before, "before_growth": growth(before)}
            now = spent(HERE, sampler=sampler, lanes=lanes, trials=options.trials)
            found |= {"ms_per_trial": now, "growth": growth(now)}
            series.append(found)
            print(found, flush=True)
    result: dict[str, Any] = {"trials": options.trials, "series": series}
    if options.processes:
        began = time.monotonic()
        figures = spent(
            HERE, sampler="random", lanes=options.processes, trials=options.process_trials, as_processes=True
        )
        wall_s = round(time.monotonic() - began, 1)
        result["processes"] = {
            "lanes": options.processes, "trials": options.process_trials, "ms_per_trial": figures, "wall_s": wall_s,
        }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(series, options.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
