"""The page of predicted over published step times, and its picture."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.framework_interval import interval

Rows = Mapping[str, Mapping[str, Any]]

SIDE, EDGE = 460, 60

FACTOR = 1.2
"""Predictions within this factor of the published step time are counted in the text."""

HEAD = """# How well are step times predicted?

```console
$ autotune predict studies/eight-gpus-fsdp.toml --target h100-sxm      # marked PREDICTED, NOT MEASURED
```

`predict` compiles a step for a GPU that need not be there (`docs/screening.md`) and computes its time: for each kernel
the slowest of matrix units, scalar units and memory, NCCL's tuning model for collectives, PCIe for copies to the
host, and a simulation of streams, waits, graphs and loops. `device.nic_bytes_per_s` in the study sets the network of
your cluster.

No gain of a flag is predicted: compared with published changes, a constant did better. `autotune predict` says
what a set changes in the program (`--set`). `python -m benchmarks.rank_correlation RUN ...` compares predictions with
runs that you measured on GPUs.

## Compared with published step times

Made by `python -m benchmarks.published` under jaxlib {jaxlib}. Configurations, sources and assumptions are in
`benchmarks/published/rows.toml`, results of each run in `benchmarks/results/published_{jaxlib}.json`.

![Predicted over published step time](predictions.svg)

"""  # noqa: E501

NOTES = """
*Kept*: no figure of the model was fitted to them, but they were seen while it was made. *Late*: added when its last
figure was set. A prediction is the step of a well-tuned program like MaxText, not of yours: frameworks differ by a
fifth and more for similar configurations. The 95 % interval that `autotune predict` prints is that of one more
framework. Float8, experts, programs of your own and attention at lengths that no row has get none. The model knows no
software versions.
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Agreement:
    """How predictions agree with what was published."""

    count: int
    mean: float
    spread: float
    within: int
    spearman: float
    spearman_mfu: float


def kind(row: Mapping[str, Any]) -> str:
    """``dense bfloat16``, ``float8`` or ``experts``."""
    if row["options"].get("dtype") == "float8":
        return "float8"
    return "experts" if row["entry"].startswith("mixtral") else "dense bfloat16"


def ratios(rows: Rows) -> dict[str, float]:
    """Predicted over published step time of the dense bfloat16 rows, which give the interval."""
    return {n: r["ratio"] for n, r in rows.items() if "ratio" in r and kind(r) == "dense bfloat16"}


def within(found: Iterable[float]) -> int:
    """Number of ratios within `FACTOR`."""
    return sum(1 / FACTOR <= r <= FACTOR for r in found)


def framework(row: Mapping[str, Any]) -> str:
    """Whose program a row's step time is of."""
    source = row["source"].lower()
    return "AXLearn" if "axlearn" in source else "Pax" if "pax" in source else "MaxText"


def told_with_predictions(rows: Rows, jaxlib: str) -> dict[str, Any]:
    """What stands beside each prediction."""
    found, of_framework, lengths = ratios(rows), defaultdict(list), defaultdict(set)
    for name, ratio in found.items():
        of_framework[framework(rows[name])].append(ratio)
        options = rows[name]["options"]
        lengths[options.get("attention", "")].add(options["seq"])
    return {
        "jaxlib": jaxlib,
        "interval": [round(end, 4) for end in interval(of_framework.values())],
        "words": f"within x{FACTOR:g} in {within(found.values())} of {len(found)} published runs",
        "families": sorted({rows[name]["entry"].split("-")[0] for name in found}),
        "lengths": {attention: sorted(found) for attention, found in lengths.items()},
    }


def agreement(rows: Iterable[Mapping[str, Any]]) -> Agreement:
    """Of some rows that were predicted; NaN for a rank of fewer than three."""
    from scipy.stats import spearmanr

    found = list(rows)
    logs = [math.log(r["ratio"]) for r in found]

    def rank(pairs: list[tuple[float, float]]) -> float:
        one, other = ([pair[i] for pair in pairs] for i in range(2))
        return float(spearmanr(one, other).statistic) if len(pairs) > 2 else math.nan

    return Agreement(
        count=len(found),
        mean=math.exp(statistics.fmean(logs)),
        spread=statistics.stdev(logs) if len(logs) > 1 else math.nan,
        within=within(r["ratio"] for r in found),
        spearman=rank([(r["step_s"], r["measured_s"]) for r in found]),
        spearman_mfu=rank([(r["mfu"], r["mfu"] * r["ratio"]) for r in found]),
    )


