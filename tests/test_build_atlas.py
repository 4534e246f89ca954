"""The atlas builder, against a compiler whose rules are known: every verdict is held to compiling each value."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.compiler.program import CompileResult
from autotune.machine.environment import driver_python
from autotune.model.errors import LaunchError, SettingError
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure, FailureKind
from autotune.settings.atlas import AtlasRow, AtlasVerdict, read_rows
from autotune.settings.catalog import Tier, load_catalog
from autotune.settings.known import KnownSettings
from autotune.settings.probe import probe_build
from autotune.settings.space import Parameter, SearchSpace
from harness import build_atlas as module
from harness.build_atlas import CellBuilder, Plan, build_atlas, build_rows, guess_active, load_kinds, planned_cells
from tests.compiler import rules as names
from tests.compiler.rules import BUFFER, COMBINE, DECOMPOSE, GRAPHS, OVERLAP, P2P, SLOP, Rules, screen
from tests.runs import there
from tests.tables import toml_beside

CELL = {"jaxlib": "1.0", "workload": "w", "target": "h100-sxm", "gpus": 8}


def parameter(name: str, *values: str, condition: Mapping[str, tuple[str, ...]] | None = None) -> Parameter:
    return Parameter(name=name, choices=("(default)", *values), condition=condition)


CELLS = toml_beside(__file__, "build_atlas.toml")
SPACE = SearchSpace(
    tuple(
        parameter(getattr(names, n, n), *of, condition={BUFFER: ("true",)} if n == "OVERLAP" else None)
        for n, of in CELLS["verdicts"].items()
    )
)


def judged(rules: Rules, acting: set[str], space: SearchSpace = SPACE, **more: Any) -> dict[tuple[str, str], AtlasRow]:
    builder = CellBuilder(screen(rules), space, CELL, acting, **more)
    return {(r.name, r.value): r for r in builder.settings()}


def space_of(values: Mapping[str, Sequence[str]]) -> SearchSpace:
    return SearchSpace(tuple(parameter(n, *v) for n, v in values.items()))


ALL = {p.name for p in SPACE.parameters}


@pytest.mark.parametrize("acting", [set(), ALL, {COMBINE}, {SLOP, P2P}], ids=["none", "all", "one", "wrong"])
def test_verdicts_do_not_hang_on_the_guess(acting: set[str]) -> None:
    found = judged(Rules(), acting)
    expected = {(getattr(names, n, n), v): e for n, of in CELLS["verdicts"].items() for v, e in of.items()}
    assert {k: r.verdict for k, r in found.items()} == expected
    assert BUFFER in found[OVERLAP, "2"].needs
    assert DECOMPOSE in found[P2P, "true"].needs
    assert "with cuBLAS GEMMs" in found[GRAPHS, "FUSION,CUSTOM_CALL"].needs
    assert found[COMBINE, "11"].needs == ()
    assert found[SLOP, "17"].tried == "together"
    assert "thirteen is not allowed" in found[COMBINE, "13"].message
    assert found[COMBINE, "11"].changes


class Drawn(Rules):
    """Programs by effects that are drawn, each of one value."""

    def __init__(self, values: Mapping[str, Sequence[str]], draw: random.Random) -> None:
        super().__init__()
        names = draw.sample(sorted(values), draw.randint(0, 4))
        self.effects: list[dict[str, str]] = [{n: draw.choice(list(values[n]))} for n in names]

    def name(self, settings: Mapping[str, str]) -> str:
        acting = [str(e) for e in self.effects if all(settings.get(n) == v for n, v in e.items())]
        return "; ".join(acting) or "plain"


NAMES = sorted(n for n, s in load_catalog().items() if s.stage == "program" and s.platform == "cuda")[:12]


def test_no_value_that_acts_is_called_the_same() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        values = {n: ["1", "2", "3"][: draw.randint(1, 3)] for n in NAMES}
        rules = Drawn(values, draw)
        guessed = set(draw.sample(NAMES, draw.randint(0, len(NAMES))))
        found = {k: r.verdict for k, r in judged(rules, guessed, space_of(values)).items()}
        changing = {k for k, v in found.items() if v is AtlasVerdict.CHANGES}
        assert changing == {next(iter(e.items())) for e in rules.effects}, (seed, rules.effects)


class Endless(Rules):
    """Every set that holds one value takes the compiler for ever; some others change the program."""

    def __init__(self, endless: FlagSet, acting: Sequence[str] = ()) -> None:
        super().__init__()
        self.endless = endless
        self.acting = acting

    def name(self, settings: Mapping[str, str]) -> str:
        return str([settings.get(n) for n in self.acting])

    def _result(self, settings: FlagSet) -> CompileResult:
        if settings.merge(self.endless) != settings:
            return super()._result(settings)
        failure = Failure(kind=FailureKind.COMPILE_ERROR, message="did not finish", phase="compile", signal="SIGXCPU")
        return CompileResult(settings=settings, failure=failure)


@pytest.mark.parametrize("value", ["1", "2", "3"])
@pytest.mark.parametrize("name", [NAMES[0], NAMES[5], NAMES[-1]])
def test_what_makes_every_set_fail_is_found_before_it_is_in_many(name: str, value: str) -> None:
    """On 0.12.0.1 one setting took each of some forty sets to the limit of 88 s of processor time."""
    endless = FlagSet({name: value})
    acting = [n for n in NAMES[1::2] if n != name]
    rules = Endless(endless, acting)
    found = judged(rules, set(), space_of({n: ["1", "2", "3"] for n in NAMES}))
    assert {k for k, r in found.items() if r.verdict is AtlasVerdict.FAILS} == {(name, value)}
    assert {n for (n, _), r in found.items() if r.verdict is AtlasVerdict.CHANGES} == set(acting)
    assert found[name, value].message == "compile_error: did not finish"
    lost = [s for s in rules.compiled if s.merge(endless) == s]
    assert len(lost) <= 2 * math.ceil(math.log2(len(NAMES)))


def test_two_that_fail_only_together_are_judged_alone() -> None:
    one, other = NAMES[2], NAMES[9]
    rules = Endless(FlagSet({one: "1", other: "1"}))
    found = {n: r for (n, _), r in judged(rules, set(), space_of({n: ["1"] for n in NAMES})).items()}
    assert {r.verdict for n, r in found.items() if n not in (one, other)} == {AtlasVerdict.SAME}
    assert AtlasVerdict.FAILS not in {r.verdict for r in found.values()}  # each alone compiles


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Rules:
    """The compiler of every cell, in the place of the real one; the build's own plugin need not be there."""
    made = Rules()

    @contextlib.contextmanager
    def opened(spec: Any, **_: Any) -> Iterator[Any]:
        yield spec, screen(made)

    def probed(python: str, *, platform: str) -> Any:
        return dataclasses.replace(probe_build(driver_python(), platform="cuda"), plugin="made up")

    monkeypatch.setattr(module, "open_screener", opened)
    monkeypatch.setattr(module, "probe_build", probed)
    return made


