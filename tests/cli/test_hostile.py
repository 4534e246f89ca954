"""Everything from outside is data: a run directory full of escapes, markup and HTML is shown, never obeyed."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from autotune.cli.app import main
from autotune.cli.printing import make_console
from autotune.model.clock import Stopwatch
from autotune.model.flags import FlagSet
from autotune.model.measurement import Failure
from autotune.model.records import RECORD, TrialConfig, TrialResult, TrialStatus
from autotune.model.redaction import visible, visible_line
from autotune.model.spec import StudySpec
from autotune.results.api import load
from autotune.results.export import FORMATS
from autotune.results.live import LineView
from autotune.rundir.store import Store
from tests.tables import toml_beside

EVIL = "\x1b[31m\x1b]0;pwned\x07[/b][old]`x`<script>alert(1)</script>|\u202e\x9b2J\n# new\r:smile: [a](http://e)"
"""A title for the terminal, markup of Rich, Markdown and HTML, an override of direction, C1, a line of its own."""

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


NAMES = "kind|status|directory|stage"
SETTINGS = "(xla|NCCL)_.*"


def evil(data: Any, check: Any, place: tuple[Any, ...] = (), *, keep: str = NAMES) -> Any:
    """A record with `EVIL` in every text that may hold it: those after which the record is still legal."""
    inner = data
    for key in place:
        inner = inner[key]
    if isinstance(inner, dict | list):
        for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
            data = evil(data, check, (*place, key), keep=keep)
    elif isinstance(inner, str) and not re.fullmatch(keep, str(place[-1])):
        changed = json.loads(json.dumps(data))
        at = changed
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = inner + EVIL
        try:
            check(changed)
        except ValueError:
            return data
        return changed
    return data


MORE = [RECORD.validate_python(record) for record in toml_beside(__file__)["hostile_records"]]


@pytest.fixture(scope="module")
def runs(finished: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three such run directories, in a folder with such a name; the values of settings are plain in one."""
    root = tmp_path_factory.mktemp("hostile") / EVIL.replace("/", "")
    lines = (finished.path / "records.jsonl").read_text().splitlines()
    lines += [r.model_dump_json(exclude_none=True) for r in MORE]
    for name in ("plain", "a", "b"):
        keep = f"{NAMES}|{SETTINGS}" if name == "plain" else NAMES
        records = [evil(json.loads(line), RECORD.validate_python, keep=keep) for line in lines]
        # Whoever wants to be believed keeps the raw samples of the proof.
        shutil.copytree(finished.path, root / "runs" / name)
        study = json.loads((finished.path / "study.json").read_text())
        study["study"] = evil({**study["study"], "name": name}, StudySpec.model_validate, keep=keep)
        study["study"]["workload"]["options"] = {"note": EVIL, "deep": [EVIL, {"x": EVIL}]}
        study["study_dir"] += EVIL
        study["identity"] = StudySpec.model_validate(study["study"]).identity
        records = [r | {"identity": study["identity"]} if r["kind"] == "session" else r for r in records]
        (root / "runs" / name / "study.json").write_text(json.dumps(study))
        (root / "runs" / name / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    for key in ("message", "what", "sentence", "host", "device_kind", "origin", "cpu", "left_out", "reason"):
        assert re.search(rf'"{key}": "[^"]*pwned', json.dumps(records)), key
    return root


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def call(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, kind: type[io.StringIO] = io.StringIO
) -> tuple[io.StringIO, io.StringIO]:
    """What the command prints, in this process; any other end than an exit status is a crash."""
    out, err = kind(), kind()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["autotune", *arguments])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code in (0, 1, 2, None), end.value.code
    return out, err


STYLES = re.compile(r"\x1b\[[0-9;]*m|\r\n|\x1b\[\?25[lh]|\r?\x1b\[(?:2K|1A)")  # and the cursor of its status line


def assert_harmless(out: io.StringIO, err: io.StringIO) -> None:
    for stream in (out, err):
        text = stream.getvalue()
        if isinstance(stream, Terminal):  # Rich's own colours: none that `EVIL` has, for Rich never writes 31 alone
            assert "\x1b[31m\\u001b" not in text
            text = STYLES.sub("", text)
        assert not OBEYED.search(text), ascii(text[max(0, OBEYED.search(text).start() - 80) :][:160])  # type: ignore[union-attr]
        assert "😄" not in text
        assert "\n# new" not in text


