"""Constraints between parameters: told when the study is loaded, and kept by every set."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.options import broken_rule, check_rules
from autotune.model.spec import StudySpec, parse_study
from autotune.model.units import parse_bytes

RULES = ("batch * accumulate == 16", "not (attention == 'cudnn' and dtype == 'float32')")
OPTIONS = {"batch": 16, "accumulate": 1, "attention": "xla", "dtype": "float32"}


def study(**sections: Any) -> StudySpec:
    data: dict[str, Any] = {
        "name": "limited",
        "workload": {"entry": "llama", "options": {"batch": 16, "accumulate": 1, "dtype": "float32"}},
        "search": {"options": {"batch": [8, 16], "accumulate": [1, 2], "attention": ["xla", "cudnn"]}},
    }
    return parse_study({**data, **sections})


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, True),
        ({"option.batch": "8"}, False),
        ({"option.batch": "8", "option.accumulate": "2"}, True),
        ({"option.attention": '"cudnn"'}, False),
        ({"option.attention": '"cudnn"', "option.dtype": '"bfloat16"'}, True),
    ],
)
def test_what_is_absent_has_the_references_value(settings: dict[str, str], allowed: bool) -> None:
    assert (broken_rule(FlagSet(settings), RULES, options=OPTIONS) is None) is allowed


def test_settings_are_named_in_full_and_have_the_values_of_baseline_or_build() -> None:
    rule = ("xla_gpu_a or NCCL_NTHREADS >= 256",)
    on, threads = FlagSet({"xla_gpu_a": "true"}), FlagSet({"NCCL_NTHREADS": "512"})
    defaults = {"xla_gpu_a": "false", "NCCL_NTHREADS": "128"}
    assert broken_rule(on, rule, options={}, defaults=defaults) is None
    assert broken_rule(threads, rule, options={}, defaults=defaults) is None
    assert broken_rule({}, rule, options={}, baseline=on, defaults=defaults) is None
    assert broken_rule({}, rule, options={}, defaults=defaults) == rule[0]
    assert broken_rule({}, ("xla_gpu_a == none",), options={}) is None


def test_an_option_cannot_pass_for_a_setting_nor_a_setting_for_an_option() -> None:
    assert broken_rule({"option.xla_gpu_a": "true"}, ("xla_gpu_a == 'x'",), options={}) is not None
    assert broken_rule({"batch": "16"}, ("batch == 16",), options={"batch": 8}) is not None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("batsh == 16", "names 'batsh', .*did you mean `batch`"),
        ("batch", "must be true or false but 'batch' is 16"),
        ("batch * attention == 3", "needs a number where 'xla'"),
        ("batch == 7", "nothing that is searched keeps"),
        ("batch.real == 16", "holds a dot"),
        ("PATH == '/bin'", "names 'PATH'"),
    ],
)
def test_a_rule_nobody_can_keep_is_an_error_when_the_study_is_loaded(rule: str, words: str) -> None:
    with pytest.raises(StudyFileError, match=words):
        study(limits={"rules": [rule]})


def test_a_fault_at_any_value_is_found_before_anything_starts() -> None:
    """The reference's own values would pass: only the last combination divides by zero."""
    with pytest.raises(ValueError, match="divides by zero"):
        check_rules(["64 // (batch - accumulate) > 0"], {"batch": [16, 2], "accumulate": [1, 2]})


def test_a_first_set_that_breaks_a_rule_is_an_error() -> None:
    first = [{"name": "mine", "options": {"batch": 8}}]
    search = {"options": {"batch": [8, 16]}, "first": first}
    with pytest.raises(StudyFileError, match=r"`mine` breaks 'batch == 16 or accumulate == 2'"):
        study(search=search, limits={"rules": ["batch == 16 or accumulate == 2"]})
    with pytest.raises(StudyFileError, match=r"the reference breaks 'batch == 8'"):
        study(limits={"rules": ["batch == 8"]})


def test_the_study_tells_of_any_set() -> None:
    spec = study(limits={"rules": ["batch * accumulate == 16"]})
    assert spec.broken_rule(FlagSet({"option.batch": "8"})) == "batch * accumulate == 16"
    assert spec.broken_rule(FlagSet({"option.batch": "8", "option.accumulate": "2"})) is None


def test_a_study_with_a_limit_is_another() -> None:
    assert study().identity == study(limits={}).identity
    assert study(limits={"memory": "72GiB"}).identity != study().identity


@pytest.mark.parametrize(
    ("text", "value"), [("72GiB", 72 << 30), ("80GB", 80 * 10**9), ("1.5 MiB", 3 << 19), (1024, 1024), ("7B", 7)]
)
def test_sizes(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "72 gigs", "1e9", "nan", True, "9999999TiB", "1GiBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size must"):
        parse_bytes(text)


def test_settings_in_rules_are_told_apart_from_options() -> None:
    spec = study(limits={"rules": ["batch < 32 or xla_gpu_a or NCCL_NTHREADS == 4"]})
    assert spec.rule_settings == ("NCCL_NTHREADS", "xla_gpu_a")


def test_a_rule_that_is_none_is_told_where_it_stands() -> None:
    with pytest.raises(ValueError, match=r"`limits\.rules` must be: .* holds a call"):
        check_rules(["__import__('os').system('x')"], {})
