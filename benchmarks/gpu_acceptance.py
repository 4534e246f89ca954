"""Everything once, on a machine with one or more NVIDIA GPUs, within nine minutes; raw results as one JSON file.

    python benchmarks/gpu_acceptance.py [--budget 540] [--out DIR] [--dry-run]

1. the GPUs and the installed build are asked; the settings of the study are judged;
2. every reference workload that fits runs a few steps: step time, memory, MFU;
3. a short study: one setting at a time on a GPT-2 step (Triton, command buffers, cuDNN, autotune level, latency-hiding
   scheduler ...), confirmed in fresh processes;
4. sets whose program is the reference's own are measured all the same: does an equal fingerprint mean no effect?
5. the study is compiled without the GPU: what did the screen say of each set, and what was measured?

The file is written anew after each part, so a run that is cut short still tells what it found. A dry run does all of it
on the CPU with tiny workloads, to show that the script works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.cli.live import LineView
from autotune.machine import describe_machine, environment
from autotune.machine.telemetry import open_watch
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.records import ConclusionRecord, FinalistResult, FloorResult
from autotune.model.spec import parse_study
from autotune.model.trial import TrialResult, TrialStatus
from autotune.rundir.store import Store
from autotune.settings.check import check_settings
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.study import Compared, StudyRun, fixed, new_run, noise_floor, probe, run_study
from autotune.workers.base import WorkerFailed
from autotune.workers.local import LocalLauncher
from harness.simulated import runner_of

STUDY = """
name = "gpu-acceptance"

[workload]
entry = "{entry}"
options = {options}

[device]
platform = "{platform}"
count = {count}

[search]
trials = {trials}
use_environment = false
settings = {{ {searched} }}

{first}

[measure]
pairs_cap = 24
start_limit_s = 150
block_limit_s = 60

[confirm]
finalists = 2
processes = 3
pairs = 10
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run on one kind of machine.

    Attributes:
        workloads: Entry and options of each workload, cheapest first.
        studied: Entry and options of the study's workload, options as TOML.
        sets: Named settings that the study tries, one at a time.
        smallest_s: Seconds that a study needs at least.
    """

    platform: str
    workloads: tuple[tuple[str, dict[str, Any]], ...]
    studied: tuple[str, str]
    sets: Mapping[str, Mapping[str, str | bool | int]]
    smallest_s: float


GPU = Plan(
    platform="cuda",
    workloads=(
        ("llama-small", {}),
        ("moe-small", {}),
        ("rssm-small", {}),
        ("long-small", {"mesh": {"context": 1}}),
        ("gpt2-124m", {"batch": 8, "remat": "none"}),
        ("dreamerv3-12m", {}),
        ("moe-80gb", {"layers": 4, "batch": 2}),
        ("llama-80gb", {"layers": 7, "batch": 4}),
    ),
    studied=("gpt2-124m", '{ batch = 8, seq = 512, remat = "none" }'),
    sets={
        "autotune level 0": {"xla_gpu_autotune_level": 0},
        "no Triton GEMM": {"xla_gpu_enable_triton_gemm": False},
        "no command buffers": {"xla_gpu_enable_command_buffer": ""},
        "cuDNN fusions": {"xla_gpu_cudnn_gemm_fusion_level": 1},
        "latency hiding": {"xla_gpu_enable_latency_hiding_scheduler": True},
        "no cuBLASLt": {"xla_gpu_enable_cublaslt": False},
        "collective thresholds": {"xla_gpu_all_reduce_combine_threshold_bytes": 134217728},
        "Triton softmax off": {"xla_gpu_experimental_enable_triton_softmax_priority_fusion": False},
    },
    smallest_s=120,
)
DRY = Plan(
    platform="cpu",
    workloads=(("llama-tiny", {}), ("moe-tiny", {})),
    studied=("llama-tiny", "{}"),
    sets={
        "older instructions": {"xla_cpu_max_isa": "SSE4_2"},
        "no fast mathematics": {"xla_cpu_enable_fast_math": False},
        "does not exist": {"xla_cpu_no_such_flag": True},
    },
    smallest_s=1,
)


class Report:
    """The results so far; written anew after each part, so that nothing is lost when the machine is taken away.

    Args:
        path: The JSON file.
        budget_s: Seconds that everything may take.
    """

    def __init__(self, path: Path, budget_s: float) -> None:
        self._path = path
        self._began = time.monotonic()
        self._budget_s = budget_s
        self.data: dict[str, Any] = {"provenance": describe_machine(), "budget_s": budget_s, "parts_s": {}}

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self._budget_s - (time.monotonic() - self._began)

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """Runs one part; what goes wrong in it is a result too."""
        began = time.monotonic()
        try:
            found = make()
        except Exception as error:  # a broken part must not cost the others
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        self.data["parts_s"][name] = round(time.monotonic() - began, 1)
        self.keep(name, found)
        return found

    def keep(self, name: str, found: Any) -> None:
        """Writes what is known of a part."""
        self.data[name] = found
        self.data["duration_s"] = round(time.monotonic() - self._began, 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.data, indent=1, default=str) + "\n", encoding="utf-8")


def machine(plan: Plan, folder: Path) -> dict[str, Any]:
    """The GPUs as NVML shows them, and what the installed build says of the study's settings."""
    watch = open_watch(environment.caller_environment())
    watch.look(folder)
    file = folder / "telemetry.jsonl"
    samples = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    platform: Any = plan.platform
    report = probe_build(environment.driver_python(), platform=platform)
    verdicts = {}
    for name, settings in plan.sets.items():
        found = list(check_settings(FlagSet(settings), KnownSettings(report)))
        verdicts[name] = [
            {"name": c.name, "value": c.value, "verdict": str(c.verdict), "starts": c.starts, "reason": c.reason}
            for c in found
        ]
    return {"gpus": samples, "build": report.build, "flag_count": len(report.flags), "settings": verdicts}


