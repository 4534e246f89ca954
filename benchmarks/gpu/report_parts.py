"""The sections of the page: from rows to tables, sentences and plots."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from autotune.model.units import format_bytes, format_ratio, format_seconds, format_share
from autotune.results.pages import Chart, Mark, forest
from benchmarks.gpu.estimates import Estimates, Ratio, estimate_ratios, mean_interval
from benchmarks.gpu.hour import Row, read_rows
from benchmarks.gpu.prepare import prepared
from benchmarks.gpu.ranks import STUDIES, runs_of, steady_rows
from benchmarks.gpu.search import sentence_of
from workloads.flops import peak_flops_per_s

MIN_EFFECT = 0.005
PARTS = ("accept", "search-dense", "table-dense", "table-moe", "ranks")

Section = tuple[str, list[str]]


def units(out: Path, part: str) -> dict[str, Row]:
    """What each unit of a part gave last; what broke is left out."""
    return {
        r["unit"]: r for r in read_rows(out / f"{part}.jsonl") if "unit" in r and "error" not in r
    }


def missing(out: Path) -> list[str]:
    """Parts that did not run, and units that were left out or broke."""
    found = []
    for part in PARTS:
        rows = list(read_rows(out / f"{part}.jsonl"))
        if not rows:
            found.append(f"`{part}` did not run")
            continue
        done = units(out, part)
        broken = {r["unit"] for r in rows if "error" in r} - set(done)
        ends = [r for r in rows if "end" in r]
        left = set(ends[-1]["left_out"]) - set(done) if ends else set()
        found += [f"{part}: {name} broke" for name in sorted(broken)]
        found += [f"{part}: no time for {', '.join(sorted(left))}"] if left else []
        if not ends:
            found.append(f"{part} was cut off")
    return found


def sections(out: Path, mark: str) -> tuple[list[Section], dict[str, Chart]]:
    """All sections that there are results for, and the plots that they show."""
    plots: dict[str, Chart] = {}
    found: list[Section] = []
    for study in STUDIES:
        if runs_of(out, study):
            found.append(
                (
                    f"The {study} model: default, winner and published recipes",
                    table(out, study, mark, plots, is_whole=not found),
                )
            )
    if (said := sentence_of(out / "found")) is not None:
        found.append(("A study whose baseline is told to take the first kernel", [f"{said}."]))
    for study in STUDIES:
        done = units(out, f"search-{study}")
        if row := done.get("study") or done.get("study, stopped"):
            found.append(
                (
                    f"The search on the {study} model",
                    [
                        row["sentence"] or "It did not come to its end.",
                        "",
                        f"{row['trials']} trials were measured.",
                    ],
                )
            )
    accepted = units(out, "accept")
    if "interleaved" in accepted:
        found.append(("The machine against itself", itself(accepted, mark, plots)))
    if ranked := units(out, "ranks"):
        found.append(("Predicted against measured", ranks(ranked)))
    return found, plots


def spread_of(accepted: dict[str, Row]) -> tuple[float, int] | None:
    """Standard deviation of a process, from pairs of equal ones in a row; degrees of freedom."""
    ratios = [row["log_ratio"] for name, row in accepted.items() if name.startswith("in a row ")]
    if "interleaved" in accepted:
        ratios.append(
            statistics.mean(p["log_ratio"] for p in accepted["interleaved"]["blocks"]["3.0"])
        )
    return (math.sqrt(statistics.mean(r * r for r in ratios) / 2), len(ratios)) if ratios else None


def table(
    out: Path, study: str, mark: str, plots: dict[str, Chart], is_whole: bool = True
) -> list[str]:
    """The table of all sets, or of the default, the fastest and the slowest; a forest of all."""
    rows, runs = steady_rows(out, study), runs_of(out, study)
    if not any(name == "default" for name, _, _ in runs):
        return ["The default did not run: nothing can be compared."]
    found = estimate_ratios(runs, default="default", spread=spread_of(units(out, "accept")))
    names = ["default", *sorted(found.ratios, key=lambda n: found.ratios[n].ratio)]
    predicted = {
        r["name"]: r for r in prepared(out, study).get("predictions", {}).get("predicted", [])
    }
    lines = [
        "| set | step | over the default's, 95 % interval | MFU | J/token | predicted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in names if is_whole else [*names[:2], *names[2:][-1:]]:
        own = [r for r, (n, _, _) in zip(rows, runs, strict=True) if n == name]
        lines.append(table_row(name, own, found.ratios.get(name), predicted))
    label = f"{study}{mark}"
    marks = [
        Mark(
            x=r.ratio,
            x_ends=(r.low, r.high),
            label=name,
            detail=f"{name}: {shown(r)}",
            style=style_of(r),
        )
        for name, r in sorted(found.ratios.items(), key=lambda pair: pair[1].ratio)
    ]
    plots[f"gpu-{study}"] = Chart(
        title=label, svg=forest(marks, band=MIN_EFFECT, of=f"{label}: step time")
    )
    return [
        *lines,
        "",
        *words(found, rows),
        "",
        f"![Step times over the default's{mark}](gpu-{study}.svg)",
    ]


def table_row(name: str, own: list[Row], ratio: Ratio | None, predicted: dict[str, Row]) -> str:
    """One set's figures: geometric mean over its processes."""
    step_s = math.exp(
        statistics.mean(math.log(statistics.mean(r["steady"]["step_s"])) for r in own)
    )
    report = own[0]["report"]
    tokens, flops = report.get("tokens_per_step"), report.get("flops_per_step")
    peak = peak_flops_per_s(report["device_kind"], report["dtype"])
    joules = [
        r["steady"]["joules"] / len(r["steady"]["step_s"]) for r in own if r["steady"]["joules"]
    ]
    told = predicted.get(name, {}).get("step_s")
    cells = [
        name,
        format_seconds(step_s),
        shown(ratio) if ratio is not None else "1",
        format_share(flops / step_s / peak) if flops and peak else "-",
        f"{statistics.mean(joules) / tokens:.4f}" if joules and tokens else "-",
        format_seconds(told) if told else "-",
    ]
    return f"| {' | '.join(cells)} |"


