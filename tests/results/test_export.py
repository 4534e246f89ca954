"""Every format is read back by the program it is for, with values that try to break out of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.model.errors import AutotuneError
from autotune.model.flags import FlagSet
from autotune.model.options import option_sets
from autotune.results.export import FORMATS, how_to_use, is_unchanged, parse_winner, read_winner, render_winner
from autotune.results.winner import Winner, winner_of
from autotune.rundir.store import Store
from tests.runs import EFFECTS, Run, make_winner, replay_study, rewrite
from tests.tables import toml_beside

CASES = toml_beside(__file__)
ALL = CASES["hostile_settings"]

Read = Callable[[str, Path], dict[str, str]]


def script(command: list[str], *, extra: dict[str, str] | None = None, name: str = "winner.sh") -> Read:
    """Reads a script by a command run in its folder; `srun` and `python3` tell their environment."""

    def read(text: str, folder: Path) -> dict[str, str]:
        (folder / name).write_text(text, encoding="utf-8", newline="")
        tools = folder / "bin"
        tools.mkdir()
        for tool in ("srun", "python3"):
            (tools / tool).write_text("#!/bin/sh\nenv -0\n")
            (tools / tool).chmod(0o755)
        env = {"PATH": f"{tools}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/", **(extra or {})}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=True, timeout=30)
        pairs = [e.partition("=") for e in done.stdout.decode().split("\0") if e]
        return {key: value for key, _, value in pairs}

    return read


def docker_grammar(text: str, folder: Path) -> dict[str, str]:
    """Docker's env-file as its command line reads it: docker/cli, pkg/kvfile."""
    found = {}
    for line in text.split("\n"):
        line = line.removesuffix("\r").lstrip()
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert not re.search(r"\s", name)
            found[name] = value
    return found


READERS: dict[str, Read] = {
    "env": script(["sh", "-c", ". ./winner.sh; env -0"]),
    "shell": script(["sh", "winner.sh", "env", "-0"]),
    "docker": docker_grammar,
    "sbatch": script(["bash", "winner.sh", "python", "train.py"]),
    "json": lambda text, _: dict(json.loads(text)["environment"]),
    "maxtext": script(["bash", "winner.sh", "base.yml"]),
}

OF_OPTIONS = {"arguments"}  # read below
OF_SETTINGS = [form for form in FORMATS if form not in OF_OPTIONS]


def test_every_format_has_a_reader() -> None:
    assert {*READERS, *OF_OPTIONS} == set(FORMATS)


@pytest.mark.parametrize("form", OF_SETTINGS)
def test_hostile_values_arrive_unchanged_and_nothing_runs(form: str, tmp_path: Path) -> None:
    winner = make_winner(ALL)
    text = render_winner(winner, form)
    got = READERS[form](text, tmp_path)
    assert {n: got.get(n) for n in winner.environment} == winner.environment
    assert FlagSet.from_environment(got, [n for n in ALL if not n.startswith("xla")]) == FlagSet(ALL)
    assert not list(tmp_path.rglob("canary"))


@given(st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" ")))
@settings(deadline=None, max_examples=60)
def test_any_text_comes_back_from_json(value: str) -> None:
    winner = make_winner({"NCCL_X": value, "xla_gpu_x": value})
    assert READERS["json"](render_winner(winner, "json"), Path()) == winner.environment


def test_sbatch_asks_for_what_was_proven() -> None:
    text = render_winner(make_winner({"NCCL_X": "1"}), "sbatch")
    assert "#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n" in text


@pytest.mark.parametrize(
    ("form", "command"),
    [("shell", "sh winner.sh env -0"), ("env", "set -u; . ./winner.sh; env -0")],
)
def test_shell_formats_keep_the_callers_flags_before_the_winners(form: str, command: str, tmp_path: Path) -> None:
    text = render_winner(make_winner({"xla_gpu_a": "2"}), form)
    mine = {"XLA_FLAGS": "--xla_gpu_a=1 --xla_gpu_z=3"}
    got = script(["sh", "-c", command], extra=mine)(text, tmp_path)
    assert FlagSet.parse(got["XLA_FLAGS"]) == FlagSet({"xla_gpu_a": 2, "xla_gpu_z": 3})


@pytest.mark.parametrize("form", list(FORMATS))
def test_a_changed_file_is_noticed(form: str) -> None:
    winner = make_winner({"NCCL_X": "proven"})
    text = render_winner(winner, form)
    assert is_unchanged(text, winner)
    head, found, tail = text.rpartition("proven")
    assert not is_unchanged(f"{head}better{tail}" if found else "", winner)


