"""The study's own sentence: what it says of gains, and of sets that looked faster but were refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.model.flags import FlagSet
from autotune.model.records import EffectsRecord, FinalistResult, Objection, Outcome
from autotune.model.units import format_gain
from autotune.results.effects import effect_lines, refused_sets
from autotune.rundir.store import Store
from autotune.stats.estimates import Verdict
from autotune.study import conclude
from autotune.study.plan import Conclude
from tests.tables import toml_beside

CASES = toml_beside(__file__)
PLANTED = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu" / "planted"
SETTINGS = FlagSet({"xla_gpu_autotune_level": "4"})


class Changed:
    """The records of a run, with other proofs than its own."""

    def __init__(self, **change: Any) -> None:
        self.store = Store.open(PLANTED)
        self.spec = self.store.spec
        self._proofs = [proof.model_copy(update=change) for proof in self.store.of(FinalistResult)]

    def of(self, kind: type[Any]) -> list[Any]:
        return self._proofs if kind is FinalistResult else list(self.store.of(kind))

    def pairs(self, directory: str) -> list[Any]:
        return list(self.store.pairs(directory))

    def last(self, kind: type[Any]) -> Any:
        return self.store.last(kind)


def concluded(end: Conclude, **change: Any) -> dict[str, Any]:
    records = Changed(**change)
    fields: dict[str, Any] = {}
    run: Any = SimpleNamespace(store=records, spec=records.spec, conclude=lambda **given: fields.update(given))
    conclude.conclude(run, end)
    return fields


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_a_refused_proof_is_no_evidence_that_nothing_is_faster(case: dict[str, Any]) -> None:
    verdict = Verdict(case.get("verdict", "faster"))
    end = Conclude(objections={SETTINGS: Objection(case["objection"])} if "objection" in case else {})
    is_slower = case.get("is_slower_in_total", False)
    found = concluded(end, veto=case.get("veto"), verdict=verdict, is_slower_in_total=is_slower)
    assert found["outcome"] is Outcome(case["outcome"])
    reason = case.get("veto") or case.get("objection")
    assert reason is None or found["sentence"].count(f"accepted because {reason}") == 1
    assert found["sentence"].startswith(case["begins"])


@pytest.mark.parametrize(("ratio", "seconds", "words"), CASES["gains"])
def test_a_large_gain_is_a_factor_and_a_small_one_a_share(ratio: float, seconds: float, words: str) -> None:
    assert format_gain(ratio, seconds or None) == words


def test_a_set_that_was_refused_is_so_in_the_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(PLANTED)
    assert refused_sets(store) == {SETTINGS: "not accepted"}
    assert store.last(EffectsRecord) is not None
    assert any(line.startswith("best set") and line.endswith("not accepted") for line in effect_lines(store))
