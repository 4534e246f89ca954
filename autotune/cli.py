"""The commands; the only place that prints or exits. Heavy imports wait until a command needs them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune import cli_cluster, cli_flags, cli_results, cli_screen

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.pipeline import View
    from autotune.preflight import Preflight
    from autotune.records import ConclusionRecord
    from autotune.spec import StudySpec
    from autotune.store import Store

app = typer.Typer(
    name="autotune",
    help="Finds, proves and exports the fastest XLA / NCCL / JAX settings for a training step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RUNS = Path("runs")

STOPPED = 75
"""Exit status of a driver that was told to stop before the end (EX_TEMPFAIL of sysexits.h): run it again."""

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/quickstart.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (schema: `autotune schema`).")]


class EffortChoice(StrEnum):
    """How much measuring; see `autotune.spec.Effort`."""

    quick = "quick"
    standard = "standard"
    full = "full"


class ObjectiveChoice(StrEnum):
    """What a study goes by; see `autotune.spec.SearchSpec`."""

    measured = "measured"
    predicted = "predicted"


@app.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")],
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all, those of earlier sessions included.")
    ] = None,
    time_budget: Annotated[str | None, typer.Option(help="Wall time for the whole study, such as 30m or 8h.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar="AUTOTUNE_STORAGE",
            help="Optuna storage that mirrors the study: sqlite:///..., postgresql://..., journal:PATH.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of proposals, data and order.")] = None,
    effort: Annotated[EffortChoice, typer.Option(help="How much measuring.")] = EffortChoice.standard,
    soak: Annotated[bool, typer.Option(help="Run a winner for a while before it counts as proven.")] = True,
    screen: Annotated[
        bool | None, typer.Option("--screen/--no-screen", help="Compile before measuring; default: on GPUs.")
    ] = None,
    objective: Annotated[
        ObjectiveChoice | None, typer.Option(help="predicted: compile only, nothing is measured, no GPU needed.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="GPU that is compiled for (`autotune targets list`).")] = None,
    topology: Annotated[str | None, typer.Option(help="Nodes x GPUs on each, such as 8x8.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Runs a study, or goes on with it where it was stopped."""
    from autotune.spec import Effort, load_study

    given: dict[str, dict[str, Any]] = {
        "search": {"trials": trials, "time_budget": time_budget, "objective": objective and objective.value},
        "screen": {"enabled": screen, "target": target, "topology": topology},
        "confirm": {"soak": None if soak else 0},
    }
    spec = _override(load_study(study).at_effort(Effort(effort.value)), given, seed=seed)
    path = run_dir or RUNS / spec.name
    if not as_json and (screen, objective, target, topology) == (None,) * 4:  # what a worker can be told, too
        options = cli_cluster.shared_options(
            trials=trials, time_budget=time_budget, seed=seed, effort=effort.value, soak=soak
        )
        cli_cluster.fan_out(spec, study, path, options, storage=storage)
    _run_and_print(spec, study, path, storage=storage, as_json=as_json)


