"""Which variables a text sets, by the language that it is written in."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.model.errors import SettingError
from autotune.model.flags import FlagSet
from autotune.settings.assignments import COMPUTED, read_assignments
from autotune.settings.check import SettingVerdict, check_given, check_text, migrate_text
from autotune.settings.known import KnownSettings
from tests.tables import toml_beside

CASES = toml_beside(__file__)
READ = toml_beside(__file__, "assignments.toml")["case"]
LIVES = toml_beside(__file__, "lives.toml")["lives"]
FILES = toml_beside(__file__, "public_files.toml")["file"]


@pytest.mark.parametrize("case", READ, ids=lambda case: case["text"][:30])
def test_assignments_are_read_as_their_language_makes_them(case: dict[str, Any]) -> None:
    assert dict(read_assignments(case["text"])) == case["sets"]


@pytest.mark.parametrize("case", LIVES, ids=lambda case: case["name"])
def test_only_what_is_alive_counts_and_what_is_never_read_is_named(case: dict[str, Any]) -> None:
    assert [list(pair) for pair in read_assignments(case["text"])] == case["sets"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file["name"])
def test_a_file_of_a_public_shape_is_read_whole(file: dict[str, Any]) -> None:
    found = [(name, " ".join(value.split())) for name, value in read_assignments(file["text"])]
    assert sorted(found) == sorted((name, value) for name, value, _ in file["sets"])
    lines = file["text"].splitlines()
    assert all(name in lines[at - 1] or value.split("=")[0] in lines[at - 1] for name, value, at in file["sets"])


LEVEL, GEMM = "xla_gpu_autotune_level", "xla_gpu_enable_triton_gemm"


@pytest.mark.parametrize(("text", "verdicts"), CASES["judged"])
def test_a_script_is_judged_as_its_process_would_read_it(cuda: KnownSettings, text: str, verdicts: list[str]) -> None:
    assert [str(c.verdict) for c in check_text(text, cuda)] == verdicts


@pytest.mark.parametrize("given", [[f"export XLA_FLAGS='--{LEVEL}=3'"], [f"XLA_FLAGS=--{LEVEL}=3", "NCCL_PROTO=LL"]])
def test_flags_may_be_given_as_their_assignment(cuda: KnownSettings, given: list[str]) -> None:
    checks = check_given(cuda, flags=given, recipe=None, file=None, from_environment=False)
    assert {c.name for c in checks} <= {LEVEL, "NCCL_PROTO"}
    assert {c.verdict for c in checks} == {SettingVerdict.EFFECTIVE}


ALTERNATIVES = "if a; then\nexport NCCL_PROTO=LL\nelse\nexport NCCL_PROTO=Simple\nfi\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (ALTERNATIVES, "2, 4"),
        (f"export XLA_FLAGS=--{LEVEL}=3\npython a.py\nexport XLA_FLAGS=--{LEVEL}=2\npython b.py\n", "1, 3"),
        (
            f"import os\nif x:\n  os.environ['XLA_FLAGS'] = '--{LEVEL}=3'\nelse:\n"
            f"  os.environ['XLA_FLAGS'] = '--{LEVEL}=2'\n",
            "3, 5",
        ),
    ],
    ids=["branches of a shell", "two programs", "branches of Python"],
)
def test_alternatives_are_not_merged_but_named_with_their_lines(cuda: KnownSettings, text: str, lines: str) -> None:
    with pytest.raises(SettingError, match=rf"lines {lines}"):
        migrate_text(text, cuda)
    assert len(check_text(text, cuda)) == 2


def test_what_is_not_read_is_named_with_its_lines(cuda: KnownSettings) -> None:
    (check,) = check_text(f"if '--{LEVEL}' in flags:\n  pass\n# \nprint('--{LEVEL}')\n", cuda)
    assert check.verdict is SettingVerdict.NOT_JUDGED
    assert "lines 1, 4" in check.advice


def test_a_file_that_speaks_of_gpus_is_judged_for_gpus_without_their_plugin(known: KnownSettings) -> None:
    (check,) = check_text("export NCCL_PROTO=LL\n", known)
    assert check.verdict is SettingVerdict.EFFECTIVE
    on_cpu = check_text("export JAX_PLATFORMS=cpu NCCL_PROTO=LL\n", known)
    assert {c.verdict for c in on_cpu if c.name == "NCCL_PROTO"} == {SettingVerdict.NO_EFFECT}
    assert migrate_text("export NCCL_PROTO=LL\n", known) == FlagSet({"NCCL_PROTO": "LL"})
    check, *_ = check_text("export XLA_CLIENT_MEM_FRACTION=-1\n", known)
    assert check.verdict is SettingVerdict.BAD_VALUE


@pytest.mark.parametrize(("text", "verdicts"), CASES["judged_values"], ids=lambda case: str(case)[:40])
def test_values_of_variables_are_judged(cuda: KnownSettings, text: str, verdicts: list[Any]) -> None:
    (check,) = check_text(text, cuda)
    assert [str(check.verdict), check.starts] == verdicts[:2]
    assert all(word in f"{check.reason} {check.advice}" for word in verdicts[2:])


@pytest.mark.parametrize(("text", "settings"), CASES["migrated"])
def test_what_a_script_sets_is_migrated_and_no_more(cuda: KnownSettings, text: str, settings: dict[str, str]) -> None:
    assert dict(migrate_text(text, cuda)) == settings


@pytest.mark.parametrize(
    "text",
    [
        "A=xx\n" + "A=$A$A\n" * 99 + "NCCL_PROTO=$A",
        "import os\nx = 'a'\n" + "x = x + x\n" * 99 + "f(NCCL_PROTO=x)",
        "NCCL_PROTO=" + "${A:-" * 9999,
        "import os\nx = " + "+".join(["'a'"] * 9999),
        "a: " + "[" * 1500,
        "{{" * 1500,
        "name: A value: " * 9999,
        'SCRIPT="${S:-$(cd "$D/.." && pwd)}"\n' * 999,
        "a: &a [NCCL_PROTO=LL]\n" + "".join(f"b{i}: &b{i} [*{f'b{i - 1}' if i else 'a'}, *a]\n" for i in range(99)),
    ],
)
def test_no_text_takes_memory_or_time_beyond_its_size(text: str) -> None:
    assert all(len(value) <= 2**24 for _, value in read_assignments(text))
    assert COMPUTED not in dict(read_assignments("NCCL_PROTO=LL"))["NCCL_PROTO"]
