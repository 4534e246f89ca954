"""Secrets by name and by shape: redacted in commands, options and text, and nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autotune.model.errors import StudyFileError
from autotune.model.redaction import REDACTED, is_secret_name, redact_command, redact_data, redact_text, refuse_redacted
from autotune.model.sections import WITH_SECRETS
from autotune.model.spec import StudySpec, parse_study
from tests.tables import toml_beside

CASES = toml_beside(__file__, "secrets.toml")


def test_names_of_secrets_are_told_from_those_of_everyday_things() -> None:
    assert [n for n in CASES["secret_names"] if not is_secret_name(n)] == []
    assert [n for n in CASES["everyday_names"] if is_secret_name(n)] == []


@pytest.mark.parametrize("command", CASES["secret_commands"])
def test_secrets_of_a_command_are_redacted_once_and_for_all(command: list[str]) -> None:
    command = [re.sub(r"<(.+?)\*(\d+)>", lambda found: found[1] * int(found[2]), word) for word in command]
    redacted = redact_command(command)
    for secret in ("abc", "xyz", "...", "p@ss", "ss/w", "=12", "0123", "ABCD"):
        assert not any(secret in part for part in redacted), redacted
    assert "12" not in redacted
    assert len(redacted) == len(command)
    assert redacted[0] == command[0]
    assert redact_command(redacted) == redacted  # or a study would change when it is read back
    assert REDACTED in str(redacted)


@pytest.mark.parametrize("command", CASES["harmless_commands"])
def test_what_is_no_secret_stays(command: list[str]) -> None:
    assert redact_command(command) == tuple(command)


def test_secrets_of_options_are_redacted_wherever_they_lie() -> None:
    options: dict[str, Any] = {
        "api_key": "abc",
        "logging": {"wandb": {"key": "abc"}, "args": ["--token", "abc"]},
        "auth": {"user": "u"},
        "credentials": {"id": "abc", "pin": 1234},
        "password": 1234,
        "secrets": ["abc", "abc"],
        "mesh": {"fsdp": 8},
        "key": 7,
        "scan": True,
        "tokens": 4096,
        "lr": 1e-3,
        "note": "two words",
        "list": [1, None],
    }
    redacted = redact_data(options)
    assert "abc" not in str(redacted)
    assert "1234" not in str(redacted)
    kept = ("auth", "mesh", "key", "scan", "tokens", "lr", "note", "list")
    assert {n: redacted[n] for n in kept} == {n: options[n] for n in kept}
    assert redact_data(redacted) == redacted


@pytest.mark.timeout(30)
def test_shapes_are_found_wherever_they_stand_and_text_keeps_its_sense() -> None:
    said = "postgresql+psycopg://me:pw@h/db: refused; unexpected token: 'x'; KeyError: 'key'; password=pw&x=1"
    assert redact_text(said) == (
        f"postgresql+psycopg://me:{REDACTED}@h/db: refused; unexpected token: 'x'; KeyError: 'key'; "
        f"password={REDACTED}&x=1"
    )
    key = "AKIA" + "ABCD" * 4
    for text in (f"('{key}')", f"x={key}&y=1", f"[{key}, 1]", f"s3://{key}/x", f"{key}.\n"):
        assert redact_text(text) == text.replace(key, REDACTED)
    words = "adafruit curl -u ghp_ sk- password private-key -----BEGIN ey a3- s. "
    assert redact_text(words * 1000) == words * 1000


def study(*command: str, **more: Any) -> StudySpec:
    workload = {"command": ["python", "train.py", *command], "read": {"json_key": "step"}}
    return parse_study({"name": "s", "workload": workload, **more})


def test_a_study_keeps_its_secrets_out_of_dumps_and_identity() -> None:
    one, other = study("--token", "abc"), study("--token", "def")
    assert one.identity == other.identity
    assert one.workload_hash == other.workload_hash
    assert one.workload.command != other.workload.command
    again = StudySpec.model_validate(one.model_dump(mode="json"))
    assert again.identity == one.identity
    assert one.identity != study("--lr", "abc").identity
    spec = study("--token", "hunter2", "--password=hunter2")
    for text in (str(spec.model_dump()), spec.model_dump_json(), str(spec.lasting()), str(spec.workload.shown.command)):
        assert "hunter2" not in text
    assert spec.workload.command == ("python", "train.py", "--token", "hunter2", "--password=hunter2")
    assert StudySpec.model_validate(spec.model_dump(context=WITH_SECRETS)) == spec


def test_neither_a_description_nor_an_error_shows_a_secret() -> None:
    assert "hunter2" not in study(description="with --token hunter2").description
    for wrong in ({"command": ["x", "--token", "hunter2", 5]}, {"command": "x --token hunter2"}, {"entry": 5}):
        with pytest.raises(StudyFileError) as error:
            parse_study({"name": "s", "workload": {"options": {"api_key": "hunter2"}, **wrong}})
        assert "hunter2" not in str(error.value)


def test_what_was_redacted_is_refused_and_shown_without_the_other_secrets() -> None:
    spec = study("--token", "***", "--wandb-key=abc")
    with pytest.raises(StudyFileError, match=r'has \*\*\* .*"--token", "\*\*\*".*; give') as error:
        refuse_redacted(spec.workload.command, spec.workload.options, source="the run", advice="give it again")
    assert "abc" not in str(error.value)
    refuse_redacted(study("--lr", "1").workload.command, {}, source="the run", advice="none is needed")