def workload(plan: Plan, entry: str, options: dict[str, Any], count: int, folder: Path) -> dict[str, Any]:
    """A few steps of one workload in a process of its own."""
    spec = parse_study(
        {
            "name": "workload",
            "workload": {"entry": entry, "options": options},
            "device": {"platform": plan.platform, "count": count},
            "measure": {"start_limit_s": 100, "block_limit_s": 40, "check_steps": 3, "warmup_steps": 3},
        }
    )
    launcher = LocalLauncher(spec, study_dir=str(folder), base=environment.caller_environment())
    place = folder / entry.replace(":", ".")
    place.mkdir(exist_ok=True)
    try:
        worker = launcher.start(FlagSet(), place, progress=lambda phase: None)
        times = worker.run_block(10)
        report = json.loads(worker.report.model_dump_json())
        shares = [m.share for m in worker.report.device_memory]
        return {"step_times_s": times, "device_memory_shares": shares, "report": report}
    except WorkerFailed as error:
        return {"failure": json.loads(error.failure.model_dump_json())}
    finally:
        launcher.close()


def workloads(
    plan: Plan, count: int, folder: Path, report: Report, reserve_s: float, console: Console
) -> dict[str, Any]:
    """All workloads, cheapest first, until so much time is left as the other parts need."""
    ran: dict[str, Any] = {}
    for entry, options in plan.workloads:
        if report.left_s < reserve_s:
            ran[entry] = {"skipped": "no time left"}
            continue
        console.print(f"workload {entry}", highlight=False)
        ran[entry] = workload(plan, entry, options, count, folder)
        report.keep("workloads", ran)
    return ran


def study_text(plan: Plan, verdicts: Mapping[str, Any], count: int) -> str:
    """The study as TOML: its sets as far as the installed build starts with them."""
    usable = {n: s for n, s in plan.sets.items() if all(v["starts"] for v in verdicts[n])}
    first = "\n".join(
        f"[[search.first]]\nname = {json.dumps(name)}\nsettings = {{ "
        + ", ".join(f"{n} = {json.dumps(v)}" for n, v in settings.items())
        + " }"
        for name, settings in usable.items()
    )
    searched = ", ".join(f"{n} = [{json.dumps(v)}]" for s in usable.values() for n, v in s.items())
    entry, options = plan.studied
    return STUDY.format(
        entry=entry, options=options, platform=plan.platform, count=count, trials=len(usable), first=first,
        searched=searched,
    )  # fmt: skip


def begin(text: str, folder: Path, budget_s: float | None, console: Console) -> StudyRun:
    """A session of the short study, made or gone on with."""
    spec, watch = parse_study(tomllib.loads(text)), Stopwatch()
    spec = spec.model_copy(update={"search": spec.search.model_copy(update={"time_budget": budget_s})})
    view = LineView(console, watch, sesoi=spec.measure.smallest_effect)
    return new_run(spec, folder / "run", study_dir=folder, view=view, watch=watch, command=sys.argv)


def study(text: str, folder: Path, budget_s: float, console: Console) -> tuple[dict[str, Any], Store]:
    """The short study, as a user would run it."""
    session = begin(text, folder, budget_s, console)
    conclusion, store, spec = run_study(session), session.store, session.spec
    records = [json.loads(r.model_dump_json(exclude_none=True)) for r in store.records()]
    raw = {
        r.directory: [json.loads(p.model_dump_json()) for p in store.pairs(r.directory)]
        for r in store.of(TrialResult)
        if r.directory
    }
    found = {"spec": spec.model_dump(mode="json"), "sentence": conclusion.sentence, "records": records, "pairs": raw}
    return found, store


