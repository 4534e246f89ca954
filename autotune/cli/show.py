"""Commands that show a run: `status`, `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from autotune.cli import options
from autotune.cli.options import MaybeCount, MaybePath
from autotune.cli.printing import print_json, print_lines, print_study
from autotune.model.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.model.records import TrialResult
    from autotune.results.status import StudyStatus, UnreadableRun
    from autotune.rundir.store import Store


def status(
    run_path: Annotated[
        MaybePath, Argument(metavar="[RUN]", help="A run directory; default: all in runs/.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Shows how far studies are.

    Of a running one: its stage, since when, and the time left of its budget.
    """
    from autotune.model.texts import text_lines
    from autotune.results.format import format_estimate
    from autotune.results.status import UnreadableRun, format_stage, study_status
    from autotune.rundir.store import runs_in

    statuses: list[StudyStatus | UnreadableRun] = []
    for path in [run_path] if run_path else runs_in(options.RUNS):
        try:
            statuses.append(study_status(path))
        except AutotuneError as error:
            if run_path:
                raise
            statuses.append(UnreadableRun(run=str(path), state=f"unreadable: {error}"))
    if as_json:
        print_json(statuses)
        return
    if not statuses:
        print("no runs here yet; `autotune run studies/quickstart.toml` makes one")
        return
    for each in statuses:
        if isinstance(each, UnreadableRun):
            head = each.run
            lines = [each.state]
        else:
            head, *lines = text_lines(
                "status.txt.j2", estimate=format_estimate, status=each, stage=format_stage(each)
            )
        print_lines([head], style="bold", at_words=True)
        print_lines((f"  {line}" for line in lines), at_words=True)


def show(
    run_path: options.Run,
    trial: Annotated[
        MaybeCount, Argument(metavar="[TRIAL]", help="A trial's number, from 1.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Shows the results of a study, or of one of its trials.

    Of a trial: all that is known, how to run it by hand.
    """
    from autotune.results.audit import doubts
    from autotune.results.format import aa_lines
    from autotune.results.reproduce import find_trial
    from autotune.results.screen_words import screen_lines
    from autotune.rundir.damage import damages
    from autotune.rundir.store import Store

    store = Store.open(run_path)
    if trial is not None:
        _show_trial(store, find_trial(store, trial), as_json=as_json)
    elif as_json:
        print_json(store.records(), exclude_none=True)
    else:
        print_lines(aa_lines(store) or ["the A/A run has not ended yet"])
        print_lines([*screen_lines(store), *damages(store), *doubts(store)])
        print_study(store)


def _show_trial(store: Store, result: TrialResult, *, as_json: bool) -> None:
    from autotune.model.measurement import block_step_s, log_ratio
    from autotune.model.texts import text_lines
    from autotune.results.format import finding_in, format_trial
    from autotune.results.reproduce import by_hand

    pairs = list(store.pairs(result.directory))
    finding = finding_in(store, result)
    if as_json:
        fields = result.model_dump(mode="json", exclude_none=True)
        print_json({**fields, "finding": finding, "pairs": pairs})
        return
    lines = text_lines(
        "trial.txt.j2",
        log_ratio=log_ratio,
        step_s=block_step_s,
        trial=result,
        outcome=format_trial(result, finding),
        pairs=pairs,
        folder=store.path,
        commands=by_hand(store, result),
        work=result.comparison.work if result.comparison else None,
    )
    head = f"trial {result.number} of {store.spec.name}, proposed by {result.origin}"
    print_lines([head], style="bold")
    print_lines(lines)
