"""The tables of a study: on a terminal, and the rows that its report shows, each under the heading of its column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autotune.model import (
    INTERLEAVED,
    FinalistResult,
    FloorResult,
    TrialResult,
    format_bytes,
    format_change_of,
    format_interval,
    format_joules,
    format_ratio,
    format_seconds,
    format_share,
)  # fmt: skip
from autotune.results import (
    taught,
    words,
)
from autotune.results.pages import Styled
from autotune.results.proof_words import (
    STAGE_WORDS,
    describe_finalist,
    word_of,
)
from autotune.results.rows import (
    STYLES,
    EffectRow,
    TrialRow,
    finalist_style,
    finalists,
    pareto_rows,
    trial_rows,
)
from autotune.rundir import (
    Store,
    node_effects,
)

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, str]

_COLOURS = {
    "good": "bold green",
    "bad": "red",
    "same": "dim",
    "open": "yellow",
    "promising": "cyan",
    "unpromising": "dim",
    "failed": "magenta",
}
"""Of the classes of the style sheet, on a terminal."""

_LONGEST_SETTINGS = 120


# ---------------------------------------------------------------------- on a terminal


def study_tables(store: Store) -> list[Table]:
    """The table of all trials, best first; what they taught."""
    tables = [_results_table(store, sorted(trial_rows(store), key=lambda r: r.rank))]
    if (beliefs := taught.terminal_table(store)) is not None:
        tables.append(beliefs)
    return tables


def _table(title: str, names: Sequence[str], *, right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _results_table(store: Store, trials: Sequence[TrialRow]) -> Table:
    """Every trial's ratio with interval and outlook, then proofs with their verdicts; the reference on top."""
    energy = ["energy of a step"] if has_energy(trials) else []
    columns = ["trial", "settings", "ratio", "95 % interval", "outlook or verdict", *energy]
    table = _table(f"{words.time_words(store)} over the default's (below 1 is less)", columns, right=("trial", "ratio"))
    if (floor := store.last(FloorResult)) is not None:
        found, noise = floor.comparison, floor.floor.estimate
        settings = f"(default), {format_seconds(found.reference_step_s)} a step; against itself:"
        joules = [format_joules(found.energy.reference_step_j) if found.energy else ""] if energy else []
        cells = (format_ratio(noise.ratio), format_interval(noise.low, noise.high), "noise floor")
        table.add_row("ref", settings, *cells, *joules)
    for r in trials:
        joules = ["" if math.isnan(r.step_j) else format_joules(r.step_j)] if energy else []
        table.add_row(str(r.trial), _cut(r.result), _ratio_cell(r), _interval_cell(r), _outlook_cell(r), *joules)
    for f in finalists(store):
        stage, e, c = STAGE_WORDS.get(f.stage, f.stage), f.estimate, f.corrected
        ratio, interval, said, style = "-", "", "failed", "failed"
        if e is not None and c is not None:
            ratio, interval = format_ratio(e.ratio), format_interval(c.low, c.high)
            said, style = word_of(f), finalist_style(f)
        verdict = Text(f"{said} ({stage})", style=_COLOURS[style])
        number = str(f.trial) if f.trial else ""  # a recheck is of no trial
        table.add_row(number, _cut(f), ratio, interval, verdict)
    return table


def _cut(result: TrialResult | FinalistResult) -> str:
    return words.shorten(result.settings, limit=_LONGEST_SETTINGS)


def _outlook_cell(row: TrialRow) -> Text:
    how = "" if row.outlook is None or row.mode == INTERLEAVED else f", {row.over}"
    return Text(words.spaced(row.failure or row.outlook or row.status) + how, style=_COLOURS[row.style])


# ---------------------------------------------------------------------- in a report


def has_energy(trials: Sequence[TrialRow]) -> bool:
    """Whether any trial's energy is known: else no table has a column for it."""
    return any(not math.isnan(r.step_j) for r in trials)


def trial_table(trials: Sequence[TrialRow]) -> list[Row]:
    """Every trial."""
    energy = has_energy(trials)
    return [_trial_cells(r, has_energy=energy) for r in trials]


