"""Options of the workload in the compiler: each set is the program that its options make, flags beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.compiler.screen import Effect, open_screener
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study

PROGRAMS = Path(__file__).parents[1] / "workers" / "programs"
MANY, FEW = FlagSet(), FlagSet({"option.rounds": "1"})
FLAG = "xla_cpu_enable_fast_min_max"


@pytest.mark.slow
def test_a_set_is_compiled_with_its_options_and_no_option_is_called_dead(tmp_path: Path) -> None:
    search = {"options": {"rounds": [24, 1], "kind": ["a", "b"]}}
    spec = parse_study({"name": "s", "workload": {"entry": "optional:build"}, "search": search})
    with open_screener(spec, study_dir=PROGRAMS, target=None, cache_dir=tmp_path) as (_, screener):
        programs = {s: screener.result(s).program for s in (MANY, FEW, FlagSet({"option.kind": '"b"'}))}
        assert all(p is not None for p in programs.values())
        many, few, same = (p.fingerprint for p in programs.values() if p is not None)
        assert many != few
        assert many == same
        assert screener.program_key(MANY) != screener.program_key(FlagSet({"option.kind": '"b"'}))
        wrong = screener.result(FlagSet({"option.rounds": '"many"'}))
        assert wrong.program is None
        assert screener.result(FlagSet({"option.rounds": "1", FLAG: "true"})).program is not None
        report = screener.run({"option.kind": ["b"], FLAG: ["true"]})
    assert {s.name: s.effect for s in report.settings}["option.kind"] is Effect.MEASURE
