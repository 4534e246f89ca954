"""Compares studies: winners, agreeing settings, no-ops; refuses runs that are not comparable."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.model.errors import NotComparableError, close_matches
from autotune.model.flags import FlagSet
from autotune.model.records import (
    ISOLATED,
    AaRecord,
    AblationResult,
    ConclusionRecord,
    FailingSetRecord,
    FinalistResult,
    Outcome,
    TrialResult,
)
from autotune.model.units import format_interval, format_provable, format_ratio, format_seconds
from autotune.results.conditions import conditions_of
from autotune.results.format import format_figures, provable_gain, spaced
from autotune.results.pages import render
from autotune.results.tables import finalists
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
"""Kinds of states by a proof, the compiled program or a failure; search results of trials do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTable:
    """The result of a comparison."""

    by: tuple[str, ...]
    """The fields that were allowed to differ."""
    same: Mapping[str, str]
    """Fields that all studies share, with their values."""
    frame: pd.DataFrame
    """One row per study: study, the fields of `by`, outcome, ratio, low, high, process_pairs, trials, failed, no_ops
    (settings), default_step_s, provable, winner (``(not settled)``, with a ratio of NaN, if the study is inconclusive,
    nothing ran, or it has not ended)."""
    settings: pd.DataFrame
    """One row per setting and value, one column per study, and `agreement`: differ (stands first), agree or empty."""

    def to_markdown(self) -> str:
        """Renders the comparison as Markdown."""
        return self._render("compare.md.j2")

    def to_html(self) -> str:
        """Renders the comparison as one self-contained page."""
        return self._render("compare.html.j2")

    def _render(self, template: str) -> str:
        settings = self.settings.reset_index().astype(str).to_dict("records")
        return render(template, c=self, rows=_shown(self), settings=settings)

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
        NotComparableError: If there are fewer than two, one has not measured its reference, or they differ in
            another field.
    """
    for field in by:
        if field not in FIELDS:
            raise NotComparableError(
                f"--by must name fields of {', '.join(FIELDS)} but got {field!r}{close_matches(field, FIELDS)}"
            )
    if len(stores) < 2:
        raise NotComparableError(f"a comparison must have at least two runs but got {len(stores)}")
    if len({store.path.resolve() for store in stores}) < len(stores):
        raise NotComparableError("each run must be given once but one is given twice")
    runs = [(store, _facts(store)) for store in stores]
    base, shared = runs[0]
    allowed = {*by, *(implied for field in by for implied in _IMPLIED.get(field, ()))}
    for store, facts in runs[1:]:
        for field in FIELDS:
            if field not in allowed and facts[field] != shared[field]:
                raise NotComparableError(
                    f"runs that are compared must have the same {field} but {base.path} has {shared[field]} and "
                    f"{store.path} has {facts[field]}; make it the axis with --by {field}, or compare others"
                )
    runs.sort(key=lambda run: [_natural(run[1][field]) for field in by])
    names = _names([store for store, _ in runs])
    return ComparisonTable(
        by=tuple(by),
        same={field: shared[field] for field in FIELDS if all(facts[field] == shared[field] for _, facts in runs)},
        frame=pd.DataFrame([_row(name, *run, by) for name, run in zip(names, runs, strict=True)]),
        settings=_settings_table({name: _states(store) for name, (store, _) in zip(names, runs, strict=True)}),
    )


def _facts(store: Store) -> dict[str, str]:
    """Returns the `FIELDS` of one run as text."""
    aa_run = store.last(AaRecord)
    if aa_run is None:
        raise NotComparableError(
            f"a run must have measured its reference to be compared but {store.path} has not; finish it first"
        )
    spec = store.spec
    report = aa_run.reference
    conditions = conditions_of(spec, aa_run, aa_run.provenance)
    options = spec.workload.shown.options
    count = str(report.device_count)
    if report.process_count > 1:
        count += f" in {report.process_count} processes"
    return {
        "gpu": conditions.gpu,
        "count": count,
        "jaxlib": str(conditions.jaxlib),
        "plugin": conditions.plugin or "none",
        "driver": (conditions.driver or "unknown").partition(".")[0],
        "workload": " ".join([workload_name(spec), *([json.dumps(options, sort_keys=True)] if options else [])]),
        "mesh": " x ".join(f"{axis} {size}" for axis, size in report.mesh.items() if size > 1) or "none",
    }


def _natural(text: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts 0.9 before 0.10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", text)]


def _names(stores: Sequence[Store]) -> list[str]:
    """Returns the studies' names; if ambiguous the names of their folders, or else whole paths."""
    for names in ([s.spec.name for s in stores], [s.path.name for s in stores]):
        if len(set(names)) == len(names):
            return names
    return [s.path.as_posix() for s in stores]


