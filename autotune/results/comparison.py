"""Compares studies: winners, agreeing settings, no-ops; refuses runs that are not comparable."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from autotune.model.errors import NotComparableError, close_matches
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

FIELDS = ("gpu", "count", "jaxlib", "plugin", "driver", "workload", "mesh")
"""Fields that must be equal in compared studies, unless they are the axis of the comparison."""

_IMPLIED = {"workload": ("mesh",), "count": ("mesh",), "jaxlib": ("plugin",)}
"""Fields that cannot stay the same when another is the axis."""

_KINDS = {
    "in the winner": "good",
    Verdict.FASTER: "good",
    "no-op": "nothing",
    Verdict.NO_DIFFERENCE: "nothing",
    Verdict.SLOWER: "bad",
    "failed": "bad",
}
"""Kinds of the states of settings that are resolved."""


class ComparisonTable(NamedTuple):
    """The result of a comparison."""

    by: tuple[str, ...]
    """The fields that were allowed to differ."""
    same: Mapping[str, str]
    """Fields that all studies share, with their values."""
    frame: pd.DataFrame
    """One row per study: study, the fields of `by`, winner (``(not settled)``, with a ratio of NaN,
    if the study is inconclusive, nothing ran, or it has not ended), outcome, ratio, low, high,
    trials, default_step_s, provable.
    """
    settings: pd.DataFrame
    """One row per setting and value, one column per study, and `agreement`: differ (stands first),
    agree or empty.

    A state is by the winner, a proof of the setting alone, the compiled program or a failure of it
    alone; search results of trials do not count.
    """

    def to_markdown(self) -> str:
        """Renders the comparison as Markdown: ratio first, and of the axes those that differ."""
        settings = self.settings.reset_index().astype(str).to_dict("records")
        axes = [field for field in self.by if field not in self.same]
        rows = []
        for row in self.frame.to_dict("records"):
            interval = "" if math.isnan(row["low"]) else format_interval(row["low"], row["high"])
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

    def to_json(self) -> dict[str, Any]:
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
    """Compares two or more runs, which may differ in the fields named in `by`.

    Raises:
        NotComparableError: If there are fewer than two, one has not measured its reference, or they
            differ in another field.
    """
    for field in by:
        if field not in FIELDS:
            raise NotComparableError(
                f"--by must name fields of {', '.join(FIELDS)} but got "
                f"{field!r}{close_matches(field, FIELDS)}"
            )
    if len(stores) < 2:
        raise NotComparableError(f"a comparison must have at least two runs but got {len(stores)}")
    if len({store.path.resolve() for store in stores}) < len(stores):
        raise NotComparableError("each run must be given once but one is given twice")
    facts = [_facts(store) for store in stores]
    columns = {field: [row[field] for row in facts] for field in FIELDS}
    allowed = {*by, *(implied for field in by for implied in _IMPLIED.get(field, ()))}
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
    return ComparisonTable(
        by=tuple(by),
        same=same,
        frame=frame.join(pd.DataFrame(map(_row, stores))),
        settings=_settings_table(dict(zip(names, map(_states, stores), strict=True))),
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
    mesh = " x ".join(f"{axis} {size}" for axis, size in report.mesh.items() if size > 1)
    return {
        "gpu": conditions.gpu,
        "count": count,
        "jaxlib": str(conditions.jaxlib),
        "plugin": conditions.plugin or "none",
        "driver": (conditions.driver or "unknown").partition(".")[0],
        "workload": workload,
        "mesh": mesh or "none",
    }


def _row(store: Store) -> dict[str, Any]:
    row: dict[str, Any] = {
        "winner": "(not settled)",
        "outcome": "not ended",
        "ratio": math.nan,
        "low": math.nan,
        "high": math.nan,
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
        row |= {name: getattr(conclusion.estimate, name) for name in ("ratio", "low", "high")}
    return row


# ---------------------------------------------------------------------- settings


def _states(store: Store) -> dict[str, str]:
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


def _settings_table(states: Mapping[str, Mapping[str, str]]) -> pd.DataFrame:
    table = pd.DataFrame(states).fillna("not tried").rename_axis("setting").sort_index()
    table["agreement"] = [_agreement(list(row)) for row in table.to_numpy()]
    return table.sort_values("agreement", ascending=False, kind="stable")


def _agreement(states: Sequence[str]) -> str:
    """Compares the states of a setting in the studies that resolved it."""
    kinds = [_KINDS[state] for state in states if state in _KINDS]
    if len(kinds) < 2:
        return ""
    return "agree" if len(set(kinds)) == 1 else "differ"