def plan(folder: Path, **more: Any) -> Plan:
    cells = planned_cells(["dense-fsdp", "tensor-parallel"], ["h100-sxm"], [8])
    return Plan(cells=cells, folder=folder, **more)


def test_each_cell_is_written_when_it_is_whole_and_never_compiled_again(tmp_path: Path, rules: Rules) -> None:
    told: list[str] = []
    path = build_atlas(plan(tmp_path), told.append)
    rows = read_rows(path)
    assert told == ["cell 1 of 2: dense-fsdp on 8 h100-sxm", "cell 2 of 2: tensor-parallel on 8 h100-sxm"]
    assert {r.workload for r in rows} == {"", "dense-fsdp", "tensor-parallel"}
    settled = {(r.workload, r.name): r.verdict for r in rows if r.kind == "setting"}
    assert settled["dense-fsdp", COMBINE] is AtlasVerdict.CHANGES
    assert settled["dense-fsdp", SLOP] is AtlasVerdict.SAME
    assert settled["", SLOP] is AtlasVerdict.DEFAULT
    cell = next(r for r in rows if r.kind == "cell")
    assert (cell.verdict, cell.workload, cell.gpus) == (AtlasVerdict.DEFAULT, "dense-fsdp", 8)
    text, count = path.read_text("utf-8"), len(rules.compiled)
    assert build_atlas(plan(tmp_path), print).read_text("utf-8") == text
    assert len(rules.compiled) == count


def test_the_time_that_is_up_costs_the_cell_under_way_and_no_more(tmp_path: Path, rules: Rules) -> None:
    told: list[str] = []
    build_atlas(plan(tmp_path, limit_s=10.0), told.append, clock=lambda: 0.0 if len(told) < 2 else 11.0)
    rows = read_rows(next(tmp_path.glob("*.jsonl")))
    assert {r.workload for r in rows} == {"", "dense-fsdp"}
    assert "the same command continues" in told[-1]
    build_atlas(plan(tmp_path), print)
    assert {r.workload for r in read_rows(next(tmp_path.glob("*.jsonl")))} == {"", "dense-fsdp", "tensor-parallel"}