def _row(name: str, store: Store, facts: Mapping[str, str], by: Sequence[str]) -> dict[str, Any]:
    results = store.of(TrialResult)
    provable = provable_gain(store)
    row = {
        "study": name,
        **{field: facts[field] for field in by},
        "outcome": "not ended",
        "ratio": math.nan,
        "low": math.nan,
        "high": math.nan,
        "process_pairs": 0,
        "trials": len(results),
        "failed": sum(r.failure is not None for r in results),
        "no_ops": len({s for r in results if r.is_the_default for s in r.settings.items()}),
        "default_step_s": store.of(AaRecord)[-1].comparison.reference_step_s,
        "provable": math.nan if provable is None else provable,
        "winner": "(not settled)",
    }
    conclusion = store.last(ConclusionRecord)
    if conclusion is None:
        return row
    row["outcome"] = str(conclusion.outcome)
    if conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT:
        row |= {"ratio": 1.0, "winner": "(default)"}
    if conclusion.settings:
        row["winner"] = str(conclusion.settings)
    if (estimate := conclusion.estimate) is not None:
        row |= {"ratio": estimate.ratio, "low": estimate.low, "high": estimate.high}
        row["process_pairs"] = estimate.pair_count
    return row


# ---------------------------------------------------------------------- settings


def _states(store: Store) -> dict[str, tuple[str, str]]:
    """Returns the state of each setting and value that was tried, and the figures of a proof of it alone."""
    conclusion, results = store.last(ConclusionRecord), store.of(TrialResult)
    winner = conclusion.settings if conclusion and conclusion.settings else FlagSet()
    proofs = {f.settings: f for f in finalists(store) if f.stage != ISOLATED}
    inert = {(a.left_out, a.settings.get(str(a.left_out))) for a in store.of(AblationResult) if a.is_same_program}
    found = {}
    failing = [record.smallest for record in store.of(FailingSetRecord)]
    for name, value in sorted({pair for r in results for pair in r.settings.items()}):
        proof = proofs.get(FlagSet({name: value}))
        tried = [r for r in results if r.settings.get(name) == value]
        state = "no-op" if (name, value) in inert else _state(tried, proof, FlagSet({name: value}), failing)
        state = "in the winner" if winner.get(name) == value else state
        corrected = proof.corrected if proof is not None else None
        figures = format_figures(corrected.ratio, corrected.low, corrected.high) if corrected is not None else ""
        found[f"{name}={value}"] = (state, figures)
    return found


def _state(
    tried: Sequence[TrialResult], proof: FinalistResult | None, alone: FlagSet, failing: Sequence[FlagSet]
) -> str:
    """Returns what trials with a setting, and a proof of it alone, say; `failing`: the minimal failing sets."""

    def is_blamed(result: TrialResult) -> bool:
        if result.failure is None or result.failure.is_from_outside:
            return False
        causes = [cause for cause in failing if cause.items() <= result.settings.items()]
        return alone in causes or not causes

    if any(r.is_the_default for r in tried):
        return "no-op"
    if all(map(is_blamed, tried)):
        return "failed"
    return proof.verdict if proof is not None and proof.verdict is not Verdict.UNRESOLVED else "unclear"


def _settings_table(states: Mapping[str, Mapping[str, tuple[str, str]]]) -> pd.DataFrame:
    rows = {}
    for setting in sorted({setting for of_study in states.values() for setting in of_study}):
        cells = [of_study.get(setting, ("not tried", "")) for of_study in states.values()]
        rows[setting] = [*(" ".join(cell).strip() for cell in cells), _agreement([state for state, _ in cells])]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[*states, "agreement"]).rename_axis("setting")
    return table.sort_values("agreement", ascending=False, kind="stable")


def _agreement(states: Sequence[str]) -> str:
    """Compares the states of a setting in the studies that resolved it."""
    kinds = [_KINDS[state] for state in states if state in _KINDS]
    if len(kinds) < 2:
        return ""
    return "agree" if len(set(kinds)) == 1 else "differ"


def _shown(table: ComparisonTable) -> list[dict[str, str]]:
    """Formats the rows of `frame`."""
    return [
        {
            **{k: str(row[k]) for k in ("study", *table.by, "winner")},
            "outcome": spaced(row["outcome"]),
            "ratio": format_ratio(row["ratio"]),
            "interval": "" if math.isnan(row["low"]) else format_interval(row["low"], row["high"]),
            "process pairs": str(row["process_pairs"]),
            "trials": f"{row['trials']} ({row['failed']} failed)",
            "no-ops": str(row["no_ops"]),
            "default's step": format_seconds(row["default_step_s"]),
            "gain proven 9 times in 10": format_provable(row["provable"]),
        }
        for row in table.frame.to_dict("records")
    ]