@app.command()
def worker(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")],
    run_dir: Annotated[
        Path | None, typer.Option(help="Run directory that all workers share; default runs/NAME.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="What this worker owns, such as 0-3: GPUs, or cores in a study on CPUs.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker; default: its machine and devices.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials in all, over all workers.")] = None,
    time_budget: Annotated[str | None, typer.Option(help="Wall time for the whole study, such as 30m or 8h.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar="AUTOTUNE_STORAGE",
            help="Optuna storage that mirrors the study: sqlite:///..., postgresql://..., journal:PATH.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of proposals, data and order.")] = None,
    effort: Annotated[EffortChoice, typer.Option(help="How much measuring.")] = EffortChoice.standard,
    soak: Annotated[bool, typer.Option(help="Run a winner for a while before it counts as proven.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Joins a study that several workers share, on this machine and others, and stays until its conclusion.

    Ends with status 75 if it was told to stop (SIGTERM, SIGUSR1) before; what it had begun is given to the others.
    """
    import socket

    from autotune import environment
    from autotune.errors import StudyFileError
    from autotune.slots import parse_devices, worker_name
    from autotune.spec import Effort, load_study

    given: dict[str, dict[str, Any]] = {
        "search": {"trials": trials, "time_budget": time_budget},
        "confirm": {"soak": None if soak else 0},
    }
    spec = _override(load_study(study).at_effort(Effort(effort.value)), given, seed=seed)
    if spec.is_predicted:
        raise StudyFileError("several workers share a study that is measured but this one is predicted; autotune run")
    own = parse_devices(devices) if devices else ()
    if own and spec.replay is None:
        environment.restrict(spec.device.platform, own)
    called = name or worker_name(environment.caller(), socket.gethostname(), own)
    _run_and_print(
        spec, study, run_dir or RUNS / spec.name, storage=storage, as_json=as_json, worker=called, devices=own
    )


def _run_and_print(
    spec: StudySpec,
    study: Path,
    path: Path,
    *,
    storage: str | None,
    as_json: bool,
    worker: str | None = None,
    devices: tuple[str, ...] = (),
) -> None:
    """Runs a study to its conclusion and prints that, or says how to go on."""
    try:
        with _stoppable():
            conclusion, store = _run(
                spec, study, path, storage=storage, as_json=as_json, worker=worker, devices=devices
            )
    except KeyboardInterrupt as error:
        print(
            f"\nautotune: stopped; everything so far is in {path}; run the same command again to go on", file=sys.stderr
        )
        raise typer.Exit(STOPPED if isinstance(error, _Stopped) else 130) from None
    if as_json:
        _print_json({**json.loads(conclusion.model_dump_json()), "run": str(path)})
    else:
        _print_results(store, conclusion, path, study)


class _Stopped(KeyboardInterrupt):
    """A signal asks for a clean stop: a time limit comes near, a job is pre-empted."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turns the signals of batch systems into a clean stop."""

    def stop(number: int, frame: object) -> None:
        for other in old:  # the second signal must not interrupt the cleaning up after the first
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped

    old = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _override(spec: StudySpec, given: dict[str, dict[str, Any]], *, seed: int | None) -> StudySpec:
    """The study with what the command line gives instead of the file (None gives nothing), checked like the file."""
    from autotune.spec import parse_study

    data = spec.model_dump()
    for section, values in given.items():
        data[section].update({key: value for key, value in values.items() if value is not None})
    if seed is not None:
        data["seed"] = seed
    return parse_study(data, source="the study with the options of the command line")


def _run(
    spec: StudySpec,
    study: Path,
    path: Path,
    *,
    storage: str | None,
    as_json: bool,
    worker: str | None,
    devices: tuple[str, ...],
) -> tuple[ConclusionRecord, Store]:
    """Preflight, then all stages; what is printed meanwhile goes to stderr if stdout is for JSON."""
    from autotune.predicted import moved
    from autotune.preflight import prepare
    from autotune.slots import held
    from autotune.store import Stopwatch, Store
    from autotune.view import LineView, LiveView

    console = _console(stderr=as_json)
    early = LineView(console, Stopwatch())
    ready = prepare(moved(spec) if spec.is_predicted else spec, storage=storage, note=early.line)
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(spec.device.platform, _to_hold(spec, devices)))
        store = Store.create_or_resume(path.resolve(), spec, study_dir=study.resolve().parent, worker=worker)
        stack.callback(store.close)
        budget = spec.search.time_budget
        live = LiveView(console, store.watch, name=spec.name, budget_s=budget) if console.is_terminal else None
        view = live or LineView(console, store.watch)
        with live or contextlib.nullcontext():
            conclusion = (_all_predicted if spec.is_predicted else _all_stages)(store, ready, view)
        return conclusion, store


def _to_hold(spec: StudySpec, devices: tuple[str, ...]) -> tuple[str, ...]:
    """The devices that no other study of this machine may use meanwhile.

    Two studies on the cores of one CPU disturb each other but are allowed, unless they named theirs. A SLURM job's
    devices are its own already, and may be numbered from 0 in two jobs at once.
    """
    from autotune import environment
    from autotune.slots import parse_devices

    if spec.replay is not None or spec.is_predicted or "SLURM_JOB_ID" in environment.caller():
        return ()
    if devices or spec.device.platform != "cuda":
        return devices
    visible = environment.visible_gpus()
    return parse_devices(visible) if visible else ()


def _all_stages(store: Store, ready: Preflight, view: View) -> ConclusionRecord:
    """Everything that a measured study does."""
    from functools import partial

    from autotune.pipeline import run_study
    from autotune.screening import screening

    with screening(store, view) as screen:
        return run_study(
            store,
            ready.bench(store, view, screen),
            partial(ready.proposer, screening=screen),
            trials=store.spec.search.trials,
            time_budget_s=store.spec.search.time_budget,
            view=view,
            command=sys.argv,
        )


def _all_predicted(store: Store, ready: Preflight, view: View) -> ConclusionRecord:
    """Everything that a study does of which nothing is measured."""
    from autotune.predicted import run_predicted
    from autotune.screening import Screening

    with contextlib.closing(Screening(store, view)) as screen:
        return run_predicted(
            store,
            screen,
            ready.predicted_proposer,
            trials=store.spec.search.trials,
            time_budget_s=store.spec.search.time_budget,
            view=view,
            command=sys.argv,
        )


def _print_results(store: Store, conclusion: ConclusionRecord, path: Path, study: Path) -> None:
    """The table, the one sentence, where everything lies, what to type next."""
    from autotune.confirm import more_processes
    from autotune.records import Outcome, SpanRecord
    from autotune.tables import study_tables
    from autotune.units import format_seconds, format_share
    from autotune.view import conclusion_style

    console = _console()
    console.print()
    for results in study_tables(store):
        console.print(results)
    console.print()
    console.print(conclusion.sentence, style=conclusion_style(conclusion), highlight=False, soft_wrap=True)
    if conclusion.outcome is not Outcome.WINNER and (promising := more_processes(store)) is not None:
        console.print(
            f"not settled: {promising[0].settings}; about {promising[1]} fresh pairs of processes may settle it: set "
            f"`[confirm] processes = {promising[1]}` and use a new --run-dir, for a proof is sized before it is seen",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    spans = store.of(SpanRecord)
    wall_s, waited_s = sum(s.wall_s for s in spans), sum(s.waited_s for s in spans)
    console.print(
        f"{conclusion.trial_count} trials in {format_seconds(store.watch.total_s)}; "
        f"the driver's own share of the wall time: {format_share(1 - waited_s / wall_s) if wall_s else '-'}",
        highlight=False,
    )
    console.print(f"everything lies in {path} (records.jsonl, trials/*/pairs.jsonl, logs)", highlight=False)
    console.print("\nnext:", highlight=False)
    # Without an activated environment the command is found by the path it was called by.
    me = (
        "autotune" if shutil.which("autotune") or not sys.argv[0].endswith("autotune") else os.path.relpath(sys.argv[0])
    )
    again = f"{me} run {study} --run-dir {path}"
    if store.spec.is_predicted:
        cluster = {"--target": store.spec.screen.target, "--topology": store.spec.screen.topology}
        where = " ".join(f"{name} {value}" for name, value in cluster.items() if value)
        again += f" --objective predicted {where}"
    steps = [
        f"{me} show {path}",
        f"{me} report {path} --html report.html",
        f"{again} --trials {2 * conclusion.trial_count}   # goes on from here",
    ]
    if store.spec.is_predicted and conclusion.settings:
        chosen = shlex.quote(cli_screen.format_set(conclusion.settings))
        steps.insert(0, f"{me} explain {study} {where} --set {chosen}")
    if conclusion.outcome is Outcome.FRONT and conclusion.front:
        steps.insert(0, f"{me} export {path} --trial {conclusion.front[-1]} -o chosen.env   # a set of the front")
    if conclusion.outcome in (Outcome.WINNER, Outcome.FRONT) and conclusion.trial is not None:
        steps = [
            f"{me} export {path} --format env -o winner.env",
            f"{me} exec {path} -- python train.py",
            f"{me} repro {path} {conclusion.trial}",
            *steps,
        ]
    for step in steps:
        console.print(f"  {step}", highlight=False, soft_wrap=True)


@app.command()
def status(
    run_path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run directory; default: all in runs/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Says how far studies are."""
    from rich.table import Table

    from autotune.errors import AutotuneError
    from autotune.store import Store

    paths = [run_path] if run_path else sorted(p.parent for p in RUNS.glob("*/study.json"))
    rows = []
    for path in paths:
        try:
            rows.append(_status_of(Store.open(path), path))
        except AutotuneError as error:
            if run_path:
                raise
            rows.append({"run": str(path), "state": f"unreadable: {error}"})
    if as_json:
        _print_json(rows)
        return
    if not rows:
        _console().print("no runs here yet; `autotune run studies/quickstart.toml` makes one", highlight=False)
        return
    table = Table()
    for name in ("run", "state", "trials", "failed", "time", "best so far", "conclusion"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(row.get(k, "")) for k in ("run", "state", "trials", "failed", "time", "best", "sentence")))
    _console().print(table)
    for row in rows:
        for line in _worker_lines(row):
            _console().print(line, highlight=False, markup=False, soft_wrap=True)


def _worker_lines(row: dict[str, Any]) -> list[str]:
    """The workers of a shared study in words: who lives, whose node is slow."""
    from autotune.units import format_change, format_ratio

    nodes = {n["worker"]: n for n in row.get("nodes", ())}
    lines = []
    for worker in row.get("workers", ()):
        line = f"{row['run']}: worker {worker['worker']} on {worker['host']}: {worker['state']}"
        if (node := nodes.get(worker["worker"])) is not None:
            line += f"; a step of its reference takes {format_ratio(node['ratio'])} times the median node's"
            line += f", a slow node ({format_change(node['ratio'])})" if node["is_slow"] else ""
        lines.append(line)
    return lines


def _status_of(store: Store, path: Path) -> dict[str, Any]:
    """One run in plain figures."""
    from autotune.claims import list_workers
    from autotune.nodes import node_effects
    from autotune.pipeline import incumbent
    from autotune.records import PREDICTED, ConclusionRecord, FloorResult, SessionRecord, TrialResult
    from autotune.store import is_held
    from autotune.units import format_interval, format_ratio, format_seconds

    results, session, conclusion = (
        store.of(TrialResult),
        store.last(SessionRecord),
        store.last(ConclusionRecord),
    )
    best = incumbent(results)
    running = is_held(store.path)
    records = store.records()
    ended = conclusion is not None and not any(isinstance(r, TrialResult) and r.at_s > conclusion.at_s for r in records)
    steps = [r.prediction for r in results if r.prediction is not None and r.failure is None]
    predicted = min(steps, key=lambda p: p.ratio, default=None)
    shown = f"{format_ratio(best.ratio)} {format_interval(best.low, best.high)}" if best.ratio < 1 else "the default"
    if predicted is not None:
        shown = f"{format_ratio(predicted.ratio)} {PREDICTED}"
    return {
        "run": str(path),
        "name": store.spec.name,
        "state": "running" if running else "finished" if ended else "stopped; run it again to go on",
        "trials": f"{len(results)} of {session.asked_trials if session else store.spec.search.trials}",
        "failed": sum(r.failure is not None for r in results),
        "elapsed_s": max((r.at_s for r in records), default=0.0),
        "time": format_seconds(max((r.at_s for r in records), default=0.0)),
        "best": shown,
        "is_predicted": store.spec.is_predicted,
        "workers": [{"worker": w.worker, "host": w.host, "state": w.state} for w in list_workers(path)],
        "nodes": [
            {"worker": n.worker, "host": n.host, "ratio": n.ratio, "low": n.low, "high": n.high, "is_slow": n.is_slow}
            for n in node_effects(store.of(FloorResult), results)
        ],
        "outcome": str(conclusion.outcome) if conclusion and ended else None,
        "sentence": conclusion.sentence if conclusion and ended else "",
    }


@app.command()
def show(
    run_path: RunArgument,
    trial: Annotated[int | None, typer.Argument(metavar="[TRIAL]", help="A trial's number, from 1.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows a study's results, or all that is known of one trial."""
    from autotune.records import ConclusionRecord
    from autotune.store import Store
    from autotune.tables import study_tables
    from autotune.view import conclusion_style, describe_begin

    store = Store.open(run_path)
    if trial is not None:
        _show_trial(store, trial, as_json=as_json)
        return
    if as_json:
        _print_json([json.loads(r.model_dump_json(exclude_none=True)) for r in store.records()])
        return
    console = _console()
    conclusion = store.last(ConclusionRecord)
    for line in describe_begin(store):
        console.print(line, highlight=False, soft_wrap=True)
    for results in study_tables(store):
        console.print(results)
    if conclusion is not None:
        console.print(conclusion.sentence, style=conclusion_style(conclusion), highlight=False, soft_wrap=True)


def _show_trial(store: Store, number: int, *, as_json: bool) -> None:
    """One trial: settings, result, figures, raw pairs, the end of its log."""
    from autotune.measure import block_step_s, log_ratio
    from autotune.units import format_bytes, format_seconds
    from autotune.view import describe_energy, describe_trial

    result = _trial(store, number)
    pairs = list(store.pairs(result.directory)) if result.directory else []
    if as_json:
        _print_json(
            {
                **json.loads(result.model_dump_json(exclude_none=True)),
                "pairs": [json.loads(p.model_dump_json()) for p in pairs],
            }
        )
        return
    console = _console()
    console.print(f"trial {number} of {store.spec.name}, proposed by {result.origin}", style="bold", highlight=False)
    for name, value in result.settings.items():
        console.print(f"  {name} = {value}", highlight=False, markup=False, soft_wrap=True)
    for line in filter(None, (describe_trial(result), describe_energy(result))):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if result.worker is not None:
        w = result.worker
        console.print(
            f"compiled in {format_seconds(w.compile_s)}, ready after {format_seconds(w.start_s)}, peak memory "
            f"{format_bytes(w.peak_bytes)}, program {w.fingerprint}, losses {', '.join(f'{x:.5g}' for x in w.losses)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    for pair in pairs:
        order = "reference first" if pair.first == "reference" else "candidate first"
        reference, candidate = block_step_s(pair.reference_s), block_step_s(pair.candidate_s)
        console.print(
            f"  pair {pair.index + 1:3d}: reference {format_seconds(reference):>9}, "
            f"candidate {format_seconds(candidate):>9}, "
            f"log ratio {log_ratio(pair):+.4f} ({order}, {len(pair.reference_s)} steps each)",
            highlight=False,
        )
    if result.failure is not None:
        console.print(f"log: {store.path / (result.failure.log or '')}", highlight=False, soft_wrap=True)
        for line in result.failure.last_lines:
            console.print(f"  | {line}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def repro(
    run_path: RunArgument,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="A trial's number, from 1.")],
    as_json: JsonOption = False,
) -> None:
    """Prints the environment and command that run one trial's program by hand."""
    from autotune import environment
    from autotune.store import Store

    store = Store.open(run_path)
    result = _trial(store, trial)
    device, workload = store.spec.device, store.spec.workload
    settings = store.spec.baseline.merge(result.settings)
    env = environment.reproduction(
        settings,
        platform_name=device.platform,
        virtual_devices=(device.count or 1) if device.platform == "cpu" else None,
    )
    if workload.command is not None:
        command = [a.replace("{folder}", str(store.path / (result.directory or "."))) for a in workload.command]
    else:
        options = [text for n, v in workload.options.items() for text in ("--set", f"{n}={json.dumps(v)}")]
        command = ["python", "-m", "workloads", str(workload.entry), *options, "--steps", "20"]
    if as_json:
        _print_json({"environment": env, "command": command, "directory": store.study_dir})
        return
    print(f"# trial {trial} of {store.spec.name}: {result.status}", flush=True)
    for name, value in env.items():
        print(f"export {name}={shlex.quote(value)}")
    print(shlex.join(command))


@app.command()
def schema() -> None:
    """Prints the JSON schema of study files and of the records that --json shows."""
    from autotune.records import RECORD, SCHEMA_VERSION, Pair
    from autotune.spec import StudySpec

    _print_json(
        {
            "schema_version": SCHEMA_VERSION,
            "study": StudySpec.model_json_schema(),
            "record": RECORD.json_schema(),
            "pair": Pair.model_json_schema(),
        }
    )


# The other commands live beside what they are about.
app.add_typer(cli_flags.flags_app, name="flags")
app.add_typer(cli_flags.recipes_app, name="recipes")
app.add_typer(cli_screen.targets_app, name="targets")
app.add_typer(cli_results.library_app, name="library")
app.add_typer(cli_results.t4_app, name="t4")
_COMMANDS: tuple[Callable[..., None], ...] = (
    cli_results.report,
    cli_results.compare,
    cli_results.export,
    cli_results.verify,
    cli_results.recheck,
    cli_results.best,
    cli_flags.space,
    cli_flags.symptoms,
    cli_flags.doctor,
    cli_screen.screen,
    cli_screen.explain,
    cli_screen.predict,
    cli_cluster.submit,
)
for _command in _COMMANDS:
    app.command()(_command)
app.command("exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(cli_results.exec_)


# ---------------------------------------------------------------------- helpers


def _trial(store: Store, number: int) -> Any:
    """One trial's result; they count from 1.

    Raises:
        AutotuneError: If there is no such trial.
    """
    from autotune.errors import AutotuneError
    from autotune.records import TrialResult

    results = store.of(TrialResult)
    for result in results:
        if result.number == number:
            return result
    raise AutotuneError(
        f"a trial's number must be between 1 and {len(results)} but got {number}; see `autotune show {store.path}`"
    )


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr)
    # A pipe has no width; tables must not be folded at 80 columns in a log.
    return console if console.is_terminal else Console(stderr=stderr, width=160, no_color=True)


def _print_json(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=1, default=str) + "\n")


def main() -> None:
    """Console entry: errors a user can mend are one message and exit status 2, never a traceback."""
    from autotune.errors import AutotuneError, NodeLostError

    try:
        app(standalone_mode=True)
    except NodeLostError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(STOPPED)
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)


if __name__ == "__main__":
    main()
