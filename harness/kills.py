"""Kills drivers, workers, their children and the database at random moments and counts what is left.

    python -m benchmarks.kill_tally [--kills 40] [--worker-kills 50] [--child-kills 6] [--real-kills 4] [--out FILE]

Each study is started by the real command, something of it is killed with SIGKILL after a random time and started
again, and at last it is left to finish. Then every trial must be there exactly once, in the run directory and in the
Optuna storage that mirrors it, every raw sample must be whole, and no process may live on.

* driver: the only driver of a replayed study, and of one with real worker processes;
* worker: one of four that share a replayed study and, if PostgreSQL is installed, a database;
* database: all its processes, meanwhile;
* child: a process that measures, reference or candidate, of a real study.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from autotune.model.blocks import log_ratio
from autotune.model.records import ConclusionRecord, ConfirmRun
from autotune.model.trial import TrialResult, TrialStatus
from autotune.rundir.mirror import NUMBER_KEY
from autotune.rundir.store import Store
from harness.sandbox import Postgres

ROOT = Path(__file__).parents[1]
MARK = "KILL_TALLY_RUN"

REPLAYED = """
name = "killed"
[workload]
entry = "llama"
[search]
trials = {trials}
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [0, 1, 2, 3]
xla_cpu_multi_thread_eigen = [true, false]
xla_cpu_enable_fast_math = [true, false]
xla_cpu_experimental_ynn_fusion_type = ["", "dot"]
[measure]
pairs_cap = 12
[confirm]
processes = 3
finalists = 2
pairs = 6
[replay]
delay_s = {delay_s}
noise = "drift"
effects = {{ "xla_backend_optimization_level=1" = 0.9, "xla_cpu_prefer_vector_width=512" = 0.95 }}
failures = {{ "xla_backend_optimization_level=0" = "crash" }}
"""

REAL = """
name = "killed-real"
[workload]
entry = "llama"
options = {{ size = "tiny" }}
[search]
trials = {trials}
use_environment = false
[search.settings]
xla_cpu_prefer_vector_width = [128, 256, 512]
xla_backend_optimization_level = [1, 2, 3]
[measure]
pairs_cap = 12
block_s = 0.02
[confirm]
processes = 3
finalists = 1
pairs = 6
"""


def survivors(mark: str) -> list[int]:
    """Living processes that were started, at whatever depth, by a run of this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def run(study: str, *, trials: int, kills: int, longest_s: float, seed: int, delay_s: float = 0.005) -> dict[str, Any]:
    """Kills one study so often, lets it finish, and gives the tally."""
    rng = random.Random(seed)
    mark = f"{os.getpid()}-{rng.random()}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(study.format(trials=trials, delay_s=delay_s), encoding="utf-8")
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "autotune", "run", str(file), "--run-dir", str(run_dir)]
        env = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}
        killed, orphans, seen = 0, 0, []
        while killed < kills:
            with (Path(folder) / "log").open("wb") as log:
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            # Most kills come when the study is on its way again, some while the driver is still starting.
            if rng.random() < 0.8:
                _wait_for_growth(run_dir, process, lines=rng.randint(1, 5))
            time.sleep(rng.uniform(0.0, longest_s))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
            elif process.returncode != 0:
                raise RuntimeError((Path(folder) / "log").read_text())
            process.wait()
            orphans += _left_after(mark)
            seen.append(_count(run_dir))
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return {
            "kills": killed,
            "orphans": orphans + _left_after(mark),
            "trials_after_each_kill": seen,
            **tally_of(run_dir),
        }


class Crew:
    """Four workers of one replayed study.

    Args:
        folder: Where the study, its run directory and the workers' output lie.
        trials: Trials in all.
        database: That mirrors the study, or None.
    """

    def __init__(self, folder: Path, *, trials: int, database: Postgres | None) -> None:
        self.run_dir = folder / "run"
        self.mark = f"{os.getpid()}-{folder.name}"
        self.asked = trials
        self._folder = folder
        self._storage = ["--storage", database.url] if database else []
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "study.toml").write_text(REPLAYED.format(trials=trials, delay_s=0.02), encoding="utf-8")
        self.start_all()

    def start_all(self) -> None:
        """Starts the four."""
        for i in range(4):
            self._start(f"w{i}")

    def _start(self, name: str) -> None:
        command = [sys.executable, "-m", "autotune", "worker", "study.toml", "--run-dir", str(self.run_dir)]
        command += ["--name", name, "--trials", str(self.asked), *self._storage]
        env = {**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT)}
        with (self._folder / f"{name}.log").open("wb") as log:
            self._workers[name] = subprocess.Popen(
                command, cwd=self._folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill_one(self, rng: random.Random) -> bool:
        """Kills one that lives and starts it again; False if none does."""
        running = [n for n, p in self._workers.items() if p.poll() is None]
        if running:
            victim = rng.choice(running)
            self._workers[victim].kill()
            self._workers[victim].wait()
            self._start(victim)
        return bool(running)

    def have_ended(self) -> bool:
        """Whether all ended of themselves; one that found no database when it began is started again.

        Raises:
            RuntimeError: If one ended with an error, with its output.
        """
        for name, process in list(self._workers.items()):
            if process.poll() not in (None, 0):
                said = (self._folder / f"{name}.log").read_text()
                if "the Optuna storage must be reachable" not in said:
                    raise RuntimeError(said)
                self._start(name)
        return all(p.poll() == 0 for p in self._workers.values())

    def wait(self) -> None:
        """Waits until the study is concluded."""
        end = time.monotonic() + 600
        while not self.have_ended():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.run_dir} has no conclusion after 600 s")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends all, however they are."""
        for process in self._workers.values():
            process.kill()