def test_the_run_itself_is_exported_with_its_baseline(finished: Store, tmp_path: Path) -> None:
    file = tmp_path / "winner.env"
    file.write_text(render_winner(winner_of(finished), "env"))
    winner = read_winner(file)
    assert winner == read_winner(finished.path)
    assert winner.settings == FlagSet({"xla_a": "1", "xla_d": "2", "NCCL_DEBUG": "WARN"})
    assert winner.step_s == pytest.approx(0.03 * 0.95 * 0.97, rel=0.01)


@pytest.mark.parametrize(
    "text", ["", "export A=1\n", "# autotune-winner: {", "[]", '{"winner": 3}', "# autotune-winner: {}"]
)
def test_files_that_hold_no_winner_are_refused(text: str) -> None:
    with pytest.raises(AutotuneError, match="export it"):
        parse_winner(text, source="file")


def test_a_winner_of_a_later_form_is_refused() -> None:
    text = render_winner(make_winner({"NCCL_X": "1"}), "env").replace('"winner_version":2', '"winner_version":3')
    with pytest.raises(AutotuneError, match="winner_version"):
        parse_winner(text, source="file")


OPTIONS = CASES["hostile_options"]


@pytest.fixture
def winner() -> Winner:
    return make_winner({"xla_gpu_a": "1", **option_sets(OPTIONS)})


@pytest.mark.parametrize("form", list(FORMATS))
def test_every_format_carries_evidence_and_the_whole_winner(form: str) -> None:
    whole = make_winner({**ALL, **option_sets(OPTIONS)})
    text = render_winner(whole, form)
    assert parse_winner(text, source="x") == whole
    assert whole.options == OPTIONS
    for said in ("0.950 [0.940, 0.960]", "expires with any change of GPU", "batch=16"):
        assert said in text
    assert "option." not in "\n".join(line for line in text.splitlines() if not line.startswith(("#", " ", "{", "}")))


def read_flag_file(text: str, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """What absl makes of a flag file, in a program that has these flags."""
    (folder / "winner.flags").write_text(text, encoding="utf-8")
    program = flags.FlagValues()
    for name in names:
        flags.DEFINE_string(name, None, "", flag_values=program)
    program(["train.py", f"--flagfile={folder}/winner.flags"])
    return {name: str(program[name].value) for name in names}


def test_options_are_data_in_json_and_arguments_in_a_flag_file(winner: Winner, tmp_path: Path) -> None:
    assert json.loads(render_winner(winner, "json"))["options"] == OPTIONS
    got = read_flag_file(render_winner(winner, "arguments"), tmp_path, OPTIONS)
    assert {n: v if n == "attention" else json.loads(v) for n, v in got.items()} == OPTIONS
    text = render_winner(make_winner({"xla_gpu_a": "1"}), "arguments")
    assert all(line.startswith("#") for line in text.splitlines())


def test_options_arrive_in_maxtext_and_nothing_runs(winner: Winner, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(render_winner(winner, "maxtext"), encoding="utf-8")
    (tmp_path / "bin").mkdir()
    show = "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
    (tmp_path / "bin" / "python3").write_text(show)
    (tmp_path / "bin" / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", "file", "c"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    got = done.stdout.split("\0")
    assert {"batch=16", "mesh.fsdp=8", "mesh.tensor=2", f"attention={OPTIONS['attention']}"} <= set(got)
    assert not list(tmp_path.rglob("canary"))


def test_a_run_tells_which_settings_have_not_shown_a_gain(run_replay: Run, tmp_path: Path) -> None:
    spec = replay_study(effects=EFFECTS, noise={"white_sd": 1e-6})
    first = (("both", FlagSet({"xla_a": "1", "xla_d": "2"})),)
    store = run_replay(spec, trials=2, first=first)[1]
    winner = winner_of(store)
    assert (winner.unsettled, len(winner.settings)) == (None, 2)

    def widen(records: list[dict[str, Any]]) -> None:
        for record in records:
            if record["kind"] == "ablation" and record["left_out"] == "xla_d":
                record["comparison"]["estimate"]["low"] = 0.9

    winner = winner_of(rewrite(tmp_path / "run", widen))
    assert winner.unsettled == ("xla_d",)
    assert " themselves: xla_d (" in render_winner(winner, "env")


@pytest.mark.parametrize("name", ["winner.env", "a folder/winner.env", "/FOLDER/winner.env"])
def test_a_shell_reads_the_file_as_the_hint_says(finished: Store, tmp_path: Path, name: str) -> None:
    file = Path(name.replace("/FOLDER", str(tmp_path)))
    there = tmp_path / file
    there.parent.mkdir(exist_ok=True)
    there.write_text(render_winner(winner_of(finished), "env"), encoding="utf-8")
    hint = how_to_use(FORMATS["env"], file)
    told = subprocess.check_output(["sh", "-c", f'{hint} && echo "$XLA_FLAGS"'], cwd=tmp_path, text=True)
    assert "xla_a=1" in told
