"""Kills and stops what a study is made of, at chosen stages of it, and counts what is left.

Each study is started by the real command on lanes of one kind. Something of it is killed or
stopped, again and again, the driver is started again where it died, and at last the study is left
to finish. Then every trial must be there exactly once, in the run directory and in its Optuna
storage, every raw sample must be whole, and no process may live on.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from autotune.model.errors import STOPPED
from autotune.rundir.store import KEPT_RECORDS, RECORDS
from harness.driven import Driven
from harness.places import Here, Place
from harness.sandbox import Postgres
from harness.simulated_machine import write_study
from harness.tally import STAGES, stage_of, tally_in, tally_of

SIMULATED = """
name = "killed"
[workload]
entry = "llama"
[search]
trials = {trials}
sampler = "random"  # which makes all of them
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [0, 1, 2, 3]
xla_cpu_multi_thread_eigen = [true, false]
xla_cpu_enable_fast_math = [true, false]
xla_cpu_experimental_ynn_fusion_type = ["", "dot"]
[[search.first]]
name = "one that wins"
settings = {{ xla_backend_optimization_level = 1 }}
[measure]
pairs_cap = 12
[confirm]
processes = 3
finalists = 2
soak = "30s"
[simulation]
delay_s = {delay_s}
noise = "drift"
effects = {{ "xla_backend_optimization_level=1" = 0.9, "xla_cpu_prefer_vector_width=512" = 0.95 }}
failures = {{ "xla_backend_optimization_level=0" = "crash" }}
"""

# What is searched beats the baseline by far, so that a study has proofs and a soak.
REAL = """
name = "killed-real"
[workload]
entry = "harness.slow_unoptimised:build"
[search]
trials = {trials}
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [1, 2, 3]
[baseline]
xla_backend_optimization_level = 0
[measure]
pairs_cap = 12
block_s = 0.02
[confirm]
processes = 4
finalists = 1
isolated = 0
soak = "5s"
"""

AT_WORK = 0.85
"""Share of strikes for which the driver, where it has just been started again, is waited for until
it is at work.
"""

RESTARTS = 3
"""Times that a driver may end by itself because its reference, or every lane, was killed too
often.
"""


class Victim(NamedTuple):
    """What is struck, and how often compared with others."""

    name: str
    weight: float


ALONE = (Victim("driver", 5), Victim("SIGTERM", 1), Victim("SIGUSR1", 1), Victim("records", 1))
LANES = (*ALONE, Victim("lane", 4), Victim("frozen lane", 2))
MEASURING, DATABASE = Victim("process that measures", 3), Victim("database", 2)


@dataclass(kw_only=True)
class Killing:
    """One study that is struck until it ends.

    Args:
        folder: An empty one, for the study and its run directory.
        text: The study file, with places for ``trials`` and ``delay_s``.
        trials: Asked for.
        place: Where its lanes are.
        rng: Chooses when and whom.
        delay_s: Of a simulated block.
        database: Holds the Optuna study.
        stages: At which it is struck.

    Attributes:
        strikes: One entry for each: whom it struck, at which stage, and whether real workers were
            measuring.
    """

    folder: Path
    text: str
    trials: int
    place: Place
    rng: random.Random
    delay_s: float = 0.0
    database: Postgres | None = None
    stages: Sequence[str] = STAGES[:-1]
    strikes: list[dict[str, Any]] = field(default_factory=list, init=False)
    orphans: int = field(default=0, init=False)
    unfit_ends: int = field(default=0, init=False)
    _seen: tuple[int, str] = field(default=(0, STAGES[0]), init=False)

    def __post_init__(self) -> None:
        """Writes the study and starts its driver."""
        text = self.text.format(trials=self.trials, delay_s=self.delay_s)
        write_study(self.folder / "study.toml", text)
        self.driver = self._start()

    def _start(self) -> Driven:
        storage = ["--storage", self.database.url] if self.database is not None else []
        return self.place.start(self.folder, storage)

    def strike(self, most: int) -> None:
        """Strikes the study so often, at stages that chance chooses, or until it is over."""
        for stage in sorted(self.rng.choices(self.stages, k=most), key=STAGES.index):
            if not self._wait_until(stage) or self._stage() == STAGES[-1]:
                return
            if self.rng.random() < AT_WORK:
                self._wait_until_at_work()
            time.sleep(self.rng.uniform(0.0, self.place.longest_s))
            self._strike_now()

    def strike_after_the_end(self) -> None:
        """Goes on with a study that is over, and kills that driver on its way."""
        self.driver = self._start()
        time.sleep(self.rng.uniform(0.3, 2.0))
        if self.driver.is_running:
            self._note("driver")
            self.driver.tell(signal.SIGKILL)
            self._buried()
        self.driver = self._start()
        self.finish()

    def finish(self, limit_s: float = 900.0) -> None:
        """Lets the study come to its end.

        Raises:
            RuntimeError: If it ends with an error, with what it said.
            TimeoutError: If it does not end.
        """
        end = time.monotonic() + limit_s
        while self._goes_on():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.folder} has no conclusion after {limit_s:.0f} s: "
                    f"{self.driver.said[-3000:]}"
                )
            time.sleep(0.1)
        self.orphans += len(self.driver.left())

    def end(self) -> None:
        """Ends the driver, however far the study is."""
        if self.driver.is_running:
            self.driver.tell(signal.SIGKILL)

    # ------------------------------------------------------------------ the way of a study

    def _goes_on(self) -> bool:
        """Whether it still runs; restarts a study whose reference or lanes died, a few times.

        Raises:
            RuntimeError: If it ended with an error, with what it said.
        """
        if self.driver.is_running:
            return True
        status = self.driver.wait()
        if status == 0:
            return False
        self.unfit_ends += 1
        struck = {s["victim"] for s in self.strikes} & {
            "process that measures",
            "lane",
            "database",
            "frozen lane",
        }
        if status not in (2, STOPPED) or not struck or self.unfit_ends > RESTARTS:
            raise RuntimeError(f"the driver ended with {status}: {self.driver.said[-3000:]}")
        self.driver = self._start()
        return True

    def _stage(self) -> str:
        """Stage of the study, read only after new records, as it is asked many times a second."""
        recorded = self.driver.recorded
        if recorded != self._seen[0]:
            self._seen = recorded, stage_of(self.driver.run)
        return self._seen[1]

    def _wait_until(self, stage: str, patience_s: float = 600.0) -> bool:
        """Waits until the study is at a stage or past it; False if it is over before."""
        end = time.monotonic() + patience_s
        while self._goes_on() and time.monotonic() < end:
            if STAGES.index(self._stage()) >= STAGES.index(stage):
                return True
            time.sleep(0.02)
        return False

    def _wait_until_at_work(self, patience_s: float = 120.0) -> None:
        """Waits until this session has written something, and a process measures if need be."""
        end = time.monotonic() + patience_s
        is_stage = self._stage()
        while self._goes_on() and time.monotonic() < end and self._stage() == is_stage:
            if self.driver.has_written and (self.text != REAL or self.driver.measuring()):
                return
            time.sleep(0.05)

    # ------------------------------------------------------------------ strikes

    def _strike_now(self) -> None:
        """Strikes one of those that are there."""
        if not self.driver.is_running:
            return
        ways: dict[str, Callable[[], bool]] = {
            "driver": lambda: self._end_driver(signal.SIGKILL),
            "SIGTERM": lambda: self._end_driver(signal.SIGTERM),
            "SIGUSR1": lambda: self._end_driver(signal.SIGUSR1),
            "records": self._take_records,
            "lane": lambda: self._kill_one(list(self.driver.lanes().values()), "lane"),
            "frozen lane": self._freeze_lane,
            "process that measures": lambda: self._kill_one(
                self.driver.measuring(), "process that measures"
            ),
            "database": self._kill_database,
        }
        victims = [*(LANES if self.place.has_lanes else ALONE)]
        victims += [MEASURING] if self.text == REAL else []
        victims += [DATABASE] if self.database is not None else []
        while victims:
            chosen = self.rng.choices(victims, [v.weight for v in victims])[0]
            if ways[chosen.name]():
                return
            victims.remove(chosen)

    def _note(self, victim: str) -> None:
        self.strikes.append(
            {
                "engine": self.place.name,
                "victim": victim,
                "stage": self._stage(),
                "real_workers_measure": bool(self.driver.measuring()),
            }
        )

    def _end_driver(self, number: signal.Signals) -> bool:
        self._note("driver" if number is signal.SIGKILL else number.name)
        self.driver.tell(number)
        status = self._buried()
        expected = {
            0,
            -9 if number is signal.SIGKILL else STOPPED,
        }  # 0: it had just come to its end
        if number is not signal.SIGKILL:
            expected.add(-number)  # it had not yet begun to listen to signals
        if status not in expected:
            raise RuntimeError(
                f"after {number.name} the driver ended with {status}: {self.driver.said[-3000:]}"
            )
        self.driver = self._start()
        return True

    def _take_records(self) -> bool:
        """Takes the file of records away until the driver has ended, and puts them back."""
        records, kept, taken = (
            self.driver.run / name for name in (RECORDS, KEPT_RECORDS, "taken.jsonl")
        )
        self._note("records")
        records.rename(taken)
        status = self._buried()
        if status not in (0, 2) or (status == 2 and not kept.exists()):
            raise RuntimeError(
                f"without its records the driver ended with {status}: {self.driver.said[-3000:]}"
            )
        (kept if status == 2 else taken).replace(records)
        taken.unlink(missing_ok=True)
        self.driver = self._start()
        return True

    def _buried(self) -> int:
        """Waits for the driver's end and counts what lives on after it; gives its exit status."""
        status = self.driver.wait(60)
        left = self.driver.left()
        self.orphans += len(left)
        self.strikes[-1]["orphans"] = [" ".join(_command_of(p))[:200] for p in left]
        return status

    def _kill_one(self, living: list[psutil.Process], what: str) -> bool:
        if not living:
            return False
        self._note(what)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.rng.choice(living).kill()
        return True

    def _freeze_lane(self) -> bool:
        """A lane stands still for some seconds, and goes on as if nothing had been."""
        living = list(self.driver.lanes().values())
        if not living:
            return False
        victim = self.rng.choice(living)
        self._note("frozen lane")
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.suspend()
            time.sleep(self.rng.uniform(0.2, 4.0))
            victim.resume()
        return True

    def _kill_database(self) -> bool:
        assert self.database is not None
        self._note("database")
        kill_server(self.database)
        time.sleep(self.rng.uniform(0.0, 2.0))
        self.database.start()
        return True


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return [str(process.pid), process.status(), *process.cmdline()]
    except psutil.Error:
        return [str(process.pid)]


def kill_study(
    folder: Path,
    text: str,
    *,
    trials: int,
    strikes: int,
    rng: random.Random,
    place: Place | None = None,
    delay_s: float = 0.0,
    database: Postgres | None = None,
    stages: Sequence[str] = STAGES[:-1],
) -> dict[str, Any]:
    """Strikes one study, lets it finish, and returns the tally; arguments as in `Killing`."""
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(place or Here())
        study = Killing(
            folder=folder,
            text=text,
            trials=trials,
            place=here,
            rng=rng,
            delay_s=delay_s,
            database=database,
            stages=stages,
        )
        stack.callback(study.end)
        study.strike(strikes)
        study.finish()
        if strikes > 3:
            study.strike_after_the_end()
        found = {
            "strikes": study.strikes,
            "asked": trials,
            "orphans": study.orphans,
            "ended_as_unfit": study.unfit_ends,
            **tally_of(study.driver.run),
        }
        if database is not None:
            found["in_database"] = tally_in(database, trials)
        return found


def kill_server(database: Postgres) -> None:
    """Kills a database server and all its children."""
    first = int((database.root / "data" / "postmaster.pid").read_text().split()[0])
    server = psutil.Process(first)
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([server], timeout=10)