def run_workers(*, trials: int, kills: int, longest_s: float, seed: int, database: Postgres | None) -> dict[str, Any]:
    """Four workers share a study; one of them, or the database, is killed so often."""
    rng = random.Random(seed)
    tally = {"worker": 0, "database": 0}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        crew = Crew(Path(folder), trials=trials, database=database)
        stack.callback(crew.kill)
        while sum(tally.values()) < kills:
            time.sleep(rng.uniform(0.0, longest_s))
            if crew.have_ended():  # they were faster than the kills
                crew.asked += 20
                crew.start_all()
            if database is not None and rng.random() < 0.15:
                kill_server(database)
                time.sleep(rng.uniform(0.0, longest_s))
                database.start()
                tally["database"] += 1
            else:
                tally["worker"] += crew.kill_one(rng)
        crew.wait()
        found = {"kills": tally, "asked": crew.asked, "orphans": _left_after(crew.mark), **tally_of(crew.run_dir)}
        if database is not None:
            found["in_database"] = tally_in(database, crew.asked)
        return found


def run_children(*, trials: int, kills: int, longest_s: float, seed: int) -> dict[str, Any]:
    """A study with real processes, of which one that measures is killed so often."""
    rng = random.Random(seed)
    mark = f"{os.getpid()}-{rng.random()}"
    killed, starts = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        file, run_dir = Path(folder) / "study.toml", Path(folder) / "run"
        file.write_text(REAL.format(trials=trials), encoding="utf-8")
        command = [sys.executable, "-m", "autotune", "run", str(file), "--run-dir", str(run_dir)]
        env = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": folder}
        while True:
            starts += 1
            with (Path(folder) / "log").open("wb") as log:
                process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            while process.poll() is None:
                time.sleep(rng.uniform(0.5, longest_s) if killed < kills else 0.2)
                children = [p for p in survivors(mark) if _measures(p)] if killed < kills else []
                if children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(children), signal.SIGKILL)
                        killed += 1
            if process.returncode == 0:
                return {"kills": killed, "starts": starts, "orphans": _left_after(mark), **tally_of(run_dir)}
            if process.returncode != 2 or starts > kills:  # 2: the reference was killed too often; run it again
                raise RuntimeError((Path(folder) / "log").read_text())


def _measures(pid: int) -> bool:
    """Whether a process is one that measures, not its guard or driver."""
    try:
        return psutil.Process(pid).cmdline()[1:3] == ["-m", "autotune.child.measure"]
    except psutil.Error:
        return False


def _wait_for_growth(run_dir: Path, process: subprocess.Popen[bytes], *, lines: int, patience_s: float = 90.0) -> None:
    """Waits until the driver has written so many more records, or has ended."""
    file = run_dir / "records.jsonl"
    before = file.read_bytes().count(b"\n") if file.exists() else 0
    end = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < end:
        if file.exists() and file.read_bytes().count(b"\n") >= before + lines:
            return
        time.sleep(0.01)


def _left_after(mark: str, patience_s: float = 10.0) -> int:
    """How many processes are still there some seconds after the driver died."""
    end = time.monotonic() + patience_s
    while (alive := survivors(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(alive)


def _count(run_dir: Path) -> int:
    return len(Store.open(run_dir).of(TrialResult)) if (run_dir / "study.json").exists() else 0


def tally_of(run_dir: Path) -> dict[str, Any]:
    """What a finished run directory holds, and whether it agrees with itself."""
    store = Store.open(run_dir)
    results = store.of(TrialResult)
    wrong_samples = 0
    for result in results:
        pairs = list(store.pairs(result.directory)) if result.directory else []
        expected = result.comparison.pair_count if result.status is TrialStatus.MEASURED and result.comparison else 0
        if result.status is TrialStatus.MEASURED and (
            len(pairs) != expected or [p.index for p in pairs] != list(range(expected))
        ):
            wrong_samples += 1
        for pair in pairs:
            log_ratio(pair)
    confirmations = [(r.stage, r.settings, r.repeat) for r in store.of(ConfirmRun)]
    numbers = [r.number for r in results]
    return {
        "trials": len(results),
        "lost": len(set(range(1, len(results) + 1)) - set(numbers)),
        "doubled": len(numbers) - len(set(numbers)) + len(confirmations) - len(set(confirmations)),
        "sets_measured_twice": len(results) - len({r.settings for r in results}),
        "trials_with_wrong_samples": wrong_samples,
        "conclusions": len(store.of(ConclusionRecord)),
    }


def kill_server(database: Postgres) -> None:
    """Kills a database server and all its children."""
    first = int((database.root / "data" / "postmaster.pid").read_text().split()[0])
    server = psutil.Process(first)
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([server], timeout=10)


def tally_in(database: Postgres, asked: int) -> dict[str, int]:
    """What the one study of a database holds."""
    import optuna

    storage = optuna.storages.RDBStorage(database.url)
    (study,) = optuna.get_all_study_names(storage)
    numbers = [t.user_attrs[NUMBER_KEY] for t in optuna.load_study(study_name=study, storage=storage).trials]
    storage.engine.dispose()
    return {
        "trials": len(numbers),
        "lost": len(set(range(1, asked + 1)) - set(numbers)),
        "doubled": len(numbers) - len(set(numbers)),
    }