def equal_programs(session: StudyRun, report: Report, reserve_s: float) -> list[dict[str, Any]]:
    """Sets whose program has the reference's fingerprint, measured in turns all the same."""
    rows = []
    probe(session)
    noise_floor(session)
    store, sesoi = session.store, session.spec.measure.smallest_effect
    same = [r for r in store.of(TrialResult) if r.status is TrialStatus.SAME_PROGRAM]
    starts = [r.worker.start_s for r in same if r.worker] or [30.0]
    try:
        for result in same[:3]:
            if report.left_s < reserve_s + 2.5 * max(starts) + 10:
                break
            folder = store.folder("floor", f"equal-{result.number}")
            measured: Compared[None] = runner_of(session).comparer.compare(
                result.settings, folder, name=f"equal-{result.number}", rule=fixed(16, sesoi=sesoi)
            )
            assert measured.comparison is not None
            found = measured.comparison.estimate
            rows.append(
                {
                    "settings": dict(result.settings),
                    "fingerprint": result.worker.fingerprint if result.worker else None,
                    "estimate": asdict(found),
                    "holds_one": found.low <= 1.0 <= found.high,
                }
            )
    finally:
        session.close()
    return rows


def screened(text: str, folder: Path, target: str | None, limit_s: float) -> dict[str, Any]:
    """What compiling alone says of the study's sets."""
    (folder / "study.toml").write_text(text, encoding="utf-8")
    command = [environment.driver_python(), "-m", "autotune", "screen", str(folder / "study.toml"), "--json"]
    command += ["--target", target, "--topology", "1x1"] if target else []
    env = {**environment.caller_environment(), "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(10, limit_s), check=False, env=env)
    if done.returncode != 0:
        return {"error": done.stderr[-2000:]}
    return dict(json.loads(done.stdout))


def agreement(store: Store, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Set by set: the screen's word, the fingerprint on the device, the measured effect."""
    by_settings = {FlagSet(s["settings"]): s for s in found.get("sets", [])}
    floor = store.last(FloorResult)
    rows = []
    for result in store.of(TrialResult):
        said = by_settings.get(result.settings)
        estimate = result.comparison.estimate if result.comparison else None
        rows.append(
            {
                "settings": dict(result.settings),
                "status": str(result.status),
                "failure": str(result.failure.kind) if result.failure else None,
                "screen_same_program": bool(said and said.get("same_as")) if said else None,
                "screen_to_measure": said.get("to_measure") if said else None,
                "device_same_program": (
                    result.worker.fingerprint == floor.reference.fingerprint if result.worker and floor else None
                ),
                "ratio": asdict(estimate) if estimate else None,
                "outlook": result.outlook_at(sesoi=store.spec.measure.smallest_effect),
            }
        )
    return rows


def target_of(gpus: list[dict[str, Any]]) -> str | None:
    """The name under which the screen knows this GPU, or None."""
    from autotune.compiler.targets import target_names

    name = str(gpus[0]["name"]).lower().replace(" ", "-") if gpus else ""
    known = sorted(target_names(), key=len, reverse=True)
    return next((t for t in known if all(part in name for part in t.split("-")[:1])), None)


def main() -> int:
    """Runs all parts as far as the time goes; the exit status says whether the study came to a conclusion."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--count", type=int, default=1, help="GPUs to use")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with tiny workloads")
    arguments = parser.parse_args()
    plan = DRY if arguments.dry_run else GPU
    console = Console(width=160, no_color=True)
    name = "gpu_acceptance_dry.json" if arguments.dry_run else "gpu_acceptance.json"
    report = Report(arguments.out / name, arguments.budget)
    with tempfile.TemporaryDirectory(prefix="autotune-acceptance-") as temporary:
        folder = Path(temporary)
        found = report.part("machine", lambda: machine(plan, folder))
        if "error" in found:
            return 1
        text = study_text(plan, found["settings"], arguments.count)
        reserve_s = max(plan.smallest_s, 0.55 * arguments.budget)
        report.part("workloads", lambda: workloads(plan, arguments.count, folder, report, reserve_s, console))
        stores: list[Store] = []

        def run() -> dict[str, Any]:
            result, store = study(text, folder, max(plan.smallest_s, 0.75 * report.left_s), console)
            stores.append(store)
            return result

        report.part("study", run)
        if not stores:
            return 1
        store, session = stores[0], begin(text, folder, None, console)
        report.part("equal_programs", lambda: equal_programs(session, report, 0.1 * arguments.budget))
        gpus = found["gpus"] if plan.platform == "cuda" else []
        said = report.part("screen", lambda: screened(text, folder, target_of(gpus), report.left_s - 5))
        report.part("agreement", lambda: agreement(store, said))
        conclusion, finalists = store.last(ConclusionRecord), store.of(FinalistResult)
    console.print(
        f"{conclusion.sentence if conclusion else 'no conclusion'} ({len(finalists)} finalists)", highlight=False
    )
    console.print(f"written to {arguments.out / name} after {report.data['duration_s']} s", highlight=False)
    return 0 if conclusion is not None else 1


if __name__ == "__main__":
    sys.exit(main())
