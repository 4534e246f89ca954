"""What several tests of the driver need: simulated studies without a file, and a view that remembers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from autotune.machine.telemetry import NO_METER, NO_WATCH
from autotune.measure.compare import ComparisonRequest, Interleaved, StoppingRule
from autotune.measure.loss_gate import LossTrace
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind, Pair, WorkerReport, WorkPerStep
from autotune.model.records import AnyRecord, ConclusionRecord, TrialConfig
from autotune.model.spec import StudySpec, parse_study
from autotune.programs.variants import Variant
from autotune.results.conditions import Conditions
from autotune.results.winner import Winner
from autotune.rundir.store import RECORDS, Store
from autotune.settings.probe import ProbeReport
from autotune.settings.space import Parameter, SearchSpace
from autotune.stats.estimates import Estimate, estimate_pairs
from autotune.study.ab import Variants, prepare_variants
from autotune.study.driver import run_study
from autotune.study.run import StudyRun
from autotune.workers.base import Launcher, Progress, Worker, WorkerFailed
from harness.simulated import GivenSetup, given_run
from harness.simulated_machine import SimulatedLauncher, SimulatedWorker, parse_simulated
from harness.tally import tally_of

Found = TypeVar("Found")


def there(found: Found | None) -> Found:
    """What must be there."""
    assert found is not None
    return found


def interleaved_pairs(
    reference: Worker,
    candidate: Worker,
    stop: Callable[[list[float]], str | None],
    *,
    steps: int = 3,
    seed: int = 0,
    traces: list[LossTrace] | None = None,
) -> tuple[list[Pair], str]:
    """Interleaved pairs of two workers, and why they ended; their `traces` can be kept in a list."""
    spec = replay_study(study={"seed": seed})
    context: Any = SimpleNamespace(
        spec=spec,
        sizes=spec.block_sizes,
        steps_for=lambda worker: steps,
        settle_steps=0,
        now_s=1.5,
        folder=lambda: Path("nowhere"),
        meter=NO_METER,
        gpus=NO_WATCH,
        progress=SimpleNamespace(pair=lambda *_: None),
    )
    request = ComparisonRequest(candidate=FlagSet(), rule=StoppingRule(stop, estimate_pairs))
    both = (LossTrace(spec, reference), LossTrace(spec, candidate))
    if traces is not None:
        traces += both
    return Interleaved(context).run_blocks(request, both, seed="test")


class Noting(SimulatedLauncher):
    """Notes what it starts, and lets a test act before each start, by raising, or on the worker after it."""

    def __init__(
        self,
        spec: StudySpec,
        *,
        before: Callable[[FlagSet, Path], object] = lambda settings, folder: None,
        after: Callable[[SimulatedWorker, FlagSet, Path], object] = lambda worker, settings, folder: None,
    ) -> None:
        super().__init__(spec)
        self.started: list[tuple[FlagSet, Path]] = []
        self.before, self.after = before, after

    def start(self, settings: FlagSet, folder: Path, *, progress: Progress) -> SimulatedWorker:
        self.started.append((settings, folder))
        self.before(settings, folder)
        worker = super().start(settings, folder, progress=progress)
        self.after(worker, settings, folder)
        return worker

    @property
    def sets(self) -> list[FlagSet]:
        """What was started, without the share of the device's memory."""
        return [settings.without("XLA_CLIENT_MEM_FRACTION") for settings, _ in self.started]


def worker_report(**more: Any) -> WorkerReport:
    """What a worker tells of a program on one device of the CPU, without losses."""
    told = {"fingerprint": "f", "platform": "cpu", "device_kind": "k", "device_count": 1, "start_s": 0.0}
    return WorkerReport(**{**told, "losses": (), "grad_norms": (), "warmup_step_times_s": (0.1,), **more})


Times = tuple[float, ...]


def on_blocks(worker: SimulatedWorker, act: Callable[[Times, int], Times | None]) -> None:
    """Calls `act` with the times of each block and the number of steps before it; what it returns takes their place."""
    run, done = worker.run_block, 0

    def run_block(steps: int) -> Times:
        nonlocal done
        times, done = run(steps), done + steps
        return act(times, done - steps) or times

    worker.run_block = run_block  # type: ignore[method-assign]


