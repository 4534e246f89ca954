"""Options of a workload as part of a set."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import SettingError, StudyFileError
from autotune.model.flags import FlagSet
from autotune.model.options import (
    dotted,
    filled,
    filled_command,
    has_shell,
    option_sets,
    option_setting,
    option_text,
    options_in,
    unsafe_for_shells,
)
from autotune.model.spec import StudySpec, parse_study
from tests.tables import toml_beside

CASES = toml_beside(__file__)

ENTRY = {"entry": "llama-small", "options": {"batch": 8}}
COMMAND = CASES["command"]


def study(workload: dict[str, Any] = ENTRY, **search: Any) -> StudySpec:
    return parse_study({"name": "s", "workload": workload, "search": search})


def test_an_option_travels_as_json_and_people_read_it_by_its_name() -> None:
    settings = FlagSet({"xla_gpu_a": "1", **option_sets({"mesh": {"fsdp": 2, "data": 1}, "kind": "xla"})})
    assert settings["option.mesh"] == '{"data":1,"fsdp":2}'
    assert settings.to_environment() == {"XLA_FLAGS": "--xla_gpu_a=1"}
    assert options_in(settings) == {"mesh": {"data": 1, "fsdp": 2}, "kind": "xla"}
    assert option_text({"b": 1, "a": [True, None]}) == option_text({"a": [True, None], "b": 1})
    settings = FlagSet({"xla_a": "1", **option_sets({"remat": "dots", "batch": 16, "note": "two words", "n": "1"})})
    assert str(settings) == 'batch=16 n=1 note="two words" remat=dots xla_a=1'


@pytest.mark.parametrize("name", ["a.b", "", "x y", "--x", "folder", "api_key", "é", "n" * 65])
def test_a_name_that_no_keyword_has_is_refused(name: str) -> None:
    with pytest.raises(SettingError):
        option_setting(name)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_a_value_that_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match="option's value"):
        option_text(value)


def test_a_value_that_is_no_json_is_refused_when_it_is_read() -> None:
    with pytest.raises(SettingError, match=r"option\.batch"):
        options_in(FlagSet({"option.batch": "{1"}))
    with pytest.raises(SettingError, match="be JSON"):
        options_in(FlagSet({"option.batch": "[" * 100_000}))


HOSTILE = CASES["hostile_values"]
SCRIPTS = ("printf '<%s>' {x}", "printf '<%s>' \"{x}\"", "printf '<%s>' '{x}'", "printf <%s> {x} '")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_shell_gets_each_value_as_one_word_or_not_at_all(tmp_path: Path, script: str) -> None:
    shown = 0
    for value in (*HOSTILE, "16", "a/b=c,d"):
        try:
            (line,) = filled_command([script], {"x": value})
        except SettingError:
            continue
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        shown += done.stdout == f"<{value}>"
        assert done.stdout in (f"<{value}>", ""), line
    assert [p.name for p in tmp_path.iterdir()] == []
    assert shown == (0 if script == SCRIPTS[3] else 2)


def test_an_argument_by_itself_gets_each_value_as_it_is() -> None:
    for value in HOSTILE:
        assert filled_command(["--batch={x}", "NAME=as {x}"], {"x": value}) == [f"--batch={value}", f"NAME=as {value}"]
    assert filled_command(["bash", "-lc", "NAME=1 run {x}"], {"x": 8})[2] == "NAME=1 run 8"
    with pytest.raises(SettingError, match="x is '8; touch X'"):
        filled_command(["bash", "-lc", "NAME=1 run {x}"], {"x": "8; touch X"})
    with pytest.raises(StudyFileError, match="one word"):
        parse_study(CASES["unsafe_script"])


SHELL_FORMS = [
    ("bash", "-c", "echo${IFS}train{x}"),
    ("sh", "-ec", "t{x}"),
    ("bash", "-c", "-x", "t{x}"),
    ("/bin/zsh", "-lc", "{x}"),
    ("srun", "-n1", "bash", "--norc", "-c", "{x}"),
    ("ssh", "host", "python", "train.py", "--batch={x}"),
    ("env", "A=1", "eval", "train", "{x}"),
    ("su", "me", "--command", "t{x}"),
    ("docker", "run", "image", "sh", "-c", "{x}"),
    ("make", "train", "BATCH={x}"),
    ("sbatch", "--wrap=train{x}"),
    ("tmux", "new", "-d", "train{x}"),
]
CODE_FORMS = [
    ("python", "-c", "train({x})"),
    ("srun", "/opt/python3.12", "-u", "-c", "t{x}"),
    ("perl", "-e", "{x}"),
    ("node", "--eval", "t({x})"),
    ("env", "-S", "train{x}"),
]


@pytest.mark.parametrize("command", [*SHELL_FORMS, *CODE_FORMS], ids=" ".join)
def test_what_is_read_as_code_is_a_script_with_or_without_a_blank(command: tuple[str, ...]) -> None:
    assert has_shell(command) == (command in SHELL_FORMS)
    assert "8" in filled_command(command, {"x": 8})[-1]
    for value in HOSTILE:
        with pytest.raises(SettingError, match="one word"):
            filled_command(command, {"x": value})


@pytest.mark.parametrize(
    "command",
    [("python", "train.py", "-c", "{x}"), ("sh", "train.sh", "{x}"), ("python", "-u", "t.py", "{x}")],
    ids=" ".join,
)
def test_a_word_of_a_program_is_no_script(command: tuple[str, ...]) -> None:
    assert filled_command(command, {"x": "a;b"})[-1] == "a;b"
    assert has_shell(command) == (command[0] == "sh")
    assert unsafe_for_shells(command, {"x": "a;b", "y": ";"}) == ["x"]


def test_no_value_is_filled_in_twice_and_tables_are_taken_apart() -> None:
    assert filled("{a}{b}{c}", {"a": "{b}", "b": 3}) == "{b}3{c}"
    assert dotted({"mesh": {"a": {"b": 1}}, "x": {}}) == {"mesh.a.b": 1, "x": {}}


def test_the_reference_has_the_workloads_value_else_the_first() -> None:
    spec = study(options={"batch": [8, 16], "attention": ["xla", "cudnn"]})
    assert spec.reference_options == {"batch": 8, "attention": "xla"}
    under = spec.under(FlagSet(option_sets({"batch": 16})))
    assert under.workload.options == {"batch": 16, "attention": "xla"}
    assert under.search.options == {}
    assert spec.under(FlagSet({"xla_a": "1"})).workload.options == {"batch": 8, "attention": "xla"}


def test_the_number_of_processes_is_an_option_of_an_entry() -> None:
    device = {"count": 4}
    search = {"options": {"process_count": [1, 2, 4]}}
    spec = parse_study({"name": "s", "workload": ENTRY, "device": device, "search": search})
    assert spec.under(FlagSet()).device.process_count == 1
    assert spec.under(FlagSet({"option.process_count": "4"})).device.process_count == 4
    assert "process_count" not in spec.under(FlagSet()).workload.options
    with pytest.raises(StudyFileError, match="process_count"):
        parse_study({"name": "s", "workload": ENTRY, "device": device, "search": {"options": {"process_count": [3]}}})


def test_a_command_has_options_in_its_arguments() -> None:
    spec = study(COMMAND, options={"batch": [8, 16], "attention": ["xla", "cudnn"]})
    under = spec.under(FlagSet(option_sets({"batch": 16, "attention": "cudnn"}))).workload
    assert under.arguments("/run/1") == ["python", "train.py", "--batch=16", "cudnn", "/run/1", "{literal}", '{"a": 1}']


def test_a_named_set_may_hold_options_of_the_study_and_no_others() -> None:
    spec = study(options={"batch": [8, 16]}, first=[{"name": "big", "options": {"batch": 16}}])
    assert spec.search.first[0].whole == FlagSet({"option.batch": "16"})
    with pytest.raises(SettingError, match="you mean"):
        study(options={"batch": [8, 16]}).under(FlagSet({"option.bach": "16"}))


def test_a_value_that_the_study_does_not_list_is_put_into_no_command() -> None:
    spec = study(COMMAND, options={"batch": [8, 16]}, first=[{"name": "big", "options": {"batch": 64}}])
    assert spec.under(FlagSet({"option.batch": "64"})).workload.options["batch"] == 64
    for text in ("32", '"; rm -rf ~"', '"--evil"'):
        with pytest.raises(SettingError, match="study lists"):
            spec.under(FlagSet(option_sets({"batch": json.loads(text)})))


@pytest.mark.parametrize("text", ['"\\u001b[2Jred"', '"a\\n--evil=1"', '["a", {"b": "c\\u0000"}]', '{"a\\tb": 1}'])
def test_what_json_hides_behind_a_backslash_ends_no_line(text: str) -> None:
    with pytest.raises(SettingError, match="printable text"):
        FlagSet({"option.x": text})


def limited(**sections: Any) -> StudySpec:
    return parse_study({**CASES["limited"], **sections})


def test_limits_are_part_of_a_studys_identity() -> None:
    assert limited().identity == limited(limits={}).identity
    assert limited(limits={"memory": "72GiB"}).identity != limited().identity