def _trial_cells(r: TrialRow, *, has_energy: bool) -> Row:
    outlook = r.outlook if r.outlook and r.failure is None else words.describe_trial(r.result, r.outlook)
    return {
        "trial": str(r.trial),
        "settings": r.settings,
        "by": r.origin,
        "ratio": _ratio_cell(r),
        "interval": _interval_cell(r),
        "outlook": Styled(outlook, r.style),
        "over": r.over,
        "step": format_seconds(r.candidate_step_s),
        "compile": format_seconds(r.compile_s),
        "memory": format_bytes(r.peak_bytes),
        **({"energy": format_joules(r.step_j)} if has_energy else {}),
    }


def _ratio_cell(row: TrialRow) -> str:
    return format_ratio(row.ratio) if row.is_measured else "-"


def _interval_cell(row: TrialRow) -> str:
    return format_interval(row.low, row.high) if row.is_measured else ""


def finalist_table(found: Sequence[FinalistResult]) -> list[Row]:
    """Every finalist, in each stage; the corrected interval decides."""
    rows = []
    for f in found:
        e, c = f.estimate, f.corrected
        verdict = Styled(word_of(f), finalist_style(f))
        rows.append(
            {
                "trial": str(f.trial),
                "verdict": verdict if f.failure is None else Styled(describe_finalist(f), "failed"),
                "ratio": format_ratio(e.ratio) if e else "-",
                "corrected interval": format_interval(c.low, c.high) if c else "",
                "settings": str(f.settings),
                "stage": STAGE_WORDS.get(f.stage, f.stage),
                "95 % interval": format_interval(e.low, e.high) if e else "",
                "process pairs": str(f.process_count),
            }
        )
    return rows


def effect_table(effects: Sequence[EffectRow]) -> list[Row]:
    """Every value of every setting with the best evidence of what it does."""
    rows = []
    for r in effects:
        is_known, has_interval = not math.isnan(r.ratio), not math.isnan(r.low)
        rows.append(
            {
                "setting": f"{r.setting}={r.value}",
                "ratio": Styled(format_ratio(r.ratio), STYLES.get(r.finding, "same")),
                "interval": format_interval(r.low, r.high) if has_interval else "",
                "change": format_change_of(r.ratio - 1.0) if is_known and r.ratio != 1.0 else "",
                "seen": r.how,
                "says": r.finding,
                "trials": f"{r.trials}" + (f" ({r.failed} failed)" if r.failed else ""),
                "": r.reason or ("changes nothing in the program" if r.is_dead else ""),
            }
        )
    return rows


def pareto_table(trials: Sequence[TrialRow]) -> list[Row]:
    """The trials that no other beats in all that they cost."""
    energy = has_energy(trials)
    return [
        {
            "trial": str(r.trial),
            "ratio": format_ratio(r.ratio),
            "peak memory": format_bytes(r.peak_bytes),
            "compile": format_seconds(r.compile_s),
            **({"energy of a step": format_joules(r.step_j)} if energy else {}),
            "settings": r.settings,
        }
        for r in pareto_rows(trials)
    ]


def node_table(store: Store) -> list[Row]:
    """The reference on each lane of a study by several, slowest first."""
    trials = store.of(TrialResult)
    return [
        {
            "lane": n.lane,
            "host": n.host,
            "step": format_seconds(n.step_s),
            "over the median lane's": format_ratio(n.ratio),
            "80 % of its measurements": format_interval(n.low, n.high),
            "trials": str(sum(t.by == n.lane for t in trials)),
            "": Styled("slow" if n.is_slow else "", "bad"),
        }
        for n in node_effects(store.of(FloorResult), trials)
    ]


def interaction_table(interactions: pd.DataFrame) -> list[Row]:
    """The strongest pairs of settings that do not simply add up, from `analysis.interactions_frame`."""
    strongest = interactions[interactions["interaction"] >= 0.01].head(8)
    return [
        {"settings": r["first"], "and": r["second"], "explain together": format_share(r["interaction"])}
        for r in strongest.to_dict("records")
    ]
