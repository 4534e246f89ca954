"""A simulated machine in place of real processes: a formula of known truth, with noise.

A run gets it through the product's one seam, `autotune.study.preflight.make_launcher`. In this
process `install` puts `make_launcher` of this module there; a driver of its own is started by
``python -m harness.simulated_machine run ...``, and its lanes, wherever they are, make their
launchers as the driver does. The machine's description is the file `simulation.toml` beside the
study file; a study without one runs for real.
"""

from __future__ import annotations

import hashlib
import math
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from autotune.cluster import submit
from autotune.cluster.submit import Program
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, WorkerReport
from autotune.model.records import MemoryUse
from autotune.model.sections import Section
from autotune.model.spec import StudySpec, parse_study
from autotune.model.stop import check_stop
from autotune.model.time_limits import TimeLimits
from autotune.rundir.store import FOLDERS
from autotune.study import preflight
from autotune.workers.base import Launcher, Progress, Worker, WorkerFailed
from autotune.workers.caches import Caches
from harness.noise import NOISE_MODELS, Machine, NoiseModel, Process

LOSSES = (6.5, 6.1, 5.8, 5.6, 5.5)
COMPILE_S, PEAK_BYTES, TOKENS = 2.0, 1 << 30, 4096
"""Of the reference, in a study whose formula speaks of them."""

BESIDE_S = 0.002
"""What our own clock sees of a block beside its steps."""

FILE = "simulation.toml"
SECTION = "simulation"


class Simulation(Section):
    """A simulated machine.

    Attributes:
        step_s: Step time of the reference, seconds.
        effects: ``"name=value"`` to the factor by which it multiplies the step time. A set with
            such a setting, with a factor of 1 too, is a candidate for the noise model.
        memory_effects: Likewise for the peak memory.
        compile_effects: Likewise for the compile time.
        token_effects: Likewise for the tokens of a step; without any, a worker reports no tokens.
        failures: ``"name=value"`` to the failure it causes, or several of them with spaces between:
            all together.
        inert: ``"name=value"`` entries that change nothing in the program.
        noise: Name of one of `NOISE_MODELS`, or parameters of a `NoiseModel`.
        start_s: Seconds that a process reports for its start; 0: unknown.
        told_effects: ``"name=value"`` to the factor by which a program tells its steps shorter than
            they are.
        delay_s: Real seconds that each start and each block take, so that a stop in mid-study can
            be tried.
    """

    step_s: Annotated[float, Field(gt=0)] = 0.03
    effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    memory_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    compile_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    token_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    failures: dict[str, FailureKind] = Field(default_factory=dict)
    inert: tuple[str, ...] = ()
    noise: str | dict[str, float] = "quiet"
    start_s: Annotated[float, Field(ge=0)] = 0.0
    told_effects: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    delay_s: Annotated[float, Field(ge=0)] = 0.0


class SimulatedStudy(StudySpec):
    """A study with the machine on which it runs; what is written down of it is the study alone."""

    simulation: Simulation = Field(default=Simulation(), exclude=True)


def parse_simulated(data: Mapping[str, Any]) -> SimulatedStudy:
    """A study given as plain data, its machine under the key ``simulation``.

    Nothing is screened unless the study says so.

    Raises:
        StudyFileError: If the study is not legal.
    """
    study = dict(data)
    simulation = Simulation.model_validate(study.pop(SECTION, {}))
    spec = parse_study({"screen": {"enabled": False}, **study})
    return SimulatedStudy.model_construct(
        spec.model_fields_set, **dict(spec), simulation=simulation
    )