def test_a_cell_that_cannot_be_compiled_does_not_stop_the_others(
    tmp_path: Path, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = vars(module)["open_screener"]

    def opened(spec: Any, **more: Any) -> Any:
        if "tensor" not in spec.workload.options["mesh"]:
            raise LaunchError("no such program")
        return working(spec, **more)

    monkeypatch.setattr(module, "open_screener", opened)
    told: list[str] = []
    rows = read_rows(build_atlas(plan(tmp_path), told.append))
    assert {r.workload for r in rows} == {"", "tensor-parallel"}
    assert "dense-fsdp on 8 h100-sxm is left out: no such program" in told


def test_a_table_that_was_torn_is_refused_and_kept(tmp_path: Path, rules: Rules) -> None:
    path = build_atlas(plan(tmp_path), print)
    torn = path.read_text("utf-8")[:-40]
    path.write_text(torn, "utf-8")
    with pytest.raises(ValidationError):
        build_atlas(plan(tmp_path), print)
    assert path.read_text("utf-8") == torn


def test_a_second_cell_of_a_kind_costs_less_for_what_the_first_told(tmp_path: Path, rules: Rules) -> None:
    cells = planned_cells(["dense-fsdp"], ["h100-sxm", "h200"], [8])
    rows = read_rows(build_atlas(Plan(cells=cells, folder=tmp_path), print))
    first, second = (next(r for r in rows if r.kind == "cell" and r.target == t) for t in ("h100-sxm", "h200"))
    assert there(second.compiled) < there(first.compiled)
    verdicts = [{(r.name, r.value): r.verdict for r in rows if r.target == t} for t in ("h100-sxm", "h200")]
    assert verdicts[0] == verdicts[1]


def test_what_acts_is_guessed_from_cells_of_the_kind_else_from_the_catalogue() -> None:
    known = KnownSettings(probe_build(driver_python(), platform="cpu"))
    rare = "xla_gpu_copy_insertion_use_region_analysis"  # of tier expert
    cell = planned_cells(["dense-fsdp"], ["h200"], [8])[0]

    def row(verdict: AtlasVerdict, workload: str = "dense-fsdp") -> AtlasRow:
        return AtlasRow(jaxlib="1", workload=workload, target="b200", gpus=8, name=rare, value="1", verdict=verdict)

    by_catalogue = guess_active([], cell, known)
    assert {COMBINE, "jax_optimization_level"} <= by_catalogue
    assert rare not in by_catalogue
    assert rare in guess_active([row(AtlasVerdict.SAME), row(AtlasVerdict.CHANGES)], cell, known)
    assert rare not in guess_active([row(AtlasVerdict.CHANGES, workload="moe")], cell, known)


def test_every_kind_fits_every_count_of_gpus() -> None:
    for cell in planned_cells():
        assert cell.topology.device_count == cell.gpus
        assert cell.study.workload.options["batch"] >= 1
    with pytest.raises(SettingError, match="--kind must be one of dense-fsdp"):
        planned_cells(["dense"])
    with pytest.raises(SettingError, match="--gpus must be a count"):
        planned_cells(["dense-one-gpu"], gpus=[7])
    assert set(load_kinds()) >= {"dense-fsdp", "dense-one-gpu", "tensor-parallel", "pipeline", "moe", "recurrent"}


def test_what_is_said_of_a_setting_that_is_not_compiled_follows_from_its_entry() -> None:
    known = KnownSettings(probe_build(driver_python(), platform="cpu"))
    said = {row.name: row.verdict for row in build_rows(known, SearchSpace(()))}
    for name, verdict in said.items():
        setting = known[name]
        does_nothing = there(setting.entry).tier is Tier.NOOP or (setting.flag is not None and not setting.flag.sets)
        silent = {AtlasVerdict.SAME, AtlasVerdict.ELSEWHERE, AtlasVerdict.REJECTED}
        assert verdict in silent if does_nothing else verdict is not AtlasVerdict.SAME, name
    assert {AtlasVerdict.SAME, AtlasVerdict.UNSETTLED, AtlasVerdict.UNSEEN, AtlasVerdict.ELSEWHERE} <= {*said.values()}
