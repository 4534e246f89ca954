from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.spec import load_study, parse_study
from tests.tables import toml_beside

MINIMAL = {"name": "s", "workload": {"entry": "llama"}}


def broken(**more: object) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_study({**MINIMAL, **more}, source="x.toml")
    return str(caught.value)


def test_every_problem_is_told_at_once_and_a_misspelt_key_named() -> None:
    message = broken(serach={"trials": 3}, measure={"pair_cap": 3})
    assert "x.toml" in message
    assert re.search("`serach` .*`search`", message)
    assert re.search("`measure.pair_cap` .*`pairs_cap`", message)
    with pytest.raises(StudyFileError, match="`workload` must"):
        parse_study({"name": "s"})
    message = broken(search={"trials": 0}, measure={"pairs_cap": 1}, extra=1)
    assert message.count("\n  - ") == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'name = "s"\nworkload = {', r"s\.toml must be TOML but: .*end of document"),
        (b"\xff\xfe\x00", "UTF-8"),
        (None, r"did you mean `s\.toml`"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(content or b"")
    with pytest.raises(StudyFileError, match=said):
        load_study(file if content is not None else tmp_path / "ss.toml")


def refused_studies() -> Iterator[tuple[dict[str, Any], str]]:
    """The studies of `refused_studies.toml`, each whole, and what is said of it."""
    for group in toml_beside(__file__, "refused_studies.toml").values():
        for row in group["refused"]:
            said, study = row.pop("said"), {"name": "s", **group.get("study", {})}
            for key, value in row.items():
                study[key] = {**study.get(key, {}), **value} if isinstance(value, dict) else value
            yield study, said


@pytest.mark.parametrize(("study", "said"), list(refused_studies()))
def test_a_study_that_cannot_be_is_refused_when_it_is_read(study: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyFileError, match=said):
        parse_study(study)


def test_an_identity_is_of_what_is_measured_and_survives_json() -> None:
    base = parse_study(MINIMAL)
    assert parse_study({**MINIMAL, "search": {"trials": 99}}).identity == base.identity
    assert parse_study({**MINIMAL, "seed": 1}).identity != base.identity
    assert parse_study({**MINIMAL, "measure": {"pairs_cap": 41}}).identity != base.identity
    base = parse_study(MINIMAL)
    assert parse_study({**MINIMAL, "baseline": {"xla_a": 1}}).workload_hash == base.workload_hash
    assert parse_study({**MINIMAL, "device": {"count": 2}}).workload_hash != base.workload_hash
    spec = parse_study({**MINIMAL, "baseline": {"xla_a": True}, "search": {"settings": {"xla_b": [1, 2]}}})
    assert type(spec).model_validate(spec.model_dump(mode="json")) == spec

    def identity(**more: object) -> str:
        return parse_study({**MINIMAL, **more}).identity

    assert identity(device={"nic_bytes_per_s": 12.5e9}) == identity()
    assert "device.nic_bytes_per_s" in broken(device={"nic_bytes_per_s": 0})


def test_what_the_study_as_a_whole_must_fulfil_is_said_without_an_empty_key() -> None:
    workload = {"command": ["train"], "hook": True}
    with pytest.raises(StudyFileError) as caught:
        parse_study({"name": "s", "workload": workload, "device": {"process_count": 2, "count": 2}})
    assert "``" not in str(caught.value)
    assert "`device.process_count` is" in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"entry": "llama"}, ["python", "-m", "workloads", "llama"]),
        (
            {"entry": "llama", "options": {"size": "a b", "seq": 64}},
            ["python", "-m", "workloads", "llama", "--set", 'size="a b"', "--set", "seq=64", "--set", "batch={batch}"],
        ),
        ({"command": ["python", "my own.py"], "read": {"pattern": r"step (?P<step>\d+)"}}, ["python", "my own.py"]),
    ],
)
def test_the_command_to_use_a_winner_with_is_the_study_s_own(workload: dict[str, Any], words: list[str]) -> None:
    searched = ["batch"] if "batch={batch}" in words else []
    spec = parse_study({"name": "s", "workload": workload})
    assert shlex.split(spec.workload.command_line(searched)) == words


ENDLESS = {
    "many digits": 'name = "x"\nseed = ' + "9" * 100_000,
    "a long hexadecimal number": "seed = 0x" + "f" * 400,
    "many parts": "a." * 400_000 + "b = 1",
    "many quoted parts": '["a".' + '"a" . ' * 200 + "b]",
    "many bytes": "#" * 2_000_000,
    "many digits in a list": "x = [1, " + "1" * 5000 + "]",
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_study_file_without_an_end_is_refused_before_it_is_parsed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(StudyFileError, match="study file"):
        load_study(file)


def test_long_words_and_dots_in_a_text_are_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    words = ["x" * 400_000, "1.2.3" * 60, "see " + "." * 300, "0" * 500]
    file.write_text(f'name = "s"\nworkload = {{ command = {words!r}, hook = true }}\n')
    assert load_study(file).workload.command == tuple(words)