CALLS = Path(__file__).with_name("hostile_calls.txt").read_text(encoding="utf-8").splitlines()[1:]
COMMANDS = [[EVIL if word == "EVIL" else word for word in line.split()] for line in CALLS]
COMMANDS += [["show", "\udcff"], ["--" + EVIL]]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal], ids=["pipe", "terminal"])
def test_no_command_obeys_or_stumbles(
    kind: type[io.StringIO], runs: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("TERM", "xterm-256color")
    (runs / "evil.toml").write_text(f'name = "x"\n[workload]\nentry = "llama"\n{json.dumps(EVIL[:30])} = 1\n')
    (runs / "torn.toml").write_bytes(b"name = \x1b[31m\n")
    (runs / "damaged").mkdir(exist_ok=True)
    study = {"schema_version": 3, "study_dir": "", "study": {EVIL: EVIL}}
    (runs / "damaged/study.json").write_text(json.dumps(study))
    for arguments in COMMANDS:
        with subtests.test(command=visible_line(" ".join(arguments))):
            out, err = call(monkeypatch, *arguments, kind=kind)
            assert out.getvalue() + err.getvalue(), "it said nothing"
            assert_harmless(out, err)
            if "--json" in arguments and out.getvalue():
                json.loads(out.getvalue())


def test_json_carries_what_is_spelt_out_unchanged(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = call(monkeypatch, "show", str(runs / "runs/a"), "41", "--json")
    assert json.loads(out.getvalue())["failure"]["message"] == "died" + EVIL


@pytest.mark.parametrize("form", list(FORMATS))
def test_an_exported_file_has_no_such_character_but_in_the_value_of_a_setting(
    form: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out"
    _, err = call(monkeypatch, "export", str(runs / "runs/plain"), "--format", form, "-o", str(file))
    assert file.exists(), err.getvalue()
    out, _ = call(monkeypatch, "export", str(runs / "runs/plain"), "--format", form)
    assert out.getvalue() == file.read_text()
    assert "pwned" in file.read_text()
    assert not OBEYED.search(file.read_text())
    assert "\n# new" not in file.read_text()


def test_a_page_shows_it_as_text(runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(runs)
    call(monkeypatch, "report", "runs/a", "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "pwned" in page
    assert "<script" not in page
    assert not OBEYED.search(page)


def test_markdown_shows_it_as_text(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = call(monkeypatch, "report", str(runs / "runs/a"), "--md")
    prose, code, rest = out.getvalue().split("```")
    assert "pwned" in prose
    assert "pwned" in code
    for text in (prose, rest):
        assert "<script" not in text
        assert "](" not in text.replace("\\](", "")
        assert not re.search(r"(?<!\\)`", text)
        assert "\n# new" not in text
    rows = [line for line in prose.splitlines() if line.startswith("| 1 |")]
    heads = [line for line in prose.splitlines() if line.startswith("| trial |")]
    assert len(re.findall(r"(?<!\\)\|", rows[-1])) == len(re.findall(r"(?<!\\)\|", heads[-1]))


def test_status_fits_a_terminal_of_eighty_columns(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", "80")
    lines = STYLES.sub("", call(monkeypatch, "status", kind=Terminal)[0].getvalue()).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.startswith("runs/") for line in lines) == len(list(runs.glob("runs/*/study.json")))


def test_a_notebook_shows_it_as_text(runs: Path) -> None:
    study = load(runs / "runs/a")
    for text in (repr(study), html := study._repr_html_(), study.plot.forest()._repr_html_()):
        assert not OBEYED.search(text)
    assert "<script" not in html


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_what_is_told_while_a_study_runs(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := stream())
    console, watch = make_console(), Stopwatch()
    config = TrialConfig(number=1, settings=FlagSet({"xla_a": "[/b][old]`x`<script>"}), origin=EVIL, params={})
    with LineView(console, watch, min_effect=0.005) as view:
        view.stage(EVIL, EVIL)
        view.phase(EVIL, lane=EVIL)
        view.pair([0.0])
        view.note(EVIL)
        view.trial_starts(config, 5)
        failure = Failure(kind="crash", message=EVIL, phase="x")
        view.result(TrialResult(**dict(config), status=TrialStatus.FAILED, failure=failure))
    assert "pwned" in out.getvalue()
    assert_harmless(out, io.StringIO())


def test_what_is_spelt_out_and_what_is_not() -> None:
    assert visible("a\x1b[31m\u202e\x9b\udcff\r") == "a\\u001b[31m\\u202e\\u009b\\udcff\\u000d"
    assert visible("é 漢字 👍🏽 שלום\t\n[/b]") == "é 漢字 👍🏽 שלום\t\n[/b]"
    assert visible_line("a\n\tb") == "a\\n\\tb"