def failed(kind: FailureKind, message: str = "m", *, is_outer: bool = False, **more: Any) -> WorkerFailed:
    """What a worker raises that fails in a step, or in a `phase`; `is_outer`: by no fault of its own."""
    failure = Failure.model_validate({"kind": kind, "message": message, "phase": "step", **more})
    return WorkerFailed(failure, infrastructure=is_outer)


def rewrite(run: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]] | None]) -> Store:
    """Changes the records of a run by hand, and opens it anew."""
    file = run / RECORDS
    records = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(r) + "\n" for r in change(records) or records))
    return Store.open(run)


def is_whole(run: Path, trials: int) -> None:
    """Every trial is there once, with its samples, and one conclusion."""
    tally = tally_of(run)
    assert (tally["trials"], tally["conclusions"]) == (trials, 1)
    assert tally["lost"] == tally["doubled"] == tally["sets_measured_twice"] == tally["trials_with_wrong_samples"] == 0


class Told:
    """Progress of a lane, kept."""

    def __init__(self) -> None:
        self.incidents: list[str] = []
        self.pairs: list[Pair] = []

    def phase(self, what: str) -> None: ...

    def pair(self, folder: Path, pair: Pair, work: WorkPerStep | None = None) -> None:
        self.pairs.append(pair)

    def incident(self, what: str) -> None:
        self.incidents.append(what)


class Diary:
    """A view that keeps what tests ask for."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.started: list[TrialConfig] = []
        self.pair_count = 0

    def stage(self, name: str, detail: str) -> None:
        self.stages.append(name)

    def phase(self, what: str, lane: str = "") -> None: ...

    def pair(self, ratios: list[float], lane: str = "") -> None:
        self.pair_count += 1

    def trial_starts(self, config: TrialConfig, asked: int) -> None:
        self.started.append(config)

    def result(self, record: AnyRecord) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


SPACE = SearchSpace(
    (
        Parameter(name="xla_a", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_b", choices=("0", "1", "2"), default="0"),
        Parameter(name="xla_c", choices=("0", "1"), default="0"),
        Parameter(name="xla_d", choices=("0", "1", "2"), default="0"),
    )
)


def asking(spec: StudySpec, trials: int) -> StudySpec:
    """The same study with another number of trials."""
    return spec.model_copy(update={"search": spec.search.model_copy(update={"trials": trials})})


def replay_study(**replay: Any) -> StudySpec:
    """A study of `SPACE` on a formula; the rest of the study under the key `study`."""
    more = replay.pop("study", {})
    return parse_simulated({"name": "replayed", "workload": {"entry": "llama"}, "simulation": replay, **more})


@pytest.fixture(autouse=True, scope="session")
def _own_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What studies learn for later ones stays in the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


Run = Callable[..., tuple[ConclusionRecord, Store, Diary]]


@pytest.fixture
def run_replay(tmp_path: Path) -> Run:
    """Runs a simulated study to its end, or goes on with it: `run_replay(spec, trials=..., folder=...)`."""

    def run(
        spec: StudySpec,
        *,
        trials: int = 12,
        folder: str = "run",
        first: tuple[tuple[str, FlagSet], ...] = (),
        storage: str | None = None,
        launcher: Launcher | None = None,
        budget_s: float | None = None,
        space: SearchSpace = SPACE,
    ) -> tuple[ConclusionRecord, Store, Diary]:
        search = spec.search.model_copy(update={"trials": trials, "time_budget": budget_s})
        setup = GivenSetup(given_space=space, first=first, given_launcher=launcher)
        diary = Diary()
        asked = spec.model_copy(update={"search": search})
        study = given_run(asked, tmp_path / folder, setup, diary, storage=storage)
        return run_study(study), study.store, diary

    return run


TYPED = Path(__file__).with_name("typed.toml").read_text(encoding="utf-8")
"""A study file of a simulated machine, on which one setting makes steps a tenth shorter."""

EFFECTS = {"xla_a=1": 0.95, "xla_b=1": 1.04, "xla_d=2": 0.97}


PROVEN = {
    "platform": "cuda",
    "device_kind": "NVIDIA H200",
    "device_count": 8,
    "jax": "0.11.1",
    "jaxlib": "0.11.1",
    "plugin": "jax-cuda12-plugin 0.11.1",
    "driver": "580.65.06",
    "workload": "0123456789ab",
}


def make_winner(settings: Mapping[str, str], **conditions: Any) -> Winner:
    """A winner with given settings, as one proven on eight H200 would be."""
    return Winner(
        study="eight",
        ended="2026-11-21T03:00:00+00:00",
        settings=FlagSet(settings),
        baseline=FlagSet(),
        estimate=Estimate(ratio=0.95, low=0.94, high=0.96, level=0.95, pair_count=5),
        sentence="5 % faster",
        workload_entry="llama3-8b",
        workload_options={"seq": 4096, "note": "two\nlines"},
        process_count=8,
        soaked_s=None,
        conditions=Conditions.model_validate(PROVEN | conditions),
        versions={"jax": "0.11.1", "jaxlib": "0.11.1"},
        machine="a CPU",
        run="eight",
    )


def record(path: Path, spec: StudySpec, *, trials: int, space: SearchSpace = SPACE) -> Store:
    """Runs a simulated study to its end; for runs that several tests only read."""
    run = given_run(asking(spec, trials), path, GivenSetup(given_space=space), Diary())
    run_study(run)
    return run.store


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run with a proven winner, failures and an inert setting; nearly without noise. To be read only."""
    spec = replay_study(
        effects=EFFECTS,
        inert=["xla_c=1"],
        failures={"xla_b=2": "out_of_memory"},
        noise={"white_sd": 1e-6},
        study={"baseline": {"NCCL_DEBUG": "WARN"}, "description": "a <b>study</b>"},
    )
    return record(tmp_path_factory.mktemp("runs") / "finished", spec, trials=40)


