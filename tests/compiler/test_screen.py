"""A canary dies for every family of workloads: a screen of none of them is refused for want of one."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.compiler.program import CompileResult
from autotune.compiler.screen import Effect, chains, domains, find_canary, narrowed, open_screener
from autotune.compiler.targets import compiler_problem, compiler_versions, load_target, parse_topology
from autotune.model.errors import STOPPED, LaunchError, StoppedError
from autotune.model.flags import FlagSet
from autotune.model.spec import parse_study
from autotune.settings.catalog import Stage, load_catalog
from autotune.settings.space import Parameter, SearchSpace
from tests.compiler import rules as known
from tests.compiler.rules import (
    BUFFER,
    CHANNELS,
    COMBINE,
    DECOMPOSE,
    GRAPHS,
    OVERLAP,
    P2P,
    SLOP,
    TRITON,
    Rules,
    screen,
    space,
)
from tests.console import autotune
from tests.runs import there
from tests.tables import toml_beside

CASES = toml_beside(__file__)


class Batches(Rules):
    """Gives what it compiles in another order, as several workers do: verdicts do not depend on who is ready first."""

    def compile(self, sets: Any) -> Iterator[CompileResult]:
        yield from reversed(list(super().compile(sets)))


def named(table: dict[str, Any]) -> dict[str, Any]:
    """A table whose settings have the names of `tests.compiler.rules`."""
    return {getattr(known, n, n): value for n, value in table.items()}


@pytest.mark.parametrize("case", CASES["effects"])
def test_what_a_setting_does_alone_with_others_or_with_other_kernels(case: dict[str, Any]) -> None:
    for rules in (Rules(), Batches()):
        report = screen(rules, named(case.get("baseline", {}))).run(named(case["values"]))
        told = {s.name: [s.effect, *filter(None, (s.under, *s.interacts_with))] for s in report.settings}
        assert told == {n: [getattr(known, part, part) for part in row] for n, row in named(case["found"]).items()}


def test_what_compiling_cannot_judge_is_not_compiled() -> None:
    rules = Rules()
    screen(rules).run({CHANNELS: ["1", "2"], "NCCL_PROTO": ["LL"], "UNKNOWN_KNOB": ["1"]})
    assert rules.compiled == [FlagSet()]


def test_what_does_not_compile_says_so_in_the_compilers_words() -> None:
    (setting,) = screen(Rules()).run({COMBINE: ["13"]}).settings
    assert "thirteen" in setting.values[0].message
    with pytest.raises(LaunchError, match="thirteen"):
        screen(Rules(), {COMBINE: "13"}).run({})


def test_a_value_that_does_not_fit_is_found_at_the_studys_memory_fraction() -> None:
    for fraction, fits in ((0.75, False), (0.95, True)):
        report = screen(Rules(), {"XLA_CLIENT_MEM_FRACTION": str(fraction)}).run({BUFFER: ["true"]})
        assert report.limit_bytes == int(load_target("h100-sxm").memory_bytes * fraction)
        assert report.reference.fits is True
        assert report.settings[0].values[0].fits is fits  # 70 GiB of 59.3 and of 75.2


def no_ops(count: int) -> list[str]:
    """Settings of the program that the rules do not know."""
    ours = {name for name in vars(known).values() if isinstance(name, str)}
    program = [n for n, s in load_catalog().items() if s.stage is Stage.PROGRAM and s.kind == "xla" and n not in ours]
    return program[:count]


def test_many_no_op_settings_cost_about_as_much_again_for_each_kernel_choice() -> None:
    rules = Rules()
    report = screen(rules).run({**{n: ["1"] for n in no_ops(37)}, BUFFER: ["true"], OVERLAP: ["2"]})
    assert len(report.of_effect(Effect.NO_OP)) == 37
    with_triton = [s for s in rules.compiled if TRITON not in s]
    assert len(with_triton) <= 1 + 39 + 80  # reference, alone, with others
    assert len(rules.compiled) - len(with_triton) <= 80


def test_one_measurement_serves_sets_of_one_program_whatever_the_kernels() -> None:
    engine = screen(Rules())
    plain, no_op, active, read_later = (
        engine.program_key(FlagSet(s)) for s in ({}, {SLOP: "17"}, {COMBINE: "11"}, {"NCCL_PROTO": "LL"})
    )
    assert plain == no_op
    assert len({plain, active, read_later}) == 3
    assert engine.program_key(FlagSet({COMBINE: "13"})) is None
    assert engine.program_key(FlagSet({"xla_gpu_autotune_level": "0"})) is None
    assert engine.program_key(FlagSet({GRAPHS: "FUSION,CUSTOM_CALL"})) != plain  # with cuBLAS it is another


def test_where_only_one_choice_is_left_only_one_is_compiled() -> None:
    for rules, baseline in ((Rules(target=None), {}), (Rules(), {TRITON: "false"})):
        screen(rules, baseline).run({SLOP: ["17"], GRAPHS: ["FUSION,CUSTOM_CALL"]})
        assert {s.get(TRITON) for s in rules.compiled} == {baseline.get(TRITON)}


class Stopped(Rules):
    """A compiler that is stopped after some sets, as by Ctrl-C."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most = most

    def compile(self, sets: Sequence[FlagSet]) -> Iterator[CompileResult]:
        for result in super().compile(sets):
            if len(self.compiled) > self.most:
                raise StoppedError("compiling was stopped")
            yield result


