"""The part of the page that holds predicted changes against published ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from autotune.compiler.published import NO_CHANGE, NO_CHANGE_MET, UNSEEN, sign_of

Pairs = Mapping[str, Mapping[str, Any]]

KINDS = {
    "flags": "flags",
    "option": "options (precision, attention)",
    "room": "... flags of Marin, were the memory larger",
}

HEAD = f"""
## Published changes

What a setting did to the step time of a configuration that its source names, and what is predicted for that
configuration with and without it. Pairs, sources and what is assumed are `benchmarks/published/pairs.toml`; results are
`benchmarks/results/published_pairs_{{jaxlib}}.json`. Changes are of the step time: above zero is slower. A published
change below {NO_CHANGE:g} % is none, which is right if at most {NO_CHANGE_MET:g} % is predicted; a change of which
less than {UNSEEN:g} % is predicted is *unseen*. No figure of the model was chosen by these pairs.

| pairs | count | sign right | unseen | wrong | most on the wrong side | Spearman |
|---|---|---|---|---|---|---|"""

GOAL = """
Goal: the sign right for 8 of 10 flags, none wrong by more than 2 points. What stands with a predicted change elsewhere
is the row of flags.

Six of the flags are of one sweep, of a model that the workloads express in part: its optimizer's state lay on the host,
its loss was taken in parts. Without that the step needs more than the GPU has, XLA computes much again, and what a flag
does hangs on that as it did there (that run's own gain of 9 % was 3.7 GiB that no longer had to be computed again). The
last row of the first table asks for the same flags as if the memory sufficed: other signs are right then, not more.

| pair | setting | configuration | published | predicted | sign | |
|---|---|---|---|---|---|---|"""


def changes(pairs: Pairs) -> dict[str, list[float]]:
    """Published and predicted change of each pair of flags that could be asked, in percent: what predictions carry."""
    return {n: [p["published"], round(p["predicted"], 2)] for n, p in _asked(pairs).items() if p["kind"] == "flags"}


def _asked(pairs: Pairs) -> Pairs:
    return {name: pair for name, pair in pairs.items() if "predicted" in pair}


def section(pairs: Pairs, unasked: Mapping[str, str], jaxlib: str) -> str:
    """The section as Markdown."""
    asked = _asked(pairs)
    lines = [HEAD.format(jaxlib=jaxlib)]
    lines += [_group(words, [p for p in asked.values() if p["kind"] == kind]) for kind, words in KINDS.items()]
    lines += [GOAL, *(_pair(n, p) for n, p in asked.items())]
    lines += ["", "Not asked, and not counted:", "", *(f"* {what}: {why}." for what, why in unasked.items())]
    lines += [f"* `{n}` does not compile: {p['failure']}" for n, p in pairs.items() if "failure" in p]
    return "\n".join(lines) + "\n"


def _group(words: str, pairs: list[Mapping[str, Any]]) -> str:
    from scipy.stats import spearmanr

    signs = Counter(sign_of(p["published"], p["predicted"]) for p in pairs)
    wrong = [abs(p["predicted"]) for p in pairs if sign_of(p["published"], p["predicted"]) == "wrong"]
    rank = spearmanr([p["published"] for p in pairs], [p["predicted"] for p in pairs]).statistic
    most = f"{max(wrong):.1f} points" if wrong else ""
    counts = " | ".join(str(signs[sign]) for sign in ("right", "unseen", "wrong"))
    return f"| {words} | {len(pairs)} | {counts} | {most} | {'' if math.isnan(rank) else f'{rank:.2f}'} |"


def _pair(name: str, pair: Mapping[str, Any]) -> str:
    off = pair["arms"][0]
    nodes, each = off["topology"].split("x")
    setting = pair.get("flags_on") or (pair.get("flags_off") and f"without {pair['flags_off']}") or ""
    setting = setting or ", ".join(f"{k} = {v}" for k, v in pair["on"].items())
    words = f"{pair['source']}; {pair['told']}" + (f"; assumed: {pair['weak']}" if pair["weak"] else "")
    sign = sign_of(pair["published"], pair["predicted"])
    figures = f"{pair['published']:+.1f} % | {pair['predicted']:+.1f} % | {sign}"
    return f"| {name} | `{setting}` | {pair['of']}, {int(nodes) * int(each)} {off['target']} | {figures} | {words} |"
