from __future__ import annotations

import random
import string
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet, combine, kind_of, parse_tokens, render_value, split_tokens
from autotune.settings.parser import ParserProcess

NAMES = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=12).map("xla_".__add__)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=20)
TRICKY = st.text("""ab"'\\ ,=-+ü""", max_size=12)
SETS = st.dictionaries(NAMES, TEXTS | TRICKY, max_size=6).map(FlagSet)
ENVIRONMENT_NAMES = st.sampled_from(["NCCL_PROTO", "PJRT_NPROC", "jax_enable_pgle", "MALLOC_TRIM_THRESHOLD_"])


@pytest.fixture(scope="module")
def parser() -> Iterator[ParserProcess]:
    with ParserProcess(sys.executable, timeout_s=120) as process:
        yield process


@given(SETS)
def test_parse_of_render_is_the_identity(flags: FlagSet) -> None:
    assert FlagSet.parse(flags.render_xla_flags()) == flags


@given(SETS)
def test_render_of_parse_is_stable(flags: FlagSet) -> None:
    text = flags.render_xla_flags()
    assert FlagSet.parse(text).render_xla_flags() == text


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


@pytest.mark.parametrize(
    "text",
    [
        "--xla_dump_to=one --xla_dump_to=two",
        "--xla_disable_hlo_passes=one --xla_disable_hlo_passes=two,three",
        "--xla_enable_hlo_passes_only=one --xla_enable_hlo_passes_only=two",
        "--xla_gpu_ptx_file=one --xla_gpu_ptx_file=two",
        "--xla_backend_extra_options=a=1,b=2 --xla_backend_extra_options=b=3",
        "--xla_gpu_enable_command_buffer=FUSION --xla_gpu_enable_command_buffer=CUBLAS",
        "--xla_gpu_enable_command_buffer=+COLLECTIVES --xla_gpu_enable_command_buffer=+WHILE",
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS --xla_gpu_enable_command_buffer=+WHILE,-fusion",
        "--xla_gpu_enable_command_buffer= --xla_gpu_enable_command_buffer=+WHILE",
        "--xla_gpu_enable_command_buffer=+WHILE --xla_gpu_enable_command_buffer=CUBLAS",
        "--xla_gpu_disable_async_collectives=ALLREDUCE --xla_gpu_disable_async_collectives=ALLGATHER",
        "--xla_gpu_autotune_level=1 --xla_gpu_autotune_level=-3",
        "--xla_gpu_enable_triton_gemm=false --xla_gpu_enable_triton_gemm",
    ],
)
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("–xla_gpu_autotune_level=3", "not ASCII"),  # noqa: RUF001
        ("-xla_gpu_autotune_level=3", "--xla_name=value"),
        ("--gpu_autotune_level=3", "--xla_name=value"),
        ("--XLA_GPU_X=3", "--xla_name=value"),
    ],
)
def test_what_is_no_flag_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        FlagSet.parse(text)


def test_a_bare_flag_is_true_and_an_empty_one_stays_empty() -> None:
    assert dict(FlagSet.parse("--xla_a --xla_b= --xla_c=''")) == {"xla_a": "true", "xla_b": "", "xla_c": ""}


def test_tokens_tell_a_bare_flag_from_an_empty_one() -> None:
    assert [(t.name, t.value, t.is_flag) for t in parse_tokens("--xla_a --xla_b= c")] == [
        ("xla_a", None, True),
        ("xla_b", "", True),
        ("c", None, False),
    ]


@pytest.mark.parametrize(
    ("name", "earlier", "later", "both"),
    [
        ("xla_dump_to", "a", "b", "b"),
        ("xla_disable_hlo_passes", "a", "", "a"),
        ("xla_backend_extra_options", "a=1", "a=2,c", "a=2,c="),
        ("xla_gpu_enable_command_buffer", "+A,-B", "+C", "+A,-B,+C"),
        ("xla_gpu_enable_command_buffer", "A,B", "-a", "B"),
    ],
)
def test_combining(name: str, earlier: str, later: str, both: str) -> None:
    assert combine(name, earlier, later) == both


@pytest.mark.parametrize(("name", "kind"), [("xla_gpu_x", "xla"), ("jax_enable_pgle", "jax"), ("NCCL_PROTO", "env")])
def test_the_name_tells_the_kind(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize("name", ["--xla_gpu_x", "Xla_gpu", "", "xla_gpu_x=1", "nccl_proto"])
def test_a_name_of_no_known_form_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="must be named like"):
        kind_of(name)


def test_values_are_rendered_as_xla_reads_them() -> None:
    assert [render_value(v) for v in (True, False, 3, 2.0, 0.9, "on")] == ["true", "false", "3", "2", "0.9", "on"]


@pytest.mark.parametrize("odd", list("\0\t\n\r\v\x1b\x7f\x85\u2028\u202e\ufeff\udcff"))
def test_a_value_is_printable_text(odd: str) -> None:
    with pytest.raises(SettingError, match=r"xla_dump_to must be printable text .* write it without"):
        FlagSet({"xla_dump_to": f"a{odd}b"})


def test_digests_are_the_same_in_any_process() -> None:
    # Remake by printing FlagSet(...).digest; a change orphans every stored result.
    assert FlagSet([("xla_gpu_autotune_level", 3), ("NCCL_PROTO", "LL")]).digest == "8e7cb5b3ba23"
