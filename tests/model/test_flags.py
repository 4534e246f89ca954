"""Flag sets against the real parser, and which names may ever be a setting."""

from __future__ import annotations

import contextlib
import random
import string
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.model.errors import SettingError
from autotune.model.flags import (
    FlagSet,
    is_variable,
    kind_of,
    parse_tokens,
    reaches_out,
    refuse_reaching_out,
    render_value,
    split_tokens,
)
from autotune.model.spec import parse_study
from autotune.settings.catalog import load_catalog, load_recipes
from autotune.settings.probe import ParserProcess
from tests.tables import toml_beside

NAMES = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=12).map("xla_".__add__)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=20)
TRICKY = st.text("""ab"'\\ ,=-+ü""", max_size=12)
SETS = st.dictionaries(NAMES, TEXTS | TRICKY, max_size=6).map(FlagSet)
NAMED = toml_beside(__file__, "flags.toml")
ENVIRONMENT_NAMES = st.sampled_from(["NCCL_PROTO", "PJRT_NPROC", "jax_enable_pgle", "MALLOC_TRIM_THRESHOLD_"])


@pytest.fixture(scope="module")
def parser() -> Iterator[ParserProcess]:
    with contextlib.closing(ParserProcess(sys.executable, timeout_s=120)) as process:
        yield process


@given(SETS)
def test_parse_of_render_is_the_identity(flags: FlagSet) -> None:
    assert FlagSet.parse(flags.render_xla_flags()) == flags


@given(st.lists(st.tuples(NAMES, TEXTS), max_size=6, unique_by=lambda item: item[0]), st.randoms())
def test_order_does_not_matter(items: list[tuple[str, str]], generator: random.Random) -> None:
    shuffled = list(items)
    generator.shuffle(shuffled)
    one, other = FlagSet(items), FlagSet(shuffled)
    assert (one, hash(one), one.digest, str(one)) == (other, hash(other), other.digest, str(other))


@given(SETS, SETS)
def test_the_later_set_wins_a_merge(one: FlagSet, other: FlagSet) -> None:
    merged = one.merge(other)
    assert set(merged) == {*one, *other}
    assert all(merged[n] == (other[n] if n in other else one[n]) for n in merged)


@given(SETS, st.dictionaries(ENVIRONMENT_NAMES, TEXTS, max_size=4))
def test_an_environment_gives_the_set_back(flags: FlagSet, variables: dict[str, str]) -> None:
    whole = flags.merge(dict(variables))
    assert FlagSet.from_environment(whole.to_environment(), names=variables) == whole


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(value=TRICKY | TEXTS)
def test_the_real_parser_reads_any_value_back(parser: ParserProcess, value: str) -> None:
    answer = parser.ask(FlagSet({"xla_dump_to": value}).render_xla_flags())
    assert answer.starts, answer.log
    assert answer.options.get("xla_dump_to", "") == value


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rest=st.text("""a"'\\ \t\n""", max_size=10))
def test_tokens_are_split_as_the_real_parser_splits_them(parser: ParserProcess, rest: str) -> None:
    text = f"--xla_dump_to={rest}"
    answer = parser.ask(text)
    assert answer.starts, answer.log
    assert answer.options.get("xla_dump_to", "") == split_tokens(text)[0].partition("=")[2]


@pytest.mark.parametrize("text", NAMED["repeated"])
def test_repeated_flags_act_as_one_does_after_parsing(parser: ParserProcess, text: str) -> None:
    merged = FlagSet.parse(text)
    assert len(merged) == 1
    assert parser.ask(merged.render_xla_flags()).options == parser.ask(text).options


def test_a_stray_word_is_refused_because_xla_would_drop_all_after_it(parser: ParserProcess) -> None:
    text = "--xla_gpu_autotune_level=3 word --xla_dump_to=lost"
    options = parser.ask(text).options
    assert options["xla_gpu_autotune_level"] == "3"
    assert options.get("xla_dump_to", "") == ""
    with pytest.raises(SettingError, match="'word'"):
        FlagSet.parse(text)


@pytest.mark.parametrize(("text", "message"), NAMED["refused"])
def test_what_is_no_flag_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FlagSet.parse(text)


def test_a_bare_flag_is_true_and_an_empty_one_stays_empty() -> None:
    assert dict(FlagSet.parse("--xla_a --xla_b= --xla_c=''")) == {"xla_a": "true", "xla_b": "", "xla_c": ""}
    assert [(t.name, t.value, t.is_flag) for t in parse_tokens("--xla_a --xla_b= c")] == [
        ("xla_a", None, True),
        ("xla_b", "", True),
        ("c", None, False),
    ]


def test_values_are_rendered_as_xla_reads_them_and_digests_last() -> None:
    assert [render_value(v) for v in (True, False, 3, 2.0, 0.9, "on")] == ["true", "false", "3", "2", "0.9", "on"]
    # Remake by printing FlagSet(...).digest; a change orphans every stored result.
    assert FlagSet([("xla_gpu_autotune_level", 3), ("NCCL_PROTO", "LL")]).digest == "8e7cb5b3ba23"


@pytest.mark.parametrize("odd", list("\0\t\n\r\v\x1b\x7f\x85\u2028\u202e\ufeff\udcff"))
def test_a_value_is_printable_text(odd: str) -> None:
    with pytest.raises(SettingError, match=r"xla_dump_to .*printable text"):
        FlagSet({"xla_dump_to": f"a{odd}b"})


def test_what_changes_the_program_or_reaches_out_is_never_a_setting() -> None:
    for name in NAMED["never"]:
        with pytest.raises(SettingError, match=f"{name} .*not known"):
            FlagSet({name: "x"})
    for more in ({"baseline": {"LD_PRELOAD": "x"}}, {"search": {"settings": {"NCCL_NET_PLUGIN": ["x"]}}}):
        with pytest.raises(ValueError, match="it out"):
            parse_study({"name": "s", "workload": {"entry": "llama"}, **more})


@pytest.mark.parametrize("name", [*NAMED["odd"], "x" * 9999])
def test_a_name_of_no_known_form_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="named like") as caught:
        FlagSet({name: "1"})
    assert len(str(caught.value)) < 500


def test_all_that_is_published_may_be_set() -> None:
    # What libtpu reads is catalogued, so that it can be told of; no study here runs on a TPU. So is what names a
    # library, a file or an address, and what only PyTorch reads; none of these is ever searched.
    catalog = load_catalog()
    told = {n for n, s in catalog.items() if s.kind == "env" and s.tier in ("avoid", "tool", "noop")}
    names = {n for n in catalog if n not in ("process_layout", "XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    names = {n for n in names if n not in told or is_variable(n)}
    names |= {n for r in load_recipes().values() for n in r.settings}
    assert {kind_of(n) for n in names} == {"xla", "jax", "env"}
    assert {"NCCL_NET_PLUGIN", "NCCL_TOPO_FILE", "NCCL_COMM_ID"} <= set(catalog) - names


def test_every_published_flag_with_a_free_text_is_known_as_harmless_or_reaches_out() -> None:
    texts = [s for s in load_catalog().values() if s.kind in ("xla", "jax") and s.type in ("string", "message")]
    left = {s.name for s in texts if not reaches_out(s.name)}
    # What the catalogue calls dangerous is never handed on anyway.
    assert left - {s.name for s in texts if s.danger} <= {*NAMED["harmless"]}


@pytest.mark.parametrize("name", NAMED["reaching"])
def test_flags_that_reach_files_are_found_also_those_of_tomorrow(name: str) -> None:
    with pytest.raises(SettingError, match=name):
        refuse_reaching_out(["xla_gpu_a", name])
