"""Writes figures of benchmarks into README and docs: `python docs/write_figures.py`.

With ``--check`` it writes nothing and ends with status 1 if a page says another figure than
`benchmarks/results`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
from benchmarks.search.scoring import interval  # noqa: E402 - found from the line above

RESULTS = ROOT / "benchmarks" / "results"
UNSHOWN = ("1 in 20 slower by 38 %", "1 in 10 slower by 9 %", "1 in 5 slower by 8 %")
"""Machines on which so few processes are slow that a proof may see none."""

FAMILIES = ("sparse", "gated", "hazards", "numeric", "catalogue")
CONDITIONED = ("conditions and hazards", "conditions and gates")


MACHINES = {
    "an H100, start 14 s": "H100",
    "a noisy A100, start 18 s": "noisy A100",
    "eight GPUs, start 90 s": "8 GPUs, start 90 s",
    "two CPU cores, start 5 s": "2 CPU cores",
}
"""Rows of a table of docs/budgets.md, and the machine that each is of."""

NAMING = ("plain loop", "Optuna TPE", "autotune")


class Claim(NamedTuple):
    """A sentence of a page, as a pattern in which each group is a figure, and those figures."""

    page: str
    pattern: str
    figures: list[str]


def read(name: str) -> Any:
    """A file of results: JSON, or JSON lines."""
    text = (RESULTS / name).read_text(encoding="utf-8")
    return (
        [json.loads(line) for line in text.splitlines()]
        if name.endswith(".jsonl")
        else json.loads(text)
    )


def mean(values: Iterable[float]) -> float:
    """Their mean."""
    return statistics.fmean(values)


def percent(share: float, digits: int = 0) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f}"


def claims() -> list[Claim]:
    """Every sentence whose figures are written from results."""
    return [
        *_of_truth(),
        *_of_variants(),
        *_of_real_processes(),
        *_of_screening(),
        *_of_models(),
        *_of_search(),
        *_of_time(),
    ]


def _of_truth() -> Iterator[Claim]:
    truth = read("truth.json")["results"]
    rows = [
        [row for row in truth["null"] if (row["machine"] in UNSHOWN) is is_unshown]
        for is_unshown in (False, True)
    ]
    (studies, wrong), (others, unseen) = (
        [str(sum(row[key] for row in found)) for key in ("studies", "false_winners")]
        for found in rows
    )
    power = {row["machine"]: row for row in truth["power"]}
    quiet, loud = (power[f"pair sd {sd} %"] for sd in (0.7, 1.8))
    found = [str(round(row["found"]["0.02"] * row["studies"])) for row in (quiet, loud)]
    held, named = (
        str(sum(sum(row[key].values()) for row in power.values())) for key in ("held", "winners")
    )
    yield Claim(
        "docs/measurement.md",
        r"Of (\d+) studies on (\d+) kinds of machine .*? (\d+) name a false winner.*?in (\d+) of "
        r"(\d+) studies one is "
        r"named\. A true gain of 2 % is found in (\d+) of (\d+) studies .*?by 0.7 %, and in "
        r"(\d+) of (\d+) where by "
        r"1.8 %.*?holds the truth for (\d+) of (\d+)",
        [
            studies,
            str(len(rows[0])),
            wrong,
            unseen,
            others,
            found[0],
            str(quiet["studies"]),
            found[1],
            str(loud["studies"]),
            held,
            named,
        ],
    )
    yield Claim(
        "README.md",
        r"of (\d+) without a true winner, on (\d+) kinds .*? (\d+) name one.*?found in (\d+) of "
        r"(\d+) studies",
        [studies, str(len(rows[0])), wrong, found[1], str(loud["studies"])],
    )


def _of_variants() -> Iterator[Claim]:
    found = read("ab_truth.json")
    called = [str(found["equals_called"][word]) for word in ("slower", "faster")]
    yield Claim(
        "docs/ab.md",
        r"of (\d+) on a simulated machine (\d+) were called slower and (\d+) faster",
        [str(len(found["equals"])), *called],
    )


def _of_real_processes() -> Iterator[Claim]:
    runs = read("real_truth_speedup.json")["runs"]
    named = sum(run["outcome"] == "winner" for run in runs)
    gains = [percent(1 - run["reported"][0], 1) for run in runs]
    equal = read("real_truth_identical.json")["runs"]
    winners = sum(run["outcome"] == "winner" for run in equal)
    yield Claim(
        "docs/measurement.md",
        r"Of (\d+) studies with a planted gain .*? (\d+) name the winner; they report ([\d.]+) "
        r"%, ([\d.]+) % and "
        r"([\d.]+) %.*?Of (\d+) studies of twelve equal candidates (\d+) name a winner",
        [str(len(runs)), str(named), *gains, str(len(equal)), str(winners)],
    )


def _of_screening() -> Iterator[Claim]:
    spaces = [
        found
        for file in sorted(RESULTS.glob("soundness_[0-9]*.json"))
        for found in read(file.name).values()
    ]
    yield Claim(
        "docs/screening.md",
        r"Of (\d+) points in (\d+) spaces the screened space lost no program",
        [str(sum(found["points"] for found in spaces)), str(len(spaces))],
    )
    default, slow, _ = read("slow_compilation_0.12.0.1.json")["compilations"]
    sizes = [f"{row['host_bytes'] / 1e9:.1f}" for row in (default, slow)]
    yield Claim(
        "docs/screening.md",
        r"from ([\d.]+) s of processor time and ([\d.]+) GB to (\d+) s and ([\d.]+) GB",
        [f"{default['processor_s']:.0f}", sizes[0], f"{slow['processor_s']:.0f}", sizes[1]],
    )


def _of_models() -> Iterator[Claim]:
    peaks = {name: str(row["peak_gib"]) for name, row in read("offload_8xh100.json").items()}
    yield Claim(
        "docs/models.md",
        r"needs (\d+\.\d) or (\d+\.\d) GiB instead of (\d+\.\d)",
        [peaks["llama3.1-8b optimizer"], peaks["llama3.1-8b activations"], peaks["llama3.1-8b"]],
    )
    plain, activations, optimizer = read("gpu/offload.jsonl")
    told = max(row["predicted_step_s"] for row in (activations, optimizer))
    measured = [f"{row['median_step_time_s']:.2f}" for row in (optimizer, activations, plain)]
    yield Claim(
        "docs/models.md",
        r"then takes ([\d.]+) or ([\d.]+) s \(predicted ([\d.]+)\) instead of ([\d.]+)\.",
        [*measured[:2], f"{told:.2f}", measured[2]],
    )


def _of_search() -> Iterator[Claim]:
    rows = [
        r
        for r in read("search/families.jsonl")
        if (r["trials"], r["noise"], r["recipes"]) == (60, 0.01, True)
    ]

    def of(strategy: str) -> list[list[dict[str, Any]]]:
        mine = [r for r in rows if r["strategy"] == strategy]
        return [[r for r in mine if r["family"] == family] for family in FAMILIES]

    for words, strategy in (("as shipped", "additive"), ("TPE", "TPE")):
        score = interval([[r["score"] for r in family] for family in of(strategy)])
        found = [
            mean(mean(r["found"][at] for r in family) for family in of(strategy))
            for at in ("20", "40", "60")
        ]
        yield Claim(
            "docs/search.md",
            rf"\| {words} \| (\d+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\] \| ([\d.]+) / ([\d.]+) / "
            r"([\d.]+) \|",
            [str(len(of(strategy)[0])), *(f"{figure:.2f}" for figure in (*score, *found))],
        )
    yield _of_drawn_spaces()
    yield _of_conditions()
    scores: dict[str, dict[str, list[float]]] = {}
    for row in read("search/tables.jsonl"):
        scores.setdefault(row["strategy"], {}).setdefault(row["family"], []).append(row["score"])
    means = {strategy: interval([*of_tables.values()]) for strategy, of_tables in scores.items()}
    best = max((s for s in means if s.startswith("kt:")), key=lambda s: means[s][0])
    ours, tpe, rival = ([f"{figure:.2f}" for figure in means[s]] for s in ("additive", "TPE", best))
    yield Claim(
        "docs/search.md",
        r"it scores ([-\d.]+) \[([-\d.]+), ([-\d.]+)\], Optuna's TPE ([-\d.]+), .*?best "
        r"strategy, `(\w+)`, ([-\d.]+) "
        r"\[([-\d.]+), ([-\d.]+)\]",
        [*ours, tpe[0], best.removeprefix("kt:"), *rival],
    )


def _of_drawn_spaces() -> Claim:
    drawn: dict[str, list[dict[str, Any]]] = {"additive": [], "TPE": [], "uniform": []}
    for row in read("search/families.jsonl"):
        if row["family"] == "drawn" and row["strategy"] in drawn:
            drawn[row["strategy"]].append(row)
    common = set.intersection(*({r["seed"] for r in rows} for rows in drawn.values()))
    drawn = {strategy: [r for r in rows if r["seed"] in common] for strategy, rows in drawn.items()}
    regrets = [percent(mean(r["regret"] for r in rows), 1) for rows in drawn.values()]
    failed = [f"{mean(r['failed'] for r in rows):.1f}" for rows in drawn.values()]
    return Claim(
        "docs/search.md",
        r"`benchmarks/search/drawn\.py`\), (\d+) seeds\..*? is ([\d.]+) % of the step time, with "
        r"TPE ([\d.]+) %, with "
        r"random sets ([\d.]+) %; ([\d.]+) trials fail, of TPE ([\d.]+), of random sets ([\d.]+)\.",
        [str(len(drawn["additive"])), *regrets, *failed],
    )


def _of_conditions() -> Claim:
    scores: dict[str, list[float]] = {family: [] for family in CONDITIONED}
    for row in read("search/families.jsonl"):
        if row["family"] in scores and row["strategy"] == "additive":
            scores[row["family"]].append(row["score"])
    figures = [
        figure for found in scores.values() for figure in (str(len(found)), f"{mean(found):.2f}")
    ]
    return Claim(
        "docs/search.md",
        r"`benchmarks/search/conditioned\.py`\): of (\d+) seeds with failures the score is "
        r"([\d.]+), of (\d+) with "
        r"gates ([\d.]+)\.",
        figures,
    )


def _of_time() -> Iterator[Claim]:
    rows = {(row["machine"], row["way"]): row for row in read("time_to_result.json")}
    figure = r"([\d.]+)"
    for words, machine in MACHINES.items():
        row, screened = rows[machine, "autotune"], rows[machine, "autotune, screened"]
        cells = [
            f"{row['sets_per_hour']:.0f}",
            f"{screened['answered_per_hour']:.0f}",
            str(row["found"]),
        ]
        cells += [str(r[key]) for key in ("proven", "end") for r in (row, screened)]
        winners = rows[machine, "autotune, 15 min"]["winners"]
        if winners:
            pattern = rf"\| {words} [^\n]*a winner in {figure} of 20"
            yield Claim("docs/budgets.md", pattern, [str(winners)])
        yield Claim(
            "docs/budgets.md",
            rf"\| {words} \| {figure} \({figure}\) \| {figure} .*?\| {figure} \({figure}\) \| "
            rf"{figure} \({figure}\) \|",
            cells,
        )
    for words, way in (
        ("autotune", "autotune"),
        ("a loop, .*?", "plain loop"),
        ("Optuna's TPE", "Optuna TPE"),
    ):
        row = rows["H100", way]
        cells = [
            f"{row['sets_per_hour']:.0f}",
            str(row["found"]),
            str(row["end"]),
            str(row["null_winners"]),
        ]
        yield Claim(
            "README.md",
            rf"\| {words} \| {figure} \| {figure} min \| [a-z; ]*{figure} min \| {figure} \|",
            cells,
        )
    named = [
        str(rows[m, way]["null_winners"]) for m in ("noisy A100", "2 CPU cores") for way in NAMING
    ]
    yield Claim(
        "README.md",
        rf"winner in {figure} of 60 studies without a gain, TPE in {figure}, autotune in "
        rf"{figure}; on two CPU cores in "
        rf"{figure}, {figure} and {figure}\.",
        named,
    )


def written(text: str, claim: Claim) -> str:
    """A page's text with the claim's figures.

    Raises:
        LookupError: If it has no such sentence.
    """
    found = re.search(r"\s+".join(claim.pattern.split(" ")), text, re.DOTALL)
    if found is None:
        raise LookupError(f"{claim.page} has no sentence like: {claim.pattern}")
    for group, figure in reversed([*enumerate(claim.figures, 1)]):
        text = text[: found.start(group)] + figure + text[found.end(group) :]
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 if a figure is another"
    )
    options = parser.parse_args(arguments)
    before = {claim.page: (ROOT / claim.page).read_text(encoding="utf-8") for claim in claims()}
    after = dict(before)
    for claim in claims():
        after[claim.page] = written(after[claim.page], claim)
    changed = [page for page in before if after[page] != before[page]]
    for page in changed:
        print(
            f"{page} has other figures than benchmarks/results"
            + ("" if options.check else "; written anew")
        )
        if not options.check:
            (ROOT / page).write_text(after[page], encoding="utf-8")
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