@pytest.fixture
def altered(tmp_path: Path) -> Callable[..., Path]:
    """Copies a run directory with facts of its machine changed: `altered(store, name, device_kind=...)`."""

    def copy(store: Store, name: str, *, versions: Mapping[str, str] | None = None, **reference: Any) -> Path:
        target = tmp_path / name
        target.mkdir()
        study = json.loads((store.path / "study.json").read_text())
        study["study"].update(reference.pop("study", {}), name=name)
        (target / "study.json").write_text(json.dumps(study))
        shutil.copy(store.path / RECORDS, target)

        def change(records: list[dict[str, Any]]) -> None:
            for record in records:
                if record["kind"] == "aa_run":
                    record["reference"].update(reference)
                if "provenance" in record:
                    record["provenance"]["versions"].update(versions or {})

        rewrite(target, change)
        return target

    return copy


# ---------------------------------------------------------------------- two builds

BUILDS_BASE = parse_study(
    {
        "name": "base",
        "workload": {"command": ["python", "train.py"], "read": {"pattern": r"step (?P<step>\d+)"}},
        "confirm": {"processes": 20},
    }
)


def make_build(python: str, jaxlib: str, **settings: str) -> Variant:
    report = ProbeReport(
        platform="cpu",
        jax=jaxlib,
        jaxlib=jaxlib,
        plugin=None,
        flags={},
        removed=frozenset(),
        jax_options={},
    )
    return Variant(command=(python, "train.py"), build=report, name=report.build, settings=FlagSet(settings))


BUILDS = (make_build("/old/python", "0.10.2"), make_build("/new/python", "0.12.0"))
OLD_BUILD = "option.script=old"
"""In `effects` and `failures` of `builds_session`: the script that runs under the old build."""


def builds_session(
    folder: Path, builds: tuple[Variant, Variant] = BUILDS, *, base: StudySpec = BUILDS_BASE, **simulation: Any
) -> tuple[StudyRun, Variants]:
    """A session that compares two builds on a simulated machine."""
    study, variants = prepare_variants(base, *builds, folder)
    old = f'option.script="{folder.with_name(f"{folder.name}-a.sh").absolute()}"'
    given = {k: {old if n == OLD_BUILD else n: x for n, x in v.items()} for k, v in simulation.items()}
    spec = parse_simulated({**study.model_dump(mode="json"), "simulation": given})
    return given_run(spec, folder, GivenSetup(given_space=SearchSpace(())), Diary()), variants
