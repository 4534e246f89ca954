"""Published changes and what is predicted for them: the pairs, the rule of signs, and where the hit rate is told."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.compiler.published import PublishedChanges, published_changes, sign_of
from autotune.compiler.targets import parse_topology, target_names
from autotune.model import parse_set
from autotune.results import screen_words

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Any] = tomllib.loads((ROOT / "benchmarks/published/rows.toml").read_text(encoding="utf-8"))["rows"]
WRITTEN: dict[str, Any] = tomllib.loads((ROOT / "benchmarks/published/pairs.toml").read_text(encoding="utf-8"))
(RESULTS,) = sorted((ROOT / "benchmarks/results").glob("published_pairs_*.json"))
FOUND: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/predictions.md").read_text(encoding="utf-8")


def whole(kind: str, name: str) -> dict[str, Any]:
    """An entry of the pairs' file with what it takes over."""
    entry = WRITTEN[kind][name]
    return {**(whole(kind, entry["like"]) if "like" in entry else {}), **entry}


PAIRS = {name: {"kind": "flags", **whole("pairs", name)} for name in WRITTEN["pairs"]}
FLAGS = {name for name, pair in PAIRS.items() if pair["kind"] == "flags"}


def by_hand(published: float, predicted: float) -> str:
    if -1 < published < 1:
        return "right" if -2 <= predicted <= 2 else "wrong"
    if -0.1 < predicted < 0.1:
        return "unseen"
    return "right" if published * predicted > 0 else "wrong"


def test_every_pair_names_its_source_its_configuration_and_what_differs() -> None:
    assert len(FLAGS) >= 8
    for name, pair in PAIRS.items():
        row = ROWS.get(pair["of"]) or whole("configurations", pair["of"])
        count = parse_topology(row["topology"]).device_count
        assert row["target"] in target_names(), name
        assert math.prod(row["options"]["mesh"].values()) == count, name
        assert row["options"]["batch"] % count == 0, name
        assert pair["source"], name
        assert pair["told"], name
        differ = {arm: parse_set(pair.get(f"flags_{arm}", "")) for arm in ("off", "on")}
        assert (differ["off"] != differ["on"]) == (pair["kind"] != "option"), name
        assert (pair.get("off") != pair.get("on")) == (pair["kind"] == "option"), name
        assert row.get("weak") or pair.get("weak"), name  # nothing here is known whole
    assert all(WRITTEN["unasked"].values())


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


def test_the_page_has_the_figures_of_the_results() -> None:
    for name, pair in FOUND.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
        sign = by_hand(PAIRS[name]["published"], pair["predicted"])
        assert f"| {PAIRS[name]['published']:+.1f} % | {pair['predicted']:+.1f} % | {sign} |" in line
    signs = [by_hand(PAIRS[n]["published"], FOUND[n]["predicted"]) for n in FLAGS]
    counts = " | ".join(str(signs.count(sign)) for sign in ("right", "unseen", "wrong"))
    assert f"| flags | {len(FLAGS)} | {counts} |" in PAGE
    for what in WRITTEN["unasked"]:
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
    plain: dict[str, Any] = {
        "settings": {},
        "mfu": None,
        "published": "near",
        "interval_s": [0.5, 2.0],
        "unknown_loops": [],
    }
    return [{**plain, **figures} for _ in range(count)]


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


def test_with_more_memory_other_signs_are_right_but_not_more_of_them() -> None:
    room = {name: pair["like"] for name, pair in PAIRS.items() if pair["kind"] == "room"}
    assert len(room) == len([n for n in FLAGS if PAIRS[n]["of"] == "marin_fsdp"]) == 6
    signs = [[by_hand(PAIRS[n]["published"], FOUND[n]["predicted"]) for n in names] for names in (room.values(), room)]
    right = [found.count("right") for found in signs]
    assert signs[0] != signs[1]
    assert right[1] <= right[0]
    assert f"flags of Marin, were the memory larger | {len(room)} | {right[1]} |" in PAGE