@pytest.mark.parametrize("is_stopped", [False, True], ids=["the time is up", "it is stopped"])
def test_what_is_not_settled_in_time_is_skipped_and_never_called_a_no_op(is_stopped: bool) -> None:
    values = {n: ["1"] for n in no_ops(2)} | {P2P: ["true"], DECOMPOSE: ["0"], GRAPHS: ["FUSION,CUSTOM_CALL"]}
    whole = Rules()
    told = {s.name: s.effect for s in screen(whole).run(values).settings}
    for allowed in range(1, len(whole.compiled) + 1):
        rules: Rules = Stopped(allowed) if is_stopped else Rules()
        is_over = (lambda: False) if is_stopped else (lambda: len(rules.compiled) >= allowed)  # noqa: B023
        report = screen(rules).run(values, is_over=is_over)
        assert {s.name for s in report.settings} | set(report.skipped) == set(values)
        found = {s.name for s in report.of_effect(Effect.NO_OP)}
        assert found <= {n for n, effect in told.items() if effect is Effect.NO_OP}, allowed
        assert bool(found) == (allowed == len(whole.compiled)), allowed
    with pytest.raises(StoppedError):  # not even the reference
        screen(Stopped()).run(values)


@pytest.mark.gate
def test_a_wrong_value_is_refused_before_anything_is_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.compiler.compiler.CompileWorker", None)  # none can start
    study = tmp_path / "study.toml"
    study.write_text(CASES["programs"]["several"].replace("[true, false]", '["DEFAULT", false]'), encoding="utf-8")
    refused = autotune("screen", study, XDG_CACHE_HOME=str(tmp_path))
    assert refused.returncode == 2
    assert "xla_llvm_disable_expensive_passes=DEFAULT" in refused.stderr