def page(rows: Rows, jaxlib: str) -> str:
    """The page as Markdown."""
    done = {n: r for n, r in rows.items() if "ratio" in r}
    dense = [r for r in done.values() if kind(r) == "dense bfloat16"]
    float8 = [r for r in done.values() if kind(r) == "float8"]
    groups = {
        "dense bfloat16": dense,
        "... open": [r for r in dense if not r["held_out"]],
        "... kept": [r for r in dense if r["held_out"]],
        "... late": [r for r in dense if r.get("came_late")],
        "float8": float8,
        "... late, float8": [r for r in float8 if r.get("came_late")],
        "experts": [r for r in done.values() if kind(r) == "experts"],
    }
    lines = [
        HEAD.format(jaxlib=jaxlib)
        + f"| rows | count | geometric mean | spread (sd of log) | within x{FACTOR:g} | Spearman "
        "| Spearman of MFU |",
        "|---|---|---|---|---|---|---|",
        *(_group(name, found) for name, found in groups.items() if found),
        NOTES,
    ]
    failed = {n: r["failure"] for n, r in rows.items() if "failure" in r}
    lines += ["", *(f"* `{n}` was not predicted: {why}" for n, why in failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def _group(name: str, rows: list[Mapping[str, Any]]) -> str:
    a = agreement(rows)
    ranks = ("" if math.isnan(x) else f"{x:.2f}" for x in (a.spearman, a.spearman_mfu))
    spread = "" if math.isnan(a.spread) else f"{a.spread:.1%}"
    return f"| {name} | {a.count} | {a.mean:.3f} | {spread} | {a.within} | {' | '.join(ranks)} |"


def picture(rows: Rows) -> str:
    """Predicted against published step time, both on a logarithmic scale, as an SVG document."""
    done = [(n, r) for n, r in rows.items() if "ratio" in r]
    ends = [math.log10(t) for _, r in done for t in (r["measured_s"], r["step_s"])]
    low, high = math.floor(min(ends) * 2) / 2, math.ceil(max(ends) * 2) / 2

    def at(seconds: float) -> float:
        return EDGE + (math.log10(seconds) - low) / (high - low) * SIDE

    def up(seconds: float) -> float:
        return SIDE + 2 * EDGE - at(seconds)

    a, b = 10**low, 10**high
    whole = SIDE + 2 * EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {whole}" role="img" '
        'font-family="sans-serif" '
        f'font-size="12"><title>Predicted over published step time of {len(done)} runs</title>',
        f'<rect width="{whole}" height="{whole}" fill="white"/>',
    ]
    for tick in (t * 10.0**p for p in range(-3, 4) for t in (1, 3) if a <= t * 10.0**p <= b):
        parts.append(
            f'<path d="M{at(tick):.1f} {up(a):.1f}V{up(b):.1f}M{at(a):.1f} '
            f'{up(tick):.1f}H{at(b):.1f}" stroke="#ddd"/>'
            f'<text x="{at(tick):.1f}" y="{up(a) + 18:.1f}" text-anchor="middle">{tick:g}</text>'
            f'<text x="{at(a) - 8:.1f}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for factor, style in ((1.0, 'stroke="black"'), (FACTOR, "dash"), (1 / FACTOR, "dash")):
        drawn = 'stroke="#777" stroke-dasharray="4 4"' if style == "dash" else style
        x1, x2 = max(a, a / factor), min(b, b / factor)
        parts.append(
            f'<line x1="{at(x1):.1f}" y1="{up(x1 * factor):.1f}" x2="{at(x2):.1f}" '
            f'y2="{up(x2 * factor):.1f}" {drawn}/>'
        )
    colours = {"dense bfloat16": "#0060a8", "float8": "#c05000", "experts": "#207020"}
    for name, r in done:
        fill = "white" if r["held_out"] else colours[kind(r)]
        parts.append(
            f'<circle cx="{at(r["measured_s"]):.1f}" cy="{up(r["step_s"]):.1f}" r="4.5" '
            f'fill="{fill}" '
            f'stroke="{colours[kind(r)]}" stroke-width="1.5"><title>{name}: '
            f"{r['ratio']:.3f}</title></circle>"
        )
    for i, (name, colour) in enumerate(colours.items()):
        y = EDGE + 16 + 18 * i
        dot = f'<circle cx="{EDGE + 14}" cy="{y - 4}" r="4.5" fill="{colour}"/>'
        parts.append(f'{dot}<text x="{EDGE + 26}" y="{y}">{name}</text>')
    parts.append(
        f'<text x="{EDGE + 8}" y="{EDGE + 72}" fill="#555">open circles: kept from fitting; '
        f"dashes: x{FACTOR:g}</text>"
        f'<text x="{whole / 2}" y="{whole - 14}" text-anchor="middle">published step time, s</text>'
        f'<text transform="translate(16 {whole / 2}) rotate(-90)" text-anchor="middle">predicted '
        "step time, s</text>"
        "</svg>"
    )
    return "".join(parts) + "\n"
