"""Compares studies: winners, agreeing settings, no-ops; refuses runs that are not comparable."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from autotune.model.errors import NotComparableError, close_matches
from autotune.model.files import Table
from autotune.model.flags import FlagSet
from autotune.model.records import (
    ISOLATED,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    FailingSetRecord,
    Outcome,
    TrialResult,
)
from autotune.model.units import format_interval, format_provable, format_ratio, format_seconds
from autotune.results.conditions import conditions_of
from autotune.results.format import finalists, provable_gain, spaced
from autotune.results.pages import render
from autotune.results.tables import Row
from autotune.results.winner import workload_name
from autotune.rundir.store import Store
from autotune.stats.estimates import Verdict

# Equal in compared studies, unless they are the axis of the comparison.
FIELDS = ("gpu", "count", "jaxlib", "plugin", "driver", "workload", "mesh")

# Fields that cannot stay the same when another is the axis.
_IMPLIED = {"workload": "mesh", "count": "mesh", "jaxlib": "plugin"}

# Kinds of the states of settings that are resolved.
_KINDS = {
    "in the winner": "good",
    Verdict.FASTER: "good",
    "no-op": "nothing",
    Verdict.NO_DIFFERENCE: "nothing",
    Verdict.SLOWER: "bad",
    "failed": "bad",
}


class ComparisonTable(NamedTuple):
    """The result of a comparison: a row per study, and a row per setting with its states.

    A study that has not ended or settled has the winner ``(not settled)`` and no ratio. A state is
    by the winner, the compiled program, or a proof or a failure of the setting alone.
    """

    by: tuple[str, ...]  # fields that were allowed to differ
    same: Mapping[str, str]  # fields that all studies share, with their values
    frame: pd.DataFrame  # one row per study, see `_row`
    settings: pd.DataFrame  # states by setting and study, and whether they agree

    def to_markdown(self) -> str:
        """Renders the comparison as Markdown: ratio first, and of the axes those that differ."""
        settings = self.settings.reset_index().astype(str).to_dict("records")
        axes = [field for field in self.by if field not in self.same]
        rows = []
        for row in self.frame.to_dict("records"):
            interval = ""
            if not math.isnan(row["low"]):
                interval = format_interval(row["low"], row["high"])
            rows.append(
                {
                    "study": str(row["study"]),
                    "ratio": format_ratio(row["ratio"]),
                    "interval": interval,
                    **{column: str(row[column]) for column in (*axes, "winner")},
                    "outcome": spaced(row["outcome"]),
                    "trials": str(row["trials"]),
                    "default's step": format_seconds(row["default_step_s"]),
                    "gain proven 9 times in 10": format_provable(row["provable"]),
                }
            )
        return render("compare.md.j2", c=self, rows=rows, settings=settings)

    def to_json(self) -> Table:
        """Converts the comparison to plain data."""
        return {
            "by": list(self.by),
            "same": dict(self.same),
            "studies": json.loads(self.frame.to_json(orient="records")),
            "settings": json.loads(self.settings.reset_index().to_json(orient="records")),
        }

    def _repr_html_(self) -> str:
        tables: str = self.frame.to_html(index=False) + self.settings.to_html()
        return tables


def compare_stores(stores: Sequence[Store], *, by: Sequence[str] = ()) -> ComparisonTable:
    """Compares runs that may differ in the fields of `by`; NotComparableError for others."""
    for field in by:
        if field not in FIELDS:
            raise NotComparableError(
                f"--by must name fields of {', '.join(FIELDS)} but got "
                f"{field!r}{close_matches(field, FIELDS)}"
            )
    facts = [_facts(store) for store in stores]
    columns = {field: [row[field] for row in facts] for field in FIELDS}
    allowed = {*by, *(_IMPLIED.get(field) for field in by)}
    same = {}
    for field, texts in columns.items():
        number = next((n for n, text in enumerate(texts) if text != texts[0]), 0)
        if not number:
            same[field] = texts[0]
        elif field not in allowed:
            raise NotComparableError(
                f"runs that are compared must have the same {field} but {stores[0].path} has "
                f"{texts[0]} and {stores[number].path} has {texts[number]}; make it the axis with "
                f"--by {field}, or compare others"
            )
    names = [store.spec.name for store in stores]
    if len(set(names)) < len(names):
        names = [store.path.as_posix() for store in stores]
    frame = pd.DataFrame({"study": names, **{field: columns[field] for field in by}})
    states = pd.DataFrame(dict(zip(names, map(_states, stores), strict=True)))
    settings = states.fillna("not tried").rename_axis("setting").sort_index()
    settings["agreement"] = [_agreement(list(row)) for row in settings.to_numpy()]
    return ComparisonTable(
        by=tuple(by),
        same=same,
        frame=frame.join(pd.DataFrame(map(_row, stores))),
        settings=settings.sort_values("agreement", ascending=False, kind="stable"),
    )


def _facts(store: Store) -> Row:
    """Returns the `FIELDS` of one run as text."""
    aa_run = store.last(AaRecord)
    if not aa_run:
        raise NotComparableError(
            f"a run must have measured its reference to be compared but {store.path} has not; "
            "finish it first"
        )
    spec = store.spec
    report = aa_run.reference
    conditions = conditions_of(spec, report, aa_run.provenance)
    workload = workload_name(spec)
    options = spec.workload.shown.options
    if options:
        workload += f" {json.dumps(options, sort_keys=True)}"
    count = str(report.device_count)
    if report.process_count > 1:
        count += f" in {report.process_count} processes"
    mesh = [f"{axis} {size}" for axis, size in report.mesh.items() if size > 1]
    return {
        "gpu": conditions.gpu,
        "count": count,
        "jaxlib": str(conditions.jaxlib),
        "plugin": conditions.plugin or "none",
        "driver": (conditions.driver or "unknown").partition(".")[0],
        "workload": workload,
        "mesh": " x ".join(mesh) or "none",
    }


def _row(store: Store) -> Table:
    row: Table = {
        "winner": "(not settled)",
        "outcome": "not ended",
        **dict.fromkeys(("ratio", "low", "high"), math.nan),
        "trials": len(store.of(TrialResult)),
        "default_step_s": store.of(AaRecord)[-1].comparison.reference_step_s,
        "provable": provable_gain(store) or math.nan,
    }
    conclusion = store.last(ConclusionRecord)
    if not conclusion:
        return row
    row["outcome"] = str(conclusion.outcome)
    if conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT:
        row |= {"ratio": 1.0, "winner": "(default)"}
    if conclusion.settings:
        row["winner"] = str(conclusion.settings)
    if conclusion.estimate:
        estimate = conclusion.estimate
        row |= {"ratio": estimate.ratio, "low": estimate.low, "high": estimate.high}
    return row


def _states(store: Store) -> Row:
    """Returns the state of each setting and value that was tried; later rules overrule earlier."""
    conclusion = store.last(ConclusionRecord)
    results = store.of(TrialResult)
    states = {word: "unclear" for result in results for word in result.settings.words}

    def mark(settings: FlagSet, state: str) -> None:
        states.update(dict.fromkeys(settings.words, state))

    for result in results:
        if result.is_the_default:
            mark(result.settings, "no-op")
        elif result.failure and not result.failure.is_from_outside and len(result.settings) == 1:
            mark(result.settings, "failed")
    for ablation in store.of(AblationResult):
        name = str(ablation.left_out)
        if ablation.is_same_program and name in ablation.settings:
            mark(FlagSet({name: ablation.settings[name]}), "no-op")
    for record in store.of(FailingSetRecord):
        if len(record.smallest) == 1:
            mark(record.smallest, "failed")
    for proof in finalists(store):
        is_settled = proof.verdict is not Verdict.UNRESOLVED and proof.stage != ISOLATED
        if is_settled and len(proof.settings) == 1:
            mark(proof.settings, proof.verdict)
    if conclusion and conclusion.settings:
        mark(conclusion.settings, "in the winner")
    return states


def _agreement(states: Sequence[str]) -> str:
    """Compares the states of a setting in the studies that resolved it."""
    kinds = [_KINDS[state] for state in states if state in _KINDS]
    if len(kinds) < 2:
        return ""
    return "agree" if len(set(kinds)) == 1 else "differ"