@pytest.mark.gate
def test_ctrl_c_ends_it_and_the_same_command_goes_on(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(CASES["programs"]["several"], encoding="utf-8")
    command = [sys.executable, "-m", "autotune", "screen", str(study)]
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    heard = ["env", "--default-signal=INT", *command]  # what a shell starts with & ignores it
    run = subprocess.Popen(heard, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in there(run.stderr):
        if "2 of 4 single sets compiled" in line:
            run.send_signal(signal.SIGINT)
            break
    out, errors = run.communicate(timeout=60)
    assert run.returncode == STOPPED, errors
    assert not out
    before = len(list(tmp_path.rglob("v*/*.json")))
    assert before >= 4  # the reference, a canary and two more
    shown = subprocess.run([*command, "--time-limit", "1ms"], env=env, capture_output=True, text=True, check=False)
    assert shown.returncode == STOPPED
    assert "not screened" in shown.stdout
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    assert "not screened" not in done.stdout
    compiled = there(re.search(r"(\d+) compiled now", done.stdout))
    assert int(compiled[1]) == len(list(tmp_path.rglob("v*/*.json"))) - before  # the others were kept


@pytest.mark.aot
@pytest.mark.slow
def test_screen_and_predict_of_a_study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).with_name("toy_workload.py"), tmp_path)
    (tmp_path / "study.toml").write_text(CASES["programs"]["study"], encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def said(command: str, *options: str) -> str:
        where = [str(tmp_path / "study.toml"), "--target", "h100-sxm", "--topology", "1x8"]
        done = CliRunner().invoke(app, [command, *where, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    screened = said("screen")
    assert "xla_gpu_enable_while_loop_double_buffering" in screened
    active = screened.partition("active (1)")[2].partition("to be measured")[0]
    assert " -> " in active.partition("true: ")[2]
    assert "NCCL_PROTO" in screened.partition("be measured")[2]
    flags = "--xla_gpu_enable_while_loop_double_buffering=true NCCL_PROTO=LL"
    assert " -> " in said("predict", "--set", flags).partition("double_buffering")[2]
    assert json.loads(said("predict", "--json"))[0]["predicted"] is True


@pytest.mark.parametrize("command", ["screen", "predict"])
@pytest.mark.parametrize(
    ("options", "cluster"),
    [
        ((), "h100-sxm 2x8"),
        (("--target", "b200"), "b200 2x8"),
        (("--topology", "1x4"), "h100-sxm 1x4"),
        (("--target", "b200", "--topology", "1x4"), "b200 1x4"),
    ],
)
def test_they_compile_for_the_target_of_the_study_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: Sequence[str], cluster: str
) -> None:
    def refuse(_: Any, *, target: Any, topology: Any, **more: Any) -> None:
        raise LaunchError(f"opened for {target.name} {topology}")

    monkeypatch.setattr("autotune.compiler.screen.open_screener", refuse)
    study = tmp_path / "study.toml"
    screen = '[screen]\ntarget = "h100-sxm"\ntopology = "2x8"\n'
    study.write_text(f'name = "s"\n[workload]\nentry = "llama"\n{screen}', encoding="utf-8")
    done = autotune(command, study, *options)
    assert f"opened for {cluster}" in done.stderr


def test_narrowed_space_lacks_no_ops_and_keeps_every_reason() -> None:
    report = screen(Rules()).run(domains(space()))
    left = narrowed(space(), report)
    assert [p.name for p in left.parameters] == [COMBINE, BUFFER, OVERLAP, "NCCL_PROTO", "NCCL_ALGO"]
    assert left.left_out["other"] == "not asked for"
    assert "95" not in left.left_out[SLOP]
    assert "17" in left.left_out[SLOP]
    # What depends on a no-op stays: it acts alike under all values of that, be it at run time.
    assert {p.name: p.condition for p in left.parameters[2:]} == {
        OVERLAP: {BUFFER: ("true",)},
        "NCCL_PROTO": None,
        "NCCL_ALGO": None,
    }
    by_name = {p.name: p.choices for p in left.parameters}
    assert by_name[COMBINE] == ("7", "11", "13")
    on_cpu = screen(Rules(target=None)).run(domains(space()))
    assert {p.name: p.choices for p in narrowed(space(), on_cpu).parameters}[COMBINE] == ("7", "11")


def test_no_point_of_the_whole_space_has_a_program_that_the_narrowed_space_lacks() -> None:
    rules = Rules(target=None)
    whole = space()
    left = narrowed(whole, screen(rules).run(domains(whole)))

    def programs(points: SearchSpace) -> set[str]:
        choices = [[(p.name, v) for v in p.choices if v != "13"] for p in points.parameters]
        found = set()
        for point in itertools.product(*choices):
            chosen = dict(point)
            found.add(rules.name(points.suggest(lambda p: chosen[p.name])))  # noqa: B023
        return found

    assert programs(left) == programs(whole)


def test_chain_of_conditions_is_made_true_as_a_whole_for_each_value_that_does() -> None:
    def one(name: str, *choices: str, **condition: tuple[str, ...]) -> Parameter:
        of = {f"xla_{n}": v for n, v in condition.items()} or None
        return Parameter(name=f"xla_{name}", choices=choices, default=choices[0], condition=of)

    whole = SearchSpace(
        (
            one("a", "0", "1", "2"),
            one("b", "0", "1", a=("1", "2")),
            one("c", "0", "1", b=("1",)),
            one("d", "0", "1", a=("0", "1")),
        )
    )
    assert chains(whole) == {
        "xla_b": [FlagSet({"xla_a": "1"}), FlagSet({"xla_a": "2"})],
        "xla_c": [FlagSet({"xla_a": "1", "xla_b": "1"}), FlagSet({"xla_a": "2", "xla_b": "1"})],
        "xla_d": [FlagSet({"xla_a": "1"})],
    }


FAMILIES = CASES["families"]


@pytest.mark.aot
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(compiler_problem(compiler_versions())), reason="XLA's CUDA plugin is not installed")
@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=pytest.mark.gate if f == "fsdp" else pytest.mark.slow) for f in FAMILIES]
)
def test_a_canary_dies_for_every_family(family: str, tmp_path: Any) -> None:
    entry, topology, mesh = FAMILIES[family]
    attention = {} if entry.startswith(("rssm", "long")) else {"attention": "xla"}
    workload = {"entry": entry, "options": {**({"mesh": mesh} if mesh else {}), **attention}}
    spec = parse_study({"name": "canary", "workload": workload, "device": {"platform": "cuda"}})
    target, cluster = load_target("h100-sxm"), parse_topology(topology)
    with open_screener(spec, study_dir=tmp_path, target=target, topology=cluster) as (_, screener):
        assert find_canary(screener)
