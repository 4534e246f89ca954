"""Commands that show a run: `status`, `show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import options
from autotune.cli.printing import print_json, print_lines, print_study

if TYPE_CHECKING:
    from autotune.model.records import TrialResult
    from autotune.rundir.store import Store
    from autotune.study.status import StudyStatus, UnreadableRun


def status(
    run_path: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run directory; default: all in runs/.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Shows how far studies are. Of a running one: its stage, since when, and the time left of its budget."""
    from autotune.model.errors import AutotuneError
    from autotune.rundir.store import runs_in
    from autotune.study.status import UnreadableRun, study_status

    paths = [run_path] if run_path else runs_in(options.RUNS)
    found: list[StudyStatus | UnreadableRun] = []
    for path in paths:
        try:
            found.append(study_status(path))
        except AutotuneError as error:
            if run_path:
                raise
            found.append(UnreadableRun(run=str(path), state=f"unreadable: {error}"))
    if as_json:
        print_json(found)
        return
    if not found:
        print("no runs here yet; `autotune run studies/quickstart.toml` makes one")
        return
    for head, *rest in map(_block, found):
        print_lines([head], style="bold", at_words=True)
        print_lines((f"  {line}" for line in rest), at_words=True)


def _block(status: StudyStatus | UnreadableRun) -> list[str]:
    """Formats one run as lines."""
    from autotune.model.units import format_seconds
    from autotune.results.format import format_estimate
    from autotune.study.status import UnreadableRun, format_lanes, format_stage

    if isinstance(status, UnreadableRun):
        return [status.run, status.state]
    time = format_seconds(status.elapsed_s)
    trials = f"{status.trials} of {status.asked_trials} trials ({status.failed} failed) in {time}"
    best = format_estimate(status.best) if status.best is not None else "the default"
    state = "stopped; run it again to go on" if status.state in ("stopped", "empty") else status.state
    head = ": ".join(filter(None, (status.run, state, format_stage(status))))
    return [head, trials, status.sentence or f"best so far: {best}", *format_lanes(status)]


def show(
    run_path: options.Run,
    trial: Annotated[int | None, typer.Argument(metavar="[TRIAL]", help="A trial's number, from 1.")] = None,
    as_json: options.Json = False,
) -> None:
    """Shows the results of a study, or of one of its trials. Of a trial: all that is known, how to run it by hand."""
    from autotune.results.audit import doubts
    from autotune.results.format import format_begin
    from autotune.rundir.damage import damages
    from autotune.rundir.store import Store
    from autotune.study.reproduce import find_trial

    store = Store.open(run_path)
    if trial is not None:
        _show_trial(store, find_trial(store, trial), as_json=as_json)
    elif as_json:
        print_json(store.records(), exclude_none=True)
    else:
        print_lines([*format_begin(store), *damages(store), *doubts(store)])
        print_study(store)


def _show_trial(store: Store, result: TrialResult, *, as_json: bool) -> None:
    """Prints settings, result, figures, raw pairs and the end of the log of one trial."""
    from autotune.model.measurement import block_step_s, log_ratio
    from autotune.model.units import format_bytes, format_seconds
    from autotune.results.format import format_energy, format_trial, provable_gain
    from autotune.study.reproduce import by_hand

    pairs = list(store.pairs(result.directory)) if result.directory else []
    finding = result.finding_at(min_effect=store.spec.measure.min_effect, provable=provable_gain(store))
    if as_json:
        print_json({**result.model_dump(mode="json", exclude_none=True), "finding": finding, "pairs": pairs})
        return
    print_lines([f"trial {result.number} of {store.spec.name}, proposed by {result.origin}"], style="bold")
    lines = [f"  {name} = {value}" for name, value in result.settings.items()]
    loss = f"loss: {result.loss.words}" if result.loss is not None else ""
    lines += filter(None, (format_trial(result, finding), format_energy(result), loss))
    if (worker := result.worker) is not None:
        lines.append(
            f"compiled in {format_seconds(worker.compile_s)}, ready after {format_seconds(worker.start_s)}, "
            f"peak memory {format_bytes(worker.peak_bytes)}, program {worker.fingerprint}, "
            f"losses {', '.join(f'{x:.5g}' for x in worker.losses)}"
        )
        if worker.program_problem is not None:
            lines.append(f"its compiled program is not known: {worker.program_problem}")
    work = result.comparison.work if result.comparison is not None else None
    for pair in pairs:
        order = "reference first" if pair.first == "reference" else "candidate first"
        reference, candidate = block_step_s(pair.reference_s), block_step_s(pair.candidate_s)
        lines.append(
            f"  pair {pair.index + 1:3d}: reference {format_seconds(reference):>9}, "
            f"candidate {format_seconds(candidate):>9}, "
            f"log ratio {log_ratio(pair, work):+.4f} ({order}, {len(pair.reference_s)} steps each)"
        )
    if result.failure is not None:
        lines.append(f"log: {store.path / (result.failure.log or '')}")
        lines += [f"  | {line}" for line in result.failure.last_lines]
    print_lines([*lines, "by hand:", *(f"  {line}" for line in by_hand(store, result))])