def simulation_of(spec: StudySpec) -> Simulation:
    """The machine of a simulated study.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(spec, SimulatedStudy):
        raise TypeError(f"the study {spec.name} has no simulated machine")
    return spec.simulation


def write_study(file: Path, text: str) -> Path:
    """Writes a study file; its ``[simulation]``, in any place, goes into the file beside it."""
    study: list[str] = []
    machine: list[str] = []
    lines = study
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]").split(".", 1)
            lines = machine if table[0] == SECTION else study
            if lines is machine:
                machine += [f"[{table[1]}]"] if len(table) > 1 else []
                continue
        lines.append(line)
    file.write_text("\n".join([*study, ""]), encoding="utf-8")
    if len(machine) > 0:
        file.with_name(FILE).write_text("\n".join([*machine, ""]), encoding="utf-8")
    return file


def _place(folder: Path) -> str:
    """Names the folder of a process inside its run, whatever the run is called."""
    return f"run/{folder.name}" if folder.name in FOLDERS else "/".join(folder.parts[-2:])


class SimulatedLauncher(Launcher):
    """Starts workers whose step time is the product of their settings' factors.

    Args:
        spec: The study; it seeds the noise and says on which devices workers report to run.
        simulation: The machine; default: that of the study.
        seed: In place of the study's.

    Attributes:
        made: How many there were in this process.
    """

    made: ClassVar[int] = 0

    def __init__(
        self, spec: StudySpec, simulation: Simulation | None = None, *, seed: int | None = None
    ) -> None:
        SimulatedLauncher.made += 1
        self.simulation = simulation or simulation_of(spec)
        noise = self.simulation.noise
        model = NOISE_MODELS[noise] if isinstance(noise, str) else NoiseModel(**noise)
        self._device = spec.device
        is_work_unsaid = bool(spec.search.options) and spec.workload.tokens_per_step is None
        self._tells_tokens = bool(self.simulation.token_effects) or is_work_unsaid
        self._seed = spec.seed if seed is None else seed
        self._starts: Counter[str] = Counter()
        self.limits = TimeLimits()  # nothing hangs
        self.caches = Caches()
        self._machine = Machine(model, np.random.default_rng(self._seed))

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        """Makes a worker; see `autotune.workers.base.Launcher`."""
        simulation = self.simulation
        log = self.log(settings, folder)
        progress("compile")
        _wait(simulation.delay_s)
        entries = [f"{n}={v}" for n, v in settings.items()]
        losses: tuple[float, ...] = LOSSES
        for entry, kind in simulation.failures.items():
            if not all(e in entries for e in entry.split()):
                continue
            if kind is not FailureKind.WRONG_LOSS:
                message = f"simulated failure of {entry}"
                raise WorkerFailed(
                    Failure(kind=kind, message=message, phase="compile", log=str(log))
                )
            losses = tuple(x * 1.5 for x in LOSSES)
        step_s = _factor(simulation.effects, entries, start=simulation.step_s)
        seen = sorted(e for e in entries if e not in simulation.inert)
        # Two are started at once by two threads: what each draws must not depend on which comes
        # first.
        own = np.random.default_rng(list(self._name_of_start(_place(folder)).encode()))
        is_candidate = any(e in simulation.effects for e in entries)
        work = _factor(simulation.token_effects, entries)
        if work != 1.0:
            losses = _losses_of(losses, work)
        return SimulatedWorker(
            Process(self._machine, step_s=step_s, rng=own, is_candidate=is_candidate),
            self._report(entries, seen, losses),
            delay_s=simulation.delay_s,
            told=_factor(simulation.told_effects, entries),
        )

    def _name_of_start(self, folder: str) -> str:
        """Seed of a process: its folder, and the number of earlier processes there."""
        before = self._starts[folder]
        self._starts[folder] += 1
        return f"{self._seed}/{folder}" + (f"/{before}" if before else "")

    def log(self, settings: FlagSet, folder: Path) -> Path:
        """Writes what a worker's log would hold; returns the file."""
        log = folder / "worker.log"
        log.write_text(f"simulated: {settings}\n", encoding="utf-8")
        return log

    def close(self) -> None:
        """Takes the workers that are left off the machine."""
        self._machine.candidates.clear()

    def _report(
        self, entries: list[str], seen: list[str], losses: tuple[float, ...]
    ) -> WorkerReport:
        simulation = self.simulation
        peak, compile_s = simulation.memory_effects, simulation.compile_effects
        return WorkerReport(
            fingerprint=hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16],
            platform=self._device.platform,
            device_kind="simulated",
            device_count=self._device.count or 1,
            compile_s=COMPILE_S * _factor(compile_s, entries) if compile_s else 0.0,
            peak_bytes=round(PEAK_BYTES * _factor(peak, entries)) if peak else None,
            tokens_per_step=round(TOKENS * _factor(simulation.token_effects, entries))
            if self._tells_tokens
            else None,
            start_s=simulation.start_s,
            losses=losses,
            grad_norms=losses,
            warmup_step_times_s=(simulation.step_s,) * 3,
        )


def _factor(effects: Mapping[str, float], entries: Sequence[str], *, start: float = 1.0) -> float:
    return math.prod((effects.get(e, 1.0) for e in entries), start=start)


def _losses_of(losses: tuple[float, ...], work: float) -> tuple[float, ...]:
    """Losses of another batch: the reference's after as much work, but for other rows."""
    seen = [min(step * work, len(losses) - 1.0) for step in range(len(losses))]
    return tuple((1 + 1e-3 * work) * float(x) for x in np.interp(seen, range(len(losses)), losses))


class SimulatedWorker(Worker):
    """A worker that draws its step times; its memory does not grow."""

    last_memory: MemoryUse | None = MemoryUse(host_bytes=PEAK_BYTES)

    def __init__(
        self, process: Process, report: WorkerReport, *, delay_s: float, told: float = 1.0
    ) -> None:
        self.report = report
        self.process = process
        self._told = told
        self._delay_s = delay_s

    def run_block(self, steps: int) -> tuple[float, ...]:
        """Draws a block; see `autotune.workers.base.Worker`."""
        _wait(self._delay_s)
        self.last_loss = self.report.losses[-1] if self.report.losses else None
        times = self.process.run_block(steps)
        self.last_clock_s = float(times.sum()) + BESIDE_S
        return tuple((self._told * times).tolist())

    def close(self) -> None:
        """Leaves the machine: it is nobody's idle neighbour any more."""
        self.process.close()


def _wait(delay_s: float) -> None:
    if delay_s > 0:  # a sleep of no time still costs a turn of the processor
        time.sleep(delay_s)
        check_stop()


_make_real = preflight.make_launcher


def make_launcher(spec: StudySpec, study_dir: str, devices: Sequence[str] = ()) -> Launcher:
    """Makes the launcher of the machine described beside a study; real workers without one."""
    file = Path(study_dir) / FILE
    if not file.exists():
        return _make_real(spec, study_dir, devices)
    return SimulatedLauncher(
        spec, Simulation.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    )


def install() -> None:
    """Lets studies of this process, and of lanes that it starts, run on simulated machines."""
    preflight.make_launcher = make_launcher


class _Program(Program):
    """A batch job's driver that is this module, too."""

    @property
    def command(self) -> list[str]:
        python, _, _, *rest = super().command
        return [python, "-m", "harness.simulated_machine", *rest]


def main() -> None:
    """The command line of autotune, on simulated machines."""
    from autotune.cli.app import main as autotune_main

    install()
    submit.Program = _Program  # type: ignore[misc]
    autotune_main()


if __name__ == "__main__":
    from harness.simulated_machine import (
        main as main_of_module,
    )  # lanes find `make_launcher` by the module's name

    main_of_module()