def shown(r: Ratio) -> str:
    """A ratio with its interval."""
    interval = (
        "no interval" if math.isnan(r.low) else f"[{format_ratio(r.low)}, {format_ratio(r.high)}]"
    )
    return f"{format_ratio(r.ratio)} {interval}"


def style_of(r: Ratio) -> str:
    """How a ratio is drawn: better, worse, or not known."""
    return "good" if r.high < 1 else "unpromising" if r.low > 1 else "open"


def words(found: Estimates, rows: list[Row]) -> list[str]:
    """What holds for the whole table."""
    held = sorted({w for r in rows for w in r["steady"]["held_back_by"]})
    sd = "not known" if math.isnan(found.process_sd) else format_share(found.process_sd)
    tokens = rows[0]["report"]["tokens_per_step"]
    least = min((r.runs for r in found.ratios.values()), default=0)
    return [
        f"{len(rows)} fresh processes, {least} or more of each set. All intervals hold together "
        f"with 95 %; the standard deviation of a process is {sd}. A step has {tokens} tokens. "
        f"Clocks were held back by {', '.join(held) or 'nothing that was seen'}."
    ]


def itself(accepted: dict[str, Row], mark: str, plots: dict[str, Chart]) -> list[str]:
    """A/A run by length of block, order and residency effects, process spread."""
    row = accepted["interleaved"]
    lines = [
        "| block | pairs | standard deviation of a pair | second over first |",
        "| --- | --- | --- | --- |",
    ]
    marks = []
    for block_s, pairs in row["blocks"].items():
        logs = [p["log_ratio"] for p in pairs]
        order = mean_interval([p["log_ratio"] * (1 if p["first"] == 0 else -1) for p in pairs])
        sd = statistics.stdev(logs)
        lines.append(f"| {block_s} s | {len(pairs)} | {100 * sd:.2f} % | {interval_words(order)} |")
        at = mean_interval(logs)
        marks.append(
            Mark(
                x=math.exp(at[0]),
                x_ends=(math.exp(at[1]), math.exp(at[2])),
                label=f"blocks of {block_s} s",
                detail=f"{len(pairs)} pairs",
                style="aa_run",
            )
        )
    plots["gpu-itself"] = Chart(
        title=f"A/A{mark}", svg=forest(marks, band=MIN_EFFECT, of=f"A/A{mark}: step time")
    )
    beside, alone = statistics.mean(row["beside_s"]), statistics.mean(row["alone_s"])
    if watts := accepted.get("idle", {}).get("block", {}).get("power_w"):
        lines += ["", f"At rest the GPU draws {watts:.0f} W."]
    lines += [
        "",
        f"Beside an idle process a step takes {format_ratio(beside / alone)} times what it takes "
        "alone.",
    ]
    if (spread := spread_of(accepted)) is not None:
        lines.append(
            f"Processes started in a row differ by a standard deviation of {100 * spread[0]:.2f} %."
        )
    at_once = [
        abs(row["log_ratio"]) for name, row in accepted.items() if name.startswith("at once ")
    ]
    if at_once:
        lines.append(
            f"Pairs started at once differ by {', '.join(f'{100 * x:.2f} %' for x in at_once)}."
        )
    return [*lines, "", f"![Equal processes against each other{mark}](gpu-itself.svg)"]


def interval_words(found: tuple[float, float, float]) -> str:
    """A mean of logs as a ratio with its interval."""
    mean, low, high = (math.exp(v) for v in found)
    return format_ratio(mean) + (
        "" if math.isnan(low) else f" [{format_ratio(low)}, {format_ratio(high)}]"
    )


def ranks(done: dict[str, Row]) -> list[str]:
    """Predicted against measured: ranks, factor, memory."""
    lines = []
    for name, row in done.items():
        if "cannot" in row:
            lines.append(f"* {name}: {row['cannot']}.")
            continue
        a: dict[str, Any] = row["agreement"]
        if a["count"] < 2:
            continue
        order = "too few programs differ for a rank correlation"
        if a["spearman"] is not None:
            order = (
                f"Spearman {a['spearman']:.2f} [{a['low']:.2f}, {a['high']:.2f}], Kendall "
                f"{a['kendall']:.2f}"
            )
        more = (
            f"; steps take {row['factor']:.2f} times what is predicted" if "factor" in row else ""
        )
        if row.get("predicted_peak_bytes") and row.get("measured_peak_bytes"):
            told, seen = row["predicted_peak_bytes"], row["measured_peak_bytes"]
            more += f"; memory {format_bytes(told)} predicted, {format_bytes(seen)} measured"
        lines.append(f"* {name}: {a['count']} programs, {order}{more}.")
    return lines
