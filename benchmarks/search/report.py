"""The tables of `benchmarks/results/search.md`, from the rows of runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results_file import markdown_table
from benchmarks.search.conditioned import CONDITIONED
from benchmarks.search.drawn import DRAWN
from benchmarks.search.families import FAMILIES
from benchmarks.search.options import OPTIONS
from benchmarks.search.registry import RIVALS
from benchmarks.search.runs import LOOKS, Row, read_rows
from benchmarks.search.scoring import interval
from benchmarks.search.tables import CONTESTANTS

OWN_NOISE = {DRAWN: "Drawn spaces", OPTIONS: "Options together with flags"}
"""Families that draw their own noise, with their titles."""

Cells = Mapping[str, object]


def write_report(folder: Path) -> Path:
    """Writes the report of a folder's rows beside it.

    Args:
        folder: Where `families.jsonl` and `tables.jsonl` are, as far as they are.
    """
    made_up, tables = read_rows(folder / "families.jsonl"), read_rows(folder / "tables.jsonl")
    sections = [
        "# The search against its rivals",
        "Written by `python -m benchmarks.search report`; docs/search.md says what is done. "
        "Score 0 is uniform random "
        "search, 1 the optimum; in brackets 95 % bootstrap intervals over seeds. Made with "
        + "; ".join(
            sorted(
                {", ".join(f"{k} {v}" for k, v in r["made"].items()) for r in [*made_up, *tables]}
            )
        )
        + ".",
    ]
    for title, names in (
        ("Families", tuple(FAMILIES)),
        ("Spaces with declared conditions", CONDITIONED),
    ):
        of_these = [r for r in made_up if r["family"] in names]
        for noise, without_recipes, trials in sorted({_run_as(r) for r in of_these}):
            with_recipes = "without" if without_recipes else "with"
            sections.append(
                f"## {title}, {trials} trials, {100 * noise:g} % noise, {with_recipes} recipes"
            )
            sections += _families(
                [r for r in of_these if _run_as(r) == (noise, without_recipes, trials)], names
            )
    for family, title in OWN_NOISE.items():
        sections += _drawn([r for r in made_up if r["family"] == family], title)
    sections += _tables(tables)
    path = folder.with_suffix(".md")
    path.write_text("\n\n".join(sections) + "\n")
    return path


def _run_as(row: Row) -> tuple[float, bool, int]:
    """Noise, whether without recipes, and trials of a run."""
    return row["noise"], not row["recipes"], row["trials"]


def _families(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    there = [f for f in names if any(r["family"] == f for r in rows)]
    scores: list[Cells] = []
    details: list[Cells] = []
    for name, rival in RIVALS.items():
        mine = {f: [r for r in rows if r["strategy"] == name and r["family"] == f] for f in there}
        if not all(mine.values()):
            continue
        seeds = sorted({len(v) for v in mine.values()})
        whole = _cell([[r["score"] for r in v] for v in mine.values()])
        own = {f: _cell([[r["score"] for r in v]]) for f, v in mine.items()}
        scores.append(
            {"search": f"**{name}**: {rival.words}", "seeds": _span(seeds), "mean": whole, **own}
        )
        looks = [n for n in LOOKS if all(str(n) in r["found"] for v in mine.values() for r in v)]
        details.append(
            {
                "search": name,
                "best tried by " + " / ".join(map(str, looks)): " / ".join(
                    f"{_mean(mine, functools.partial(_at, 'found', n)):.2f}" for n in looks
                ),
                "handed on at " + " / ".join(map(str, looks)): " / ".join(
                    f"{_mean(mine, functools.partial(_at, 'chosen', n)):.2f}" for n in looks
                ),
                "failed of the hazards": f"{np.mean([r['failed'] for r in mine['hazards']]):.1f}"
                if "hazards" in mine
                else None,
                "hunts for culprits": f"{np.mean([r['hunts'] for r in mine['hazards']]):.1f}"
                if "hazards" in mine
                else None,
                "processor seconds a proposal": f"{_mean(mine, lambda r: r['seconds']):.3f}",
                "longest": f"{max(r['longest'] for v in mine.values() for r in v):.2f}",
            }
        )
    absent = [n for n in RIVALS if not any(r["strategy"] == n for r in rows)]
    told = [markdown_table(scores), markdown_table(details)] if scores else []
    return told + ([f"Not run: {', '.join(absent)}."] if absent else [])


def _drawn(rows: Sequence[Row], title: str) -> list[str]:
    """Regret is the best set that was tried, over the optimum, in % of the step time."""
    lines: list[Cells] = []
    shipped = {r["seed"]: r["regret"] for r in rows if r["strategy"] == "additive"}
    for name, rival in RIVALS.items():
        mine = [r for r in rows if r["strategy"] == name]
        if not mine:
            continue
        more = [100 * (r["regret"] - shipped[r["seed"]]) for r in mine if r["seed"] in shipped]
        figures = {"regret": 100.0, "last": 100.0, "failed": 1.0}
        cells = {key: _cell([[scale * r[key] for r in mine]]) for key, scale in figures.items()}
        lines.append(
            {
                "search": f"**{name}**: {rival.words}",
                "seeds": len(mine),
                "score": _cell([[r["score"] for r in mine]]),
                "regret, mean over trials, %": cells["regret"],
                "above that of additive on the same seeds": _cell([more])
                if more and name != "additive"
                else None,
                "after the last, %": cells["last"],
                "failed trials": cells["failed"],
            }
        )
    return [f"## {title}, with recipes, noise drawn too", markdown_table(lines)] if lines else []


def _mean(rows: Mapping[str, Sequence[Row]], figure: Callable[[Row], float]) -> float:
    """Mean of the families' means."""
    return float(np.mean([np.mean([figure(r) for r in v]) for v in rows.values()]))


def _at(kind: str, trial: int, row: Row) -> float:
    """What the set found, or chosen, at a trial is worth."""
    return float(row[kind][str(trial)])


def _cell(groups: Sequence[Sequence[float]]) -> str:
    mean, low, high = interval(groups)
    is_told = min(map(len, groups)) > 1  # one seed has no spread
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]" if is_told else f"{mean:.2f}"


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _tables(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["## Recorded tables", "Not run."]
    sections = ["## Recorded tables"]
    names = sorted({r["family"] for r in rows})
    for most in sorted({r["most"] for r in rows}, key=lambda m: (m is None, m or 0)):
        mine = [r for r in rows if r["most"] == most]
        lines: list[Cells] = []
        for contestant in CONTESTANTS:
            of_tables = {
                n: [r["score"] for r in mine if r["family"] == n and r["strategy"] == contestant]
                for n in names
            }
            if not any(of_tables.values()):
                continue
            is_whole = all(of_tables.values())
            lines.append(
                {
                    "search": contestant,
                    "seeds": _span(sorted({len(v) for v in of_tables.values() if v})),
                    "mean": _cell(list(of_tables.values())) if is_whole else None,
                    **{n: _cell([v]) if v else None for n, v in of_tables.items()},
                }
            )
        upto = (
            "up to the method's cutoff"
            if most is None
            else f"up to the method's cutoff, at most {most} evaluations"
        )
        sections += [f"Scored {upto}.", markdown_table(lines)]
    return sections
