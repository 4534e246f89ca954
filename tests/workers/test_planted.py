"""Sets whose typical step is a fifth faster and which lose it elsewhere: none is exported, and each is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.proofs import describe_stalls
from autotune.model.records import ConclusionRecord, ConfirmRun, FinalistResult, Outcome, SoakRecord
from autotune.results.audit import disagreements
from autotune.results.export import render_winner
from autotune.results.winner import winner_of
from autotune.rundir.store import Store
from tests.runs import there
from tests.tables import toml_beside
from tests.workers.conftest import command, whole_study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLANTED = {"xla_cpu_enable_fast_math": "true"}


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.model.spec.SOAK_STEPS", 280)


def study(tmp_path: Path, fault: str, *, pairs: int = 6) -> tuple[ConclusionRecord, Store]:
    """A whole study of the program with one fault."""
    search = {"trials": 1, "settings": {"xla_cpu_enable_fast_math": [False, True]}}
    workload = command(fault, program="planted.py", hook=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("autotune.study.plan.proof_size", lambda *_, **__: pairs)
        return whole_study(tmp_path, workload, soak="3s", search=search, measure={"pairs_cap": 16})


def refused(store: Store) -> str:
    """How an export is refused."""
    with pytest.raises(AutotuneError) as caught:
        winner_of(store)
    return str(caught.value)


def typical_gain(message: str) -> float:
    """Percent by which a refusal says a typical step is faster: 22 are planted, and a busy machine hides some."""
    found = re.search(r"slower in total though a typical step is ([\d.]+) % faster", message)
    assert found is not None, message
    return float(found[1])


def test_a_stall_every_forty_steps_is_no_winner_however_fast_the_typical_step(tmp_path: Path) -> None:
    conclusion, store = study(tmp_path, "stall", pairs=18)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    (result,) = store.of(FinalistResult)
    assert result.veto is not None
    assert there(result.corrected).high < 0.9  # by its typical step it is far ahead
    assert "stall of 52" in result.veto
    assert "no stall)" in result.veto
    assert 15 < typical_gain(result.veto) < 30
    assert result.veto in conclusion.sentence
    assert result.veto in refused(store)
    totals = [r.total for r in store.of(ConfirmRun) if r.total is not None]
    assert len(totals) >= 3
    assert all(t.candidate.count >= 1 and t.reference.count == 0 for t in totals)
    assert "in all" in describe_stalls(totals[0].candidate)


@pytest.mark.parametrize(("fault", "kind", "looks", "words"), toml_beside(__file__)["faults_of_a_long_run"])
def test_what_only_long_runs_show_is_no_winner(tmp_path: Path, fault: str, kind: str, looks: int, words: str) -> None:
    conclusion, store = study(tmp_path, fault)
    assert conclusion.outcome is Outcome.NOTHING_BEATS_THE_DEFAULT
    (record,) = store.of(SoakRecord)
    assert record.failure is not None, conclusion.sentence
    assert record.failure.kind == kind
    assert words in record.failure.message
    if fault == "late-stall":
        assert 15 < typical_gain(record.failure.message) < 30
    assert record.failure.message in conclusion.sentence
    assert len(there(record.arms).looks) == looks  # each of them showed it
    assert words in refused(store)


@pytest.mark.parametrize("fault", ["honest", "warm-up"])
def test_an_honest_set_is_exported_with_what_its_soak_saw(tmp_path: Path, fault: str) -> None:
    conclusion, store = study(tmp_path, fault)
    assert conclusion.settings == FlagSet(PLANTED), conclusion.sentence
    assert disagreements(store, conclusion) == []
    (record,) = store.of(SoakRecord)
    look = there(record.arms).looks[-1]
    assert len(look.candidate.host) >= 20
    assert len(there(look.reference).host) >= 20
    if fault == "warm-up":
        sizes = [size for _, size in look.candidate.host]
        assert sizes[-1] - sizes[0] > 50 << 20  # it did grow
    exported = render_winner(winner_of(store), "env")
    saw = r"# soak: 2\d\d steps in \d+ s without a fault; .*no leak of memory"
    assert re.search(saw, exported), exported
