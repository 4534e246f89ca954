"""The commands that show what is known: `status`, `show`, `repro`, `schema`. Mounted by `autotune.cli`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.printing import RUNS, JsonOption, RunArgument, make_console, print_json

if TYPE_CHECKING:
    from autotune.rundir import Store


def status(
    run_path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run directory; default: all in runs/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Says how far studies are."""
    from rich.table import Table

    from autotune.model import AutotuneError
    from autotune.rundir import Store

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
        print_json(rows)
        return
    if not rows:
        make_console().print("no runs here yet; `autotune run studies/quickstart.toml` makes one", highlight=False)
        return
    table = Table()
    for name in ("run", "state", "trials", "failed", "time", "best so far", "conclusion"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(row.get(k, "")) for k in ("run", "state", "trials", "failed", "time", "best", "sentence")))
    make_console().print(table)
    for row in rows:
        for line in (*([f"{row['run']}: {row['screen']}"] if row.get("screen") else ()), *_worker_lines(row)):
            make_console().print(line, highlight=False, markup=False, soft_wrap=True)


def _worker_lines(row: dict[str, Any]) -> list[str]:
    """The workers of a shared study in words: who lives, whose node is slow."""
    from autotune.model import format_change, format_ratio

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
    from autotune.model import (
        PREDICTED,
        ConclusionRecord,
        FloorResult,
        ScreenRecord,
        SessionRecord,
        TrialResult,
        format_interval,
        format_ratio,
        format_seconds,
    )
    from autotune.results import describe_screen_record
    from autotune.rundir import is_held, list_workers, node_effects
    from autotune.study import incumbent

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
    if store.spec.is_predicted:
        shown = f"{format_ratio(predicted.ratio) if predicted else 'nothing yet'} {PREDICTED}"
    screened = [line for record in store.of(ScreenRecord)[-1:] for line in describe_screen_record(record)[:1]]
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
        "screen": screened[0] if screened else None,
        "workers": [{"worker": w.worker, "host": w.host, "state": w.state} for w in list_workers(path)],
        "nodes": [
            {"worker": n.worker, "host": n.host, "ratio": n.ratio, "low": n.low, "high": n.high, "is_slow": n.is_slow}
            for n in node_effects(store.of(FloorResult), results)
        ],
        "outcome": str(conclusion.outcome) if conclusion and ended else None,
        "sentence": conclusion.sentence if conclusion and ended else "",
    }


def show(
    run_path: RunArgument,
    trial: Annotated[int | None, typer.Argument(metavar="[TRIAL]", help="A trial's number, from 1.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows a study's results, or all that is known of one trial."""
    from autotune.model import ConclusionRecord
    from autotune.results import conclusion_style, describe_begin, study_tables
    from autotune.rundir import Store

    store = Store.open(run_path)
    if trial is not None:
        _show_trial(store, trial, as_json=as_json)
        return
    if as_json:
        print_json([json.loads(r.model_dump_json(exclude_none=True)) for r in store.records()])
        return
    console = make_console()
    conclusion = store.last(ConclusionRecord)
    for line in describe_begin(store):
        console.print(line, highlight=False, soft_wrap=True)
    for results in study_tables(store):
        console.print(results)
    if conclusion is not None:
        console.print(conclusion.sentence, style=conclusion_style(conclusion), highlight=False, soft_wrap=True)


def _show_trial(store: Store, number: int, *, as_json: bool) -> None:
    """One trial: settings, result, figures, raw pairs, the end of its log."""
    from autotune.model import block_step_s, format_bytes, format_seconds, log_ratio
    from autotune.results import describe_energy, describe_trial

    result = _trial(store, number)
    pairs = list(store.pairs(result.directory)) if result.directory else []
    if as_json:
        print_json(
            {
                **json.loads(result.model_dump_json(exclude_none=True)),
                "pairs": [json.loads(p.model_dump_json()) for p in pairs],
            }
        )
        return
    console = make_console()
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


def repro(
    run_path: RunArgument,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="A trial's number, from 1.")],
    as_json: JsonOption = False,
) -> None:
    """Prints the environment and command that run one trial's program by hand."""
    from autotune.machine import reproduction_environment
    from autotune.rundir import Store

    store = Store.open(run_path)
    result = _trial(store, trial)
    device, workload = store.spec.device, store.spec.workload
    settings = store.spec.baseline.merge(result.settings)
    env = reproduction_environment(
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
        print_json({"environment": env, "command": command, "directory": store.study_dir})
        return
    print(f"# trial {trial} of {store.spec.name}: {result.status}", flush=True)
    for name, value in env.items():
        print(f"export {name}={shlex.quote(value)}")
    print(shlex.join(command))


def schema() -> None:
    """Prints the JSON schema of study files and of the records that --json shows."""
    from autotune.model import RECORD, SCHEMA_VERSION, Pair, StudySpec

    print_json(
        {
            "schema_version": SCHEMA_VERSION,
            "study": StudySpec.model_json_schema(),
            "record": RECORD.json_schema(),
            "pair": Pair.model_json_schema(),
        }
    )


def _trial(store: Store, number: int) -> Any:
    """One trial's result; they count from 1.

    Raises:
        AutotuneError: If there is no such trial.
    """
    from autotune.model import AutotuneError, TrialResult

    results = store.of(TrialResult)
    for result in results:
        if result.number == number:
            return result
    raise AutotuneError(
        f"a trial's number must be between 1 and {len(results)} but got {number}; see `autotune show {store.path}`"
    )
