"""Published changes and what is predicted for them: the pairs, the rule of signs, and where the hit rate is told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.published import PublishedChanges, published_changes, sign_of
from autotune.compiler.targets import parse_topology, target_names
from autotune.model import parse_set
from autotune.results import screen_words
from benchmarks.published.pairs import published_pairs, unasked_pairs
from benchmarks.published.pairs_report import changes, section

ROOT = Path(__file__).parents[2]
PAIRS: dict[str, Any] = published_pairs()
(RESULTS,) = sorted((ROOT / "benchmarks/results").glob("published_pairs_*.json"))
FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/predictions.md").read_text(encoding="utf-8")
FLAGS = {name for name, pair in PAIRS.items() if pair["kind"] == "flags"}


def by_hand(published: float, predicted: float) -> str:
    if -1 < published < 1:
        return "right" if -2 <= predicted <= 2 else "wrong"
    if -0.1 < predicted < 0.1:
        return "unseen"
    return "right" if published * predicted > 0 else "wrong"


def test_both_arms_of_a_pair_can_be_compiled_and_differ_in_what_was_published_only() -> None:
    written = tomllib.loads((ROOT / "benchmarks/published/pairs.toml").read_text(encoding="utf-8"))
    assert len(PAIRS) >= 8
    for name, pair in PAIRS.items():
        off, on = pair["arms"]
        assert pair["source"], name
        assert pair["told"], name
        assert pair["kind"] in ("flags", "option", "room"), name
        assert off["target"] in target_names(), name
        assert parse_topology(off["topology"]).device_count >= 1, name
        flags = [dict(parse_set(arm["flags"])) for arm in (off, on)]
        assert (flags[0] != flags[1]) == (pair["kind"] != "option"), name
        assert (off["options"] != on["options"]) == (pair["kind"] == "option"), name
        rest = [{k: v for k, v in arm.items() if k not in ("flags", "options")} for arm in (off, on)]
        assert rest[0] == rest[1], name
        assert set(written["pairs"][name]) >= {"of", "kind", "like"} or pair["kind"] != "room", name
    assert all(unasked_pairs().values())


def test_results_are_of_the_pairs_of_today() -> None:
    assert FOUND.keys() == PAIRS.keys()
    for name, pair in FOUND.items():
        off, on = pair["step_s"]
        assert pair["predicted"] == pytest.approx(100 * (on / off - 1), abs=1e-3), name


def test_what_predictions_carry_is_what_the_results_say() -> None:
    known = published_changes().changes
    assert known.keys() == FLAGS
    for name, change in known.items():
        assert change == pytest.approx((PAIRS[name]["published"], FOUND[name]["predicted"]), abs=0.01), name
    assert changes({n: {**PAIRS[n], **FOUND[n]} for n in PAIRS}).keys() == FLAGS


def test_the_page_has_the_figures_of_the_results() -> None:
    for name, pair in FOUND.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
        sign = by_hand(PAIRS[name]["published"], pair["predicted"])
        assert f"| {PAIRS[name]['published']:+.1f} % | {pair['predicted']:+.1f} % | {sign} |" in line
    signs = [by_hand(PAIRS[n]["published"], FOUND[n]["predicted"]) for n in FLAGS]
    counts = " | ".join(str(signs.count(sign)) for sign in ("right", "unseen", "wrong"))
    assert f"| flags | {len(FLAGS)} | {counts} |" in PAGE
    for what in unasked_pairs():
        assert f"* {what}" in PAGE


@pytest.mark.parametrize("published", [-24.7, -1.0, -0.99, 0.0, 0.5, 1.0, 3.4])
@pytest.mark.parametrize("predicted", [-30.0, -2.01, -2.0, -0.1, -0.05, 0.0, 0.05, 0.1, 2.0, 2.01, 30.0])
def test_a_sign_is_right_as_the_page_says(published: float, predicted: float) -> None:
    assert sign_of(published, predicted) == by_hand(published, predicted)


def test_who_always_says_no_change_or_the_opposite_is_not_called_right() -> None:
    told = [3.4, -2.9, 7.1, -24.0]
    assert PublishedChanges({str(p): (p, 0.0) for p in told}).count("right") == 0
    assert PublishedChanges({str(p): (p, -p) for p in told}).count("wrong") == len(told)
    assert PublishedChanges({str(p): (p, 0.2 * p) for p in told}).count("right") == len(told)


def test_signs_are_right_for_most_published_flags() -> None:
    known = published_changes()
    assert len(known.changes) >= 8
    assert known.count("right") / len(known.changes) >= 0.6
    assert known.count("wrong") <= 1


def predicted_rows(count: int) -> list[dict[str, Any]]:
    figures = dict.fromkeys(("step_s", "compute_s", "exposed_s", "idle_s"), 1.0)
    return [{"settings": {}, "mfu": None, "published": None, "interval_s": None, **figures} for _ in range(count)]


def test_a_predicted_change_tells_how_far_such_changes_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    known = published_changes()
    line = (
        f"of {len(known.changes)} changes by flags that others published, the sign was predicted right for "
        f"{known.count('right')}, wrong for {known.count('wrong')}"
    )
    assert line in screen_words.predicted_lines(predicted_rows(2))
    assert line not in screen_words.predicted_lines(predicted_rows(1))
    monkeypatch.setattr(screen_words, "published_changes", lambda: PublishedChanges({}))
    assert not any("published" in words for words in screen_words.predicted_lines(predicted_rows(2)))


def test_a_section_lists_what_does_not_compile_and_does_not_count_it() -> None:
    pairs = {n: {**PAIRS[n], **FOUND[n]} for n in PAIRS}
    name = sorted(FLAGS)[0]
    broken = {k: v for k, v in pairs[name].items() if k != "predicted"}
    text = section({**pairs, name: {**broken, "failure": "on: no such flag"}}, {}, "0.10.2")
    assert f"| flags | {len(FLAGS) - 1} |" in text
    assert f"* `{name}` does not compile: on: no such flag" in text
